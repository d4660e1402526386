"""Tabular Q-learning, the baseline without transfer and the base of PRQL and OPS-TL."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sb3_caps.tabular.base import GAMMA, N_ACTIONS, Greedy, Learner, Steps, column, epsilon_greedy, hyperbolic


@dataclass(frozen=True, eq=False)
class QConfig:
    """
    One run of Q-learning; ε is the paper's, and α is that of CAPS there.

    :param learning_rate: α
    :param gamma: the discount factor
    :param half_life: K of ε = 1 − k / (k + K) in episode k
    :param random_ties: draw the greedy action among equal values, or take the first of them
    """

    learning_rate: float = 0.5
    gamma: float = GAMMA
    half_life: float = 800.0
    random_ties: bool = True


class QLearning(Learner):
    """
    ε-greedy Q-learning.

    :param configs: one for each run
    :param n_states: the number of states
    """

    columns = 2

    def __init__(self, configs: Sequence[QConfig], n_states: int) -> None:
        super().__init__(len(configs), n_states)
        self.values = np.zeros((self.n_runs * n_states, N_ACTIONS))
        self.learning_rate = column(configs, lambda config: config.learning_rate)
        self.gamma = column(configs, lambda config: config.gamma)
        self.half_life = column(configs, lambda config: config.half_life)
        self.random_ties = column(configs, lambda config: config.random_ties).astype(bool)

    def begin(self, runs: np.ndarray, states: np.ndarray, draws: np.ndarray) -> None:
        """Q-learning needs no preparation of an episode."""

    def act(self, runs: np.ndarray, states: np.ndarray, draws: np.ndarray) -> np.ndarray:
        epsilon = hyperbolic(self.half_life[runs], self.episodes[runs])
        values = self.values[self.rows(runs, states)]
        return epsilon_greedy(values, epsilon, draws[:, 0], draws[:, 1], self.random_ties[runs])

    def learn(self, steps: Steps) -> None:
        runs, states, actions, rewards, next_states, terminated, _ = steps
        rows = self.rows(runs, states)
        best = self.values[self.rows(runs, next_states)].max(axis=1)
        targets = rewards + self.gamma[runs] * ~terminated * best
        values = self.values[rows, actions]
        self.values[rows, actions] = values + self.learning_rate[runs] * (targets - values)

    def greedy(self) -> Greedy:
        values = self.values.reshape(self.n_runs, self.n_states, N_ACTIONS)
        actions = np.broadcast_to(np.arange(N_ACTIONS), values.shape)
        return Greedy(values.argmax(axis=2), actions, np.ones(values.shape))

    def tables(self) -> dict[str, np.ndarray]:
        return {"values": self.values.reshape(self.n_runs, self.n_states, N_ACTIONS)}
