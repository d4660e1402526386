"""Replay of transitions and of sequences, with the active option and the agreement of every option."""

from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import TensorDict
from stable_baselines3.common.vec_env import VecNormalize


class OptionActions(NamedTuple):
    """
    What each environment did in one step, as the buffer takes it.

    :param actions: the action taken
    :param options: the active option
    :param agreements: of shape (environments, options), which options would have taken that action
    """

    actions: np.ndarray
    options: np.ndarray
    agreements: np.ndarray


class OptionReplayBufferSamples(NamedTuple):
    """
    Sequences that stay inside an episode. Times come first: of shape (length, sequences, ...).

    :param observations: of length + 1 times, flattened to ((length + 1) * sequences, ...):
        the observation after the last valid step of each sequence is its successor
    :param actions: the action taken
    :param rewards: the reward for it
    :param dones: whether it led to a terminal state; a truncated episode bootstraps
    :param options: the active option
    :param agreements: which options would have taken that action
    :param mask: whether this step belongs to the sequence
    """

    observations: th.Tensor | TensorDict
    actions: th.Tensor
    rewards: th.Tensor
    dones: th.Tensor
    options: th.Tensor
    agreements: th.Tensor
    mask: th.Tensor


class ObservationStore:
    """
    The observations of a ring of time steps, each stored once.

    The successor of an observation is the observation one row on, unless an episode ended or was cut short
    between them: then it is set aside. So successors are exact, truncations and resets included.

    :param rows: number of time steps
    :param n_envs: number of environments, the columns
    :param space: the space of one observation
    """

    def __init__(self, rows: int, n_envs: int, space: spaces.Space) -> None:
        shape = space.shape or (1,)
        self.rows = rows
        self.data = np.zeros((rows, n_envs, *shape), dtype=space.dtype)
        # The successors of the newest row have no row yet.
        self.newest = -1
        self.after_newest = np.zeros((n_envs, *shape), dtype=space.dtype)
        # Successors set aside, and where to find them: -1 for those that are simply one row on.
        self.aside = np.zeros((0, *shape), dtype=space.dtype)
        self.slots = np.full((rows, n_envs), -1, dtype=np.int32)
        self.free: list[int] = []

    def add(self, row: int, observations: np.ndarray, next_observations: np.ndarray) -> np.ndarray:
        """
        Store one time step.

        :param row: where, one after the last call's
        :param observations: one for each environment
        :param next_observations: what followed, also when an episode ended there
        :return: in which environments the step before was not followed by this one
        """
        self._release(row)
        observations = observations.reshape(self.after_newest.shape)
        cut = np.zeros(len(observations), dtype=bool)
        if self.newest >= 0:
            differs = observations != self.after_newest
            cut = differs.reshape(len(cut), -1).any(axis=1)
            for env in np.flatnonzero(cut):
                self.slots[self.newest, env] = self._set_aside(self.after_newest[env])
        self.data[row] = observations
        self.after_newest[:] = next_observations.reshape(self.after_newest.shape)
        self.newest = row
        return cut

    def get(self, rows: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """:return: the observations at these rows and columns"""
        return self.data[rows, envs]

    def get_next(self, rows: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """:return: what followed the observations at these rows and columns"""
        found = self.data[(rows + 1) % self.rows, envs]
        is_newest = rows == self.newest
        found[is_newest] = self.after_newest[envs[is_newest]]
        slots = self.slots[rows, envs]
        found[slots >= 0] = self.aside[slots[slots >= 0]]
        return found

    def _set_aside(self, observation: np.ndarray) -> int:
        if not self.free:
            grown = max(16, len(self.aside))
            self.free = list(range(len(self.aside) + grown - 1, len(self.aside) - 1, -1))
            self.aside = np.concatenate([self.aside, np.zeros((grown, *self.aside.shape[1:]), self.aside.dtype)])
        slot = self.free.pop()
        self.aside[slot] = observation
        return slot

    def _release(self, row: int) -> None:
        used = self.slots[row] >= 0
        if used.any():
            self.free.extend(self.slots[row][used].tolist())
            self.slots[row] = -1


class OptionReplayBuffer(ReplayBuffer):
    """
    Replay buffer of CAPS: rows are time steps, columns are environments.

    Besides SB3's fields it keeps the active option and the agreement of every option with the action taken.
    Each observation is stored once, and still truncations are handled exactly. Dict observations are several stores.

    :param buffer_size: Max number of transitions
    :param observation_space: Observation space
    :param action_space: Action space
    :param device: PyTorch device
    :param n_envs: Number of parallel environments
    :param optimize_memory_usage: Nothing more to do here: each observation is stored once in any case
    :param handle_timeout_termination: Bootstrap where an episode was truncated
    :param n_options: Number of options
    :param sequence_length: Length of the sequences to sample; 1 samples transitions
    """

    stores: dict[str | None, ObservationStore]

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_options: int = 1,
        sequence_length: int = 1,
    ) -> None:
        # Not ReplayBuffer.__init__, which would allocate its own arrays (SB3's DictReplayBuffer does the same).
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs)
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self.sequence_length = sequence_length
        rows = (self.buffer_size, n_envs)
        spaces_by_key: dict[Any, spaces.Space] = (
            dict(observation_space.spaces) if isinstance(observation_space, spaces.Dict) else {None: observation_space}
        )
        self.stores = {key: ObservationStore(*rows, space) for key, space in spaces_by_key.items()}
        self.actions = np.zeros(rows, dtype=np.int64)
        self.rewards = np.zeros(rows, dtype=np.float32)
        self.dones = np.zeros(rows, dtype=bool)
        self.timeouts = np.zeros(rows, dtype=bool)
        self.options = np.zeros(rows, dtype=np.int32)
        self.agreements = np.zeros((*rows, n_options), dtype=bool)
        # The last step that is known of an episode: the next row belongs to another one.
        self.last_steps = np.zeros(rows, dtype=bool)

    def add(  # type: ignore[override]
        self,
        obs: np.ndarray | dict[str, np.ndarray],
        next_obs: np.ndarray | dict[str, np.ndarray],
        action: OptionActions,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """
        Store one step of every environment.

        :param obs: the observations acted on
        :param next_obs: what followed, the terminal observation where an episode ended
        :param action: what each environment did
        :param reward: the rewards
        :param done: where an episode ended
        :param infos: tell apart truncations
        """
        row, previous = self.pos, (self.pos - 1) % self.buffer_size
        for key, store in self.stores.items():
            values = (obs, next_obs) if key is None else (obs[key], next_obs[key])
            self.last_steps[previous] |= store.add(row, *values)  # type: ignore[arg-type]
        self.actions[row] = action.actions
        self.options[row] = action.options
        self.agreements[row] = action.agreements
        self.rewards[row] = reward
        self.dones[row] = done
        self.last_steps[row] = done
        if self.handle_timeout_termination:
            self.timeouts[row] = [info.get("TimeLimit.truncated", False) for info in infos]
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def sample(  # type: ignore[override]
        self, batch_size: int, env: VecNormalize | None = None
    ) -> OptionReplayBufferSamples:
        """
        Sample sequences that start anywhere and end with their episode, at the latest.

        :param batch_size: Number of steps to sample, as many sequences as make them up
        :param env: associated VecEnv to normalize the observations/rewards when sampling
        :return: the sequences
        """
        n_sequences = max(batch_size // self.sequence_length, 1)
        starts = np.random.randint(self.size(), size=n_sequences)
        envs = np.random.randint(self.n_envs, size=n_sequences)
        return self.get_sequences(starts, envs, env)

    def get_sequences(
        self, starts: np.ndarray, envs: np.ndarray, env: VecNormalize | None = None
    ) -> OptionReplayBufferSamples:
        """
        :param starts: for each sequence the age of its first step, 0 being the oldest in the buffer
        :param envs: for each sequence its environment
        :param env: associated VecEnv to normalize the observations/rewards
        :return: the sequences
        """
        ages = starts + np.arange(self.sequence_length)[:, None]
        rows = (ages + (self.pos if self.full else 0)) % self.buffer_size
        mask = ages < self.size()
        mask[1:] &= ~np.logical_or.accumulate(self.last_steps[rows[:-1], envs], axis=0)
        rewards = self.rewards[rows, envs]
        observations = self._observations(rows, envs, lengths=mask.sum(axis=0), env=env)
        return OptionReplayBufferSamples(
            observations,
            self.to_torch(self.actions[rows, envs], copy=False),
            self.to_torch(self._normalize_reward(rewards, env), copy=False),
            # A truncated episode goes on as far as its value is concerned
            self.to_torch(self.dones[rows, envs] & ~self.timeouts[rows, envs], copy=False),
            self.to_torch(self.options[rows, envs], copy=False),
            self.to_torch(self.agreements[rows, envs], copy=False),
            self.to_torch(mask, copy=False),
        )

    def _observations(
        self, rows: np.ndarray, envs: np.ndarray, lengths: np.ndarray, env: VecNormalize | None
    ) -> th.Tensor | TensorDict:
        """The observations of each sequence and the successor of its last step, flattened."""
        columns = np.arange(len(envs))
        found: dict[Any, np.ndarray] = {}
        for key, store in self.stores.items():
            successors = store.get_next(rows[lengths - 1, columns], envs)
            observations = np.concatenate([store.get(rows, envs), successors[None]])
            observations[lengths, columns] = successors
            found[key] = observations.reshape(-1, *observations.shape[2:])
        normalized = self._normalize_obs(found.get(None, found), env)
        if isinstance(normalized, dict):
            return {key: self.to_torch(value, copy=False) for key, value in normalized.items()}
        return self.to_torch(normalized, copy=False)
