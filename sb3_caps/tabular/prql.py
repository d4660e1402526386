"""PRQL: probabilistic policy reuse in Q-learning (Fernández and Veloso, 2006), on tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sb3_caps.tabular.base import epsilon_greedy, hyperbolic
from sb3_caps.tabular.q_learning import QConfig, QLearning


@dataclass(frozen=True, eq=False)
class PRQLConfig(QConfig):
    """
    The configuration of one run of PRQL, with the constants of its paper.

    ``half_life`` is not used: π-reuse is the exploration.

    :param sources: the action of each source policy in each state
    :param temperature_step: by how much the temperature of the softmax over gains grows in an episode, from 0
    :param reuse: ψ, the probability of following the past policy in the first step of an episode
    :param reuse_decay: υ, the factor of ψ in each step
    :param reuse_half_life: K of a factor 1 − k / (k + K) of ψ in episode k; infinite for none, as in its paper
    """

    sources: Sequence[np.ndarray] = field(default_factory=list)
    temperature_step: float = 0.05
    reuse: float = 1.0
    reuse_decay: float = 0.95
    reuse_half_life: float = np.inf


class PRQL(QLearning):
    """
    PRQL on tables.

    For each episode, a policy is drawn by a softmax over the mean gains of the library and of the new policy. The new
    policy acts greedily. A past policy is followed with probability ψ_h; otherwise the new one acts ε-greedily with
    ε = ψ_h.

    :param configs: one for each run, all with the same number of sources
    :param n_states: the number of states
    """

    columns = 5

    def __init__(self, configs: Sequence[PRQLConfig], n_states: int) -> None:
        super().__init__(configs, n_states)
        self.sources = stack_sources([config.sources for config in configs])
        n_choices = self.sources.shape[1] + 1
        #: the average gain of each past policy and, last, of the new one
        self.gains = np.zeros((self.n_runs, n_choices))
        self.counts = np.zeros((self.n_runs, n_choices))
        self.chosen = np.zeros(self.n_runs, dtype=np.intp)
        self.psi = np.zeros(self.n_runs)
        self.temperature_step = np.array([config.temperature_step for config in configs])
        self.reuse = np.array([config.reuse for config in configs])
        self.reuse_decay = np.array([config.reuse_decay for config in configs])
        self.reuse_half_life = np.array([config.reuse_half_life for config in configs])

    def begin(self, runs: np.ndarray, states: np.ndarray, draws: np.ndarray) -> None:
        temperature = self.temperature_step[runs] * self.episodes[runs]
        scaled = temperature[:, None] * self.gains[runs]
        weights = np.exp(scaled - scaled.max(axis=1, keepdims=True)).cumsum(axis=1)
        self.chosen[runs] = (weights > (draws[:, 4] * weights[:, -1])[:, None]).argmax(axis=1)
        self.psi[runs] = self.reuse[runs] * hyperbolic(self.reuse_half_life[runs], self.episodes[runs])

    def act(self, runs: np.ndarray, states: np.ndarray, draws: np.ndarray) -> np.ndarray:
        chosen, psi = self.chosen[runs], self.psi[runs]
        new = chosen == self.sources.shape[1]
        values = self.values[self.rows(runs, states)]
        # The new policy is fully greedy when it was chosen for the episode.
        own = epsilon_greedy(values, np.where(new, 0.0, psi), draws[:, 1], draws[:, 2], self.random_ties[runs])
        past = self.sources[runs, np.where(new, 0, chosen), states]
        self.psi[runs] = psi * self.reuse_decay[runs]
        return np.where(~new & (draws[:, 0] < psi), past, own)

    def end(self, runs: np.ndarray, returns: np.ndarray) -> None:
        super().end(runs, returns)
        chosen = self.chosen[runs]
        self.counts[runs, chosen] += 1
        gains = self.gains[runs, chosen]
        self.gains[runs, chosen] = gains + (returns - gains) / self.counts[runs, chosen]

    def tables(self) -> dict[str, np.ndarray]:
        return {**super().tables(), "gains": self.gains, "counts": self.counts}


def stack_sources(sources: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """
    Stack the source policies of all runs in one array.

    :param sources: for each run the tables of its source policies
    :return: all of them, of shape (runs, sources, states)
    """
    counts = {len(of_run) for of_run in sources}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"all runs must have the same number of source policies, at least one, not {sorted(counts)}")
    return np.array([np.stack(list(of_run)) for of_run in sources])
