"""What a picture of Monster Kong tells a person and never the agent: which object is the goal, and the steps left."""

import numpy as np
import numpy.typing as npt

from sb3_caps.envs.monster_kong.drawing import Image, paste
from sb3_caps.envs.monster_kong.level import Level
from sb3_caps.envs.monster_kong.physics import TILE_PIXELS
from sb3_caps.envs.monster_kong.sprites import PALETTE, sprites

# Five rows of three pixels for each digit
DIGITS = (
    "### #.# #.# #.# ###",
    ".#. ##. .#. .#. ###",
    "### ..# ### #.. ###",
    "### ..# ### ..# ###",
    "#.# #.# ### ..# ..#",
    "### #.. ### ..# ###",
    "### #.. ### #.# ###",
    "### ..# ..# ..# ..#",
    "### #.# ### #.# ###",
    "### #.# ### ..# ###",
)
DIGIT_SCALE = 2
# Length of the corners around the goal
CORNER = 5


def draw_status(picture: Image, level: Level, goal: str, steps_left: int) -> Image:
    """
    Mark the goal, and write into the upper border what the goal is and how many steps are left.

    :param picture: the game at full size, changed in place
    :param level: the map
    :param goal: the object to reach
    :param steps_left: until the episode is cut
    :return: the same picture
    """
    _mark(picture, level, goal)
    digits = _number(steps_left)
    icon = sprites()[goal][:TILE_PIXELS]
    width = TILE_PIXELS + digits.shape[1] + 7
    left = (picture.shape[1] - width) // 2
    picture[:TILE_PIXELS, left : left + width] = PALETTE["k"]
    paste(picture, icon, left + 1, 0)
    top = (TILE_PIXELS - len(digits)) // 2
    rows, columns = np.nonzero(digits)
    picture[top + rows, left + TILE_PIXELS + 4 + columns] = PALETTE["w"]
    return picture


def _mark(picture: Image, level: Level, goal: str) -> None:
    """Four corners around the goal."""
    row, column = level.objects[goal]
    height = sprites()[goal].shape[0]
    bottom, left = (row + 1) * TILE_PIXELS, column * TILE_PIXELS
    top, right = bottom - height - 2, left + TILE_PIXELS + 1
    left, bottom = left - 2, bottom - 1
    for y, inward in ((top, 1), (bottom, -1)):
        for x, across in ((left, 1), (right, -1)):
            for step in range(CORNER):
                picture[y, x + across * step] = picture[y + inward * step, x] = PALETTE["y"]


def _number(number: int) -> npt.NDArray[np.bool_]:
    """A number as pixels, with a gap after each digit."""
    parts = []
    for digit in str(number):
        pixels = np.array([[character == "#" for character in row + "."] for row in DIGITS[int(digit)].split()])
        parts.append(pixels.repeat(DIGIT_SCALE, axis=0).repeat(DIGIT_SCALE, axis=1))
    return np.concatenate(parts, axis=1)
