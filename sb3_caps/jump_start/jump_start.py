"""Jump-start reinforcement learning, with a deep Q-network."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_caps.reuse.base import PolicyReuse
from sb3_caps.reuse.checks import check_number, check_whole_number
from sb3_caps.reuse.episodes import Behaviour, EpisodeResult, EpisodeTracker
from sb3_caps.reuse.episodic import EpisodicReuseAlgorithm
from sb3_caps.reuse.evidence import Evidence
from sb3_caps.reuse.guided import Guided, GuideSelector
from sb3_caps.reuse.selectors import RANDOM


@dataclass(eq=False)
class JumpStartSelector(GuideSelector):
    """Shorten the guide's part of episodes in stages, see ``JumpStart``."""

    curriculum_stages: int
    tolerance: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lengths = {behaviour: Evidence() for behaviour in self.evidence}
        self.stage = 0
        self.initial_horizon = 0.0
        self.best_return = -math.inf

    @property
    def horizon(self) -> float:
        """h: how many steps the guide acts for in an episode that starts now."""
        # In whole numbers of stages first: 10 * (1 - 0.9) is above 1
        return math.ceil(self.initial_horizon * (self.curriculum_stages - self.stage) / self.curriculum_stages)

    def update(self, result: EpisodeResult) -> None:
        """Take the result of an episode into account."""
        if result.behaviour in self.lengths:
            self.lengths[result.behaviour].add(result.length)
        super().update(result)

    def _guide_chosen(self, guide: Behaviour) -> None:
        self.initial_horizon = self.lengths[guide].mean
        self.best_return = self.evidence[guide].mean
        if self.advantage > 0:
            self._next_stage()
        else:
            self.stage = self.curriculum_stages

    def _next_stage(self) -> None:
        before = self.horizon
        # Short episodes have fewer horizons than stages
        while self.horizon == before and self.stage < self.curriculum_stages:
            self.stage += 1
        self.recent = Evidence(self.average_episodes)

    def _learner_finished(self) -> None:
        if self.recent_return is None:
            return
        self.best_return = max(self.best_return, self.recent_return)
        margin = self.tolerance * (self.best_return - self.evidence[RANDOM].mean)
        if self.stage < self.curriculum_stages and self.recent_return >= self.best_return - margin:
            self._next_stage()

    def statistics(self) -> dict[str, Any]:
        """Return what to log, with the curriculum."""
        found = super().statistics()
        if self.guide is not None:
            found.update(horizon=self.horizon, stage=self.stage, best_return=self.best_return)
        return found


class Curriculum(PolicyReuse):
    """
    What jump-start has, whatever the actions are: a class before its own.

    :param args: see the class after it
    :param trial_episodes: How many episodes each source is tried for
    :param average_episodes: How many of the latest episodes the learned policy is judged by
    :param curriculum_stages: In how many steps the horizon goes to 0
    :param tolerance: How far below the best return a stage may end, as a share of its difference to a random policy's
    :param kwargs: see the class after it
    """

    _tracker: EpisodeTracker

    def __init__(
        self,
        *args: Any,
        trial_episodes: int = 3,
        average_episodes: int = 3,
        curriculum_stages: int = 10,
        tolerance: float = 0.1,
        **kwargs: Any,
    ) -> None:
        self.trial_episodes = trial_episodes
        self.average_episodes = average_episodes
        self.curriculum_stages = curriculum_stages
        self.tolerance = tolerance
        super().__init__(*args, **kwargs)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        for name in ("trial_episodes", "average_episodes", "curriculum_stages"):
            check_whole_number(name, getattr(self, name), at_least=1)
        check_number("tolerance", self.tolerance, at_least=0.0, at_most=1.0)

    def _is_guided(self, steps: np.ndarray) -> np.ndarray:
        """
        :param steps: how many steps each environment's episode has had
        :return: where the guide takes the next one; a source that is tried acts in every step
        """
        return steps < [each.steps if isinstance(each, Guided) else np.inf for each in self._tracker.behaviours]


class JumpStart(Curriculum, EpisodicReuseAlgorithm):
    """
    Jump-Start Reinforcement Learning (JSRL), with a curriculum

    In each episode the guide, a source policy, acts for the first h steps and the learned policy acts afterwards. h
    starts near the length of the guide's own episodes and goes to 0 in ``curriculum_stages`` equal steps. The next
    step is taken when the mean return of the latest ``average_episodes`` episodes at this h is within a tolerance of
    the highest such mean so far, the guide's own return included.

    Paper: Uchendu and others: Jump-Start Reinforcement Learning, ICML 2023, https://arxiv.org/abs/2204.02372.
    Where the paper leaves a choice, this class makes these:

    - Returns are those of training episodes, with their exploration, so that no steps are needed for evaluation.
    - The tolerance is a share of the difference between the best return and a random policy's, so that it fits rewards
      of any size.
    - With several sources, each is tried first and the best one guides, see ``GuideSelector``.
    - ``predict`` is always DQN's, even before the curriculum has ended.

    :param args: see ``Curriculum`` and ``EpisodicReuseAlgorithm``
    :param kwargs: see ``Curriculum`` and ``EpisodicReuseAlgorithm``
    """

    selector_class = JumpStartSelector
    selector: JumpStartSelector

    def _reuse_probabilities(self, steps: np.ndarray) -> np.ndarray:
        return self._is_guided(steps).astype(np.float64)
