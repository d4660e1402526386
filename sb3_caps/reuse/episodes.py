"""The ledger of episodes: who acts in each, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# Rewards beyond so many times the horizon of the discount, 1 / (1 - γ), change no value
HORIZONS = 10.0


@dataclass(frozen=True)
class Behaviour:
    """
    Who acts for a whole episode.

    :param name: what logs and summaries call it; that of a source where a source acts or is reused
    :param is_source: whether it is a source policy: one may have the name of something else
    """

    name: str
    is_source: bool = False


class EpisodeResult(NamedTuple):
    """
    The result of an episode.

    :param env: the environment
    :param behaviour: who acted
    :param discounted: the discounted return
    :param reward: the return as SB3 logs it, not discounted
    :param length: number of steps
    """

    env: int
    behaviour: Behaviour
    discounted: float
    reward: float
    length: int


class EpisodeTracker:
    """
    Follows the episodes of several environments.

    Some tasks never end. After ``limit`` steps, an episode counts as if it had ended, and what follows counts as
    another one.

    :param n_envs: number of environments
    :param gamma: the discount of returns
    :param limit: the most steps that count as one episode
    """

    def __init__(self, n_envs: int, gamma: float, limit: float = np.inf) -> None:
        self.gamma, self.limit = gamma, limit
        self.behaviours: list[Behaviour | None] = [None] * n_envs
        self.discounted, self.rewards = np.zeros(n_envs), np.zeros(n_envs)
        self.discounts, self.lengths = np.ones(n_envs), np.zeros(n_envs, dtype=np.int64)
        # An episode in which the discount changed has no return to compare
        self.counts = np.ones(n_envs, dtype=bool)

    def change_discount(self, gamma: float, limit: float) -> None:
        """
        Count by another discount from now on.

        :param gamma: the discount of returns
        :param limit: the most steps that count as one episode
        """
        self.gamma, self.limit = gamma, limit
        self.counts[self.lengths > 0] = False

    def start(self, env: int, behaviour: Behaviour) -> None:
        """
        Begin an episode.

        :param env: the environment
        :param behaviour: who acts in it
        """
        self.behaviours[env], self.counts[env] = behaviour, True
        self.discounted[env], self.rewards[env], self.discounts[env], self.lengths[env] = 0.0, 0.0, 1.0, 0

    def leave(self, sources: Sequence[str]) -> list[int]:
        """
        Let nobody act any more where a source acts that is gone.

        :param sources: the names of those that are there
        :return: the environments in which an episode is under way that has no return to compare
        """
        cut = []
        for env, behaviour in enumerate(self.behaviours):
            if behaviour is not None and behaviour.is_source and behaviour.name not in sources:
                self.behaviours[env] = None
                cut += [env] * bool(self.lengths[env])
        return cut

    def add(self, rewards: np.ndarray, dones: np.ndarray) -> list[EpisodeResult]:
        """
        Count one step of all environments.

        :param rewards: as the task pays them
        :param dones: which episodes ended with it
        :return: what came of those that are over now
        """
        self.discounted += self.discounts * rewards
        self.rewards += rewards
        self.discounts *= self.gamma
        self.lengths += 1
        over = dones | (self.lengths >= self.limit)
        if not over.any():
            return []
        results = []
        for env in np.flatnonzero(over).tolist():
            behaviour = self.behaviours[env]
            if behaviour is not None and self.counts[env]:
                results.append(
                    EpisodeResult(
                        env,
                        behaviour,
                        float(self.discounted[env]),
                        float(self.rewards[env]),
                        int(self.lengths[env]),
                    )
                )
            self.behaviours[env] = None
        return results

    @property
    def waiting(self) -> list[int]:
        """The environments in which nobody acts yet."""
        return [env for env, behaviour in enumerate(self.behaviours) if behaviour is None]


def judging_discount(gamma: float) -> float:
    """
    :param gamma: the discount factor of learning
    :return: that of the returns which behaviours are compared by, with ten times the horizon: people judge a policy by
        what it is paid in all
    """
    return 1.0 - (1.0 - gamma) / HORIZONS


def longest_trial(gamma: float) -> float:
    """
    :param gamma: the discount factor of learning
    :return: how many steps are enough to judge a behaviour by
    """
    return float(round(HORIZONS / (1.0 - gamma))) if gamma < 1.0 else np.inf
