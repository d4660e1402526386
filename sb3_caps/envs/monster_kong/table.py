"""
Every state that a Monster Kong map can be in, and where each action leads.

The dynamics are deterministic and the positions are integers, so the states that can be reached from the starts are
finite. They are enumerated once for each map and kept on disk; a step of the game is then one look-up.
"""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sb3_caps.envs.monster_kong import physics
from sb3_caps.envs.monster_kong.level import GOALS, Level, Setting, load_level
from sb3_caps.envs.monster_kong.physics import ACTIONS, MAX_FALL, TILE, WALK, Body, IntArray
from sb3_caps.files.save_util import atomic_write

# What a table is made by: part of the name of a cached one, so that one made by other rules is never read.
MODULES = ("level.py", "physics.py", "table.py")


@dataclass(frozen=True)
class StateTable:
    """
    The reachable states of a map, in the order of ``y``, then ``x``, then ``velocity``.

    :param x: left edge of the agent in each state
    :param y: upper edge
    :param velocity: vertical speed, positive downwards
    :param successors: the next state for each state and action; a state on a spike leads to itself
    :param spiked: states in which the agent touches a spike
    :param touches: which objects the agent touches, bit ``i`` for the ``i``-th of ``GOALS``
    :param on_bricks: states in which bricks carry the agent
    :param on_ladder: states in which a ladder alone carries it
    :param starts: the states in which an episode may start, whatever the goal
    """

    x: npt.NDArray[np.int32]
    y: npt.NDArray[np.int32]
    velocity: npt.NDArray[np.int32]
    successors: npt.NDArray[np.int32]
    spiked: npt.NDArray[np.bool_]
    touches: npt.NDArray[np.uint8]
    on_bricks: npt.NDArray[np.bool_]
    on_ladder: npt.NDArray[np.bool_]
    starts: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.x)

    def reached(self, goal: str) -> npt.NDArray[np.bool_]:
        """
        Find the states in which the agent touches an object.

        :param goal: an object
        :return: for each state, whether the agent touches the object
        """
        return (self.touches >> list(GOALS).index(goal) & 1).astype(bool)

    def starts_for(self, goal: str) -> npt.NDArray[np.int32]:
        """
        Find the states in which an episode may start.

        :param goal: an object
        :return: the states in which an episode may start: on bricks, touching neither a spike nor the goal
        """
        return self.starts[~self.reached(goal)[self.starts]]

    def find(self, body: Body) -> IntArray:
        """
        Find the states of agents.

        :param body: agents in reachable states
        :return: the index of each one's state, -1 where there is no such state
        """
        wanted = _keys(body)
        index = np.minimum(np.searchsorted(self._keys, wanted), len(self) - 1)
        return np.where(self._keys[index] == wanted, index, -1)

    @cached_property
    def _keys(self) -> IntArray:
        return _keys(Body(self.x.astype(np.int64), self.y.astype(np.int64), self.velocity.astype(np.int64)))

    def start_at(self, column: int, row: int, name: str = "map") -> int:
        """
        Find the state of an agent that stands on a tile.

        :param column: column of a tile, counted from 0 at the left border
        :param row: row of a tile, counted from 0 at the top border
        :param name: what to call the map in messages
        :return: the state of an agent that stands on this tile
        """
        place = (np.array([column * TILE]), np.array([row * TILE]), np.zeros(1, dtype=np.int64))
        state = int(self.find(Body(*place))[0]) if min(column, row) >= 0 else -1
        if state < 0 or state not in self.starts:
            raise ValueError(
                f"No start at column {column}, row {row} of map {name!r}: "
                f"it must be a free tile with bricks below and no spike."
            )
        return state


def _keys(body: Body) -> IntArray:
    """One integer for each state, in the order of the table."""
    return (body.y << 32) | (body.x << 12) | (body.velocity + 2 * MAX_FALL)


def _bodies(keys: IntArray) -> Body:
    return Body(keys >> 12 & 0xFFFFF, keys >> 32, (keys & 0xFFF) - 2 * MAX_FALL)


def _start_bodies(level: Level) -> Body:
    """Standing on bricks, wholly or in part, at every multiple of a walking step."""
    rows, columns = level.shape
    all_x, all_y = np.arange(TILE, (columns - 2) * TILE + 1, WALK), np.arange(1, rows - 1) * TILE
    x, y = np.tile(all_x, len(all_y)), np.repeat(all_y, len(all_x))
    standing = ~physics.covers(level.solid, x, y) & physics.on_bricks(level, x, y) & ~physics.on_spikes(level, x, y)
    x, y = x[standing], y[standing]
    return Body(x, y, np.zeros_like(x))


def enumerate_states(level: Level) -> StateTable:
    """
    Find all reachable states of a map by breadth-first search, a whole frontier in each call of the dynamics.

    :param level: the map
    :return: its states
    """
    starts = np.sort(_keys(_start_bodies(level)))
    if not len(starts):
        raise ValueError(f"Map {level.name!r} has no start: there is no free tile with bricks below.")
    known, frontier = starts, starts
    while len(frontier):
        body = _bodies(frontier)
        alive = ~physics.on_spikes(level, body.x, body.y)
        found = np.unique(_successor_keys(level, Body(*(array[alive] for array in body))))
        frontier = np.setdiff1d(found, known, assume_unique=True)
        known = np.union1d(known, frontier)

    body = _bodies(known)
    spiked = physics.on_spikes(level, body.x, body.y)
    successors = np.searchsorted(known, _successor_keys(level, body))
    successors[spiked] = np.flatnonzero(spiked)[:, None]
    on_bricks = (body.velocity == 0) & physics.on_bricks(level, body.x, body.y)
    touches = np.zeros(len(known), dtype=np.uint8)
    for bit, goal in enumerate(GOALS):
        if goal in level.objects:
            touches |= physics.at_object(level, goal, body.x, body.y).astype(np.uint8) << bit
    return StateTable(
        x=body.x.astype(np.int32),
        y=body.y.astype(np.int32),
        velocity=body.velocity.astype(np.int32),
        successors=successors.astype(np.int32),
        spiked=spiked,
        touches=touches,
        on_bricks=on_bricks,
        on_ladder=(body.velocity == 0) & ~on_bricks,
        starts=np.searchsorted(known, starts).astype(np.int32),
    )


def _successor_keys(level: Level, body: Body) -> IntArray:
    """The states that the six actions lead to, shape (states, actions)."""
    columns = [_keys(physics.step(level, body, np.full(len(body.x), action))) for action in range(len(ACTIONS))]
    return np.stack(columns, axis=1)


def cache_folder() -> Path:
    """Where tables are kept: ``$SB3_CAPS_CACHE``, else a folder in the user's cache."""
    chosen = os.environ.get("SB3_CAPS_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sb3_caps"


@lru_cache(maxsize=1)
def _rules_key() -> str:
    folder = resources.files("sb3_caps.envs.monster_kong")
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in MODULES)).hexdigest()[:16]


def state_table(setting: Setting) -> StateTable:
    """
    The states of a map, from memory, from disk, or enumerated now.

    :param setting: see ``load_level``
    :return: its states
    """
    return table_of(load_level(setting))


@lru_cache(maxsize=8)
def table_of(level: Level) -> StateTable:
    """The same for a map that is loaded: what is remembered depends on its text, not on the name of a file."""
    file = cache_folder() / f"monster_kong_{_rules_key()}_{level.key}.npz"
    table = _read(file)
    if table is None:
        table = enumerate_states(level)
        _write(table, file)
    return table


def _read(file: Path) -> StateTable | None:
    """A table from disk, or nothing if it is missing or damaged: it can always be made again."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return StateTable(**{entry.name: arrays[entry.name] for entry in fields(StateTable)})
    except Exception:  # np.load answers a damaged file with errors of many kinds
        return None


def _write(table: StateTable, file: Path) -> None:
    # A cache that cannot be written costs the next process some time, and nothing else.
    with suppress(OSError), atomic_write(file) as opened:
        np.savez_compressed(opened, **{entry.name: getattr(table, entry.name) for entry in fields(table)})
