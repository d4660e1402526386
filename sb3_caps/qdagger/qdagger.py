"""QDagger: a source policy distilled into a deep Q-network, with a weight that falls as the learner catches up."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.type_aliases import ReplayBufferSamples, TensorDict
from torch.nn import functional as F

from sb3_caps.reuse.checks import check_number, check_whole_number
from sb3_caps.reuse.episodic import EpisodicReuseAlgorithm
from sb3_caps.reuse.guided import Guided, GuideSelector
from sb3_caps.reuse.selectors import LEARNED

# What cross_entropy leaves out of the targets
LEFT_OUT = -100


@dataclass(eq=False)
class QDaggerSelector(GuideSelector):
    """Let the teacher act in whole episodes first, and the student afterwards, see ``QDagger``."""

    teaching: bool

    @property
    def horizon(self) -> float:
        """How many steps the teacher acts for in an episode that starts now: all or none."""
        return math.inf if self.teaching and self.advantage > 0 else 0.0


class QDagger(EpisodicReuseAlgorithm):
    """
    QDagger: reincarnating reinforcement learning from a policy

    In the first part of the run the guide, here called the teacher, acts, and the student learns from its steps. Then
    the student acts ε-greedily. In both parts, the student's loss is that of DQN plus a distillation loss: the
    cross-entropy of softmax(Q / T) with the action of the teacher. The weight of distillation is 1 in the first part
    and then λ = (teacher's return - student's) / (teacher's return - random policy's), within 0 and 1.

    Paper: Agarwal and others: Reincarnating Reinforcement Learning, NeurIPS 2022, https://arxiv.org/abs/2206.01626;
    CleanRL implements it for DQN. Where this class differs from the paper:

    - The paper's λ = 1 - student's return / teacher's return needs returns above 0. Here λ is 1 at the return of a
      random policy. If no source is better than that, nothing is distilled.
    - The same difference of returns is the unit of the temperature T, so that it fits rewards of any size. The
      distillation loss is scaled to pull as hard as a temporal difference of T.
    - Sources give one action each, so the teacher's distribution is all on that action. A recurrent teacher is asked
      as at the start of an episode.
    - The student learns while the teacher acts, from one replay buffer, so there are as many gradient steps as in DQN.
      A step of the teacher is random with probability ε, so that the student sees more than one path.

    With several sources, each is tried first and the best one teaches, see ``GuideSelector``.

    :param args: see ``EpisodicReuseAlgorithm``
    :param trial_episodes: How many episodes each source is tried for
    :param average_episodes: How many of the latest episodes the student is judged by
    :param teacher_fraction: Fraction of the run in which the teacher acts, including the trials of the sources
    :param temperature: T as a share of the difference between the teacher's return and a random policy's
    :param kwargs: see ``EpisodicReuseAlgorithm``
    """

    selector_class = QDaggerSelector
    selector: QDaggerSelector

    def __init__(
        self,
        *args: Any,
        trial_episodes: int = 3,
        average_episodes: int = 3,
        teacher_fraction: float = 0.1,
        temperature: float = 0.01,
        **kwargs: Any,
    ) -> None:
        self.trial_episodes = trial_episodes
        self.average_episodes = average_episodes
        self.teacher_fraction = teacher_fraction
        self.temperature = temperature
        super().__init__(*args, **kwargs)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        for name in ("trial_episodes", "average_episodes"):
            check_whole_number(name, getattr(self, name), at_least=1)
        check_number("teacher_fraction", self.teacher_fraction, at_least=0.0, at_most=1.0)
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be above 0, not {self.temperature}.")

    @property
    def teaching(self) -> bool:
        """Whether the run is in its first part, in which the teacher acts."""
        return 1 - self._current_progress_remaining < self.teacher_fraction

    @property
    def distillation_weight(self) -> float:
        """λ: 1 for a student as bad as a random policy, 0 for one as good as the teacher."""
        selector = self.selector
        if selector.guide is None or selector.advantage == 0:
            return 0.0
        if self.teaching or selector.recent_return is None:
            return 1.0
        behind = selector.evidence[selector.guide].mean - selector.recent_return
        return float(np.clip(behind / selector.advantage, 0, 1))

    @property
    def value_temperature(self) -> float:
        """T, in the unit of the Q-values."""
        normalizer = self._vec_normalize_env
        scale = 1.0
        if normalizer is not None and normalizer.norm_reward:
            # The student learns from rewards that are divided by this
            scale = math.sqrt(float(normalizer.ret_rms.var) + normalizer.epsilon)
        return self.temperature * self.selector.advantage / scale

    def _reuse_probabilities(self, steps: np.ndarray) -> np.ndarray:
        # Exploration replaces steps of the teacher, but none of those that tell how good it is
        teaches = [isinstance(each, Guided) for each in self._tracker.behaviours]
        return np.where(teaches, 1.0 - self.exploration_rate, 1.0)

    def _random_probabilities(self, epsilon: float, steps: np.ndarray) -> np.ndarray:
        # The teacher's share of exploration is drawn above
        return np.where([each == LEARNED for each in self._tracker.behaviours], epsilon, 1.0)

    def _teacher_actions(
        self, observations: th.Tensor | TensorDict, action_masks: th.Tensor | None = None
    ) -> th.Tensor:
        """
        :param observations: a batch, as the replay buffer gives it
        :param action_masks: which actions are allowed there; None for all
        :return: what the teacher would do there
        """
        assert self.selector.guide is not None
        teacher = self.options.sources[self.source_names.index(self.selector.guide.name)]
        emitted: Any
        if isinstance(observations, dict):
            assert isinstance(self.observation_space, spaces.Dict)
            emitted = {key: _as_array(values, self.observation_space[key]) for key, values in observations.items()}
            n_observations = len(next(iter(observations.values())))
        else:
            emitted = _as_array(observations, self.observation_space)
            n_observations = len(observations)
        emitted = self.options.as_emitted(emitted, normalized=True)
        masks = None if action_masks is None else action_masks.cpu().numpy()
        actions, _ = teacher.actions(emitted, None, np.ones(n_observations, dtype=bool), masks)
        return th.as_tensor(actions.reshape(-1), dtype=th.int64, device=self.device)

    def distillation_loss(
        self, q_values: th.Tensor, teacher_actions: th.Tensor, action_masks: th.Tensor | None = None
    ) -> th.Tensor:
        """
        Pull the student's Q-values towards the actions of the teacher.

        :param q_values: the student's, of shape (batch, actions)
        :param teacher_actions: the action of the teacher in each state
        :param action_masks: which actions are allowed; None for all. Nothing is learned where the teacher's is not.
        :return: the cross-entropy of softmax(Q / T) with them, weighted so that its gradient for a Q-value is at most
            that of DQN's Huber loss for a temporal difference of T
        """
        temperature = self.value_temperature
        if action_masks is not None:
            follows = action_masks.gather(1, teacher_actions[:, None])[:, 0]
            q_values = q_values.masked_fill(~action_masks, -th.inf)
            teacher_actions = teacher_actions.where(follows, LEFT_OUT)
        losses = F.cross_entropy(q_values / temperature, teacher_actions, reduction="none", ignore_index=LEFT_OUT)
        return temperature * min(temperature, 1.0) * losses.mean()

    def _guide_loss(
        self, replay_data: ReplayBufferSamples, q_values: th.Tensor, action_masks: th.Tensor | None
    ) -> th.Tensor | float:
        weight = self.distillation_weight
        if weight == 0:
            return 0.0
        actions = self._teacher_actions(replay_data.observations, action_masks)
        loss = self.distillation_loss(q_values, actions, action_masks)
        self.logger.record_mean("train/distillation_loss", loss.item())
        return weight * loss

    def dump_logs(self) -> None:
        """Write log data."""
        if self.selector.guide is not None:
            self.logger.record("reuse/distillation_weight", self.distillation_weight)
        super().dump_logs()


def _as_array(observations: th.Tensor, space: spaces.Space) -> np.ndarray:
    """Without the axis that replay buffers add to observations that are single numbers."""
    assert space.shape is not None
    return observations.cpu().numpy().reshape(-1, *space.shape)
