"""Compiled episodes: random numbers, moves and the loop, for any learner whose rules are compiled."""

from collections.abc import Callable
from math import floor
from typing import Any

import numpy as np

from sb3_caps.extras import require

# Its own types do not follow a function through its decorator.
njit: Any = require("numba", "studies").njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
# Of the draws of a step, the first two are the noise of a move and the next three the start of an episode.
_START, LEARNER = 2, 5


@njit
def uniform(seed: Any, counter: int) -> float:
    """
    Draw a uniform random number, as ``Streams`` does.

    :param seed: where the stream of a run starts
    :param counter: the number of the draw
    :return: the draw that ``Streams`` has there
    """
    number = np.uint64(counter) * _GOLDEN + seed
    number = (number ^ (number >> _30)) * _FIRST
    number = (number ^ (number >> _27)) * _SECOND
    return ((number ^ (number >> _31)) >> _11) * 2.0**-53


@njit
def _inside(edge: int, draw: float) -> float:
    return min(edge + draw, np.nextafter(edge + 1.0, 0.0))


@njit
def _reset(world: Any, counter: int) -> None:
    cell = world.starts[int(uniform(world.seed, counter) * len(world.starts))]
    world.cell[0] = cell
    world.position[0] = _inside(cell // world.width, uniform(world.seed, counter + 1))
    world.position[1] = _inside(cell % world.width, uniform(world.seed, counter + 2))
    world.steps[0] = 0


@njit
def _move(world: Any, action: int, counter: int) -> None:
    """The rules of ``dynamics.py``."""
    along, across = (0, 1) if action < 2 else (1, 0)
    change_along = (2.0 * uniform(world.seed, counter + along) - 1.0) * world.noise + (1.0 if action % 2 else -1.0)
    change_across = (2.0 * uniform(world.seed, counter + across) - 1.0) * world.noise
    a, c = world.position[along], world.position[across]
    b, d = a + change_along, c + change_across
    start, end, lane, new_lane = floor(a), floor(b), floor(c), floor(d)
    turn = end
    if lane != new_lane:
        turn = floor(a + (b - a) * ((max(lane, new_lane) - c) / (d - c)))
        # Rounding must not put the turn beside the path.
        turn = min(max(turn, min(start, end)), max(start, end))
    along_stride, across_stride = (world.width, 1) if along == 0 else (1, world.width)
    old_row, new_row = lane * across_stride, new_lane * across_stride
    middle = ((start + end) >> 1) * along_stride
    blocked = (
        world.walls[turn * along_stride + old_row]
        or world.walls[turn * along_stride + new_row]
        or world.walls[end * along_stride + new_row]
        or world.walls[middle + (old_row if turn == end else new_row)]
    )
    if not blocked:
        world.position[along], world.position[across] = b, d
        world.cell[0] = end * along_stride + new_row
    world.steps[0] += 1


def make_loop(begin: Callable, act: Callable, learn: Callable, end: Callable) -> Callable[..., int]:
    """
    Compile the loop that steps one run.

    :param begin: a compiled rule: an episode begins
    :param act: the action of a step
    :param learn: from a step
    :param end: an episode has ended
    :return: a compiled function that steps one run
    """

    @njit
    def loop(world: Any, tables: Any, step: int, steps: int, stop: int) -> int:
        """Go on for ``steps`` steps from number ``step`` on, or until ``stop`` episodes are finished."""
        for done in range(steps):
            counter = (step + done) * world.columns
            own = counter + LEARNER
            state = world.cell[0]
            action = act(tables, state, world.seed, own)
            _move(world, action, counter)
            reached = world.cell[0] == world.goal
            reward = world.reward if reached else 0.0
            learn(tables, state, action, reward, world.cell[0], reached, world.seed, own)
            if reached or world.steps[0] >= world.horizon:
                worth = world.discounts[world.steps[0] - 1] if reached else 0.0
                world.returns[tables.episodes[0]] = worth
                end(tables, worth * world.reward)
                tables.episodes[0] += 1
                _reset(world, counter + _START)
                begin(tables, world.cell[0], world.seed, own)
                if tables.episodes[0] == stop:
                    return done + 1
        return steps

    return loop
