"""How options are chosen while learning: by drawn durations, or by their terminations as in the paper."""

from collections.abc import Sequence

import numpy as np


def epsilon_greedy(
    values: np.ndarray,
    epsilon: float | np.ndarray,
    weights: np.ndarray | None = None,
    greedy: np.ndarray | None = None,
) -> np.ndarray:
    """
    Choose an option for each environment, each on its own.

    :param values: Q_O(s, o) in the state of each environment, of shape (environments, options)
    :param epsilon: probability to draw the option at random, one or one for each environment
    :param weights: of that draw, of shape (options,) or that of the values; None for uniform
    :param greedy: the option where it is not drawn; None for that of the highest value
    :return: an option for each environment
    """
    if greedy is None:
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


class DrawnDurations:
    """
    The greedy options, with random actions as in DQN and with stretches of source policies (the default).

    A share of the episodes is mixed: turns of a random source and turns of the learner follow each other, each as
    likely, and each for a random number of steps. Its logarithm is uniform up to the length of an episode, so that
    short and long stretches are equally likely whatever the time scale of the task is (heavy-tailed durations, as
    Dabney and others 2021 have them for actions). A source that comes back to where it was in its turn would go in a
    circle, or run into a wall for ever: there its turn is over.
    In all other steps, and in all other episodes, actions are random with probability ε.

    :param n_sources: number of source policies
    :param n_actions: number of actions
    :param share: share of mixed episodes where it is not known what they bring, see ``adapt``
    """

    def __init__(self, n_sources: int, n_actions: int, share: float = 0.25) -> None:
        self.n_sources, self.n_actions, self.share = n_sources, n_actions, share
        self.gain, self.drawn_sources = 0.5, np.arange(n_sources)
        self.episode_length = 1.0
        self.n_episodes = 0
        self._resize(0)

    def resume(self, before: "DrawnDurations") -> None:
        """
        :param before: of a loaded model, whose episodes go on
        """
        for name in (
            "gain",
            "drawn_sources",
            "episode_length",
            "n_episodes",
            "mixed",
            "sources",
            "left",
            "ages",
            "seen",
        ):
            setattr(self, name, getattr(before, name))

    def _resize(self, n_envs: int) -> None:
        self.mixed = np.zeros(n_envs, dtype=bool)
        # The source whose turn it is, -1 for the learner, and for how many more steps
        self.sources, self.left = np.full(n_envs, -1), np.zeros(n_envs, dtype=np.int64)
        self.ages = np.zeros(n_envs, dtype=np.int64)
        # Where the source has been in its turn
        self.seen: list[set[int]] = [set() for _ in range(n_envs)]

    def adapt(self, gain: float, useful: np.ndarray) -> None:
        """
        Take into account what sources brought.

        :param gain: how likely a mixed episode does better than another one: 0.5 leaves the share as it is, 1 doubles
            it, and as the learner gets better than any mixture there will be fewer and fewer
        :param useful: which sources to draw
        """
        self.gain, self.drawn_sources = gain, np.flatnonzero(useful)

    def start_episodes(self, starts: np.ndarray) -> None:
        """
        Draw which of the episodes that start now are mixed.

        :param starts: which environments start an episode
        """
        if len(self.mixed) != len(starts):
            self._resize(len(starts))
        for age in self.ages[starts & (self.ages > 0)]:
            self.n_episodes += 1
            self.episode_length += (age - self.episode_length) * max(0.02, 1 / self.n_episodes)
        factor = 2.0 * self.gain
        # Rare successes differ little in their ranks: what does worse is soon left, by the fourth power
        share = self.share * (factor if factor > 1 else factor**4)
        drawn = np.random.random(len(starts)) < share
        self.mixed = np.where(starts, drawn & (len(self.drawn_sources) > 0), self.mixed)
        self.sources[starts], self.left[starts], self.ages[starts] = -1, 0, 0

    def choose(
        self, greedy: np.ndarray, epsilon: float | np.ndarray, observations: Sequence[np.ndarray] = ()
    ) -> np.ndarray:
        """
        :param greedy: the option that each environment would go on with
        :param epsilon: probability of a random action, one or one for each environment
        :param observations: where the environments are, in one array or in several
        :return: the option to follow for one step
        """
        if observations:
            self._end_circles(observations)
        turns = np.flatnonzero(self.mixed & (self.left == 0))
        if len(turns):
            sources = np.full(len(turns), -1)
            if len(self.drawn_sources):
                drawn = np.random.choice(self.drawn_sources, size=len(turns))
                sources = np.where(np.random.random(len(turns)) < 0.5, drawn, -1)
            self.sources[turns] = sources
            longest = np.log(max(self.episode_length, self.ages.max(), 2.0))
            self.left[turns] = np.exp(np.random.random(len(turns)) * longest).astype(np.int64)
        self.left = np.maximum(self.left - 1, 0)
        self.ages += 1
        random = np.random.random(len(greedy)) < epsilon
        primitives = self.n_sources + np.random.randint(self.n_actions, size=len(greedy))
        return np.where(self.sources >= 0, self.sources, np.where(random, primitives, greedy))

    def _end_circles(self, observations: Sequence[np.ndarray]) -> None:
        for i in np.flatnonzero(self.mixed):
            here = hash(b"".join(part[i].tobytes() for part in observations))
            if here in self.seen[i] and self.sources[i] >= 0:
                self.left[i] = 0
            if self.left[i] == 0:
                self.seen[i].clear()
            self.seen[i].add(here)


class OptionExploration:
    """
    The paper's choice of options while learning, in several environments at once: an option runs until it terminates,
    and the next one is chosen ε-greedily among all.

    :param weights: how likely each option is in a random choice, None for all alike
    :param episodes: share of the episodes in which every choice is random
    :param novelty: exponent x of the count weight (1 + n)^-x of an option in a random choice, where n is how often
        its action was taken in this observation
    """

    def __init__(self, weights: np.ndarray | None = None, episodes: float = 0.0, novelty: float = 0.0) -> None:
        self.weights, self.episodes, self.novelty = weights, episodes, novelty
        self.random_episodes = np.zeros(0, dtype=bool)

    def resume(self, before: "OptionExploration") -> None:
        """
        :param before: of a loaded model, whose episodes go on
        """
        self.random_episodes = before.random_episodes

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
