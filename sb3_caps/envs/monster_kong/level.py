"""The map of a Monster Kong game: text in, checked tiles out."""

import hashlib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

EMPTY, BRICK, LADDER, SPIKE = ".", "#", "H", "^"
# The order is that of the bits in `StateTable.touches`.
GOALS = {"diamond": "D", "gem": "B", "coin": "C", "princess": "P"}
TILES = {
    EMPTY: "empty",
    BRICK: "brick",
    LADDER: "ladder",
    SPIKE: "spike",
    **{letter: name for name, letter in GOALS.items()},
}
SETTINGS = ("a", "b")
# A map of 48 by 48 tiles still has fewer than a million states.
MIN_SIZE, MAX_SIZE = 3, 48


@dataclass(frozen=True)
class Level:
    """
    The tiles of one map.

    :param text: the map, one character for each tile, rows from top to bottom (see ``TILES``)
    :param name: what to call the map in messages
    """

    text: str
    name: str = "map"
    solid: npt.NDArray[np.bool_] = field(init=False, repr=False, compare=False)
    ladder: npt.NDArray[np.bool_] = field(init=False, repr=False, compare=False)
    spike: npt.NDArray[np.bool_] = field(init=False, repr=False, compare=False)
    objects: dict[str, tuple[int, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tiles = np.array([list(row) for row in self._checked_rows()])
        self._check_border(tiles)
        set_field = object.__setattr__  # the way a frozen dataclass fills its own fields
        set_field(self, "solid", tiles == BRICK)
        set_field(self, "ladder", tiles == LADDER)
        set_field(self, "spike", tiles == SPIKE)
        set_field(self, "objects", self._find_objects(tiles))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, the border included."""
        return self.solid.shape[0], self.solid.shape[1]

    @property
    def key(self) -> str:
        """A hash of the tiles, the same for the same map under any name."""
        return hashlib.sha256("\n".join(self.text.split()).encode()).hexdigest()[:16]

    def _checked_rows(self) -> list[str]:
        rows = self.text.split()
        if not rows:
            raise ValueError(f"Map {self.name!r} is empty: give one line of characters for each row of tiles.")
        for number, row in enumerate(rows, start=1):
            if len(row) != len(rows[0]):
                raise ValueError(
                    f"Map {self.name!r}: row {number} has {len(row)} tiles and row 1 has {len(rows[0])}; "
                    f"all rows need the same length."
                )
            for column, tile in enumerate(row, start=1):
                if tile not in TILES:
                    known = ", ".join(f"{letter} ({name})" for letter, name in TILES.items())
                    raise ValueError(
                        f"Map {self.name!r}: unknown tile {tile!r} in row {number}, column {column}; "
                        f"the tiles are {known}."
                    )
        if not (MIN_SIZE <= len(rows) <= MAX_SIZE and MIN_SIZE <= len(rows[0]) <= MAX_SIZE):
            raise ValueError(
                f"Map {self.name!r} has {len(rows)} rows of {len(rows[0])} tiles; "
                f"both must be between {MIN_SIZE} and {MAX_SIZE}."
            )
        return rows

    def _check_border(self, tiles: npt.NDArray[np.str_]) -> None:
        border = np.ones(tiles.shape, dtype=bool)
        border[1:-1, 1:-1] = False
        open_tiles = np.argwhere(border & (tiles != BRICK))
        if len(open_tiles):
            row, column = open_tiles[0] + 1
            raise ValueError(
                f"Map {self.name!r}: the border must be bricks all around ({BRICK!r}), "
                f"but row {row}, column {column} is {tiles[row - 1, column - 1]!r}."
            )

    def _find_objects(self, tiles: npt.NDArray[np.str_]) -> dict[str, tuple[int, int]]:
        objects = {}
        for name, letter in GOALS.items():
            places = np.argwhere(tiles == letter)
            if len(places) > 1:
                raise ValueError(f"Map {self.name!r} has {len(places)} tiles {letter!r} ({name}); give at most one.")
            if len(places):
                objects[name] = (int(places[0][0]), int(places[0][1]))
        if not objects:
            raise ValueError(f"Map {self.name!r} has no object to reach: place at least one of {GOALS}.")
        return objects

    def check_goal(self, goal: str) -> str:
        """
        Check that an object is on this map.

        :param goal: the object to reach
        :return: the same, if it is on this map
        """
        if goal not in self.objects:
            raise ValueError(f"Goal {goal!r} is not on map {self.name!r}; its objects are {sorted(self.objects)}.")
        return goal


Setting = str | Path | Level


def load_level(setting: Setting) -> Level:
    """
    Load a map and check it.

    :param setting: ``"a"`` or ``"b"`` (the paper's two settings), the path of a text file, the text of a map, or a map
        that was loaded before
    :return: the map
    """
    if isinstance(setting, Level):
        return setting
    text = str(setting)
    if text in SETTINGS:
        maps = resources.files("sb3_caps.envs.monster_kong") / "maps"
        return Level((maps / f"{text}.txt").read_text(), name=text)
    if "\n" in text.strip():
        return Level(text, name="custom")
    path = Path(text)
    if not path.is_file():
        raise ValueError(
            f"Setting {text!r} is not one of {SETTINGS}, and there is no such file; "
            f"pass one of these, the path of a map, or its text (several lines)."
        )
    return Level(path.read_text(), name=path.stem)
