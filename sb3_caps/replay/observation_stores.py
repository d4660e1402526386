"""Where a replay buffer keeps its observations: each once, the frames of a stack once, as they are or compressed."""

import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_caps.extras import require

# Smaller items would grow by being compressed
SMALLEST_COMPRESSED = 256


class PlainItems:
    """
    Arrays of one shape, by number.

    :param n_items: how many
    :param shape: the shape of one
    :param dtype: their type
    """

    def __init__(self, n_items: int, shape: tuple[int, ...], dtype: Any) -> None:
        self.data = np.zeros((n_items, *shape), dtype=dtype)

    def __len__(self) -> int:
        return len(self.data)

    def put(self, first: int, items: np.ndarray) -> None:
        """
        Replace items.

        :param first: the first item to replace, the others follow it
        :param items: what with
        """
        self.data[first : first + len(items)] = items

    def get(self, numbers: np.ndarray) -> np.ndarray:
        r"""Return a copy of the items, of shape (\*numbers.shape, \*shape)."""
        return self.data[numbers]

    def grow(self, n_items: int) -> None:
        """
        Make room for more items.

        :param n_items: how many to add
        """
        self.data = np.concatenate([self.data, np.zeros((n_items, *self.data.shape[1:]), self.data.dtype)])


class CompressedItems:
    """
    Arrays of one shape, by number, each compressed without loss.

    The difference to the first item is compressed. In games most of the screen stays the same, so a fast codec
    compresses differences better than a slow one compresses screens.

    :param n_items: how many
    :param shape: the shape of one
    :param dtype: their type
    :param compression: ``"zlib"``, or ``"lz4"`` (which is faster, and an extra)
    """

    def __init__(self, n_items: int, shape: tuple[int, ...], dtype: Any, compression: str) -> None:
        self.blobs = np.full(n_items, b"", dtype=object)
        self.shape, self.dtype, self.compression = shape, np.dtype(dtype), compression
        self.n_bytes = int(np.prod(shape)) * self.dtype.itemsize
        self.reference: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.blobs)

    def put(self, first: int, items: np.ndarray) -> None:
        """
        Replace items.

        :param first: the first item to replace, the others follow it
        :param items: what with
        """
        as_bytes = np.ascontiguousarray(items, dtype=self.dtype).reshape(len(items), -1).view(np.uint8)
        if self.reference is None:
            self.reference = as_bytes[0].copy()
        compress = codec(self.compression)[0]
        for number, difference in enumerate(as_bytes ^ self.reference, start=first):
            self.blobs[number] = compress(difference)

    def get(self, numbers: np.ndarray) -> np.ndarray:
        r"""Return the items, of shape (\*numbers.shape, \*shape)."""
        decompress = codec(self.compression)[1]
        # What several observations share is decompressed once
        unique, where = np.unique(numbers, return_inverse=True)
        found = np.empty((len(unique), self.n_bytes), dtype=np.uint8)
        for i, blob in enumerate(self.blobs[unique]):
            # Nothing has been put there yet: any content will do
            found[i] = np.frombuffer(decompress(blob), dtype=np.uint8) if blob else 0
        if self.reference is not None:
            found ^= self.reference
        return found.view(self.dtype)[where.reshape(-1)].reshape(*numbers.shape, *self.shape)

    def grow(self, n_items: int) -> None:
        """
        Make room for more items.

        :param n_items: how many to add
        """
        self.blobs = np.concatenate([self.blobs, np.full(n_items, b"", dtype=object)])


@cache
def codec(compression: str) -> tuple[Callable[[Any], bytes], Callable[[bytes], bytes]]:
    """
    Find the functions of a codec.

    :param compression: the name of a codec
    :return: its functions to compress and to decompress
    """
    if compression == "zlib":
        return _zlib_compress, zlib.decompress
    if compression == "lz4":
        block = require("lz4.block", "compression")
        return block.compress, block.decompress
    raise ValueError(f'compression must be None, "zlib" or "lz4", not {compression!r}.')


def _zlib_compress(data: Any) -> bytes:
    return zlib.compress(data, 1)


class ObservationStore:
    """
    The observations of a ring of time steps, each stored once.

    The successor of an observation is the observation one row on, unless an episode ended or was cut short
    between them: then it is set aside. So successors are exact, truncations and resets included.

    Of a stack of frames only the newest is stored, if the others are those of the rows before. That is checked for
    every observation, and one that is otherwise (the first of an episode) is set aside as a whole.

    :param rows: number of time steps
    :param n_envs: number of environments, the columns
    :param space: the space of one observation
    :param frame_stack: number of frames that an observation is a stack of, the newest last
    :param compression: how to compress, None for not at all
    """

    def __init__(
        self, rows: int, n_envs: int, space: spaces.Space, frame_stack: int = 1, compression: str | None = None
    ) -> None:
        self.rows, self.n_envs, self.frame_stack = rows, n_envs, frame_stack
        self.shape, self.dtype = space.shape or (1,), space.dtype
        self.axis = frame_axis(self.shape)
        # Frames outlive their row for as long as the stacks of later rows need them
        self.ring = rows + frame_stack - 1
        frame_shape = list(self.shape)
        size = frame_shape.pop(self.axis)
        if size % frame_stack:
            raise ValueError(
                f"Observations of shape {self.shape} are not a stack of {frame_stack} frames: pass frame_stack=1."
            )
        self.frame_shape = self.shape if frame_stack == 1 else (size // frame_stack, *frame_shape)
        n_bytes = int(np.prod(self.frame_shape)) * np.dtype(self.dtype).itemsize
        self.compression = compression if n_bytes >= SMALLEST_COMPRESSED else None
        self.frames = self._items(self.ring * n_envs, self.frame_shape)
        # Whole observations set aside, and where to find them: -1 for none.
        self.aside = self._items(0, self.shape)
        self.successor_slots = np.full((rows, n_envs), -1, dtype=np.int32)
        self.stack_slots = np.full((rows, n_envs), -1, dtype=np.int32)
        self.free: list[int] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.steps = 0
        # The frames of the newest observations, for how many rows they have been moving on, and what followed
        self.newest = np.zeros((self.n_envs, self.frame_stack, *self.frame_shape), dtype=self.dtype)
        # (-1: the first ones have nothing to move on from)
        self.shifts = np.full(self.n_envs, -1, dtype=np.int64)
        self.after_newest = np.zeros((self.n_envs, *self.shape), dtype=self.dtype)
        self.successor_slots[:], self.stack_slots[:] = -1, -1
        self.free = list(range(len(self.aside)))

    def _items(self, n_items: int, shape: tuple[int, ...]) -> PlainItems | CompressedItems:
        if self.compression is None:
            return PlainItems(n_items, shape, self.dtype)
        return CompressedItems(n_items, shape, self.dtype, self.compression)

    def add(self, observations: np.ndarray, next_observations: np.ndarray) -> np.ndarray | None:
        """
        Store one time step, in the row after the last one's.

        :param observations: one for each environment
        :param next_observations: what followed, also when an episode ended there
        :return: in which environments the step before was not followed by this one, None for none
        """
        row = self.steps % self.rows
        observations = observations.reshape(self.after_newest.shape)
        cut = self._close_previous(observations)
        if self.steps >= self.rows:
            self._release(row)
        first = (self.steps % self.ring) * self.n_envs
        if self.frame_stack == 1:
            self.frames.put(first, observations)
        else:
            frames = self._as_frames(observations)
            self.frames.put(first, frames[:, -1])
            self.shifts += 1
            moved_otherwise = _differ(frames[:, :-1], self.newest[:, 1:])
            if moved_otherwise is not None:
                self.shifts[moved_otherwise] = 0
            if self.shifts.min() < self.frame_stack - 1:
                for env in np.flatnonzero(self.shifts < self.frame_stack - 1):
                    self.stack_slots[row, env] = self._set_aside(observations[env])
            # Where nothing was cut there is a copy already: what followed the last step
            self.newest = self._as_frames(self.after_newest if self.steps and cut is None else observations.copy())
        # In the layout in which it came, and will come again to be compared: SB3 transposes images without moving them
        self.after_newest = np.array(next_observations.reshape(self.after_newest.shape), dtype=self.dtype, order="K")
        self.steps += 1
        return cut

    def _close_previous(self, observations: np.ndarray) -> np.ndarray | None:
        """Set aside what followed the last step where it is not what comes now, and tell where that is so."""
        if self.steps == 0:
            return None
        cut = _differ(observations, self.after_newest)
        if cut is None:
            return None
        previous = (self.steps - 1) % self.rows
        for env in np.flatnonzero(cut):
            self.successor_slots[previous, env] = self._set_aside(self.after_newest[env])
        return cut

    def get(self, rows: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """Return the observations at these rows and columns."""
        return self._at(self._times(rows), envs)

    def get_next(self, rows: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """Return what followed the observations at these rows and columns."""
        return self.get_sequences(rows[None], envs, np.ones(len(rows), dtype=np.int64))[1]

    @property
    def data(self) -> np.ndarray:
        """The observations of all rows, of shape (rows, environments, ...)."""
        return self.get(np.arange(self.rows)[:, None], np.arange(self.n_envs))

    @property
    def next_data(self) -> np.ndarray:
        """What followed the observations of all rows, of shape (rows, environments, ...); zeros where there is none."""
        found = np.zeros((self.rows, self.n_envs, *self.shape), dtype=self.dtype)
        rows = np.arange(min(self.steps, self.rows))
        for env in range(self.n_envs):
            if len(rows):
                found[rows, env] = self.get_next(rows, np.full(len(rows), env))
        return found

    @staticmethod
    def bytes_needed(rows: int, n_envs: int, space: spaces.Space, frame_stack: int = 1) -> int:
        """Return the memory that such a store takes when it is full, uncompressed and with nothing set aside."""
        frame_bytes = int(np.prod(space.shape or (1,))) * np.dtype(space.dtype).itemsize // frame_stack
        return (rows + frame_stack - 1) * n_envs * (frame_bytes + 8)

    def get_sequences(self, rows: np.ndarray, envs: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """
        Get the observations of sequences, and those that followed.

        :param rows: of shape (length, sequences), the rows of each sequence
        :param envs: for each sequence its environment
        :param lengths: for each sequence how many of its rows belong to it
        :return: of shape (length + 1, sequences, ...), the observations and after the last one its successor
        """
        columns = np.arange(len(envs))
        last = rows[lengths - 1, columns]
        times = self._times(np.concatenate([rows, rows[-1:]]))
        ends = self._times(last) + 1
        # The newest row has no row after it
        times[lengths, columns] = np.minimum(ends, self.steps - 1)
        found = self._at(times, envs)
        newest = np.flatnonzero(ends == self.steps)
        if len(newest):
            found[lengths[newest], newest] = self.after_newest[envs[newest]]
        slots = self.successor_slots[last, envs]
        cut = np.flatnonzero(slots >= 0)
        if len(cut):
            found[lengths[cut], cut] = self.aside.get(slots[cut])
        return found

    def _times(self, rows: np.ndarray) -> np.ndarray:
        """When these rows were stored, counted in steps."""
        return self.steps - 1 - (self.steps - 1 - rows) % self.rows

    def _at(self, times: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """The observations of these times and columns."""
        if self.frame_stack == 1:
            return self.frames.get(times % self.ring * self.n_envs + envs)
        frame_times = times[..., None] + np.arange(1 - self.frame_stack, 1)
        frames = self.frames.get(frame_times % self.ring * self.n_envs + np.asarray(envs)[..., None])
        found = self._as_observations(frames)
        slots = self.stack_slots[times % self.rows, envs]
        whole = slots >= 0
        if whole.any():
            found[whole] = self.aside.get(slots[whole])
        return found

    def _as_frames(self, observations: np.ndarray) -> np.ndarray:
        """A view of observations as (environments, frames, ...)."""
        if self.axis:
            observations = np.moveaxis(observations, 1 + self.axis, 1)
        return observations.reshape(len(observations), self.frame_stack, *self.frame_shape)

    def _as_observations(self, frames: np.ndarray) -> np.ndarray:
        """The inverse, for any number of axes before (frames, ...)."""
        n_axes = frames.ndim - 1 - len(self.shape)
        # Spelled out: of no frames at all a size cannot be inferred
        stacked = frames.shape[n_axes] * frames.shape[n_axes + 1]
        joined = frames.reshape(*frames.shape[:n_axes], stacked, *frames.shape[n_axes + 2 :])
        return np.ascontiguousarray(np.moveaxis(joined, n_axes, n_axes + self.axis)) if self.axis else joined

    def _set_aside(self, observation: np.ndarray) -> int:
        if not self.free:
            grown = max(16, len(self.aside))
            self.free = list(range(len(self.aside), len(self.aside) + grown))
            self.aside.grow(grown)
        slot = self.free.pop()
        self.aside.put(slot, observation[None])
        return slot

    def _release(self, row: int) -> None:
        for slots in (self.successor_slots[row], self.stack_slots[row]):
            if slots.max() >= 0:
                self.free.extend(slots[slots >= 0].tolist())
                slots[:] = -1


def frame_axis(shape: tuple[int, ...]) -> int:
    """
    Find the axis along which frames are stacked.

    :param shape: the shape of an observation
    :return: the axis along which frames are stacked: the channels of an image, the first axis of anything else
    """
    return 2 if len(shape) == 3 and shape[2] < shape[0] else 0


def detected_frame_stack(observations: np.ndarray, next_observations: np.ndarray) -> int:
    """
    Detect how many frames are stacked in observations.

    :param observations: a batch of observations
    :param next_observations: what followed
    :return: as stacks of how many frames each can have been followed by the other, 1 if that cannot be
    """
    axis = 1 + frame_axis(observations.shape[1:])
    before, after = np.moveaxis(observations, axis, 0), np.moveaxis(next_observations, axis, 0)
    size = len(before)
    for frame_stack in range(size, 1, -1):
        channels = size // frame_stack
        if size % frame_stack == 0 and np.array_equal(before[channels:], after[:-channels]):
            return frame_stack
    return 1


def _differ(first: np.ndarray, second: np.ndarray) -> np.ndarray | None:
    """In which rows the two differ, None for none."""
    different = first != second
    return different.reshape(len(first), -1).any(axis=1) if different.any() else None
