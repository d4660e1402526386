"""
How the agent of Monster Kong moves: one step for whole arrays of agents.

Every speed of the game is a multiple of a twentieth of a pixel, so positions are integers in that unit and the
dynamics are exact. The agent is a box of one tile; ``x`` and ``y`` are its left and upper edge, and ``velocity`` is
its vertical speed, positive downwards. It is 0 exactly when something carries the agent: bricks or a ladder.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sb3_caps.envs.monster_kong.level import Level

UNITS = 20  # in one pixel
TILE_PIXELS = 15
TILE = TILE_PIXELS * UNITS
WALK = 5 * UNITS
CLIMB = WALK // 2
JUMP = 7 * UNITS
GRAVITY = 17  # 0.85 pixels
MAX_FALL = 8 * UNITS

UP, DOWN, LEFT, RIGHT, JUMP_UP, NOOP = range(6)
ACTIONS = ("up", "down", "left", "right", "jump", "no-op")

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Body(NamedTuple):
    """
    Where agents are and how fast they fall or rise: arrays of the same length.

    :param x: left edge
    :param y: upper edge
    :param velocity: vertical speed, positive downwards
    """

    x: IntArray
    y: IntArray
    velocity: IntArray


def covers(tiles: BoolArray, x: IntArray, y: IntArray) -> BoolArray:
    """
    Does a box overlap any of the marked tiles? A box of one tile lies on at most two rows and two columns.

    :param tiles: which tiles are marked
    :param x: left edges
    :param y: upper edges
    :return: one answer for each box
    """
    top, bottom = y // TILE, (y + TILE - 1) // TILE
    left, right = x // TILE, (x + TILE - 1) // TILE
    return tiles[top, left] | tiles[top, right] | tiles[bottom, left] | tiles[bottom, right]


def on_bricks(level: Level, x: IntArray, y: IntArray) -> BoolArray:
    """Bricks directly below, of which any part is enough to stand on."""
    return covers(level.solid, x, y + 1)


def at_ladder(level: Level, x: IntArray, y: IntArray) -> BoolArray:
    """A ladder behind the agent, or directly below: its upper end carries as well."""
    return covers(level.ladder, x, y) | covers(level.ladder, x, y + 1)


def step(level: Level, body: Body, action: IntArray) -> Body:
    """
    One step of every agent: walk, then climb or jump, then rise or fall.

    :param level: the map
    :param body: agents outside of bricks
    :param action: one action for each, an index of ``ACTIONS``
    :return: the agents one step later, again outside of bricks
    """
    x = _walk(level, body, action)
    y = _climb(level, x, body, action)
    carried = on_bricks(level, x, y) | at_ladder(level, x, y)
    jumping = (body.velocity == 0) & (action == JUMP_UP) & on_bricks(level, x, y)
    resting = (body.velocity == 0) & carried & ~jumping

    velocity = np.where(jumping, -JUMP, body.velocity)
    target = y + np.where(resting, 0, velocity)
    blocked = covers(level.solid, x, target)
    # What is in the way is one tile or less away: rest on it, or stop below it.
    contact = np.where(velocity > 0, target // TILE, -(-target // TILE)) * TILE
    moved = np.where(blocked, contact, target)
    bumped = blocked & (velocity < 0)

    landed = resting | ((velocity >= 0) & on_bricks(level, x, moved))
    caught = ~on_bricks(level, x, moved) & at_ladder(level, x, moved)
    # On a ladder heights are multiples of a climbing step, whatever the speed at which it caught the agent.
    moved = np.where(caught, moved // CLIMB * CLIMB, moved)
    velocity = np.minimum(np.where(bumped, 0, velocity) + GRAVITY, MAX_FALL)
    return Body(x, moved, np.where(landed | caught, 0, velocity))


def _walk(level: Level, body: Body, action: IntArray) -> IntArray:
    target = body.x + WALK * ((action == RIGHT).astype(np.int64) - (action == LEFT))
    return np.where(covers(level.solid, target, body.y), body.x, target)


def _climb(level: Level, x: IntArray, body: Body, action: IntArray) -> IntArray:
    """Up as far as the upper end of the ladder, down as far as bricks or past the lower end."""
    target = body.y + CLIMB * ((action == DOWN).astype(np.int64) - (action == UP))
    possible = (body.velocity == 0) & at_ladder(level, x, body.y) & ~covers(level.solid, x, target)
    possible &= (action == DOWN) | at_ladder(level, x, target)
    return np.where(possible, target, body.y)


def on_spikes(level: Level, x: IntArray, y: IntArray) -> BoolArray:
    """Does a box overlap the triangle of a spike? Its base is the lower edge of the tile, its tip the middle above."""
    hit = np.zeros(np.shape(x), dtype=bool)
    for row in (y // TILE, (y + TILE - 1) // TILE):
        # The triangle is as wide as the box reaches down into its tile.
        width = np.minimum(y + TILE - row * TILE, TILE)
        for column in (x // TILE, (x + TILE - 1) // TILE):
            hit |= level.spike[row, column] & (2 * np.abs(x - column * TILE) < TILE + width)
    return hit


def at_object(level: Level, goal: str, x: IntArray, y: IntArray) -> BoolArray:
    """Does a box overlap the tile of an object?"""
    row, column = level.objects[goal]
    return (np.abs(x - column * TILE) < TILE) & (np.abs(y - row * TILE) < TILE)
