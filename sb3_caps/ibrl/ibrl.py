"""Imitation-bootstrapped reinforcement learning, on SB3's SAC, with any number of source policies."""

import numpy as np
import torch as th
from stable_baselines3.common.noise import ActionNoise

from sb3_caps.continuous import losses
from sb3_caps.continuous.base import ContinuousReuseAlgorithm
from sb3_caps.continuous.buffers import SourceReplayBufferSamples


class IBRL(ContinuousReuseAlgorithm):
    """
    Imitation Bootstrapped Reinforcement Learning (IBRL), for any number of source policies

    In each state the critic chooses between what the actor and the sources would do: while learning, in the targets,
    and in ``predict``.

    Paper: Hu, Mirchandani and Sadigh: Imitation Bootstrapped Reinforcement Learning, RSS 2024,
    https://arxiv.org/abs/2311.02198. There is one source, learned from demonstrations, and the base is TD3. Here the
    sources are any policies, and the base is SAC: its entropy counts for the actor, and in the targets alone.

    :param args: see ``ContinuousReuseAlgorithm``
    :param kwargs: see ``ContinuousReuseAlgorithm``
    """

    critic_chooses = True

    def _act(self, warm_up: bool, action_noise: ActionNoise | None) -> tuple[np.ndarray, np.ndarray]:
        drawn = self._actor_draws(warm_up, action_noise)
        if warm_up:
            return np.full(self.n_envs, self.options.n_sources), drawn
        assert self._last_obs is not None
        assert self._last_episode_starts is not None
        observations, _ = self.policy.obs_to_tensor(self._last_obs)
        return self.policy.choose(
            observations, self._last_source_actions, drawn, self._last_options, self._last_episode_starts
        )

    def _next_values(self, data: SourceReplayBufferSamples, ent_coef: th.Tensor) -> th.Tensor:
        if not self.options.n_sources:
            return super()._next_values(data, ent_coef)
        return losses.bootstrap_values(self._next_candidates(data, ent_coef))
