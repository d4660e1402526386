"""Errands in a maze: be at one place, then at another. No policy that goes to a single place is ever rewarded."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from sb3_caps.studies.reuse.worlds.batched import World

# Up, down, left, right, as in the grid
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
SLIP = 0.1
ACCURACY = 1e-9


class Maze:
    """
    The cells of a maze, and where each move leads.

    :param text: rows of ``#`` (wall), ``.`` (free) and letters (places), with walls all around
    """

    def __init__(self, text: str) -> None:
        rows = text.split()
        free = {
            (y, x): i
            for i, (y, x) in enumerate((y, x) for y, row in enumerate(rows) for x, c in enumerate(row) if c != "#")
        }
        self.n_cells = len(free)
        self.places = {rows[y][x]: cell for (y, x), cell in free.items() if rows[y][x] != "."}
        self.successors = np.array([[free.get((y + dy, x + dx), i) for dy, dx in MOVES] for (y, x), i in free.items()])

    def action_values(self, goal: int, worth: float, cost: float, gamma: float) -> np.ndarray:
        """
        Solve the way to a cell, by value iteration.

        :param goal: the cell
        :param worth: what arriving there is worth
        :param cost: of each step
        :param gamma: the discount factor
        :return: the optimal value of each move in each cell, for an agent that slips
        """
        arriving = np.zeros(self.n_cells)
        while True:
            arriving[goal] = worth / gamma
            by_move = gamma * arriving[self.successors] - cost
            values = (1 - SLIP) * by_move + SLIP * by_move.mean(axis=1, keepdims=True)
            best = values.max(axis=1)
            best[goal] = worth / gamma
            if np.abs(best - arriving).max() < ACCURACY:
                return values
            arriving = best


@dataclass(frozen=True)
class GoTo:
    """
    A source policy that goes to one place, whatever the errand.

    :param actions: the move in each cell
    """

    actions: np.ndarray

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return self.actions[np.asarray(observations)[:, : len(self.actions)].argmax(axis=1)]


@dataclass(frozen=True)
class ErrandPolicy:
    """
    A policy of all that an errand shows.

    :param actions: by errand, whether the first place has been visited, and cell
    :param errands: as the world has them
    :param n_places: how many places there are
    """

    actions: np.ndarray
    errands: np.ndarray
    n_places: int

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        observations = np.asarray(observations)
        n_cells = self.actions.shape[2]
        first, second = np.split(observations[:, n_cells:], 2, axis=1)
        visited = first.sum(axis=1) == 0
        # Once the first place was visited only the second matters: any errand with it will do
        matches = (self.errands[:, 1] == second.argmax(axis=1)[:, None]) & (
            visited[:, None] | (self.errands[:, 0] == first.argmax(axis=1)[:, None])
        )
        return self.actions[matches.argmax(axis=1), visited.astype(int), observations[:, :n_cells].argmax(axis=1)]


class Errands(World):
    """
    Walk to the first place of an errand, then to the second, which pays and ends the episode.

    An agent starts in a random cell with a random errand. One move in ten goes in a random direction. It sees its cell,
    the first place until it was there, and the second one, each as a vector with a single 1.

    :param maze: the text of a maze
    :param errands: pairs of places, one of which is drawn for each episode
    :param reward: at the end of an errand
    :param cost: of each step
    :param halfway: reward at the first place
    :param horizon: the number of steps after which an episode is truncated
    """

    def __init__(
        self,
        maze: str,
        errands: Sequence[tuple[str, str]],
        reward: float = 1.0,
        cost: float = 0.0,
        halfway: float = 0.0,
        horizon: int = 100,
    ) -> None:
        self.maze = Maze(maze)
        names = sorted(self.maze.places)
        self.cells_of_places = np.array([self.maze.places[name] for name in names])
        self.errands = np.array([[names.index(first), names.index(second)] for first, second in errands])
        self.reward, self.cost, self.halfway = reward, cost, halfway
        size = self.maze.n_cells + 2 * len(names)
        super().__init__(spaces.Box(0, 1, (size,), np.float32), len(MOVES), horizon)

    def start(self, generator: np.random.Generator, count: int) -> np.ndarray:
        free = np.setdiff1d(np.arange(self.maze.n_cells), self.cells_of_places)
        errands = generator.integers(len(self.errands), size=count)
        return np.stack([generator.choice(free, count), errands, np.zeros(count, dtype=np.int64)], axis=1)

    def step(
        self, states: np.ndarray, actions: np.ndarray, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        cells, errands, visited = states.T
        slips = generator.random(len(states)) < SLIP
        moves = np.where(slips, generator.integers(len(MOVES), size=len(states)), actions)
        cells = self.maze.successors[cells, moves]
        first, second = self.cells_of_places[self.errands[errands]].T
        done = (visited == 1) & (cells == second)
        rewards = self.reward * done + self.halfway * ((visited == 0) & (cells == first)) - self.cost
        return np.stack([cells, errands, visited | (cells == first)], axis=1), rewards, done

    def observe(self, states: np.ndarray) -> np.ndarray:
        cells, errands, visited = states.T
        rows = np.arange(len(states))
        n_cells, n_places = self.maze.n_cells, len(self.cells_of_places)
        observations = np.zeros((len(states), n_cells + 2 * n_places), dtype=np.float32)
        first, second = self.errands[errands].T
        observations[rows, cells] = 1
        observations[rows, n_cells + first] = 1 - visited
        observations[rows, n_cells + n_places + second] = 1
        return observations

    def go_to(self, place: str) -> GoTo:
        """
        Make the policy that goes to a place.

        :param place: a letter of the maze
        :return: the policy that goes there
        """
        return GoTo(self.maze.action_values(self.maze.places[place], 1.0, 0.0, 0.95).argmax(axis=1))

    def action_values(self, gamma: float) -> np.ndarray:
        """
        Compute optimal action values.

        :param gamma: the discount factor
        :return: the optimal value of each move, by errand, whether the first place has been visited, and cell
        """
        values = []
        for first, second in self.cells_of_places[self.errands]:
            then = self.maze.action_values(second, self.reward, self.cost, gamma)
            before = self.maze.action_values(first, self.halfway + gamma * then[first].max(), self.cost, gamma)
            values.append([before, then])
        return np.array(values)

    def optimum(self, gamma: float) -> float:
        """
        Compute the value of an optimal policy.

        :param gamma: the discount factor
        :return: the mean optimal return over starts and errands
        """
        free = np.setdiff1d(np.arange(self.maze.n_cells), self.cells_of_places)
        return float(self.action_values(gamma)[:, 0, free].max(axis=-1).mean())

    def policy(self, gamma: float, worst: bool = False, seed: int = 0) -> ErrandPolicy:
        """
        Make an optimal policy, or its opposite.

        :param gamma: the discount factor
        :param worst: whether to do as badly as possible: the worst move, or from seed 1 on one of the two worst
        :param seed: see ``worst``
        :return: the optimal policy, or its opposite
        """
        values = self.action_values(gamma)
        actions = worst_actions(values, seed) if worst else values.argmax(axis=-1)
        return ErrandPolicy(actions, self.errands, len(self.cells_of_places))


def worst_actions(action_values: np.ndarray, seed: int) -> np.ndarray:
    """
    Find the worst actions.

    :param action_values: actions in the last axis
    :param seed: 0 for the worst action in each state, else one of the two worst, drawn with this seed
    :return: the actions
    """
    rank = np.random.default_rng(seed).integers(2, size=action_values.shape[:-1]) if seed else 0
    order = np.argsort(action_values, axis=-1, kind="stable")
    return np.take_along_axis(order, np.broadcast_to(rank, order.shape[:-1])[..., None], axis=-1)[..., 0]
