"""PRQL: probabilistic policy reuse in Q-learning (Fernández and Veloso, 2006), on tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sb3_caps.tabular.base import column, epsilon_greedy, hyperbolic
from sb3_caps.tabular.q_learning import QConfig, QLearning


@dataclass(frozen=True, eq=False)
class ReuseConfig(QConfig):
    """
    One run of a method that follows a source policy with a probability ψ.

    :param sources: the action of each source policy in each state
    :param reuse_decay: the factor of ψ in each step
    :param reuse_half_life: K of a factor 1 − k / (k + K) of ψ in episode k: the better the learned policy, the less the
        source is followed; infinite for none, so that ψ decays within the episode only
    """

    sources: Sequence[np.ndarray] = field(default_factory=list)
    reuse_decay: float = 0.95
    reuse_half_life: float = np.inf


@dataclass(frozen=True, eq=False)
class PRQLConfig(ReuseConfig):
    """
    The configuration of one run of PRQL, with the constants of its paper.

    ``half_life`` is not used: π-reuse is the exploration.

    :param temperature_step: by how much the temperature of the softmax over gains grows in an episode, from 0
    :param reuse: ψ in the first step of an episode
    """

    temperature_step: float = 0.05
    reuse: float = 1.0


class SourceChooser(QLearning):
    """
    Q-learning that chooses a policy for each episode by the gains of those before.

    :param configs: one for each run, all with the same number of sources
    :param n_states: the number of states
    """

    #: how many policies there are to choose from beside the sources
    n_others = 0

    def __init__(self, configs: Sequence[ReuseConfig], n_states: int) -> None:
        super().__init__(configs, n_states)
        self.sources = stack_sources([config.sources for config in configs])
        #: the average gain of each past policy and, last, of the new one if it may be chosen
        self.gains = np.zeros((self.n_runs, self.sources.shape[1] + self.n_others))
        self.counts = np.zeros(self.gains.shape)
        self.chosen = np.zeros(self.n_runs, dtype=np.intp)
        self.psi = np.zeros(self.n_runs)
        self.reuse_decay = column(configs, lambda config: config.reuse_decay)
        self.reuse_half_life = column(configs, lambda config: config.reuse_half_life)

    def end(self, runs: np.ndarray, returns: np.ndarray) -> None:
        super().end(runs, returns)
        chosen = self.chosen[runs]
        self.counts[runs, chosen] += 1
        gains = self.gains[runs, chosen]
        self.gains[runs, chosen] = gains + (returns - gains) / self.counts[runs, chosen]

    def tables(self) -> dict[str, np.ndarray]:
        return {**super().tables(), "gains": self.gains, "counts": self.counts}


class PRQL(SourceChooser):
    """
    PRQL on tables.

    For each episode, a policy is drawn by a softmax over the mean gains of the library and of the new policy. The new
    policy acts greedily. A past policy is followed with probability ψ_h; otherwise the new one acts ε-greedily with
    ε = ψ_h.

    :param configs: one for each run, all with the same number of sources
    :param n_states: the number of states
    """

    columns = 5
    n_others = 1

    def __init__(self, configs: Sequence[PRQLConfig], n_states: int) -> None:
        super().__init__(configs, n_states)
        self.temperature_step = column(configs, lambda config: config.temperature_step)
        self.reuse = column(configs, lambda config: config.reuse)

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
