"""
A model of the grid world's noisy dynamics: probabilities of moving between parts of cells.

The position is real-valued. The model cuts every cell into ``resolution`` × ``resolution`` parts and takes the position
as uniform inside a part, which makes it a finite Markov chain whose error falls with the resolution.
"""

import numpy as np

from sb3_caps.envs.grid.batched import WallTable
from sb3_caps.envs.grid.dynamics import ACTIONS, HORIZON, NOISE, check_noise
from sb3_caps.envs.grid.maps import GridMap

GAMMA = 0.95
RESOLUTION = 5
INSIDE_POINTS, NOISE_POINTS = 3, 8
N_ACTIONS = len(ACTIONS)


class GridModel:
    """
    Transition probabilities between the parts of the cells of a map, whatever the goal.

    Part ``cell * resolution² + row * resolution + column`` is at (row, column) inside its cell.

    :param grid_map: the map
    :param noise: the largest deviation of a move in each coordinate
    :param resolution: each cell is cut into this many parts in each direction
    """

    def __init__(self, grid_map: GridMap, noise: float = NOISE, resolution: int = RESOLUTION) -> None:
        self.map = grid_map
        self.noise = check_noise(noise)
        self.resolution = resolution
        self.parts_per_cell = resolution * resolution
        self.cell_of_part = np.arange(grid_map.n_cells).repeat(self.parts_per_cell)
        models = [self._transitions(action) for action in range(N_ACTIONS)]
        width = max(targets.shape[1] for targets, _ in models)
        # Of shape (action, part, outcome); rows with fewer outcomes are padded with probability 0.
        self.targets = np.stack([_pad(targets, width) for targets, _ in models])
        self.probabilities = np.stack([_pad(probabilities, width) for _, probabilities in models])

    def parts(self, cells: np.ndarray) -> np.ndarray:
        """
        Find the parts of cells.

        :param cells: some cells
        :return: the parts of each, of shape (cells, parts per cell)
        """
        return np.asarray(cells)[:, None] * self.parts_per_cell + np.arange(self.parts_per_cell)

    def _transitions(self, action: int) -> tuple[np.ndarray, np.ndarray]:
        """Targets and probabilities of one action, computed once for all cells with the same walls around."""
        # A move reaches two cells along its direction and one to each side.
        window = {0: np.s_[0:3, 1:4], 1: np.s_[2:5, 1:4], 2: np.s_[1:4, 0:3], 3: np.s_[1:4, 2:5]}[action]
        around = np.lib.stride_tricks.sliding_window_view(np.pad(self.map.walls, 2, constant_values=True), (5, 5))
        patterns = around[(..., *window)].reshape(self.map.n_cells, -1)
        free = self.map.free_cells
        _, examples, pattern_of_cell = np.unique(patterns[free], axis=0, return_index=True, return_inverse=True)
        shifts, frequencies = _count(self._simulate(free[examples], action))

        # Nobody is ever in a wall: its parts lead nowhere, with probability 0.
        base = np.arange(self.map.n_cells * self.parts_per_cell)
        targets = base[:, None].repeat(shifts.shape[1], axis=1)
        probabilities = np.zeros(targets.shape)
        rows, examples_rows = self.parts(free).ravel(), self.parts(pattern_of_cell.ravel()).ravel()
        probabilities[rows] = frequencies[examples_rows]
        targets[rows] += np.where(frequencies > 0, shifts, 0)[examples_rows]
        return targets, probabilities

    def _simulate(self, cells: np.ndarray, action: int) -> np.ndarray:
        """Push the same points through the dynamics from each part of each cell: by how many parts did they move?"""
        table = WallTable([self.map])
        inside = np.indices((self.resolution, self.resolution)).reshape(2, -1).T / self.resolution
        corners = (np.stack(np.divmod(cells, self.map.width), axis=1)[:, None] + inside).reshape(-1, 2)
        points = midpoints(INSIDE_POINTS, NOISE_POINTS)
        starts = (corners[:, None] + points[:, :2] / self.resolution).reshape(-1, 2)
        noise = np.tile((2.0 * points[:, 2:] - 1.0) * self.noise, (len(corners), 1))
        ends = table.move(starts, np.full(len(starts), action), noise)
        fine = np.floor(ends * self.resolution).astype(np.intp)
        cell, part = fine // self.resolution, fine % self.resolution
        ends_at = (cell[:, 0] * self.map.width + cell[:, 1]) * self.parts_per_cell
        ends_at += part[:, 0] * self.resolution + part[:, 1]
        return ends_at.reshape(len(corners), -1) - self.parts(cells).reshape(-1, 1)


def midpoints(inside: int, noise: int) -> np.ndarray:
    """
    Make the grid of positions and deviations that the model is computed on.

    :param inside: the number of positions inside a part in each coordinate
    :param noise: the number of deviations in each coordinate
    :return: all combinations of the midpoints of that many equal intervals of [0, 1], of shape (points, 4). With these
        numbers no sum of a position and a deviation of the paper's noise falls on a border between parts.
    """
    axes = [(np.arange(count) + 0.5) / count for count in (inside, inside, noise, noise)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 4)


def _count(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of samples into rows of different values with their frequencies, padded with frequency 0."""
    rows, size = samples.shape
    samples = np.sort(samples, axis=1)
    first = np.ones(samples.shape, dtype=bool)
    first[:, 1:] = samples[:, 1:] != samples[:, :-1]
    column = first.cumsum(axis=1) - 1
    width = int(column.max()) + 1
    flat = (np.arange(rows)[:, None] * width + column).ravel()
    frequencies = np.bincount(flat, minlength=rows * width).reshape(rows, width) / size
    values = np.zeros(rows * width, dtype=np.intp)
    values[flat] = samples.ravel()
    return values.reshape(rows, width), frequencies


def _pad(rows: np.ndarray, width: int) -> np.ndarray:
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])))


class Evaluator:
    """
    Values of one task on a model.

    :param model: the model of the map
    :param goal: the goal's cell
    :param gamma: the discount factor
    :param horizon: the number of steps in an episode
    """

    def __init__(self, model: GridModel, goal: int, gamma: float = GAMMA, horizon: int = HORIZON) -> None:
        self.model, self.goal, self.gamma, self.horizon = model, goal, gamma, horizon
        self.goal_parts = model.parts(np.array([goal])).ravel()
        starts = model.parts(model.map.start_cells(goal)).ravel()
        self.start = np.zeros(len(model.cell_of_part))
        self.start[starts] = 1.0 / len(starts)

    def q_values(self, values: np.ndarray) -> np.ndarray:
        """
        Compute action values, one step ahead.

        :param values: the value of each part
        :return: r + γ V(s') of each action in each part, of shape (action, part)
        """
        return np.einsum("apo,apo->ap", self.model.probabilities, self._arrive(values)[self.model.targets])

    def policy_values(self, policy: np.ndarray) -> np.ndarray:
        """
        Evaluate a policy exactly.

        :param policy: the action in each cell
        :return: the value of each part under the policy, for a whole horizon
        """
        probabilities, targets = self._chain(policy)
        values = np.zeros(len(self.start))
        for _ in range(self.horizon):
            values = np.einsum("po,po->p", probabilities, self._arrive(values)[targets])
        return values

    def occupancy(self, policy: np.ndarray) -> np.ndarray:
        """
        Compute how often a policy visits each part.

        :param policy: the action in each cell
        :return: the expected discounted number of visits to each part in an episode
        """
        probabilities, targets = self._chain(policy)
        now: np.ndarray = self.start
        total = np.zeros(len(self.start))
        for step in range(self.horizon):
            total += self.gamma**step * now
            now = np.bincount(targets.ravel(), (now[:, None] * probabilities).ravel(), minlength=len(now))
            now[self.goal_parts] = 0.0
        return total

    def optimal_values(self) -> np.ndarray:
        """Return the value of each part for an agent that sees it and the time left."""
        values = np.zeros(len(self.start))
        for _ in range(self.horizon):
            values = self.q_values(values).max(axis=0)
        return values

    def _chain(self, policy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        actions, parts = policy[self.model.cell_of_part], np.arange(len(self.start))
        return self.model.probabilities[actions, parts], self.model.targets[actions, parts]

    def _arrive(self, values: np.ndarray) -> np.ndarray:
        """What arriving in each part is worth: the reward at the goal, which ends the episode, else γ V."""
        worth = self.gamma * values
        worth[self.goal_parts] = 1.0
        return worth
