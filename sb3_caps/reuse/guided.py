"""What jump-start and QDagger share: the source that is best on the task is found first, and then guides."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_caps.reuse.episodes import Behaviour, EpisodeResult
from sb3_caps.reuse.evidence import Evidence
from sb3_caps.reuse.selectors import LEARNED, RANDOM, EvidenceSelector


@dataclass(frozen=True)
class Guided(Behaviour):
    """
    A source acts first, and the learned policy afterwards.

    :param steps: for how many steps the source acts
    """

    steps: float = np.inf


@dataclass(eq=False)
class GuideSelector(EvidenceSelector):
    """
    Base of the selectors in which one source policy, the guide, acts first and the learned policy afterwards.

    At first every source acts alone for a few episodes, and so does a random policy. The source with the highest mean
    return (not discounted) becomes the guide. Its lead over the random policy is the unit in which returns are
    compared, so the size of rewards does not matter. In each later episode the guide acts for the first ``horizon``
    steps, and the learned policy acts ε-greedily in the rest. A guide that is no better than the random policy does not
    act.

    With several environments, running episodes count as tries. Those that end after the guide was chosen do not change
    the choice.

    :param trial_episodes: How many episodes each source is tried for
    :param average_episodes: How many of the latest episodes the learned policy is judged by
    """

    others = (RANDOM,)

    trial_episodes: int
    average_episodes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        # The source that is best on the task, once every one was tried
        self.guide: Behaviour | None = None
        self.recent = Evidence(self.average_episodes)

    def worth(self, result: EpisodeResult) -> float:
        """:return: what the task pays, as SB3 logs it"""
        return result.reward

    @property
    def advantage(self) -> float:
        """How much higher the guide's return is than the random policy's, 0 while that is unknown."""
        if self.guide is None:
            return 0.0
        return max(self.evidence[self.guide].mean - self.evidence[RANDOM].mean, 0.0)

    @property
    def horizon(self) -> float:
        """How many steps the guide acts for in an episode that starts now."""
        raise NotImplementedError()

    @property
    def recent_return(self) -> float | None:
        """The mean return of the latest episodes of the learned policy, None until there are enough."""
        return self.recent.mean if self.recent.n == self.average_episodes else None

    def choose(self) -> Behaviour:
        """:return: what was tried least, and later the guide, as long as it has steps to act in"""
        if self.guide is None:
            return list(self.evidence)[int(self.tries.argmin())]
        return Guided(self.guide.name, is_source=True, steps=self.horizon) if self.horizon > 0 else LEARNED

    def update(self, result: EpisodeResult) -> None:
        """Take the result of an episode into account, and choose the guide when all were tried enough."""
        super().update(result)
        if self.guide is None:
            if min(known.n for known in self.evidence.values()) >= self.trial_episodes:
                self.guide = max(self.sources, key=lambda source: self.evidence[source].mean)
                self._guide_chosen(self.guide)
        # An episode that started under another horizon says little about this one
        elif np.isfinite(self.horizon) and result.behaviour == self.choose():
            if self.recent.latest != self.average_episodes:
                self.recent = Evidence(self.average_episodes)
            self.recent.add(result.reward)
            self._learner_finished()

    def _guide_chosen(self, guide: Behaviour) -> None:
        """Get ready for the episodes with the guide."""

    def _learner_finished(self) -> None:
        """Take the return of another episode of the learned policy into account, the last of the recent ones."""

    def statistics(self) -> dict[str, Any]:
        """:return: what to log, with the guide and the return of the learned policy"""
        found = super().statistics()
        if self.guide is not None:
            found["guide"] = self.guide.name
        if self.recent_return is not None:
            found["recent_return"] = self.recent_return
        return found
