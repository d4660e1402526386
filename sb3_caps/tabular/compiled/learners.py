"""The rules of the tabular learners, for one run: what the batched learners do, in scalars."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sb3_caps.tabular.base import N_ACTIONS, Learner
from sb3_caps.tabular.caps import TabularCAPS
from sb3_caps.tabular.compiled.loop import make_loop, njit, uniform
from sb3_caps.tabular.ops_tl import OPSTL
from sb3_caps.tabular.option_critic import OptionCritic
from sb3_caps.tabular.prql import PRQL
from sb3_caps.tabular.q_learning import QLearning


@njit
def _hyperbolic(half_life: float, episodes: int) -> float:
    return 1.0 / (1.0 + episodes / half_life)


@njit
def _sigmoid(theta: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * theta))


@njit
def _argmax(values: Any, draw: float) -> int:
    """The index of the largest value, drawn among equal ones."""
    best, equal = -np.inf, 0
    for value in values:
        if value > best:
            best, equal = value, 0
        if value == best:
            equal += 1
    rank = 0
    for index in range(len(values)):
        rank += values[index] == best
        if rank > draw * equal:
            return index
    return 0


@njit
def _ignore_begin(tables: Any, state: int, seed: Any, counter: int) -> None:
    """Nothing to prepare."""


@njit
def _ignore_end(tables: Any, worth: float) -> None:
    """Nothing to remember."""


# CAPS


@njit
def _best_option(tables: Any, state: int) -> float:
    best = -np.inf
    for option in range(tables.values.shape[1]):
        best = max(best, tables.values[state, option] + tables.absent[option])
    return best


@njit
def _caps_begin(tables: Any, state: int, seed: Any, counter: int) -> None:
    values = tables.values[state]
    exploring = uniform(seed, counter + 1) < _hyperbolic(tables.half_life, tables.episodes[0])
    draw = uniform(seed, counter + 2) if exploring or tables.random_ties else 0.0
    present = 0
    for option in range(len(values)):
        present += tables.absent[option] == 0.0
    tables.option[0] = int(draw * present) if exploring else _argmax(values[:present], draw)


@njit
def _caps_act(tables: Any, state: int, seed: Any, counter: int) -> int:
    return tables.actions[state, tables.option[0]]


@njit
def _caps_learn(
    tables: Any, state: int, action: int, reward: float, cell: int, reached: bool, seed: Any, counter: int
) -> None:
    active = tables.option[0]
    rate = tables.learning_rate * _hyperbolic(tables.learning_rate_half_life, tables.episodes[0])
    best = _best_option(tables, cell)
    gamma = 0.0 if reached else tables.gamma
    # Algorithm 2. A state may be its own successor: the best value is read before any changes, and no option reads
    # another's.
    for option in range(tables.values.shape[1]):
        if tables.actions[state, option] == action and (tables.concurrent or option == active):
            stay = tables.values[cell, option]
            worth = stay + _sigmoid(tables.theta[cell, option]) * (best - stay)
            value = tables.values[state, option]
            tables.values[state, option] = value + rate * (reward + gamma * worth - value)
    beta = _sigmoid(tables.theta[cell, active])
    if not reached:
        # Equation 2
        advantage = tables.values[cell, active] - _best_option(tables, cell)
        slope = beta * (1.0 - beta)
        step = tables.termination_learning_rate * slope * (advantage + tables.regularization)
        tables.theta[cell, active] -= step
        tables.arrivals[cell, active] += 1
        if step != 0.0:
            beta = _sigmoid(tables.theta[cell, active])
    if uniform(seed, counter) < beta:
        _caps_begin(tables, cell, seed, counter)


# Q-learning


@njit
def _epsilon_greedy(tables: Any, state: int, epsilon: float, seed: Any, counter: int) -> int:
    if uniform(seed, counter) < epsilon:
        return int(uniform(seed, counter + 1) * N_ACTIONS)
    draw = uniform(seed, counter + 1) if tables.random_ties else 0.0
    return _argmax(tables.values[state], draw)


@njit
def _q_act(tables: Any, state: int, seed: Any, counter: int) -> int:
    epsilon = _hyperbolic(tables.half_life, tables.episodes[0])
    return _epsilon_greedy(tables, state, epsilon, seed, counter)


@njit
def _q_learn(
    tables: Any, state: int, action: int, reward: float, cell: int, reached: bool, seed: Any, counter: int
) -> None:
    best = tables.values[cell].max()
    gamma = 0.0 if reached else tables.gamma
    value = tables.values[state, action]
    value += tables.learning_rate * (reward + gamma * best - value)
    tables.values[state, action] = value


# PRQL and OPS-TL, which choose a source for each episode


@njit
def _gain(tables: Any, worth: float) -> None:
    chosen = tables.chosen[0]
    tables.counts[chosen] += 1
    gain = tables.gains[chosen]
    tables.gains[chosen] = gain + (worth - gain) / tables.counts[chosen]


@njit
def _prql_begin(tables: Any, state: int, seed: Any, counter: int) -> None:
    scaled = tables.temperature_step * tables.episodes[0] * tables.gains
    weights = np.exp(scaled - scaled.max()).cumsum()
    threshold = uniform(seed, counter + 4) * weights[-1]
    chosen = 0
    while weights[chosen] <= threshold:
        chosen += 1
    tables.chosen[0] = chosen
    tables.psi[0] = tables.reuse * _hyperbolic(tables.reuse_half_life, tables.episodes[0])


@njit
def _prql_act(tables: Any, state: int, seed: Any, counter: int) -> int:
    chosen, psi = tables.chosen[0], tables.psi[0]
    tables.psi[0] = psi * tables.reuse_decay
    new = chosen == len(tables.sources)
    if not new and uniform(seed, counter) < psi:
        return tables.sources[chosen, state]
    # The new policy is fully greedy when it was chosen for the episode.
    return _epsilon_greedy(tables, state, 0.0 if new else psi, seed, counter + 1)


@njit
def _ops_tl_begin(tables: Any, state: int, seed: Any, counter: int) -> None:
    logarithm = 2.0 * math.log(max(tables.episodes[0], 1))
    index = np.empty(len(tables.sources))
    for arm in range(len(index)):
        spread = math.sqrt(logarithm / max(tables.counts[arm], 1))
        # UCB1 plays every arm once first.
        untried = tables.counts[arm] == 0
        index[arm] = np.inf if untried else tables.gains[arm] + tables.bonus * spread
    tables.chosen[0] = _argmax(index, uniform(seed, counter + 3))
    tables.psi[0] = _hyperbolic(tables.reuse_half_life, tables.episodes[0])


@njit
def _ops_tl_act(tables: Any, state: int, seed: Any, counter: int) -> int:
    psi = tables.psi[0]
    tables.psi[0] = psi * tables.reuse_decay
    if uniform(seed, counter) < psi:
        return tables.sources[tables.chosen[0], state]
    epsilon = _hyperbolic(tables.half_life, tables.episodes[0])
    return _epsilon_greedy(tables, state, epsilon, seed, counter + 1)


# Option-Critic


@njit
def _softmax(values: Any, temperature: float) -> Any:
    weights, best, total = np.zeros(len(values)), values.max(), 0.0
    for choice in range(len(values)):
        exponent = (values[choice] - best) / temperature
        # What is smaller underflows to 0, and takes the processor much longer.
        if exponent > -745.0:
            weights[choice] = math.exp(exponent)
        total += weights[choice]
    for choice in range(len(values)):
        weights[choice] /= total
    return weights


@njit
def _sample(values: Any, temperature: float, draw: float) -> int:
    sums = _softmax(values, temperature)
    for choice in range(1, len(sums)):
        sums[choice] += sums[choice - 1]
    index, threshold = 0, draw * sums[-1]
    while sums[index] <= threshold:
        index += 1
    return index


@njit
def _critic_begin(tables: Any, state: int, seed: Any, counter: int) -> None:
    tables.option[0] = _sample(tables.values[state], tables.temperature, uniform(seed, counter + 3))


@njit
def _critic_act(tables: Any, state: int, seed: Any, counter: int) -> int:
    draw = uniform(seed, counter)
    if tables.half_life > 0.0 and uniform(seed, counter + 1) < _hyperbolic(tables.half_life, tables.episodes[0]):
        return int(draw * N_ACTIONS)
    return _sample(tables.preferences[state, tables.option[0]], tables.temperature, draw)


@njit
def _critic_learn(
    tables: Any, state: int, action: int, reward: float, cell: int, reached: bool, seed: Any, counter: int
) -> None:
    option = tables.option[0]
    stay = tables.values[cell, option]
    worth = stay + _sigmoid(tables.theta[cell, option]) * (tables.values[cell].max() - stay)
    target = reward + (0.0 if reached else tables.gamma) * worth
    rate = tables.critic_learning_rate
    tables.values[state, option] += rate * (target - tables.values[state, option])
    tables.action_values[state, option, action] += rate * (target - tables.action_values[state, option, action])

    step = tables.learning_rate * (tables.action_values[state, option, action] - tables.values[state, option])
    preferences = tables.preferences[state, option]
    probabilities = _softmax(preferences, tables.temperature)
    for choice in range(N_ACTIONS):
        preferences[choice] -= step * probabilities[choice]
    preferences[action] += step
    if not reached:
        values, expected = tables.values[cell], 0.0
        probabilities = _softmax(values, tables.temperature)
        for choice in range(len(values)):
            expected += probabilities[choice] * values[choice]
        beta = _sigmoid(tables.theta[cell, option])
        tables.theta[cell, option] -= tables.learning_rate * beta * (1.0 - beta) * (values[option] - expected)
    if uniform(seed, counter + 2) < _sigmoid(tables.theta[cell, option]):
        _critic_begin(tables, cell, seed, counter)


def _tables(arrays: str, numbers: str, flags: str = "") -> Any:
    """:return: a tuple of what a run has of a learner's attributes: views of arrays, and numbers that do not change"""
    kinds = [(arrays, np.ndarray), (numbers, float), (flags, bool)]
    fields = [(name, kind) for names, kind in kinds for name in names.split()]
    return NamedTuple("Tables", fields)


_REUSE = "episodes values sources gains counts chosen psi"
# A learner's class to the attributes that its rules need, and to its loop
RULES: dict[type[Learner], tuple[Any, Callable[..., int]]] = {
    TabularCAPS: (
        _tables(
            "episodes actions absent values theta arrivals option",
            "learning_rate learning_rate_half_life termination_learning_rate gamma half_life regularization",
            "concurrent random_ties",
        ),
        make_loop(_caps_begin, _caps_act, _caps_learn, _ignore_end),
    ),
    QLearning: (
        _tables("episodes values", "learning_rate gamma half_life", "random_ties"),
        make_loop(_ignore_begin, _q_act, _q_learn, _ignore_end),
    ),
    PRQL: (
        _tables(_REUSE, "learning_rate gamma temperature_step reuse reuse_decay reuse_half_life", "random_ties"),
        make_loop(_prql_begin, _prql_act, _q_learn, _gain),
    ),
    OPSTL: (
        _tables(_REUSE, "learning_rate gamma half_life bonus reuse_decay reuse_half_life", "random_ties"),
        make_loop(_ops_tl_begin, _ops_tl_act, _q_learn, _gain),
    ),
    OptionCritic: (
        _tables(
            "episodes preferences action_values values theta option",
            "learning_rate critic_learning_rate temperature half_life gamma",
        ),
        make_loop(_critic_begin, _critic_act, _critic_learn, _ignore_end),
    ),
}
