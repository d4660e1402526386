"""Replay buffers that keep, beside the observations, what the sources do there."""

from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import TensorDict
from stable_baselines3.common.vec_env import VecNormalize


class SourceReplayBufferSamples(NamedTuple):
    """SB3's, with what each source does before and after each step, of shape (batch, sources, dimensions)."""

    observations: th.Tensor | TensorDict
    actions: th.Tensor
    next_observations: th.Tensor | TensorDict
    dones: th.Tensor
    rewards: th.Tensor
    source_actions: th.Tensor
    next_source_actions: th.Tensor


class SourceAnswers:
    """
    What sources do in the observations that follow each other, each once: what is done after a step is done before the
    next one, but where an episode ended.

    :param size: number of steps
    :param shape: of one answer: environments, sources, dimensions
    """

    def __init__(self, size: int, shape: tuple[int, int, int]) -> None:
        self.before = np.zeros((size, *shape), dtype=np.float32)
        # After the latest step, and after those that the following one does not tell
        self.latest, self.newest = np.zeros(shape, dtype=np.float32), -1
        self.is_cut = np.zeros((size, shape[0]), dtype=bool)
        self.after_cut: dict[tuple[int, int], np.ndarray] = {}

    def add(self, step: int, before: np.ndarray, after: np.ndarray) -> None:
        """
        :param step: the place of the step
        :param before: what each source does before it
        :param after: what each source does after it
        """
        if self.newest >= 0:
            for env in np.flatnonzero((before != self.latest).any(axis=(1, 2))).tolist():
                self.is_cut[self.newest, env] = True
                self.after_cut[self.newest, env] = self.latest[env].copy()
        for env in np.flatnonzero(self.is_cut[step]).tolist():
            del self.after_cut[step, env]
        self.is_cut[step] = False
        self.before[step], self.latest, self.newest = before, after.copy(), step

    def after(self, steps: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """
        :param steps: the places of some steps
        :param envs: their environments
        :return: what each source does after them
        """
        found = self.before[(steps + 1) % len(self.before), envs]
        newest = steps == self.newest
        found[newest] = self.latest[envs[newest]]
        for i in np.flatnonzero(self.is_cut[steps, envs]).tolist():
            found[i] = self.after_cut[int(steps[i]), int(envs[i])]
        return found


class SourceReplayBuffer(ReplayBuffer):
    """
    SB3's replay buffer, with what each source does before and after each step: each answer is kept once, as float32.
    A million steps of four sources with six dimensions take 96 MB for it.

    :param args: see SB3
    :param n_sources: number of sources
    :param kwargs: see SB3
    """

    # By which a buffer that was saved can be told to be that of other sources
    option_names: list[str] | None = None

    def __init__(self, *args: Any, n_sources: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.n_sources = n_sources
        self.answers = SourceAnswers(self.buffer_size, (self.n_envs, n_sources, self.action_dim))

    def add(
        self, *args: Any, source_actions: np.ndarray | None = None, next_source_actions: np.ndarray | None = None
    ) -> None:
        """
        Add one step of all environments.

        :param args: see SB3
        :param source_actions: what each source does before the step, of shape (environments, sources, dimensions)
        :param next_source_actions: what each source does after it; both may be left out where there are no sources
        """
        if self.n_sources:
            if source_actions is None or next_source_actions is None:
                raise ValueError(f"Pass source_actions and next_source_actions: it is for {self.n_sources} sources.")
            self.answers.add(self.pos, source_actions, next_source_actions)
        super().add(*args)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> SourceReplayBufferSamples:  # type: ignore[override]
        """
        :param batch_size: how many steps to draw
        :param env: what to normalise by
        :return: these steps
        """
        found: Any = super().sample(batch_size, env)
        drawn: SourceReplayBufferSamples = found
        return drawn

    def _get_samples(  # type: ignore[override]
        self, batch_inds: np.ndarray, env: VecNormalize | None = None
    ) -> SourceReplayBufferSamples:
        # SB3 draws these within, and tells nobody; it is the same draw
        envs = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))
        return self.at(batch_inds, envs, env)

    def at(self, steps: np.ndarray, envs: np.ndarray, env: VecNormalize | None = None) -> SourceReplayBufferSamples:
        """
        :param steps: the places of some steps
        :param envs: their environments
        :param env: what to normalise by
        :return: these steps
        """
        observations, next_observations = self._observations_at(steps, envs)
        # Only use dones that are not due to timeouts
        dones = self.dones[steps, envs] * (1 - self.timeouts[steps, envs])
        return SourceReplayBufferSamples(
            self._as_tensors(self._normalize_obs(observations, env)),
            self.to_torch(self.actions[steps, envs]),
            self._as_tensors(self._normalize_obs(next_observations, env)),
            self.to_torch(dones.reshape(-1, 1)),
            self.to_torch(self._normalize_reward(self.rewards[steps, envs].reshape(-1, 1), env)),
            self.to_torch(self.answers.before[steps, envs]),
            self.to_torch(self.answers.after(steps, envs)),
        )

    def everything(self, env: VecNormalize | None = None) -> SourceReplayBufferSamples:
        """
        :param env: what to normalise by
        :return: all steps that are kept, of whichever environment
        """
        n_steps = self.size()
        steps, envs = np.repeat(np.arange(n_steps), self.n_envs), np.tile(np.arange(self.n_envs), n_steps)
        return self.at(steps, envs, env)

    def _observations_at(self, steps: np.ndarray, envs: np.ndarray) -> tuple[Any, Any]:
        if self.optimize_memory_usage:
            return self.observations[steps, envs], self.observations[(steps + 1) % self.buffer_size, envs]
        return self.observations[steps, envs], self.next_observations[steps, envs]

    def _as_tensors(self, observations: Any) -> Any:
        if isinstance(observations, dict):
            return {key: self.to_torch(value) for key, value in observations.items()}
        return self.to_torch(observations)


class SourceDictReplayBuffer(SourceReplayBuffer, DictReplayBuffer):  # type: ignore[misc]
    """The same for observations that are dictionaries."""

    def _observations_at(self, steps: np.ndarray, envs: np.ndarray) -> tuple[Any, Any]:
        observations: Any = self.observations
        next_observations: Any = self.next_observations
        return (
            {key: value[steps, envs] for key, value in observations.items()},
            {key: value[steps, envs] for key, value in next_observations.items()},
        )
