"""The grid world for many agents in one call: the same rules as ``dynamics.py``, on NumPy arrays."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sb3_caps.envs.grid.dynamics import DIRECTION, HORIZON, NOISE, VERTICAL, check_noise, inside
from sb3_caps.envs.grid.maps import Goal, GridMap

_DIRECTION = np.array(DIRECTION)
# The column of a position array that an action moves along, and the other one. Positions are (row, column).
_ALONG = np.where(VERTICAL, 0, 1)


class GridTask(NamedTuple):
    """A map and the goal to reach on it."""

    map: GridMap
    goal: Goal


class WallTable:
    """
    The walls of one or more maps of the same shape in one flat array, to look up many cells at once.

    :param maps: the maps
    """

    def __init__(self, maps: Sequence[GridMap]) -> None:
        shapes = {grid_map.walls.shape for grid_map in maps}
        if len(shapes) != 1:
            raise ValueError(f"maps that are stepped together must have the same shape, not {sorted(shapes)}")
        self.width = maps[0].width
        # A move from beside the border may aim two cells further, past the last row: its path is blocked by the
        # border itself, and the padding only keeps the lookup inside the array.
        padding = np.ones(2 * self.width + 2, dtype=bool)
        self.flat = np.concatenate([np.concatenate([grid_map.walls.ravel(), padding]) for grid_map in maps])
        self.size = maps[0].n_cells + len(padding)

    def move(
        self, positions: np.ndarray, actions: np.ndarray, noise: np.ndarray, offsets: np.ndarray | int = 0
    ) -> np.ndarray:
        """
        Move every agent by one step; see :func:`sb3_caps.envs.grid.dynamics.move`.

        :param positions: (row, column) of each agent
        :param actions: the action of each agent
        :param noise: what is added to (row, column) of each agent
        :param offsets: for each agent, where its map starts in the table: the map's index times ``size``
        :return: the new positions
        """
        agents = np.arange(len(positions))
        along = _ALONG[actions]
        across = 1 - along
        change = noise.copy()
        change[agents, along] += _DIRECTION[actions]
        moved = positions + change
        cells, moved_cells = np.floor(positions).astype(np.intp), np.floor(moved).astype(np.intp)

        start, end = cells[agents, along], moved_cells[agents, along]
        lane, new_lane = cells[agents, across], moved_cells[agents, across]
        turn = end.copy()
        crossing = np.flatnonzero(lane != new_lane)
        if len(crossing):
            border = np.maximum(lane, new_lane)[crossing]
            where = self._turn(positions[crossing], moved[crossing], along[crossing], border)
            # Rounding must not put the turn beside the path.
            turn[crossing] = np.clip(where, np.minimum(start, end)[crossing], np.maximum(start, end)[crossing])

        # The path is start..turn in the old lane and turn..end in the new one: with at most three cells along,
        # it is enough to look at the turn in both lanes, at the end, and at the middle.
        along_stride, across_stride = np.where(along == 0, (self.width,), 1), np.where(along == 0, 1, (self.width,))
        old_row, new_row = lane * across_stride + offsets, new_lane * across_stride + offsets
        turn_at, middle_at = turn * along_stride, ((start + end) >> 1) * along_stride
        blocked = self.flat[turn_at + old_row]
        blocked |= self.flat[turn_at + new_row]
        blocked |= self.flat[end * along_stride + new_row]
        blocked |= self.flat[middle_at + np.where(turn == end, old_row, new_row)]
        return np.where(blocked[:, None], positions, moved)

    @staticmethod
    def _turn(positions: np.ndarray, moved: np.ndarray, along: np.ndarray, border: np.ndarray) -> np.ndarray:
        """The cell along the direction of the move in which the path crosses the border to the other lane."""
        agents = np.arange(len(positions))
        a, b = positions[agents, along], moved[agents, along]
        c, d = positions[agents, 1 - along], moved[agents, 1 - along]
        return np.floor(a + (b - a) * ((border - c) / (d - c))).astype(np.intp)


class BatchedGrid:
    """
    Many agents, each with its own task, stepped in one call.

    Random numbers come from the caller, as uniform draws from [0, 1): three for each start (cell, then row and column
    inside it) and two for each step (row, column). They are used as :class:`sb3_caps.envs.grid.env.GridEnv` uses its
    own, so equal draws give equal runs.

    :param tasks: one task for each agent; the maps must have the same shape
    :param noise: the largest deviation of a move in each coordinate
    :param horizon: the number of steps after which an episode is truncated
    """

    def __init__(self, tasks: Sequence[GridTask], noise: float = NOISE, horizon: int = HORIZON) -> None:
        if not tasks:
            raise ValueError("pass at least one task")
        self.noise = check_noise(noise)
        self.horizon = horizon
        # Thousands of agents usually share a few tasks: whatever is costly is done once for each different one.
        different = list(dict.fromkeys(tasks))
        maps = list(dict.fromkeys(task.map for task in different))
        self.table = WallTable(maps)
        goals = [task.map.goal_cell(task.goal) for task in different]
        starts = [task.map.start_cells(goal) for task, goal in zip(different, goals, strict=True)]
        counts = np.array([len(cells) for cells in starts])
        #: the cells in which an episode may start, one row for each different task, and how many there are
        self.starts = np.zeros((len(different), counts.max()), dtype=np.intp)
        self.start_counts = counts
        for row, cells in zip(self.starts, starts, strict=True):
            row[: len(cells)] = cells

        numbers = {task: number for number, task in enumerate(different)}
        #: the row of each agent's task
        self.tasks = np.array([numbers[task] for task in tasks])
        self.goals = np.array(goals)[self.tasks]
        self.offsets = np.array([maps.index(task.map) * self.table.size for task in different])[self.tasks]
        self.positions = np.zeros((len(tasks), 2))
        self.cells = np.zeros(len(tasks), dtype=np.intp)
        self.steps = np.zeros(len(tasks), dtype=np.intp)
        self.reset(np.arange(len(tasks)), np.zeros((len(tasks), 3)))

    def __len__(self) -> int:
        return len(self.goals)

    def reset(self, agents: np.ndarray, draws: np.ndarray) -> None:
        """
        Start a new episode for some agents; their cells are then in ``cells``.

        :param agents: the agents' indices
        :param draws: three uniform draws for each of them
        """
        rows = self.tasks[agents]
        cells = self.starts[rows, (draws[:, 0] * self.start_counts[rows]).astype(np.intp)]
        self.cells[agents] = cells
        self.positions[agents, 0] = inside(cells // self.table.width, draws[:, 1])
        self.positions[agents, 1] = inside(cells % self.table.width, draws[:, 2])
        self.steps[agents] = 0

    def step(self, actions: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """
        Step every agent. An agent whose episode has ended has to be ``reset`` before its next step.

        :param actions: the action of each agent
        :param draws: two uniform draws for each agent
        :return: the cell of each agent, whether it reached its goal (the reward is then 1, else 0, and the episode
            is over), and whether its episode was truncated
        """
        noise = (2.0 * draws - 1.0) * self.noise
        self.positions = self.table.move(self.positions, actions, noise, self.offsets)
        corner = np.floor(self.positions).astype(np.intp)
        self.cells = corner[:, 0] * self.table.width + corner[:, 1]
        self.steps += 1
        reached = self.cells == self.goals
        return self.cells, reached, (self.steps >= self.horizon) & ~reached

    def keep(self, agents: np.ndarray) -> None:
        """
        Drop all other agents, for instance those that have done their last episode.

        :param agents: the indices of the agents to keep
        """
        for name in ("tasks", "goals", "offsets", "positions", "cells", "steps"):
            setattr(self, name, getattr(self, name)[agents])
