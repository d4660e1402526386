"""What is known of a behaviour's worth."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


class Evidence:
    """
    The returns of the episodes of one behaviour, as running moments.

    Few episodes may be alike by luck: a coin that showed tails twice need not always do so. The error of a mean
    therefore counts one more episode, as far off as any return of the task ever was from the middle.

    :param latest: how many episodes count, for a behaviour that changes as it learns; None for all of them
    """

    def __init__(self, latest: int | None = None) -> None:
        self.n = 0.0
        self.mean = 0.0
        self._squares = 0.0
        self.latest = latest
        self._recent = None if latest is None else deque[float](maxlen=latest)

    def add(self, value: float) -> None:
        """
        Count one more episode.

        :param value: its return
        """
        if self._recent is None:
            self._count(value)
        else:
            self._recent.append(value)
            self._count_recent()

    def forget_oldest(self) -> None:
        """Forget the oldest of the latest episodes: what learns has changed since."""
        if self._recent:
            self._recent.popleft()
            self._count_recent()

    def fade(self, factor: float) -> None:
        """
        Let all episodes so far count for less: what learns has changed since.

        :param factor: what share of an episode each of them still is
        """
        self.n *= factor
        self._squares *= factor

    def _count_recent(self) -> None:
        self.n, self.mean, self._squares = 0.0, 0.0, 0.0
        for each in self._recent or ():
            self._count(each)

    def _count(self, value: float) -> None:
        # Welford's rule: equal returns have that return as their mean, to the last bit
        self.n += 1
        before = value - self.mean
        self.mean += before / self.n
        self._squares += before * (value - self.mean)

    @property
    def std(self) -> float:
        """The standard deviation of the returns."""
        return float(np.sqrt(self._squares / self.n)) if self.n else 0.0

    def error(self, spread: float) -> float:
        """
        How far off the mean may be.

        :param spread: between the lowest and the highest return of the task that anybody ever had
        :return: the standard error of the mean, infinite without an episode
        """
        if self.n == 0:
            return float("inf")
        return min(float(np.sqrt((self._squares + spread**2 / 4) / (self.n + 1) / self.n)), max(spread, self.std))

    def lower(self, spread: float) -> float:
        """
        What the behaviour is worth with some confidence.

        :param spread: see ``error``
        :return: the mean less one error, minus infinity without an episode
        """
        return self.mean - self.error(spread) if self.n else -float("inf")

    def draw(self, rng: np.random.Generator, spread: float) -> float:
        """
        Draw what the behaviour may be worth (Thompson sampling).

        :param rng: random numbers
        :param spread: see ``error``
        :return: a worth that the evidence allows, infinite without an episode
        """
        return float("inf") if self.n == 0 else self.mean + self.error(spread) * rng.standard_normal()

    def beats(self, other: "Evidence", spread: float, errors: float) -> bool:
        """
        Tell whether this behaviour is better, and not by luck.

        :param other: what is known of another behaviour
        :param spread: see ``error``
        :param errors: by how many standard errors of the difference
        :return: whether the mean is that much higher; false where one of them has no episode
        """
        if self.n == 0 or other.n == 0:
            return False
        return self.mean - other.mean > errors * float(np.hypot(self.error(spread), other.error(spread)))

    def copy(self) -> "Evidence":
        """:return: the same episodes; others may be added to it, and all will count"""
        found = Evidence()
        found.n, found.mean, found._squares = self.n, self.mean, self._squares
        return found

    def state(self) -> dict[str, Any]:
        """:return: all that is known, as plain numbers"""
        recent = None if self._recent is None else list(self._recent)
        return {"n": self.n, "mean": self.mean, "squares": self._squares, "latest": self.latest, "recent": recent}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Evidence":
        """
        :param state: what ``state`` returned
        :return: the same evidence
        """
        found = cls(state["latest"])
        found.n, found.mean, found._squares = state["n"], state["mean"], state["squares"]
        if found._recent is not None:
            found._recent.extend(state["recent"])
        return found


def chances(evidence: Iterable[Evidence], spread: float, rng: np.random.Generator, n_draws: int = 1000) -> np.ndarray:
    """
    Tell how likely each of several behaviours is the best one.

    :param evidence: what is known of each, an episode at least
    :param spread: see ``Evidence.error``
    :param rng: random numbers
    :param n_draws: how many draws of what they may be worth to count
    :return: a probability for each
    """
    means, errors = zip(*((each.mean, each.error(spread)) for each in evidence), strict=True)
    drawn = np.array(means) + np.array(errors) * rng.standard_normal((n_draws, len(means)))
    # Where nothing was ever paid all are alike
    best = drawn == drawn.max(axis=1, keepdims=True)
    return (best / best.sum(axis=1, keepdims=True)).mean(axis=0)
