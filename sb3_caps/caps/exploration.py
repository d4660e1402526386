"""How options are chosen while learning: ε, temperature, weights, novelty and random episodes."""

import numpy as np


def epsilon_greedy(values: np.ndarray, epsilon: float | np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """
    Choose an option for each environment, each on its own.

    :param values: Q_O(s, o) in the state of each environment, of shape (environments, options)
    :param epsilon: probability to draw the option at random, one or one for each environment
    :param weights: of that draw, of shape (options,) or that of the values; None for uniform
    :return: an option for each environment
    """
    greedy = values.argmax(axis=1)
    if np.all(epsilon <= 0.0):
        return greedy
    n_envs, n_options = values.shape
    if weights is None:
        weights = np.ones(n_options)
    drawn = draw(np.broadcast_to(weights, values.shape), np.random.random((n_envs,)))
    return np.where(np.random.random(n_envs) < epsilon, drawn, greedy)


def draw(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """
    :param weights: of shape (draws, options)
    :param uniform: for each draw a number from 0 to below 1
    :return: for each an option, as likely as its weight is high
    """
    ends = weights.cumsum(axis=1)
    return (uniform[:, None] * ends[:, -1:] >= ends).sum(axis=1)


class OptionExploration:
    """
    The choice of options while learning, in several environments at once.

    :param weights: how likely each option is in a random choice, None for all alike
    :param episodes: share of the episodes in which every choice is random
    :param novelty: exponent x of the count weight (1 + n)^-x of an option in a random choice, where n is how often
        its action was taken in this observation
    """

    def __init__(self, weights: np.ndarray | None = None, episodes: float = 0.0, novelty: float = 0.0) -> None:
        self.weights, self.episodes, self.novelty = weights, episodes, novelty
        self.random_episodes = np.zeros(0, dtype=bool)

    def start_episodes(self, starts: np.ndarray) -> None:
        """
        Draw which of the episodes that start now are random.

        :param starts: which environments start an episode
        """
        if len(self.random_episodes) != len(starts):
            self.random_episodes = np.zeros(len(starts), dtype=bool)
        if self.episodes > 0:
            drawn = np.random.random(len(starts)) < self.episodes
            self.random_episodes = np.where(starts, drawn, self.random_episodes)

    def choose(
        self, values: np.ndarray, epsilon: float, temperature: float = 0.0, visits: np.ndarray | None = None
    ) -> np.ndarray:
        """
        :param values: Q_O(s, o) in the state of each environment, of shape (environments, options)
        :param epsilon: probability of a random choice
        :param temperature: of the softmax by which the others are made, 0 for the greedy option
        :param visits: how often the action of each option was taken in the observation, where ``novelty`` needs it
        :return: an option for each environment
        """
        if temperature > 0:
            # Gumbel noise makes the greedy choice a draw from the softmax of the values
            values = values + np.random.gumbel(scale=temperature, size=values.shape)
        epsilons = np.where(self.random_episodes, 1.0, epsilon)
        return epsilon_greedy(values, epsilons, self.random_weights(visits))

    def random_weights(self, visits: np.ndarray | None) -> np.ndarray | None:
        """
        :param visits: see ``choose``
        :return: the weight of each option in a random choice, None for all alike
        """
        if visits is None:
            return self.weights
        weights = ((1.0 + visits) / (1.0 + visits.min(axis=1, keepdims=True))) ** -self.novelty
        return weights if self.weights is None else weights * self.weights
