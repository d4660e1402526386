"""Optimal policies for Monster Kong, as functions of observations: the source policies of the paper's experiments."""

from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_caps.envs.monster_kong.drawing import Painter, painter
from sb3_caps.envs.monster_kong.level import Level, Setting, load_level
from sb3_caps.envs.monster_kong.observations import FeatureObserver, observer
from sb3_caps.envs.monster_kong.planner import Plan, plan

# Counts as this many steps when a doubtful pair of pictures is weighed up: no path on a map is as long.
LOST = 100_000


class OptimalPolicy:
    """
    A policy that takes a shortest path to a goal.

    It can be pickled: only the task is stored, and its solution is found again when it is loaded, from the cache.

    :param setting: ``"a"``, ``"b"``, the path of a map or its text
    :param goal: the object to reach
    :param observation: the kind of observations that it acts on, ``"pixels"`` or ``"features"``
    """

    def __init__(self, setting: Setting, goal: str, observation: str = "pixels") -> None:
        # A file may be elsewhere when the policy is loaded: keep what it says.
        self.level = load_level(setting)
        self.goal, self.observation = goal, observation
        self.name = f"optimal_{goal}"
        self._observer = observer(self.level, observation)
        self._plan = plan(self.level, goal)

    def __call__(self, observations: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """
        :param observations: a batch in the layout that the environment emits
        :return: an action for each
        """
        observations = np.asarray(observations)
        shape = self._observer.space.shape
        if observations.shape[1:] != shape:
            raise ValueError(f"Expected a batch of observations of shape {shape}, not an array {observations.shape}.")
        if isinstance(self._observer, FeatureObserver):
            return self._plan.actions[self._observer.identify(observations)]
        return self._actions_of_pairs[_picture_index(self.level).pairs(observations)]

    @cached_property
    def _actions_of_pairs(self) -> npt.NDArray[np.int64]:
        return _picture_index(self.level).actions(self._plan)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.level.text, self.level.name, self.goal, self.observation)


def _restore(text: str, name: str, goal: str, observation: str) -> OptimalPolicy:
    return OptimalPolicy(Level(text, name), goal, observation)


def optimal_policy(setting: Setting, goal: str, observation: str = "pixels") -> OptimalPolicy:
    """
    Make a policy that takes shortest paths to a goal.

    :param setting: ``"a"``, ``"b"``, the path of a map or its text
    :param goal: the object to reach
    :param observation: the kind of observations that it acts on, ``"pixels"`` or ``"features"``
    :return: a batched, picklable function from observations to actions
    """
    return OptimalPolicy(setting, goal, observation)


class PictureIndex:
    """
    Finds the states that two pictures in a row may show.

    A picture tells the place of the agent to a pixel and its pose, two tell nearly always the rest. States that differ
    only in fractions of a pixel can show the same two pictures; for these, the policy takes the action with the best
    mean over the states in question.

    :param artist: what draws the map
    """

    def __init__(self, artist: Painter) -> None:
        self.table = artist.table
        # A sum with random weights is a hash. All sums stay below 2^53, where floats are exact, so that a matrix
        # product hashes a whole batch.
        self._weights = np.random.default_rng(0).integers(2**32, size=artist.background.size).astype(np.float64)
        # Observations interleave the two pictures.
        self._pair_weights = np.zeros((artist.background.size, 2, 2))
        self._pair_weights[:, 0, 0] = self._pair_weights[:, 1, 1] = self._weights
        self._keys, picture_of_look = np.unique(self._look_keys(artist), return_inverse=True)
        picture = picture_of_look[artist.look]

        moving = np.flatnonzero(~self.table.spiked)
        after = self.table.successors[moving]
        before = np.broadcast_to(moving[:, None], after.shape)
        # An episode starts with the same picture twice.
        before = np.concatenate([before.ravel(), self.table.starts])
        after = np.concatenate([after.ravel(), self.table.starts])
        pairs = picture[before] * len(self._keys) + picture[after]
        self._pairs, pair = np.unique(pairs, return_inverse=True)
        # Each state that a pair may show, once.
        self.members = np.unique(np.stack([pair, after], axis=1), axis=0)

    def _look_keys(self, artist: Painter) -> npt.NDArray[np.float64]:
        window = np.arange(artist.patch_size)
        rows = artist.rows[:, None, None] + window[:, None]
        columns = artist.columns[:, None, None] + window
        weights = self._weights.reshape(artist.background.shape)[rows, columns]
        change = artist.patches.astype(np.float64) - artist.background[rows, columns]
        background = artist.background.ravel().astype(np.float64) @ self._weights
        return background + (change * weights).sum(axis=(1, 2))

    def pairs(self, observations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """
        Find the pairs of pictures that observations show.

        :param observations: a batch of pixels, shape (batch, 84, 84, 2)
        :return: the index of the pair of pictures that each one shows
        """
        flat = observations.reshape(len(observations), -1).astype(np.float64)
        keys = flat @ self._pair_weights.reshape(-1, 2)
        older, newer = self._find(self._keys, keys[:, 0]), self._find(self._keys, keys[:, 1])
        return self._find(self._pairs, older * len(self._keys) + newer)

    @staticmethod
    def _find(known: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        index = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        if not np.array_equal(known[index], wanted):
            bad = int(np.argmax(known[index] != wanted))
            raise ValueError(f"Observation {bad} of the batch does not show two pictures in a row of this map.")
        return index

    def actions(self, solution: Plan) -> npt.NDArray[np.int64]:
        """
        Find the best action for each pair of pictures.

        :param solution: the solution of a task on this map
        :return: the best action for each pair
        """
        pair, state = self.members.T
        steps = np.minimum(solution.steps, LOST).astype(np.float64)[self.table.successors[state]]
        total = np.zeros((len(self._pairs), steps.shape[1]))
        np.add.at(total, pair, steps)
        return np.argmin(total, axis=1)


@lru_cache(maxsize=8)
def _picture_index(level: Level) -> PictureIndex:
    return PictureIndex(painter(level))
