"""Replay of transitions and of sequences, with the active option and the agreement of every option."""

import warnings
from collections.abc import Callable
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import TensorDict
from stable_baselines3.common.vec_env import VecNormalize

from sb3_caps.replay.batches import moved
from sb3_caps.replay.memory import available_memory
from sb3_caps.replay.observation_stores import ObservationStore, codec, detected_frame_stack, frame_axis
from sb3_caps.replay.priorities import Priorities
from sb3_caps.replay.type_aliases import LatestSteps, OptionReplayBufferSamples

Compression: TypeAlias = Literal["zlib", "lz4"]
# Observations that a new source is asked about in one call
ASKED_AT_ONCE = 1024


class OptionReplayBuffer(ReplayBuffer):
    """
    Replay buffer of CAPS: rows are time steps, columns are environments.

    Besides SB3's fields it keeps the active option and what each source would have done, before a step and after it.
    Which options agree with the action taken follows from that. Where environments have action masks, it keeps these.
    Each observation is stored once, and still truncations are handled exactly. Dict observations are several stores.

    :param buffer_size: Max number of transitions
    :param observation_space: Observation space
    :param action_space: Action space
    :param device: PyTorch device
    :param n_envs: Number of parallel environments
    :param optimize_memory_usage: Store each frame of a stack of images once. Stacks are told from other images in
        the first step, see ``frame_stack``.
    :param handle_timeout_termination: Bootstrap where an episode was truncated
    :param n_sources: Number of source policies
    :param sequence_length: Length of the sequences to sample; 1 samples transitions
    :param prioritized_share: Share of the sequences that are drawn by how far off the values of a step were when they
        were last looked at (Schaul and others 2016, without weights in the loss); 0 draws all of them alike
    :param frame_stack: Number of frames that each observation is a stack of, the newest last: each is stored once.
        1 for no stacks, None to leave it to ``optimize_memory_usage``.
    :param compression: Compress observations without loss: ``"zlib"``, or ``"lz4"``, which is faster and an extra
    """

    stores: dict[str | None, ObservationStore]
    # What draws samples: the model's own, where it belongs to one
    rng: np.random.Generator
    # Of the model that saved it, None for a buffer that was never saved
    option_names: list[str] | None = None
    # Which actions are not allowed where a step begins and where it ends, as bits; None until masks come
    forbidden: np.ndarray | None = None

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sources: int = 0,
        sequence_length: int = 1,
        prioritized_share: float = 0.0,
        frame_stack: int | None = None,
        compression: Compression | None = None,
    ) -> None:
        # Not ReplayBuffer.__init__, which would allocate its own arrays (SB3's DictReplayBuffer does the same).
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs)
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self.sequence_length = sequence_length
        _check_arguments(prioritized_share, frame_stack)
        self.prioritized_share = prioritized_share
        self.frame_stack, self.compression = frame_stack, compression
        rows = (self.buffer_size, n_envs)
        self.spaces_by_key: dict[Any, spaces.Space] = (
            dict(observation_space.spaces) if isinstance(observation_space, spaces.Dict) else {None: observation_space}
        )
        self.n_sources, self.n_actions = n_sources, int(action_space.n)
        # The smallest one that holds all actions and -1
        self.source_action_type = np.min_scalar_type(-self.n_actions)
        self._check_fits()
        self.stores = {
            key: self._store(key, self._presumed_stack(key, optimize_memory_usage)) for key in self.spaces_by_key
        }
        self._check_compression()
        self.actions = np.zeros(rows, dtype=np.int64)
        self.rewards = np.zeros(rows, dtype=np.float32)
        self.dones = np.zeros(rows, dtype=bool)
        self.timeouts = np.zeros(rows, dtype=bool)
        self.options = np.zeros(rows, dtype=np.int32)
        self.log_probs = np.zeros(rows, dtype=np.float32)
        # What the sources do where a step begins and where it ends, -1 where that is not known
        self.option_actions = np.full((*rows, n_sources), -1, dtype=self.source_action_type)
        self.next_option_actions = np.full((*rows, n_sources), -1, dtype=self.source_action_type)
        # The last step that is known of an episode: the next row belongs to another one.
        self.last_steps = np.zeros(rows, dtype=bool)
        if prioritized_share > 0:
            self.priorities = Priorities(*rows)
        self.rng = np.random.default_rng()

    @property
    def n_options(self) -> int:
        """Number of options."""
        return self.n_sources + self.n_actions

    @property
    def agreements(self) -> np.ndarray:
        """Which options would have taken the action of each step, of shape (rows, environments, options)."""
        return self._agreements(self.option_actions, self.actions)

    def _agreements(self, option_actions: np.ndarray, actions: np.ndarray) -> np.ndarray:
        primitives = np.broadcast_to(np.arange(self.n_actions), (*actions.shape, self.n_actions))
        return np.concatenate([option_actions, primitives], axis=-1) == actions[..., None]

    @property
    def observations(self) -> np.ndarray | dict[str, np.ndarray]:  # type: ignore[override]
        """A copy of the observations of all rows, as SB3's buffers keep them: of shape (rows, environments, ...)."""
        return self._all_rows(lambda store: store.data)

    @property
    def next_observations(self) -> np.ndarray | dict[str, np.ndarray]:  # type: ignore[override]
        """A copy of what followed them, the last observation where an episode ended."""
        return self._all_rows(lambda store: store.next_data)

    def _all_rows(self, read: Callable[[ObservationStore], np.ndarray]) -> np.ndarray | dict[str, np.ndarray]:
        if self.compression is not None:
            raise AttributeError(
                f"There is no array of all observations: they are compressed ({self.compression}). Use sample or "
                "get_sequences, or a buffer with compression=None."
            )
        found: Any = {key: read(store) for key, store in self.stores.items()}
        return found.get(None, found)

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        for store in self.stores.values():
            store.reset()
        if self.prioritized_share > 0:
            self.priorities.reset()

    def _store(self, key: str | None, frame_stack: int) -> ObservationStore:
        space = self.spaces_by_key[key]
        try:
            return ObservationStore(self.buffer_size, self.n_envs, space, frame_stack, self.compression)
        except MemoryError as error:
            raise MemoryError(f"The replay buffer does not fit: pass a smaller buffer_size. ({error})") from error

    def _presumed_stack(self, key: str | None, optimize_memory_usage: bool) -> int:
        """How many frames an observation is a stack of, as far as its space tells."""
        shape = self.spaces_by_key[key].shape
        is_image = shape is not None and len(shape) == 3
        if self.frame_stack is not None:
            # Beside stacked images, a Dict may hold vectors that are not
            return self.frame_stack if is_image or key is None else 1
        return shape[frame_axis(shape)] if shape is not None and is_image and optimize_memory_usage else 1

    def _bytes_needed(self, optimize_memory_usage: bool) -> int:
        """The memory that a full buffer takes, uncompressed."""
        rows = (self.buffer_size, self.n_envs)
        stacks = {key: self._presumed_stack(key, optimize_memory_usage) for key in self.spaces_by_key}
        observations = [ObservationStore.bytes_needed(*rows, self.spaces_by_key[key], stacks[key]) for key in stacks]
        # Actions, options, rewards, probabilities, three flags and what the sources do
        of_sources = 2 * self.source_action_type.itemsize * self.n_sources
        return sum(observations) + self.buffer_size * self.n_envs * (23 + of_sources)

    def _check_fits(self) -> None:
        """A warning, no error: memory is taken as the buffer fills, which a short run never does."""
        needed, available = self._bytes_needed(self.optimize_memory_usage), available_memory()
        if self.compression is not None or available is None or needed <= available:
            return
        size = self.buffer_size * self.n_envs
        advice = f"pass a smaller buffer_size (up to {int(size * available / needed):,} fit)"
        optimized = self._bytes_needed(optimize_memory_usage=True)
        if optimized < needed:
            advice += f", optimize_memory_usage=True if its images are stacks of frames ({optimized / 1e9:.1f} GB)"
        warnings.warn(
            f"The replay buffer of {size:,} transitions takes {needed / 1e9:.1f} GB when it is full, but "
            f"{available / 1e9:.1f} GB are available: {advice}, "
            'or replay_buffer_kwargs={"compression": "zlib"} for images.',
            stacklevel=2,
        )

    def _check_compression(self) -> None:
        if self.compression is not None:
            codec(self.compression)
            if all(store.compression is None for store in self.stores.values()):
                raise ValueError(
                    f"compression={self.compression!r} is for images: observations of {self.observation_space} would "
                    "grow by it. Pass None."
                )

    def add(
        self,
        obs: np.ndarray | dict[str, np.ndarray],
        next_obs: np.ndarray | dict[str, np.ndarray],
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
        options: np.ndarray | None = None,
        log_probs: np.ndarray | None = None,
        option_actions: np.ndarray | None = None,
        next_option_actions: np.ndarray | None = None,
        action_masks: np.ndarray | None = None,
        next_action_masks: np.ndarray | None = None,
    ) -> None:
        """
        Store one step of every environment.

        Where the actions of the sources are not given, as with ``extend``, primitive options learn from the step and
        sources do not.

        :param obs: the observations acted on
        :param next_obs: what followed, the terminal observation where an episode ended
        :param action: the actions taken
        :param reward: the rewards
        :param done: where an episode ended
        :param infos: tell apart truncations
        :param options: the active option of each environment, by default the primitive one
        :param log_probs: log μ(a|s), how likely what acted was to take the action, NaN where that is not known
        :param option_actions: what each source would have done, of shape (environments, sources)
        :param next_option_actions: what each source does where the step led to, of the same shape
        :param action_masks: which actions were allowed, of shape (environments, actions); None for all
        :param next_action_masks: which ones are allowed where the step led to, of the same shape; None for all
        """
        row, previous = self.pos, (self.pos - 1) % self.buffer_size
        if row == 0 and not self.full and self.optimize_memory_usage and self.frame_stack is None:
            self._detect_stacks(obs, next_obs)
        for key, store in self.stores.items():
            values: Any = (obs, next_obs) if key is None else (obs[key], next_obs[key])
            cut = store.add(*values)
            if cut is not None:
                self.last_steps[previous] |= cut
        self.actions[row] = action.reshape(self.n_envs)
        self.rewards[row] = reward
        self.dones[row] = done
        self.last_steps[row] = done
        if self.handle_timeout_termination:
            self.timeouts[row] = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        self.options[row] = self.n_sources + self.actions[row] if options is None else options
        self.log_probs[row] = np.nan if log_probs is None else log_probs
        self.option_actions[row] = -1 if option_actions is None else option_actions
        self.next_option_actions[row] = -1 if next_option_actions is None else next_option_actions
        if action_masks is not None and self.forbidden is None:
            self.forbidden = np.zeros((2, self.buffer_size, self.n_envs, -(-self.n_actions // 8)), dtype=np.uint8)
        if self.forbidden is not None:
            for i, masks in enumerate((action_masks, next_action_masks)):
                self.forbidden[i, row] = 0 if masks is None else np.packbits(~masks, axis=1)
        if self.prioritized_share > 0:
            self.priorities.add(row)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def map_sources(self, places: np.ndarray, ask: Callable[[int, Any], np.ndarray | None]) -> None:
        """
        Keep what other sources do. Steps whose active option is gone count as those of the primitive option.

        :param places: for each option where it was, -1 for one that was not there
        :param ask: asks a source, by its number, about observations; None where it cannot tell
        """
        sources = places[: len(places) - self.n_actions]
        shape = (*self.actions.shape, len(sources))
        found = tuple(np.full(shape, -1, dtype=self.source_action_type) for _ in range(2))
        for values, before in zip(found, (self.option_actions, self.next_option_actions), strict=True):
            values[..., sources >= 0] = before[..., sources[sources >= 0]]
        for i in np.flatnonzero(sources < 0).tolist():
            for values, answers in zip(found, self._answers(partial(ask, i)), strict=True):
                values[..., i] = answers
        options = moved(places, self.n_options)[self.options]
        self.options = np.where(options < 0, len(sources) + self.actions, options).astype(np.int32)
        self.option_actions, self.next_option_actions = found
        self.n_sources = len(sources)

    def _answers(self, ask: Callable[[Any], np.ndarray | None]) -> tuple[np.ndarray, np.ndarray]:
        """
        :param ask: asks a source about observations
        :return: what it does in each step and after it, of shape (rows, environments), -1 where that is not known
        """
        before, after = np.full((2, *self.actions.shape), -1, dtype=self.source_action_type)
        n_rows = self.size()
        # Elsewhere the next row tells
        told_apart = self.last_steps[:n_rows].copy()
        told_apart[self._newest(min(n_rows, 1))] = True
        for values, places, read in (
            (before, np.argwhere(np.ones((n_rows, self.n_envs), dtype=bool)), ObservationStore.get),
            (after, np.argwhere(told_apart), ObservationStore.get_next),
        ):
            for start in range(0, len(places), ASKED_AT_ONCE):
                rows, envs = places[start : start + ASKED_AT_ONCE].T
                observations = {key: read(store, rows, envs) for key, store in self.stores.items()}
                answers = ask(observations.get(None, observations))
                if answers is None:
                    return before, after
                values[rows, envs] = answers
        following = np.roll(before, -1, axis=0)[:n_rows]
        after[:n_rows] = np.where(told_apart, after[:n_rows], following)
        return before, after

    def _detect_stacks(
        self, obs: np.ndarray | dict[str, np.ndarray], next_obs: np.ndarray | dict[str, np.ndarray]
    ) -> None:
        for key, store in self.stores.items():
            values: Any = (obs, next_obs) if key is None else (obs[key], next_obs[key])
            if store.frame_stack > 1:
                self.stores[key] = self._store(key, detected_frame_stack(*values))

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
        starts = self.rng.integers(self.size(), size=n_sequences)
        envs = self.rng.integers(self.n_envs, size=n_sequences)
        n_prioritized = int(self.prioritized_share * n_sequences)
        if n_prioritized:
            starts[:n_prioritized], envs[:n_prioritized] = self._prioritized(n_prioritized)
        return self.get_sequences(starts, envs, env)

    def _prioritized(self, n_sequences: int) -> tuple[np.ndarray, np.ndarray]:
        """Starts and environments of sequences with a step that is drawn by its priority, anywhere in the sequence."""
        rows, envs = self.priorities.draw(n_sequences, self.size(), self.rng)
        ages = (rows - (self.pos if self.full else 0)) % self.buffer_size
        return np.maximum(ages - self.rng.integers(self.sequence_length, size=n_sequences), 0), envs

    def update_priorities(self, samples: OptionReplayBufferSamples, errors: np.ndarray) -> None:
        """
        Update the priorities of sampled steps by their errors.

        :param samples: what ``sample`` returned
        :param errors: how far off the value of each step is, in units of the returns, of shape (length, sequences)
        """
        if self.prioritized_share > 0:
            mask = samples.mask.cpu().numpy()
            self.priorities.update(samples.places[mask], errors[mask])

    def get_sequences(
        self, starts: np.ndarray, envs: np.ndarray, env: VecNormalize | None = None
    ) -> OptionReplayBufferSamples:
        """
        Get sequences of steps.

        :param starts: for each sequence the age of its first step, 0 being the oldest in the buffer
        :param envs: for each sequence its environment
        :param env: associated VecEnv to normalize the observations/rewards
        :return: the sequences
        """
        ages = starts + np.arange(self.sequence_length)[:, None]
        rows = (ages + (self.pos if self.full else 0)) % self.buffer_size
        mask = ages < self.size()
        if self.sequence_length > 1:
            mask[1:] &= ~np.logical_or.accumulate(self.last_steps[rows[:-1], envs], axis=0)
        lengths = mask.sum(axis=0)
        observations = self._observations(rows, envs, lengths, env)
        option_actions = self._option_actions(rows, envs, lengths)
        places = rows * self.n_envs + envs
        actions = self.actions.take(places)
        rewards, dones, timeouts = (field.take(places) for field in (self.rewards, self.dones, self.timeouts))
        agreements = self._agreements(option_actions[:-1], actions)
        return OptionReplayBufferSamples(
            observations,
            self.to_torch(actions, copy=False),
            self.to_torch(self._normalize_reward(rewards, env), copy=False),
            # A truncated episode goes on as far as its value is concerned
            self.to_torch(dones & ~timeouts, copy=False),
            self.to_torch(self.options.take(places), copy=False),
            self.to_torch(agreements, copy=False),
            self.to_torch(np.concatenate(option_actions), copy=False),
            self.to_torch(mask, copy=False),
            places,
            self.to_torch(agreements & mask[..., None], copy=False),
            None if self.forbidden is None else self._allowed(self._action_masks(self.forbidden, rows, envs, lengths)),
        )

    def latest(self, n_steps: int, env: VecNormalize | None = None) -> LatestSteps:
        """
        Give the latest steps of which it is known how likely they were, in the order of time.

        :param n_steps: how many steps; all that there are, where these are fewer
        :param env: associated VecEnv to normalize the observations/rewards
        :return: the steps, those of each environment together
        """
        n_rows = min(n_steps // self.n_envs + 1, self.size())
        while np.count_nonzero(known := ~np.isnan(self.log_probs[self._newest(n_rows)])) < n_steps:
            if n_rows == self.size():
                break
            n_rows = min(2 * n_rows, self.size())
        newest = self._newest(n_rows)
        envs, ages = known.T.nonzero()
        rows = newest[ages]
        last_steps = self.last_steps[rows, envs]
        # Where what follows is of another environment, or was left out
        last_steps[:-1] |= (np.diff(ages) != 1) | (np.diff(envs) != 0)
        last_steps[-1:] = True
        observations, ended = {}, {}
        for key, store in self.stores.items():
            observations[key] = store.get(rows, envs)
            ended[key] = store.get_next(rows[last_steps], envs[last_steps])
        return LatestSteps(
            self._as_tensors(observations, env),
            self._as_tensors(ended, env),
            self.to_torch(self._normalize_reward(self.rewards[rows, envs], env)),
            self.to_torch(self.dones[rows, envs] & ~self.timeouts[rows, envs]),
            self.to_torch(last_steps),
            self.to_torch(self.actions[rows, envs]),
            self.to_torch(self.option_actions[rows, envs].astype(np.int64)),
            self.to_torch(self.log_probs[rows, envs]),
            None if self.forbidden is None else self._allowed(self.forbidden[0, rows, envs]),
        )

    def _newest(self, n_rows: int) -> np.ndarray:
        return (self.pos + np.arange(-n_rows, 0)) % self.buffer_size

    def _option_actions(self, rows: np.ndarray, envs: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """What the sources do at each step of each sequence and after its last one, of shape (length + 1, ...)."""
        found = np.zeros((len(rows) + 1, len(envs), self.n_sources), dtype=np.int64)
        found[:-1] = self.option_actions[rows, envs]
        columns = np.arange(len(envs))
        found[lengths, columns] = self.next_option_actions[rows[lengths - 1, columns], envs]
        return found

    @staticmethod
    def _action_masks(forbidden: np.ndarray, rows: np.ndarray, envs: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The bits at each step of each sequence and after its last one, flattened."""
        columns = np.arange(len(envs))
        found = np.zeros((len(rows) + 1, len(envs), forbidden.shape[-1]), dtype=np.uint8)
        found[:-1] = forbidden[0, rows, envs]
        found[lengths, columns] = forbidden[1, rows[lengths - 1, columns], envs]
        return np.concatenate(found)

    def _allowed(self, forbidden: np.ndarray) -> th.Tensor:
        return self.to_torch(np.unpackbits(forbidden, axis=-1, count=self.n_actions) == 0, copy=False)

    def to_torch(self, array: np.ndarray, copy: bool = True) -> th.Tensor:
        """
        Convert a numpy array to a PyTorch tensor.

        :param array: the array
        :param copy: Whether to copy or not the data
        :return: the tensor
        """
        # The shortest way, which is taken seven times for each batch
        return th.from_numpy(array) if not copy and self.device.type == "cpu" else super().to_torch(array, copy)

    def _observations(
        self, rows: np.ndarray, envs: np.ndarray, lengths: np.ndarray, env: VecNormalize | None
    ) -> th.Tensor | TensorDict:
        """The observations of each sequence and the successor of its last step, flattened."""
        found: dict[Any, np.ndarray] = {}
        for key, store in self.stores.items():
            observations = store.get_sequences(rows, envs, lengths)
            found[key] = observations.reshape(-1, *observations.shape[2:])
        return self._as_tensors(found, env)

    def _as_tensors(self, found: dict[Any, np.ndarray], env: VecNormalize | None) -> th.Tensor | TensorDict:
        normalized = self._normalize_obs(found.get(None, found), env)
        if isinstance(normalized, dict):
            return {key: self.to_torch(value, copy=False) for key, value in normalized.items()}
        return self.to_torch(normalized, copy=False)


def _check_arguments(prioritized_share: Any, frame_stack: Any) -> None:
    if not (isinstance(prioritized_share, Real) and 0 <= float(prioritized_share) <= 1):
        raise ValueError(f"prioritized_share must be a share from 0 to 1, not {prioritized_share!r}.")
    if frame_stack is not None and not (isinstance(frame_stack, Integral) and int(frame_stack) >= 1):
        raise ValueError(f"frame_stack must be None or a whole number from 1, not {frame_stack!r}.")
