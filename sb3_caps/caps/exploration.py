"""How options are drawn while learning."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np

from sb3_caps.sources.masks import random_actions

# How the values of options explore: what CAPS has, or a function with the parameters of `epsilon_greedy`
BuiltInExploration = Literal["steps", "terminations"]
Exploration: TypeAlias = BuiltInExploration | Callable[[np.ndarray, float, np.random.Generator, np.ndarray], np.ndarray]


def epsilon_greedy(
    values: np.ndarray,
    epsilon: float,
    rng: np.random.Generator,
    greedy: np.ndarray | None = None,
    allowed: np.ndarray | None = None,
) -> np.ndarray:
    """
    Choose an option for each environment, each on its own.

    :param values: Q_O(s, o) in the state of each environment, of shape (environments, options)
    :param epsilon: probability to draw the option at random
    :param rng: random numbers
    :param greedy: the option where it is not drawn; None for that of the highest value
    :param allowed: which options to draw from, of the shape of the values; None for all
    :return: an option for each environment
    """
    if greedy is None:
        greedy = values.argmax(axis=1)
    if epsilon <= 0.0:
        return greedy
    n_envs, n_options = values.shape
    return np.where(rng.random(n_envs) < epsilon, random_actions(n_envs, n_options, rng, allowed), greedy)


class RandomStretches:
    """
    Stretches of source policies within the episodes of a learner.

    Turns of a random source and turns of the learner follow each other, each as likely, and each for a random number of
    steps. Its logarithm is uniform up to the length of an episode, so that short and long stretches are equally likely
    whatever the time scale of the task is (heavy-tailed durations, as Dabney and others 2021 have them for actions).
    A source that comes back to where it was in its turn would go in a circle, or run into a wall for ever: there its
    turn is over.

    :param n_envs: number of environments
    """

    def __init__(self, n_envs: int) -> None:
        self.mean_length, self.n_episodes = 1.0, 0
        self.reset(n_envs)

    def reset(self, n_envs: int) -> None:
        """
        Begin new episodes in all environments. How long episodes are remains known.

        :param n_envs: number of environments
        """
        # Whether a source has its turn, which one, and for how many more steps
        self.has_turn, self.sources = np.zeros(n_envs, dtype=bool), np.zeros(n_envs, dtype=np.int64)
        self.left, self.ages = np.zeros(n_envs, dtype=np.int64), np.zeros(n_envs, dtype=np.int64)
        # Where the source has been in its turn
        self.seen: list[set[int]] = [set() for _ in range(n_envs)]

    def start(self, env: int) -> None:
        """
        Begin an episode.

        :param env: the environment
        """
        if self.ages[env] > 0:
            self.n_episodes += 1
            self.mean_length += (self.ages[env] - self.mean_length) * max(0.02, 1 / self.n_episodes)
        self.has_turn[env], self.left[env], self.ages[env] = False, 0, 0
        self.seen[env].clear()

    def map_sources(self, numbers: np.ndarray) -> None:
        """
        Draw from other sources from now on. The turn of one that is gone is over.

        :param numbers: for each source its new number, -1 for one that is gone
        """
        self.sources[self.has_turn] = numbers[self.sources[self.has_turn]]
        over = self.has_turn & (self.sources < 0)
        self.has_turn[over], self.left[over], self.sources[over | ~self.has_turn] = False, 0, 0

    def choose(
        self,
        envs: np.ndarray,
        others: np.ndarray,
        sources: np.ndarray,
        observations: Sequence[np.ndarray],
        rng: np.random.Generator,
    ) -> np.ndarray:
        """
        Take one step.

        :param envs: the environments
        :param others: the option to follow in each where no source has its turn
        :param sources: which sources to draw from
        :param observations: where these environments are, in one array or in several
        :param rng: random numbers
        :return: the option to follow in each
        """
        for place, env in enumerate(envs.tolist()):
            here = hash(b"".join(part[place].tobytes() for part in observations))
            if here in self.seen[env] and self.has_turn[env]:
                self.left[env] = 0
            if self.left[env] == 0:
                self._draw_turn(env, sources, rng)
            self.seen[env].add(here)
        self.left[envs] -= 1
        self.ages[envs] += 1
        return np.where(self.has_turn[envs], self.sources[envs], others)

    def _draw_turn(self, env: int, sources: np.ndarray, rng: np.random.Generator) -> None:
        self.seen[env].clear()
        self.has_turn[env] = len(sources) > 0 and rng.random() < 0.5
        if self.has_turn[env]:
            self.sources[env] = rng.choice(sources)
        longest = np.log(max(self.mean_length, self.ages.max(), 2.0))
        self.left[env] = max(int(np.exp(rng.random() * longest)), 1)
