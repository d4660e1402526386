"""
What the agent of Monster Kong observes, and which state an observation shows.

An observation may depend on the state before as well; at the start of an episode that is the state itself.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from sb3_caps.envs.monster_kong.drawing import OBSERVATION_SIZE, Painter, painter
from sb3_caps.envs.monster_kong.level import Level, Setting, load_level
from sb3_caps.envs.monster_kong.physics import MAX_FALL, TILE, Body
from sb3_caps.envs.monster_kong.table import StateTable, table_of

OBSERVATIONS = ("pixels", "features")
# Waves over the map: a network tells neighbouring places apart sooner than from two coordinates alone.
WAVES = (1, 2, 4, 8)

Observation = npt.NDArray[Any]
States = npt.NDArray[np.integer[Any]]


class FeatureObserver:
    """
    Observe a vector of 21 numbers in [-1, 1].

    These are horizontal and vertical position, vertical velocity, whether bricks and whether a ladder carry the agent,
    then sine and cosine of both positions at four wavelengths.

    :param level: the map
    :param table: its states
    """

    def __init__(self, level: Level, table: StateTable) -> None:
        self.table = table
        # Positions run from one inner edge of the border to the other.
        rows, columns = level.shape
        self._extent = np.array([(columns - 3) * TILE, (rows - 3) * TILE])
        places = (np.stack([table.x, table.y], axis=1) - TILE) / self._extent
        angles = 2 * np.pi * places[:, :, None] * np.array(WAVES)
        parts = [
            2 * places - 1,
            table.velocity[:, None] / MAX_FALL,
            table.on_bricks[:, None],
            table.on_ladder[:, None],
            np.sin(angles).reshape(len(table), -1),
            np.cos(angles).reshape(len(table), -1),
        ]
        self.vectors = np.concatenate(parts, axis=1).astype(np.float32)
        self.space = spaces.Box(-1.0, 1.0, (self.vectors.shape[1],), np.float32)

    def one(self, previous: int, state: int) -> Observation:
        """The observation of one game; the state before does not matter."""
        return self.vectors[state].copy()

    def many(self, previous: States, state: States) -> Observation:
        """The observations of several games."""
        return self.vectors[state]

    def identify(self, observations: Observation) -> npt.NDArray[np.int64]:
        """
        Find the states of observations.

        :param observations: a batch of vectors
        :return: the state of each, exactly
        """
        places = np.rint((observations[:, :2].astype(np.float64) + 1) / 2 * self._extent).astype(np.int64) + TILE
        velocity = np.rint(observations[:, 2].astype(np.float64) * MAX_FALL).astype(np.int64)
        states = self.table.find(Body(places[:, 0], places[:, 1], velocity))
        if np.any(states < 0):
            raise ValueError(f"Observation {int(np.argmin(states))} of the batch shows no state of this map.")
        return states


class PixelObserver:
    """
    The last two pictures of 84 by 84 gray pixels, the newer one in the second channel; the border is cut off.

    :param artist: what draws the map
    """

    def __init__(self, artist: Painter) -> None:
        self.painter = artist
        self.space = spaces.Box(0, 255, (OBSERVATION_SIZE, OBSERVATION_SIZE, 2), np.uint8)
        self._background = np.repeat(artist.background[:, :, None], 2, axis=2)
        self._look = artist.look.astype(np.int32).data
        self._rows, self._columns = artist.rows.data, artist.columns.data
        size = artist.patch_size
        window = np.arange(size)
        self._corners = ((artist.rows * OBSERVATION_SIZE + artist.columns) * 2).astype(np.int64)
        self._offsets = ((window[:, None] * OBSERVATION_SIZE + window) * 2).ravel()
        self._flat_patches = artist.patches.reshape(len(artist.patches), -1)

    def one(self, previous: int, state: int) -> Observation:
        """The observation of one game."""
        image = self._background.copy()
        size = self.painter.patch_size
        for channel, shown in enumerate((previous, state)):
            look = self._look[shown]
            row, column = self._rows[look], self._columns[look]
            image[row : row + size, column : column + size, channel] = self.painter.patches[look]
        return image

    def many(self, previous: States, state: States) -> Observation:
        """The observations of several games."""
        images = np.empty((len(state), *self.space.shape), dtype=np.uint8)
        images[:] = self._background
        flat = images.reshape(-1)
        first = np.arange(len(state))[:, None] * self._background.size
        for channel, shown in enumerate((previous, state)):
            look = self.painter.look[shown]
            flat[first + self._corners[look, None] + self._offsets + channel] = self._flat_patches[look]
        return images


def observer(setting: Setting, observation: str) -> FeatureObserver | PixelObserver:
    """
    Make what observes a map.

    :param setting: see ``load_level``
    :param observation: ``"pixels"`` or ``"features"``
    :return: what makes observations of this kind
    """
    return _observer_of(load_level(setting), observation)


@lru_cache(maxsize=16)
def _observer_of(level: Level, observation: str) -> FeatureObserver | PixelObserver:
    if observation == "features":
        return FeatureObserver(level, table_of(level))
    if observation == "pixels":
        return PixelObserver(painter(level))
    raise ValueError(f"Unknown observation {observation!r}: pass one of {OBSERVATIONS}.")
