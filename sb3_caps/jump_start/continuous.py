"""Jump-start reinforcement learning, on SB3's SAC."""

from dataclasses import fields

import numpy as np
from stable_baselines3.common.noise import ActionNoise

from sb3_caps.continuous.base import ContinuousReuseAlgorithm
from sb3_caps.jump_start.jump_start import Curriculum, JumpStartSelector
from sb3_caps.reuse.episodes import EpisodeTracker, longest_trial
from sb3_caps.reuse.selectors import RANDOM


class ContinuousJumpStart(Curriculum, ContinuousReuseAlgorithm):
    """
    Jump-Start Reinforcement Learning (JSRL) for continuous actions, see ``JumpStart``

    In each episode the guide, a source policy, acts for the first h steps and SAC's actor afterwards; ``predict`` is
    SAC's.

    :param args: see ``Curriculum`` and ``ContinuousReuseAlgorithm``
    :param kwargs: see ``Curriculum`` and ``ContinuousReuseAlgorithm``
    """

    selector: JumpStartSelector

    def _setup_model(self) -> None:
        super()._setup_model()
        settings = {field.name: getattr(self, field.name) for field in fields(JumpStartSelector) if field.init}
        known: JumpStartSelector | None = vars(self).get("selector")
        if known is None or known.source_names != self.source_names:
            # What is known of other sources says nothing about these
            self.selector = JumpStartSelector(**settings)
        else:
            vars(known).update(settings)

    def _start_episodes(self, new: bool = False) -> None:
        if not self.options.n_sources:
            return
        if new:
            self._tracker = EpisodeTracker(self.n_envs, self.gamma, longest_trial(self.gamma))
            self._guides = np.full(self.n_envs, self.options.n_sources)
            self.selector.begin(self._total_timesteps)
        self.selector.rng = self.rng
        for env in self._tracker.waiting:
            behaviour = self.selector.select(env)
            self._tracker.start(env, behaviour)
            names = self.options.names
            self._guides[env] = names.index(behaviour.name) if behaviour.is_source else self.options.n_sources

    def _act(self, warm_up: bool, action_noise: ActionNoise | None) -> tuple[np.ndarray, np.ndarray]:
        actions = self._actor_draws(warm_up, action_noise)
        at_random = np.array([each == RANDOM for each in self._tracker.behaviours])
        actions[at_random] = self.rng.uniform(-1.0, 1.0, size=(at_random.sum(), self.options.dimensions))
        options = np.where(self._is_guided(self._tracker.lengths), self._guides, self.options.n_sources)
        followed = options < self.options.n_sources
        actions[followed] = self._last_source_actions[followed, options[followed]]
        return options, actions

    def _tell(self, rewards: np.ndarray, dones: np.ndarray) -> None:
        if not self.options.n_sources:
            return
        for result in self._tracker.add(self._paid(rewards), dones):
            self.selector.update(result)
        self._start_episodes()
