"""Replay buffers that keep, beside the observations, what the sources do there."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import TensorDict
from stable_baselines3.common.vec_env import VecNormalize

from sb3_caps.replay.buffers import ASKED_AT_ONCE
from sb3_caps.replay.draws import drawing_from


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

    def map(self, places: np.ndarray, answers: Mapping[int, tuple[np.ndarray, np.ndarray]], ended: np.ndarray) -> None:
        """
        Keep the answers of other sources.

        :param places: for each source where it was, -1 for one that was not there
        :param answers: for each of those what it does before and after each step, of shape (steps, environments,
            dimensions)
        :param ended: where an episode ended, of shape (steps, environments)
        """
        n_steps, shape = len(ended), (*self.before.shape[:2], len(places), self.before.shape[3])
        steps, envs = np.argwhere(ended | self.is_cut[:n_steps]).T
        known = self.after(steps, envs)
        before, after = np.zeros(shape, dtype=np.float32), np.zeros((len(steps), *shape[2:]), dtype=np.float32)
        latest = np.zeros(shape[1:], dtype=np.float32)
        kept = places >= 0
        before[:, :, kept], after[:, kept] = self.before[:, :, places[kept]], known[:, places[kept]]
        latest[:, kept] = self.latest[:, places[kept]]
        for i, (own_before, own_after) in answers.items():
            before[:n_steps, :, i], after[:, i] = own_before, own_after[steps, envs]
            if self.newest >= 0:
                latest[:, i] = own_after[self.newest]
        self.before, self.latest = before, latest
        self.is_cut[:], self.after_cut = False, {}
        differs = (after != before[(steps + 1) % len(before), envs]).any(axis=(1, 2)) & (steps != self.newest)
        for step, env, answer in zip(steps[differs].tolist(), envs[differs].tolist(), after[differs], strict=True):
            self.is_cut[step, env], self.after_cut[step, env] = True, answer


class SourceReplayBuffer(ReplayBuffer):
    """
    SB3's replay buffer, with what each source does before and after each step: each answer is kept once, as float32.
    A million steps of four sources with six dimensions take 96 MB for it.

    :param args: see SB3
    :param n_sources: number of sources
    :param kwargs: see SB3
    """

    # What draws samples: the model's own, where it belongs to one
    rng: np.random.Generator
    # By which a buffer that was saved can be told to be that of other sources
    option_names: list[str] | None = None

    def __init__(self, *args: Any, n_sources: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.n_sources = n_sources
        self.rng = np.random.default_rng()
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

    def map_sources(self, places: np.ndarray, ask: Callable[[int, Any], np.ndarray | None]) -> None:
        """
        Keep what other sources do. Of one that cannot tell, what was done counts.

        :param places: for each option where it was, -1 for one that was not there
        :param ask: asks a source, by its number, about observations; None where it cannot tell
        """
        places, n_steps = places[:-1], self.size()
        ended = self.dones[:n_steps].astype(bool)
        answers = {i: self._answers(partial(ask, i), ended) for i in np.flatnonzero(places < 0).tolist()}
        self.answers.map(places, answers, ended)
        self.n_sources = len(places)

    def _answers(self, ask: Callable[[Any], np.ndarray | None], ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """
        :param ask: asks a source about observations
        :param ended: where an episode ended, of shape (steps, environments)
        :return: what it does before and after each step, of shape (steps, environments, dimensions)
        """
        n_steps = len(ended)
        done: np.ndarray = self.actions[:n_steps].astype(np.float32)
        before, after = done.copy(), done.copy()
        told_apart = ended.copy()
        told_apart[[(self.pos - 1) % self.buffer_size] * (n_steps > 0)] = True
        for which, values, places in (
            (0, before, np.argwhere(np.ones_like(ended))),
            (1, after, np.argwhere(told_apart)),
        ):
            for start in range(0, len(places), ASKED_AT_ONCE):
                steps, envs = places[start : start + ASKED_AT_ONCE].T
                answers = ask(self._observations_at(steps, envs)[which])
                if answers is None:
                    return done, np.where(told_apart[..., None], done, np.roll(done, -1, axis=0))
                values[steps, envs] = answers
        return before, np.where(told_apart[..., None], after, np.roll(before, -1, axis=0))

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> SourceReplayBufferSamples:  # type: ignore[override]
        """
        :param batch_size: how many steps to draw
        :param env: what to normalise by
        :return: these steps
        """
        with drawing_from(self.rng) if self.n_sources else nullcontext():
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
