"""Who acts in the next episode: what the selectors of all algorithms have in common."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sb3_caps.reuse.episodes import Behaviour, EpisodeResult
from sb3_caps.reuse.evidence import Evidence


class Selector:
    """
    Chooses the behaviour of each episode, and what the model acts by.

    A subclass defines ``select`` and ``decide``. The other methods are optional, and here do nothing.

    :param source_names: the names of the sources
    :param settings: the numbers of the algorithm's own selector
    :param rng: random numbers
    """

    def __init__(self, source_names: Sequence[str], settings: Any, rng: np.random.Generator) -> None:
        self.settings, self.rng = settings, rng
        self.set_sources(source_names)

    def set_sources(self, names: Sequence[str]) -> None:
        """
        Select among these sources from now on.

        :param names: of all sources
        """
        self.source_names = list(names)
        self.sources = [Behaviour(name, is_source=True) for name in names]

    def begin(self, total_steps: int) -> None:
        """
        Begin a run.

        :param total_steps: how many steps it has
        """

    def reset(self) -> None:
        """New episodes begin in all environments."""

    def select(self, env: int) -> Behaviour:
        """
        Choose who acts in an episode that starts now.

        :param env: the environment that it starts in
        :return: who acts
        """
        raise NotImplementedError()

    def update(self, result: EpisodeResult) -> None:
        """
        Take the result of an episode into account.

        :param result: what came of it
        """

    def decide(self) -> Behaviour:
        """:return: what the model should act by, as far as is known"""
        raise NotImplementedError()

    @property
    def disabled(self) -> set[str]:
        """The names of the sources that are no longer options."""
        return set()

    @property
    def no_signal(self) -> bool:
        """Whether all returns so far are alike, so that exploration should be random."""
        return False

    def improved(self) -> bool:
        """:return: whether the networks are worth keeping as they are"""
        return False

    def keep(self) -> None:
        """Remember that the networks are kept as they are."""

    def actor_rose(self) -> bool:
        """:return: whether the actor, as it samples, has just come to be worth more than ever; that is remembered"""
        return False

    def actor_fell(self) -> bool:
        """:return: whether it is worth less than it was, and not by luck, so that it goes back; that is remembered"""
        return False

    def source_chances(self) -> np.ndarray | None:
        """
        :return: what an actor begins with: how likely each source is the best one, and at last how likely random
            actions are; None as long as none is to begin
        """
        return None


# Who acts where no source does: the policy being learned, with some exploration or none, and random actions alone
LEARNED, RANDOM = Behaviour("learned"), Behaviour("random")


@dataclass(eq=False)
class EvidenceSelector(Selector):
    """
    Base of the selectors that choose by the returns of each behaviour. A subclass defines ``choose``.

    Fields that a subclass adds are attributes of its algorithm, which keeps them up to date.

    :param source_names: the names of the sources
    :param rng: random numbers
    """

    # Who is chosen beside the sources
    others: ClassVar[tuple[Behaviour, ...]] = ()

    source_names: list[str]
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.set_sources(self.source_names)
        self.evidence = {behaviour: Evidence() for behaviour in [*self.sources, *self.others]}
        self.running: Counter[Behaviour] = Counter()
        self.largest = 0.0

    def begin(self, total_steps: int) -> None:
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
