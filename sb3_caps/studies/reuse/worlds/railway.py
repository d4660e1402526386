"""Errands by rail: every station is an action, and only those that a train goes to from here are allowed."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from gymnasium import spaces

from sb3_caps.studies.reuse.worlds.batched import World
from sb3_caps.studies.reuse.worlds.errands import ACCURACY, SLIP, ErrandPolicy, Errands, Maze, worst_actions


class Network(Maze):
    """
    The stations of a railway: the cells of a maze in which a move is the number of the station to go to.

    :param lines: the letters of their stations, in the order in which trains call there, both ways
    """

    def __init__(self, lines: Sequence[str]) -> None:
        names = sorted(set("".join(lines)))
        self.n_cells = len(names)
        self.places = {name: i for i, name in enumerate(names)}
        self.allowed = np.zeros((self.n_cells, self.n_cells), dtype=bool)
        for here, there in (self._numbers(pair) for line in lines for pair in pairwise(line)):
            self.allowed[here, there] = self.allowed[there, here] = True
        # Who asks for a train that there is none of stays
        self.successors = np.where(self.allowed, np.arange(self.n_cells), np.arange(self.n_cells)[:, None])

    def _numbers(self, names: Sequence[str]) -> list[int]:
        return [self.places[name] for name in names]

    def action_values(self, goal: int, worth: float, cost: float, gamma: float) -> np.ndarray:
        """
        Solve the way to a station, by value iteration.

        :param goal: the station
        :param worth: what arriving there is worth
        :param cost: of each ride
        :param gamma: the discount factor
        :return: the optimal value of each ride from each station, -inf where there is no train
        """
        arriving = np.zeros(self.n_cells)
        arriving[goal] = worth / gamma
        while True:
            by_ride = gamma * arriving[self.successors] - cost
            wrong = by_ride.mean(axis=1, where=self.allowed, keepdims=True)
            values = np.where(self.allowed, (1 - SLIP) * by_ride + SLIP * wrong, -np.inf)
            best = values.max(axis=1)
            best[goal] = worth / gamma
            if np.abs(best - arriving).max() < ACCURACY:
                return values
            arriving = best


class Railway(Errands):
    """
    Go by train to the first station of an errand, then to the second, which pays and ends the episode.

    One ride in ten is on a wrong train, to any station that trains go to from there. All else is as in ``Errands``.

    :param lines: see ``Network``
    :param errands: pairs of stations, one of which is drawn for each episode
    :param horizon: the number of steps after which an episode is truncated
    """

    def __init__(self, lines: Sequence[str], errands: Sequence[tuple[str, str]], horizon: int = 100) -> None:
        self.maze: Network = Network(lines)
        names = sorted({place for errand in errands for place in errand})
        self.cells_of_places = np.array([self.maze.places[name] for name in names])
        self.errands = np.array([[names.index(first), names.index(second)] for first, second in errands])
        self.reward, self.cost, self.halfway = 1.0, 0.0, 0.0
        size = self.maze.n_cells + 2 * len(names)
        World.__init__(self, spaces.Box(0, 1, (size,), np.float32), self.maze.n_cells, horizon)

    def action_masks(self, states: np.ndarray) -> np.ndarray:
        """
        :param states: one row for each copy
        :return: the stations that trains go to, of shape (copies, stations)
        """
        return self.maze.allowed[states[:, 0]]

    def step(
        self, states: np.ndarray, actions: np.ndarray, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        trains = self.action_masks(states)
        slips = generator.random(len(states)) < SLIP
        wrong = (generator.random(trains.shape) * trains).argmax(axis=1)
        takes_one = trains[np.arange(len(states)), actions]
        rides = np.where(slips & takes_one, wrong, actions)
        cells, errands, visited = states.T
        cells = self.maze.successors[cells, rides]
        first, second = self.cells_of_places[self.errands[errands]].T
        done = (visited == 1) & (cells == second)
        return np.stack([cells, errands, visited | (cells == first)], axis=1), self.reward * done, done

    def policy(self, gamma: float, worst: bool = False, seed: int = 0) -> ErrandPolicy:
        """See ``Errands``: all that it does is allowed."""
        values = self.action_values(gamma)
        if not worst:
            return super().policy(gamma)
        actions = worst_actions(np.where(self.maze.allowed, values, np.inf), seed)
        return ErrandPolicy(actions, self.errands, len(self.cells_of_places))


def railway() -> Railway:
    """Return an errand from one end of a network of 26 stations to the other: two of its trains go round in circles."""
    lines = ("ABCDEFG", "HIJKDLM", "NOPQLRS", "TUVWRXYZ", "HBIOCH", "XSGMFYX", "JPVUOJ")
    return Railway(lines, [("A", "Z")])
