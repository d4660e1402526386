"""Which option to choose, and which to interrupt, by option values of shape (states, options)."""

import numpy as np


def choose(values: np.ndarray, epsilon: float | np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """
    Choose an option for each environment, ε-greedily and each on its own.

    :param values: Q_O(s, o) in the state of each environment
    :param epsilon: probability to draw the option at random, one or one for each environment
    :param weights: probabilities of that draw, or weights for each environment, of the shape of the values;
        None for uniform
    :return: an option for each environment
    """
    greedy = values.argmax(axis=1)
    if np.all(epsilon <= 0.0):
        return greedy
    envs, n_options = values.shape[:1], values.shape[1]
    if weights is None:
        drawn = np.random.randint(n_options, size=envs)
    elif weights.ndim == 1:
        drawn = np.random.choice(n_options, size=envs, p=weights)
    else:
        drawn = draw(weights, np.random.random(envs))
    return np.where(np.random.random(envs) < epsilon, drawn, greedy)


def draw(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """
    :param weights: of shape (draws, options)
    :param uniform: for each draw a number from 0 to below 1
    :return: for each an option, as likely as its weight is high
    """
    ends = weights.cumsum(axis=1)
    return (uniform[:, None] * ends[:, -1:] >= ends).sum(axis=1)


def to_interrupt(values: np.ndarray, margin: float) -> np.ndarray:
    """
    :param values: Q_O(s, o)
    :param margin: how much higher the value of another option must be, as a share of it
    :return: which options to interrupt in each state
    """
    best = values.max(axis=1, keepdims=True)
    return values < best - margin * np.abs(best)
