"""
The tabular learners in machine code, where Numba is installed.

They make the same draws and compute the same numbers as their batched twins, one run after the other. The batched
learners are the reference, and tests compare the two.
"""

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sb3_caps.envs.grid.batched import BatchedGrid
from sb3_caps.tabular.base import Learner
from sb3_caps.tabular.streams import Streams


class World(NamedTuple):
    """What a compiled run needs of its task, its random numbers and its record; arrays are changed in place."""

    walls: np.ndarray
    width: int
    noise: float
    horizon: int
    goal: int
    starts: np.ndarray
    position: np.ndarray
    cell: np.ndarray
    steps: np.ndarray
    seed: np.uint64
    columns: int
    discounts: np.ndarray
    reward: float
    returns: np.ndarray


@cache
def available() -> bool:
    """Return whether Numba is installed."""
    return importlib.util.find_spec("numba") is not None


def compiled(learner: Learner) -> Callable[..., int] | None:
    """
    Compile the learner's rules to machine code.

    :param learner: a batch of learners
    :return: ``run(world, run, step, steps, stop)``, which steps one of its runs and returns how many steps it made;
        None where Numba is missing, or the learner is not one of those that have a compiled twin
    """
    if not available():
        return None
    from sb3_caps.tabular.compiled.learners import RULES

    if type(learner) not in RULES:
        return None
    fields, loop = RULES[type(learner)]

    def run(world: World, index: int, *arguments: int) -> int:
        own = (_of_run(learner, name, kind, index) for name, kind in fields.__annotations__.items())
        return loop(world, fields(*own), *arguments)

    return run


def _of_run(learner: Learner, name: str, kind: type, run: int) -> Any:
    """What a run has of a learner's attribute: a number where its rules take one, else a view."""
    array = getattr(learner, name)
    if kind is not np.ndarray:
        return kind(array[run])
    if array.ndim == 1:
        return array[run : run + 1]
    per_run = len(array) // learner.n_runs
    return array[run] if per_run == 1 else array[run * per_run : (run + 1) * per_run]


def world(
    grid: BatchedGrid, streams: Streams, agent: int, discounts: np.ndarray, reward: float, returns: np.ndarray
) -> World:
    """
    Collect what one agent needs to step in machine code.

    :param grid: the agents
    :param streams: their random numbers
    :param agent: one of them
    :param discounts: γ to the power of each step of an episode
    :param reward: its reward at the goal
    :param returns: where to put the return of each of its episodes
    :return: all that is the agent's own
    """
    offset, task = int(grid.offsets[agent]), int(grid.tasks[agent])
    return World(
        walls=grid.table.flat[offset : offset + grid.table.size],
        width=grid.table.width,
        noise=grid.noise,
        horizon=grid.horizon,
        goal=int(grid.goals[agent]),
        starts=grid.starts[task, : grid.start_counts[task]],
        position=grid.positions[agent],
        cell=grid.cells[agent : agent + 1],
        steps=grid.steps[agent : agent + 1],
        seed=streams.starts[agent],
        columns=streams.columns,
        discounts=discounts,
        reward=reward,
        returns=returns,
    )
