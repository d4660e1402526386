"""
Option-Critic (Bacon, Harb and Precup, 2017) on tables, as the appendix of the CAPS paper uses it.

The source tasks are learned with one intra-option policy each, and these start the options of the target task.

The paper gives a temperature of 1e-5 for all softmax policies. Three things follow from it, and were needed:

- ``exp(w / 1e-5)`` overflows for preferences above 0.007, so the largest preference is subtracted first;
- the gradient of ``log π`` carries a factor of 1e5, with which one update would decide a state for ever. As in the
  published code of Option-Critic, this factor is left out: preferences move by the learning rate times the advantage;
- a preference that leads by 1e-4 makes its policy deterministic. Without a baseline all advantages are positive here
  (rewards are not negative), and the first action that ever led to the goal would be repeated for ever; with the
  baseline Q_U(s, o, a) − Q_O(s, o) and with ε-greedy exploration while the source tasks are learned, a better action
  still wins. On the target task there is no exploration but the softmax, as in the paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sb3_caps.tabular.base import GAMMA, N_ACTIONS, Greedy, Learner, Steps, column, hyperbolic
from sb3_caps.tabular.caps import sigmoid


@dataclass(frozen=True, eq=False)
class OptionCriticConfig:
    """
    One run of Option-Critic.

    :param preferences: of each option, the preferences of its softmax policy at the start, of shape (states, actions)
    :param learning_rate: that of intra-option policies and terminations
    :param critic_learning_rate: that of Q_O and Q_U; the paper gives none, this is the one of CAPS
    :param temperature: that of the softmax over actions and of the softmax over options
    :param half_life: K of ε = 1 − k / (k + K), the probability of a random action in episode k; 0 for none
    :param gamma: the discount factor
    """

    preferences: Sequence[np.ndarray]
    learning_rate: float = 0.05
    critic_learning_rate: float = 0.5
    temperature: float = 1e-5
    half_life: float = 0.0
    gamma: float = GAMMA

    def __post_init__(self) -> None:
        if not self.preferences:
            raise ValueError("give the preferences of at least one option; zeros if nothing has been learned")
        if not self.temperature > 0.0:
            raise ValueError(f"temperature must be positive, not {self.temperature}")


class OptionCritic(Learner):
    """
    Call-and-return options with learned intra-option policies and terminations, which start at 0.5.

    :param configs: one for each run, all with the same number of options
    :param n_states: the number of states
    """

    columns = 4

    def __init__(self, configs: Sequence[OptionCriticConfig], n_states: int) -> None:
        super().__init__(len(configs), n_states)
        if len({len(config.preferences) for config in configs}) != 1:
            raise ValueError("all runs must have the same number of options")
        preferences = np.array([np.stack(list(config.preferences), axis=1) for config in configs], dtype=float)
        self.n_options = preferences.shape[2]
        self.preferences = preferences.reshape(-1, self.n_options, N_ACTIONS)
        self.action_values = np.zeros(self.preferences.shape)
        self.values = np.zeros(self.preferences.shape[:2])
        self.theta = np.zeros(self.values.shape)
        self.option = np.zeros(self.n_runs, dtype=np.intp)
        self.learning_rate = column(configs, lambda config: config.learning_rate)
        self.critic_learning_rate = column(configs, lambda config: config.critic_learning_rate)
        self.temperature = column(configs, lambda config: config.temperature)
        self.half_life = column(configs, lambda config: config.half_life)
        self.gamma = column(configs, lambda config: config.gamma)

    def begin(self, runs: np.ndarray, states: np.ndarray, draws: np.ndarray) -> None:
        self._choose(runs, states, draws)

    def act(self, runs: np.ndarray, states: np.ndarray, draws: np.ndarray) -> np.ndarray:
        probabilities = self._policy(runs, self.rows(runs, states))
        explore = draws[:, 1] < self._epsilon(runs)
        probabilities[explore] = 1.0 / N_ACTIONS
        return sample(probabilities, draws[:, 0])

    def learn(self, steps: Steps) -> None:
        runs, states, actions, rewards, next_states, terminated, draws = steps
        rows, next_rows, option = self.rows(runs, states), self.rows(runs, next_states), self.option[runs]
        next_values = self.values[next_rows]
        stay = next_values[np.arange(len(runs)), option]
        beta = sigmoid(self.theta[next_rows, option])
        worth = stay + beta * (next_values.max(axis=1) - stay)
        targets = rewards + self.gamma[runs] * ~terminated * worth
        self.values[rows, option] += self.critic_learning_rate[runs] * (targets - self.values[rows, option])
        action_values = self.action_values[rows, option, actions]
        self.action_values[rows, option, actions] += self.critic_learning_rate[runs] * (targets - action_values)

        advantage = self.action_values[rows, option, actions] - self.values[rows, option]
        step = self.learning_rate[runs] * advantage
        self.preferences[rows, option] -= step[:, None] * self._policy(runs, rows)
        self.preferences[rows, option, actions] += step
        self._update_termination(runs[~terminated], next_rows[~terminated])

        ends = draws[:, 2] < sigmoid(self.theta[next_rows, option])
        self._choose(runs[ends], next_states[ends], draws[ends])

    def _update_termination(self, runs: np.ndarray, next_rows: np.ndarray) -> None:
        """The termination gradient: the advantage is over the value of the softmax over options."""
        option, values = self.option[runs], self.values[next_rows]
        expected = (softmax(values, self.temperature[runs]) * values).sum(axis=1)
        beta = sigmoid(self.theta[next_rows, option])
        advantage = values[np.arange(len(runs)), option] - expected
        self.theta[next_rows, option] -= self.learning_rate[runs] * beta * (1.0 - beta) * advantage

    def _policy(self, runs: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return softmax(self.preferences[rows, self.option[runs]], self.temperature[runs])

    def _choose(self, runs: np.ndarray, states: np.ndarray, draws: np.ndarray) -> None:
        probabilities = softmax(self.values[self.rows(runs, states)], self.temperature[runs])
        self.option[runs] = sample(probabilities, draws[:, 3])

    def _epsilon(self, runs: np.ndarray) -> np.ndarray:
        half_life = self.half_life[runs]
        return (half_life > 0.0) * hyperbolic(np.maximum(half_life, 1e-9), self.episodes[runs])

    def greedy(self) -> Greedy:
        shape = (self.n_runs, self.n_states, self.n_options)
        return Greedy(
            self.values.reshape(shape).argmax(axis=2),
            self.preferences.argmax(axis=2).reshape(shape),
            sigmoid(self.theta.reshape(shape)),
        )

    def tables(self) -> dict[str, np.ndarray]:
        shape = (self.n_runs, self.n_states, self.n_options)
        return {
            "values": self.values.reshape(shape),
            "preferences": self.preferences.reshape(*shape, N_ACTIONS),
            "theta": self.theta.reshape(shape),
        }


def softmax(values: np.ndarray, temperature: np.ndarray) -> np.ndarray:
    """
    Compute the probabilities of a softmax policy.

    :param values: of shape (rows, choices)
    :param temperature: one for each row
    :return: the probability of each choice
    """
    weights = np.exp((values - values.max(axis=1, keepdims=True)) / temperature[:, None])
    return weights / weights.sum(axis=1, keepdims=True)


def sample(probabilities: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """
    Draw a choice for each row.

    :param probabilities: of shape (rows, choices)
    :param draws: one uniform draw for each row
    :return: a choice for each row
    """
    sums = probabilities.cumsum(axis=1)
    return (sums > (draws * sums[:, -1])[:, None]).argmax(axis=1)
