"""Pictures of Monster Kong: at full size for people, and the small gray ones that the agent sees."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sb3_caps.envs.monster_kong.level import Level, Setting, load_level
from sb3_caps.envs.monster_kong.physics import CLIMB, TILE_PIXELS, UNITS, WALK
from sb3_caps.envs.monster_kong.sprites import POSES, sprites
from sb3_caps.envs.monster_kong.table import StateTable, table_of
from sb3_caps.envs.resizing import area_weights, resize_area

OBSERVATION_SIZE = 84
LUMA = np.array([0.299, 0.587, 0.114])

Image = npt.NDArray[np.uint8]


def paste(picture: Image, sprite: Image, x: int, y: int) -> None:
    """
    Put a sprite on a picture, in place.

    :param picture: colours, shape (height, width, 3)
    :param sprite: colours with transparency, shape (height, width, 4)
    :param x: the pixel column of its left edge
    :param y: the pixel row of its upper edge
    """
    window = picture[y : y + sprite.shape[0], x : x + sprite.shape[1]]
    opaque = sprite[..., 3] > 0
    window[opaque] = sprite[..., :3][opaque]


def draw_level(level: Level) -> Image:
    """
    Draw a map without the agent.

    :param level: a map
    :return: its picture at full size without the agent, shape (height, width, 3)
    """
    rows, columns = level.shape
    picture = _backdrop(rows * TILE_PIXELS, columns * TILE_PIXELS)
    images = sprites()
    # Tiles of ladder side by side are one wide ladder.
    left_ends = level.ladder & ~np.roll(level.ladder, 1, axis=1)
    right_ends = level.ladder & ~np.roll(level.ladder, -1, axis=1)
    layers = (
        (images["brick"], level.solid),
        (images["rungs"], level.ladder),
        (images["rail"], left_ends),
        (images["rail"][:, ::-1], right_ends),
        (images["spike"], level.spike),
    )
    for image, tiles in layers:
        for row, column in np.argwhere(tiles):
            paste(picture, image, column * TILE_PIXELS, row * TILE_PIXELS)
    for name, (row, column) in level.objects.items():
        # The princess is taller than a tile: all objects stand on the lower edge of theirs.
        height = images[name].shape[0]
        paste(picture, images[name], column * TILE_PIXELS, (row + 1) * TILE_PIXELS - height)
    return picture


def _backdrop(height: int, width: int) -> Image:
    """The back wall of the cave: dark, a little lighter towards the top, with faint stones."""
    y, x = np.mgrid[:height, :width]
    shade = 1.0 - 0.45 * y / height
    course = y // TILE_PIXELS
    joint = (y % TILE_PIXELS == 0) | ((x + course % 2 * TILE_PIXELS) % (2 * TILE_PIXELS) == 0)
    shade = np.where(joint, shade * 0.72, shade)
    return (shade[..., None] * np.array([38, 36, 66])).astype(np.uint8)


def agent_poses(table: StateTable) -> npt.NDArray[np.int64]:
    """
    Find the pose of the agent in each state.

    :param table: the states of a map
    :return: the pose of the agent in each, an index of ``POSES``; limbs alternate with the position
    """
    stride = table.x // WALK % 2
    climbing = 4 + table.y // (2 * CLIMB) % 2
    in_air = np.where(table.velocity < 0, 2, 3)
    return np.where(table.on_bricks, stride, np.where(table.on_ladder, climbing, in_air)).astype(np.int64)


class Painter:
    """
    Draws the states of one map.

    The small picture is the full one without its border of bricks, in gray, each of its pixels the mean of the area
    that it covers. Only a few of them depend on the agent: these are computed once for every place and pose, so that
    a picture is a copy of the background with a small patch on it.

    :param level: the map
    :param table: its states
    """

    def __init__(self, level: Level, table: StateTable) -> None:
        self.level = level
        self.table = table
        self.full_background = draw_level(level)
        self.poses = agent_poses(table)
        self._gray = self.full_background[TILE_PIXELS:-TILE_PIXELS, TILE_PIXELS:-TILE_PIXELS] @ LUMA
        height, width = self._gray.shape
        self._down, self._across = area_weights(height, OBSERVATION_SIZE), area_weights(width, OBSERVATION_SIZE)
        exact = resize_area(self._gray, OBSERVATION_SIZE, OBSERVATION_SIZE)
        self.background: Image = np.rint(exact).astype(np.uint8)
        scale = OBSERVATION_SIZE / min(height, width)
        # A sprite touches one pixel more than its size when it starts within one.
        self.patch_size = min(int(np.ceil(TILE_PIXELS * scale)) + 1, OBSERVATION_SIZE)

        # States that differ only in what cannot be seen share a look.
        place = np.stack([table.y // UNITS, table.x // UNITS, self.poses], axis=1)
        looks, self.look = np.unique(place, axis=0, return_inverse=True)
        self.rows = self._first_pixel(looks[:, 0] - TILE_PIXELS, height)
        self.columns = self._first_pixel(looks[:, 1] - TILE_PIXELS, width)
        self.patches = self._patches(looks, exact)

    def full(self, state: int) -> Image:
        """
        Draw a state at full size.

        :param state: an index into the table
        :return: the picture at full size, shape (height, width, 3)
        """
        picture = self.full_background.copy()
        pose = POSES[self.poses[state]]
        paste(picture, sprites()[pose], int(self.table.x[state]) // UNITS, int(self.table.y[state]) // UNITS)
        return picture

    def _first_pixel(self, pixel: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
        """Where the patch of a sprite at this pixel of the full picture begins in the small one."""
        return np.minimum(pixel * OBSERVATION_SIZE // length, OBSERVATION_SIZE - self.patch_size)

    def _patches(self, looks: npt.NDArray[np.int64], exact: npt.NDArray[np.float64]) -> Image:
        """The part of the small picture around the agent for every look, shape (looks, patch size, patch size)."""
        size = self.patch_size
        images = np.stack([sprites()[pose] for pose in POSES])
        grays, opaque = images[..., :3] @ LUMA, images[..., 3] > 0
        y, x = looks[:, 0] - TILE_PIXELS, looks[:, 1] - TILE_PIXELS
        inside, window = np.arange(TILE_PIXELS), np.arange(size)
        rows, columns = y[:, None] + inside, x[:, None] + inside
        patches = np.empty((len(looks), size, size), dtype=np.uint8)
        for part in np.array_split(np.arange(len(looks)), len(looks) // 2000 + 1):
            behind = self._gray[rows[part, :, None], columns[part, None, :]]
            pose = looks[part, 2]
            change = np.where(opaque[pose], grays[pose] - behind, 0.0)
            small_rows = self.rows[part, None] + window
            small_columns = self.columns[part, None] + window
            down = self._down[small_rows[:, :, None], rows[part, None, :]]
            across = self._across[small_columns[:, :, None], columns[part, None, :]]
            changed = exact[small_rows[:, :, None], small_columns[:, None, :]] + down @ change @ across.mT
            patches[part] = np.rint(changed).astype(np.uint8)
        return patches


def painter(setting: Setting) -> Painter:
    """
    Make what draws a map.

    :param setting: see ``load_level``
    :return: what draws this map
    """
    return _painter_of(load_level(setting))


@lru_cache(maxsize=8)
def _painter_of(level: Level) -> Painter:
    return Painter(level, table_of(level))
