"""OPS-TL: online source selection as a bandit (Li and Zhang, 2018), on tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sb3_caps.tabular.base import argmax, column, epsilon_greedy, hyperbolic
from sb3_caps.tabular.prql import ReuseConfig, SourceChooser


@dataclass(frozen=True, eq=False)
class OPSTLConfig(ReuseConfig):
    """
    The configuration of one run of OPS-TL: ψ is 1 in the first step of an episode.

    Its constants were chosen on runs that are not reported (see ``docs/grid_study.md``): those of its paper were not
    available.

    :param bonus: the weight of UCB1's confidence bonus; 1 is UCB1's own, for rewards from 0 to 1
    """

    half_life: float = 25.0
    bonus: float = 0.1
    reuse_half_life: float = 100.0


class OPSTL(SourceChooser):
    """
    OPS-TL on tables.

    The source policies are the arms of a UCB1 bandit whose reward is the return of an episode. The chosen source is
    followed with a probability that decays within the episode; otherwise Q-learning acts ε-greedily.

    :param configs: one for each run, all with the same number of sources
    :param n_states: the number of states
    """

    columns = 4

    def __init__(self, configs: Sequence[OPSTLConfig], n_states: int) -> None:
        super().__init__(configs, n_states)
        self.bonus = column(configs, lambda config: config.bonus)

    def begin(self, runs: np.ndarray, states: np.ndarray, draws: np.ndarray) -> None:
        counts = self.counts[runs]
        spread = np.sqrt(2.0 * np.log(np.maximum(self.episodes[runs], 1))[:, None] / np.maximum(counts, 1))
        index = self.gains[runs] + self.bonus[runs][:, None] * spread
        # UCB1 plays every arm once first.
        self.chosen[runs] = argmax(np.where(counts == 0, np.inf, index), draws[:, 3])
        self.psi[runs] = hyperbolic(self.reuse_half_life[runs], self.episodes[runs])

    def act(self, runs: np.ndarray, states: np.ndarray, draws: np.ndarray) -> np.ndarray:
        psi = self.psi[runs]
        epsilon = hyperbolic(self.half_life[runs], self.episodes[runs])
        values = self.values[self.rows(runs, states)]
        own = epsilon_greedy(values, epsilon, draws[:, 1], draws[:, 2], self.random_ties[runs])
        self.psi[runs] = psi * self.reuse_decay[runs]
        return np.where(draws[:, 0] < psi, self.sources[runs, self.chosen[runs], states], own)
