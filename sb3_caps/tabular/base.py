"""What all tabular learners have in common: their interface, ε-greedy choice, and tables with one axis for the runs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

GAMMA = 0.95
N_ACTIONS = 4

Config = TypeVar("Config")


class Greedy(NamedTuple):
    """
    What the learner of each run does when it stops exploring.

    :param options: the option that it takes in each state, of shape (runs, states)
    :param actions: the action of each option in each state, of shape (runs, states, options)
    :param termination: β of each option in each state, of the same shape; 1 where options are single actions
    """

    options: np.ndarray
    actions: np.ndarray
    termination: np.ndarray

    def flat(self) -> np.ndarray:
        """Return the action of the greedy option in each state, of shape (runs, states)."""
        return np.take_along_axis(self.actions, self.options[..., None], axis=2)[..., 0]


class Steps(NamedTuple):
    """
    One step of each run.

    :param runs: the runs
    :param states: the state that each was in
    :param actions: the action that it took
    :param rewards: the reward that it got
    :param next_states: the state that it is in now
    :param terminated: whether that state is terminal; a truncated episode is not
    :param draws: uniform draws, the same as for ``act``
    """

    runs: np.ndarray
    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_states: np.ndarray
    terminated: np.ndarray
    draws: np.ndarray


class Learner(ABC):
    """
    A batch of independent runs of one algorithm.

    Every method is called with the runs that are not finished yet, and with arrays that have one row for each of them.

    :param n_runs: the number of runs
    :param n_states: the number of states
    """

    #: how many uniform draws a run needs for each step
    columns: int

    def __init__(self, n_runs: int, n_states: int) -> None:
        self.n_runs, self.n_states = n_runs, n_states
        #: the number of episodes that each run has finished
        self.episodes = np.zeros(n_runs, dtype=np.intp)

    def rows(self, runs: np.ndarray, states: np.ndarray) -> np.ndarray:
        """
        Find the rows of flattened tables.

        :param runs: indices of runs
        :param states: the state of each
        :return: the rows of a table of shape (runs * states, ...)
        """
        return runs * self.n_states + states

    @abstractmethod
    def begin(self, runs: np.ndarray, states: np.ndarray, draws: np.ndarray) -> None:
        """
        Start an episode.

        :param runs: the runs whose episode begins
        :param states: the first state of each
        :param draws: uniform draws
        """

    @abstractmethod
    def act(self, runs: np.ndarray, states: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """
        Choose an action for each run.

        :param runs: the runs
        :param states: the state of each
        :param draws: uniform draws
        :return: the action of each
        """

    @abstractmethod
    def learn(self, steps: Steps) -> None:
        """
        Learn from one step of each run.

        :param steps: what was done, and what came of it
        """

    def end(self, runs: np.ndarray, returns: np.ndarray) -> None:
        """
        Finish an episode.

        :param runs: the runs whose episode has ended
        :param returns: the discounted return of each episode
        """
        self.episodes[runs] += 1

    @abstractmethod
    def greedy(self) -> Greedy:
        """Return what each run does when it stops exploring."""

    @abstractmethod
    def tables(self) -> dict[str, np.ndarray]:
        """Return what has been learned, each table with the runs as first axis."""


def column(configs: Sequence[Config], field: Callable[[Config], float]) -> np.ndarray:
    """
    Collect one field of all configurations.

    :param configs: the configuration of each run
    :param field: what to take from it
    :return: an array with one number for each run
    """
    return np.array([field(config) for config in configs], dtype=float)


def argmax(values: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """
    The index of the largest value, drawn uniformly among equal ones.

    :param values: of shape (rows, choices)
    :param draws: one uniform draw for each row
    :return: an index for each row
    """
    largest = values == values.max(axis=1, keepdims=True)
    ranks = largest.cumsum(axis=1)
    return (ranks > (draws * ranks[:, -1])[:, None]).argmax(axis=1)


def epsilon_greedy(
    values: np.ndarray,
    epsilon: np.ndarray,
    explore: np.ndarray,
    choice: np.ndarray,
    random_ties: np.ndarray | bool = True,
) -> np.ndarray:
    """
    Choose the best one or, with probability ε, a random one.

    :param values: of shape (rows, choices); a choice that a row does not have is minus infinity
    :param epsilon: the probability of a random choice in each row
    :param explore: one uniform draw for each row: explore or not?
    :param choice: one uniform draw for each row: which one?
    :param random_ties: whether the greedy choice is drawn among equal values, or is the first of them
    :return: an index for each row
    """
    exploring = explore < epsilon
    # Under exploration all choices that exist are equal.
    levelled = np.where(exploring[:, None] & (values > -np.inf), 0.0, values)
    return argmax(levelled, np.where(exploring | random_ties, choice, 0.0))


def hyperbolic(half_life: np.ndarray, episodes: np.ndarray) -> np.ndarray:
    """
    The paper's ε = 1 − k / (k + K) of episode k, with K = 800.

    :param half_life: K, after which ε is one half; infinite for an ε of 1
    :param episodes: k
    :return: ε
    """
    return 1.0 / (1.0 + episodes / half_life)
