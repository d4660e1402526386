"""Who acts in the next episode: what the selectors of all algorithms have in common."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from sb3_caps.reuse.episodes import Behaviour, EpisodeResult
from sb3_caps.reuse.evidence import Evidence


class Selector(Protocol):
    """
    Chooses the behaviour of each episode, and in the end what the model acts by.
    """

    def select(self, env: int) -> Behaviour:
        """
        Choose who acts in an episode that starts now.

        :param env: the environment that it starts in
        :return: who acts
        """
        ...

    def update(self, result: EpisodeResult) -> None:
        """
        Take the result of an episode into account.

        :param result: what came of it
        """
        ...

    def decide(self) -> Behaviour:
        """:return: what the model should act by, as far as is known"""
        ...


class AlwaysSelector:
    """
    The null selector: one behaviour learns in every episode, and one acts afterwards.

    :param learning: who acts while learning
    :param acting: what the model acts by
    """

    def __init__(self, learning: Behaviour, acting: Behaviour) -> None:
        self.learning, self.acting = learning, acting

    def select(self, env: int) -> Behaviour:
        """:return: who acts while learning"""
        return self.learning

    def update(self, result: EpisodeResult) -> None:
        """
        Nothing is concluded from results.

        :param result: what came of an episode
        """

    def decide(self) -> Behaviour:
        """:return: what the model acts by"""
        return self.acting


# Who acts where no source does: the policy being learned, with some exploration or none, and random actions alone
LEARNED, RANDOM = Behaviour("learned"), Behaviour("random")


@dataclass(eq=False)
class EvidenceSelector:
    """
    Base of the selectors that choose by what is known of each behaviour. A subclass says who comes next.

    The fields that a subclass adds are attributes of its algorithm, which keeps them up to date.

    :param source_names: the names of the sources
    :param rng: random numbers
    """

    # Who is chosen beside the sources
    others: ClassVar[tuple[Behaviour, ...]] = ()

    source_names: list[str]
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.sources = [Behaviour(name, is_source=True) for name in self.source_names]
        self.evidence = {behaviour: Evidence() for behaviour in [*self.sources, *self.others]}
        self.running: Counter[Behaviour] = Counter()
        self.largest = 0.0

    def begin(self) -> None:
        """Forget the episodes under way: the environments were reset."""
        self.running.clear()

    def select(self, env: int) -> Behaviour:
        """
        Choose who acts in an episode that starts now.

        :param env: the environment that it starts in
        :return: who acts
        """
        behaviour = self.choose()
        self.running[behaviour] += 1
        return behaviour

    def choose(self) -> Behaviour:
        """:return: who acts in the next episode, in whichever environment"""
        raise NotImplementedError()

    def update(self, result: EpisodeResult) -> None:
        """
        Take the result of an episode into account.

        :param result: what came of it
        """
        self.running[result.behaviour] -= 1
        if result.behaviour in self.evidence:
            worth = self.worth(result)
            self.evidence[result.behaviour].add(worth)
            self.largest = max(self.largest, abs(worth))

    def worth(self, result: EpisodeResult) -> float:
        """
        :param result: what came of an episode
        :return: the number that behaviours are compared by
        """
        return result.discounted

    def decide(self) -> Behaviour:
        """:return: the learned policy: sources help to explore and are no part of the result"""
        return LEARNED

    @property
    def tries(self) -> np.ndarray:
        """How often each behaviour of ``evidence`` was chosen, in episodes that are still under way too."""
        return np.array([known.n + self.running[behaviour] for behaviour, known in self.evidence.items()])

    @property
    def gains(self) -> np.ndarray:
        """
        The mean return of each behaviour of ``evidence`` in units of the largest return seen: it does not matter what
        the task pays in.
        """
        means = np.array([known.mean for known in self.evidence.values()])
        return means / self.largest if self.largest > 0 else means

    def statistics(self) -> dict[str, Any]:
        """:return: what to log: numbers and texts by name, or such for each behaviour"""
        return {
            "episodes": {behaviour: known.n for behaviour, known in self.evidence.items()},
            "gain": {behaviour: known.mean for behaviour, known in self.evidence.items()},
        }
