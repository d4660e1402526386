"""Jump-start reinforcement learning, with a deep Q-network."""

import math
from typing import Any, TypeVar

from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_caps.reuse.guided import GuidedReuseAlgorithm

SelfJumpStart = TypeVar("SelfJumpStart", bound="JumpStart")


class JumpStart(GuidedReuseAlgorithm):
    """
    Jump-Start Reinforcement Learning (JSRL), with a curriculum

    In each episode the guide, a source policy, acts for the first h steps and the learned policy afterwards. h starts
    near the length of the guide's own episodes and goes to 0 in ``curriculum_stages`` equal steps: the next one is
    taken when the mean return of the latest ``average_episodes`` episodes at this h is within a tolerance of the
    highest such mean so far, the guide's own return included.

    Paper: Uchendu and others: Jump-Start Reinforcement Learning, ICML 2023, https://arxiv.org/abs/2204.02372.
    What was chosen here: returns are those of training episodes, with their exploration, so that no step goes to
    evaluation alone; the tolerance is a share of the difference between the best return and a random policy's, so that
    it fits rewards of any size; with several sources, each is tried first and the best one guides, see
    ``GuidedReuseAlgorithm``. ``predict`` is DQN's, also when the curriculum has not come to its end.

    :param args: see ``GuidedReuseAlgorithm``
    :param curriculum_stages: In how many steps the horizon goes to 0
    :param tolerance: How far below the best return a stage may end, as a share of its difference to a random policy's
    :param kwargs: see ``GuidedReuseAlgorithm``
    """

    def __init__(
        self,
        *args: Any,
        curriculum_stages: int = 10,
        tolerance: float = 0.1,
        _init_setup_model: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, _init_setup_model=False, **kwargs)
        self.curriculum_stages = curriculum_stages
        self.tolerance = tolerance
        self.stage = 0
        self.initial_horizon = 0.0
        self.best_return = -math.inf

        if _init_setup_model:
            self._setup_model()

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if not (isinstance(self.curriculum_stages, int) and self.curriculum_stages >= 1):
            raise ValueError(f"curriculum_stages must be a whole number from 1, not {self.curriculum_stages!r}.")
        if not 0 <= self.tolerance <= 1:
            raise ValueError(f"tolerance is a share of a difference of returns, from 0 to 1, not {self.tolerance}.")

    @property
    def horizon(self) -> float:
        """h: how many steps the guide acts for in an episode that starts now."""
        # In whole numbers of stages first: 10 * (1 - 0.9) is above 1
        return math.ceil(self.initial_horizon * (self.curriculum_stages - self.stage) / self.curriculum_stages)

    def _guide_chosen(self, length: float) -> None:
        assert self.mean_returns is not None
        self.initial_horizon = length
        self.best_return = float(self.mean_returns[self.guide])
        if self.advantage > 0:
            self._next_stage()
        else:
            self.stage = self.curriculum_stages

    def _next_stage(self) -> None:
        before = self.horizon
        # Short episodes have fewer horizons than stages
        while self.horizon == before and self.stage < self.curriculum_stages:
            self.stage += 1
        self._recent_returns.clear()

    def _learner_finished(self) -> None:
        if self.recent_return is None:
            return
        self.best_return = max(self.best_return, self.recent_return)
        assert self.mean_returns is not None
        margin = self.tolerance * (self.best_return - self.mean_returns[-1])
        if self.stage < self.curriculum_stages and self.recent_return >= self.best_return - margin:
            self._next_stage()

    def dump_logs(self) -> None:
        """
        Write log data.
        """
        if self.guide is not None:
            self.logger.record("reuse/horizon", self.horizon)
            self.logger.record("reuse/stage", self.stage)
            self.logger.record("reuse/best_return", self.best_return)
        super().dump_logs()

    def learn(
        self: SelfJumpStart,
        total_timesteps: int = 100_000,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "JumpStart",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfJumpStart:
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
