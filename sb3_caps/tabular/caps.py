"""Context-Aware Policy Reuse on tables: Algorithms 1 and 2 of the paper, with the switches of its ablations."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sb3_caps.tabular.base import GAMMA, N_ACTIONS, Greedy, Learner, Steps, column, epsilon_greedy, hyperbolic


@dataclass(frozen=True, eq=False)
class CAPSConfig:
    """
    The configuration of one run of CAPS.

    Learning rates, discount and initial β are the paper's (Section 5.1). The paper does not give the ε of CAPS:
    ``half_life`` was chosen on runs that are not reported (see ``docs/grid_study.md``).

    :param sources: the action of each source policy in each state
    :param learning_rate: α of Q_O
    :param learning_rate_half_life: K of a factor 1 − k / (k + K) of α in episode k, as the theorems ask for; infinite
        for a constant α, as in the paper's experiments
    :param termination_learning_rate: α_β of θ
    :param gamma: the discount factor
    :param half_life: K of ε = 1 − k / (k + K) in episode k
    :param termination: a number fixes β of all options, None learns it
    :param regularization: ρ, added to the advantage in Equation 2
    :param initial_termination: β of all options at the start, or (β of sources, β of primitive options)
    :param concurrent: update all options that agree with the action, or only the active one
    :param primitives: add the primitive options
    :param random_ties: draw the greedy option among equal values, or take the first of them
    """

    sources: Sequence[np.ndarray] = field(default_factory=list)
    learning_rate: float = 0.5
    learning_rate_half_life: float = np.inf
    termination_learning_rate: float = 0.2
    gamma: float = GAMMA
    half_life: float = 25.0
    termination: float | None = None
    regularization: float = 0.0
    initial_termination: float | tuple[float, float] = 0.5
    concurrent: bool = True
    primitives: bool = True
    random_ties: bool = True

    def __post_init__(self) -> None:
        if not self.sources and not self.primitives:
            raise ValueError("there is no option: give source policies or keep the primitive options")
        if not all(0.0 < start < 1.0 for start in self.start()):
            raise ValueError(f"initial_termination must be between 0 and 1, not {self.initial_termination}")
        if self.termination is not None and not 0.0 <= self.termination <= 1.0:
            raise ValueError(f"termination must be from 0 to 1, or None to learn it, not {self.termination}")

    def start(self) -> tuple[float, float]:
        """Return β of sources and β of primitive options at the start."""
        start = self.initial_termination
        return start if isinstance(start, tuple) else (start, start)


class TabularCAPS(Learner):
    """
    CAPS on tables: Algorithm 1 of the paper.

    Options are in the order sources, then primitives by action. Runs with fewer options than others have some that
    exist only in the tables.

    :param configs: one for each run
    :param n_states: the number of states
    """

    columns = 3

    def __init__(self, configs: Sequence[CAPSConfig], n_states: int) -> None:
        super().__init__(len(configs), n_states)
        option_actions = [_option_actions(config, n_states) for config in configs]
        n_options = max(actions.shape[1] for actions in option_actions)
        # No action agrees with an option that a run does not have.
        self.actions = np.full((self.n_runs, n_states, n_options), -1)
        for table, actions in zip(self.actions, option_actions, strict=True):
            table[:, : actions.shape[1]] = actions
        self.actions = self.actions.reshape(-1, n_options)
        self.absent = np.where(self.actions[::n_states] < 0, -np.inf, 0.0)
        self.values = np.zeros(self.actions.shape)
        #: how often each option has arrived in each state, so that its β was updated there
        self.arrivals = np.zeros(self.actions.shape, dtype=np.int64)
        self.option = np.zeros(self.n_runs, dtype=np.intp)

        self.learning_rate = column(configs, lambda config: config.learning_rate)
        self.learning_rate_half_life = column(configs, lambda config: config.learning_rate_half_life)
        self.termination_learning_rate = column(configs, lambda config: config.termination_learning_rate)
        self.gamma = column(configs, lambda config: config.gamma)
        self.half_life = column(configs, lambda config: config.half_life)
        self.regularization = column(configs, lambda config: config.regularization)
        self.concurrent = column(configs, lambda config: config.concurrent).astype(bool)
        self.random_ties = column(configs, lambda config: config.random_ties).astype(bool)
        self.some_alone = not self.concurrent.all()
        self.termination_learning_rate[[config.termination is not None for config in configs]] = 0.0
        start = np.array([_initial_termination(config, n_options) for config in configs])
        # θ of a fixed β of 0 or 1 is infinite, as it should be: its sigmoid is exact.
        with np.errstate(divide="ignore"):
            self.theta = (np.log(start) - np.log1p(-start)).repeat(n_states, axis=0)

    def begin(self, runs: np.ndarray, states: np.ndarray, draws: np.ndarray) -> None:
        self.option[runs] = self._choose(runs, states, draws)

    def act(self, runs: np.ndarray, states: np.ndarray, draws: np.ndarray) -> np.ndarray:
        return self.actions[self.rows(runs, states), self.option[runs]]

    def learn(self, steps: Steps) -> None:
        runs, states, actions, rewards, next_states, terminated, draws = steps
        rows, next_rows = self.rows(runs, states), self.rows(runs, next_states)
        self._update_values(runs, rows, actions, rewards, next_rows, terminated)
        going_on = np.flatnonzero(~terminated)
        self._update_termination(runs[going_on], next_rows[going_on])
        # Line 11: where the active option ends, another is chosen. At the end of an episode ``begin`` will do it.
        ends = draws[:, 0] < sigmoid(self.theta[next_rows, self.option[runs]])
        if ends.any():
            self.option[runs[ends]] = self._choose(runs[ends], next_states[ends], draws[ends])

    def _update_values(
        self,
        runs: np.ndarray,
        rows: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        next_rows: np.ndarray,
        terminated: np.ndarray,
    ) -> None:
        """Algorithm 2, for all options at once."""
        next_values = self.values[next_rows]
        beta = sigmoid(self.theta[next_rows])
        best = (next_values + self.absent[runs]).max(axis=1, keepdims=True)
        worth = next_values + beta * (best - next_values)
        targets = rewards[:, None] + (self.gamma[runs] * ~terminated)[:, None] * worth
        agree = self.actions[rows] == actions[:, None]
        if self.some_alone:
            active = np.arange(agree.shape[1]) == self.option[runs][:, None]
            agree &= self.concurrent[runs][:, None] | active
        values = self.values[rows]
        rate = self.learning_rate[runs] * hyperbolic(self.learning_rate_half_life[runs], self.episodes[runs])
        self.values[rows] = values + (rate[:, None] * agree) * (targets - values)

    def _update_termination(self, runs: np.ndarray, next_rows: np.ndarray) -> None:
        """Equation 2, for the active option in the state that it has arrived in."""
        option = self.option[runs]
        values = self.values[next_rows]
        advantage = values[np.arange(len(runs)), option] - (values + self.absent[runs]).max(axis=1)
        beta = sigmoid(self.theta[next_rows, option])
        slope = beta * (1.0 - beta)
        step = self.termination_learning_rate[runs] * slope * (advantage + self.regularization[runs])
        self.theta[next_rows, option] -= step
        self.arrivals[next_rows, option] += 1

    def _choose(self, runs: np.ndarray, states: np.ndarray, draws: np.ndarray) -> np.ndarray:
        values = self.values[self.rows(runs, states)] + self.absent[runs]
        epsilon = hyperbolic(self.half_life[runs], self.episodes[runs])
        return epsilon_greedy(values, epsilon, draws[:, 1], draws[:, 2], self.random_ties[runs])

    def greedy(self) -> Greedy:
        shape = (self.n_runs, self.n_states, -1)
        values = self.values.reshape(shape) + self.absent[:, None]
        return Greedy(values.argmax(axis=2), self.actions.reshape(shape), sigmoid(self.theta.reshape(shape)))

    def tables(self) -> dict[str, np.ndarray]:
        shape = (self.n_runs, self.n_states, -1)
        tables = {"values": self.values, "theta": self.theta, "arrivals": self.arrivals}
        return {name: table.reshape(shape) for name, table in tables.items()}


def _option_actions(config: CAPSConfig, n_states: int) -> np.ndarray:
    """The action of each option of a run in each state, of shape (states, options)."""
    for source in config.sources:
        if np.shape(source) != (n_states,):
            raise ValueError(f"a source must have an action for each of {n_states} states, not {np.shape(source)}")
    primitives = [np.full(n_states, action) for action in range(N_ACTIONS)] if config.primitives else []
    return np.stack([*config.sources, *primitives], axis=1)


def _initial_termination(config: CAPSConfig, n_options: int) -> np.ndarray:
    """β of each option of a run at the start."""
    if config.termination is not None:
        return np.full(n_options, config.termination)
    of_sources, of_primitives = config.start()
    return np.where(np.arange(n_options) < len(config.sources), of_sources, of_primitives)


def sigmoid(theta: np.ndarray) -> np.ndarray:
    """
    Compute the logistic function.

    :param theta: any numbers, infinite ones too
    :return: 1 / (1 + exp(-θ)) without overflow
    """
    return 0.5 * (1.0 + np.tanh(0.5 * theta))
