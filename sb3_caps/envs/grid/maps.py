"""Maps of the grid world: text in, walls and named goals out."""

from collections import deque
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

WALL, FREE = "#", "."
BUILT_IN = ("rooms", "rooms_changed")
# The characters of the built-in maps under the paper's names.
GOAL_NAMES = {"1": "G1", "2": "G2", "3": "G3", "4": "G4", "h": "g'"}

Goal = str | int | tuple[int, int]


@dataclass(frozen=True, eq=False)
class GridMap:
    """
    Walls and named goals. Cells are numbered row by row from the top left: ``row * width + column``.

    :param name: what to call the map in titles and errors
    :param walls: True where there is a wall, of shape (height, width)
    :param goals: the cell of each named goal
    """

    name: str
    walls: np.ndarray
    goals: dict[str, int]

    @classmethod
    def load(cls, source: "str | Path | GridMap") -> "GridMap":
        """
        Load a map.

        :param source: the name of a built-in map (``"rooms"``, ``"rooms_changed"``), the path of a text file,
            the text itself (anything with a line break), or a map, which is returned as it is
        :return: the map
        """
        if isinstance(source, GridMap):
            return source
        if isinstance(source, str) and "\n" in source:
            return cls.from_text(source)
        if source in BUILT_IN:
            text = resources.files(__package__).joinpath("maps", f"{source}.txt").read_text()
            return cls.from_text(text, name=str(source))
        path = Path(source)
        if not path.is_file():
            raise ValueError(f"no map {str(source)!r}: pass one of {list(BUILT_IN)}, a text file, or the text of a map")
        return cls.from_text(path.read_text(), name=path.stem)

    @classmethod
    def from_text(cls, text: str, name: str = "custom") -> "GridMap":
        """
        Read a map from its text.

        :param text: lines of equal length: ``#`` wall, ``.`` free, and a letter or digit for a free cell that is a
            goal of that name (``1`` to ``4`` are called G1 to G4, ``h`` is g')
        :param name: what to call the map
        :return: the map
        """
        rows = text.strip().splitlines()
        if len({len(row) for row in rows}) != 1:
            raise ValueError(f"map {name!r}: all lines must have the same length, not {[len(row) for row in rows]}")
        goals: dict[str, int] = {}
        for cell, character in enumerate("".join(rows)):
            if character in (WALL, FREE):
                continue
            goal = GOAL_NAMES.get(character, character)
            if not character.isalnum():
                raise ValueError(f"map {name!r}: unknown character {character!r}: use '#', '.', letters and digits")
            if goal in goals:
                raise ValueError(f"map {name!r}: goal {character!r} appears twice")
            goals[goal] = cell
        walls = np.array([[character == WALL for character in row] for row in rows])
        border = np.concatenate([walls[0], walls[-1], walls[:, 0], walls[:, -1]])
        if not border.all():
            raise ValueError(f"map {name!r}: the outer cells must all be walls, or an agent could leave the map")
        if walls.all():
            raise ValueError(f"map {name!r}: there is no free cell")
        walls.setflags(write=False)
        return cls(name, walls, goals)

    @property
    def height(self) -> int:
        return self.walls.shape[0]

    @property
    def width(self) -> int:
        return self.walls.shape[1]

    @property
    def n_cells(self) -> int:
        return self.walls.size

    @property
    def free_cells(self) -> np.ndarray:
        """The free cells in ascending order."""
        return np.flatnonzero(~self.walls.ravel())

    def goal_cell(self, goal: Goal) -> int:
        """
        Find the cell of a goal.

        :param goal: a name of the map, a cell number, or (row, column)
        :return: the number of the goal's cell, which every free cell is sure to reach
        """
        if isinstance(goal, str):
            if goal not in self.goals:
                raise ValueError(f"map {self.name!r} has no goal {goal!r}: its goals are {sorted(self.goals)}")
            cell = self.goals[goal]
        elif isinstance(goal, tuple):
            if len(goal) != 2 or not (0 <= goal[0] < self.height and 0 <= goal[1] < self.width):
                raise ValueError(f"goal {goal} is off the map: it has {self.height} rows and {self.width} columns")
            cell = goal[0] * self.width + goal[1]
        else:
            cell = int(goal)
        if not 0 <= cell < self.n_cells or self.walls.ravel()[cell]:
            raise ValueError(f"goal {goal!r} is not a free cell of map {self.name!r}")
        self._check_reachable(cell)
        return cell

    def start_cells(self, goal: int) -> np.ndarray:
        """
        Find the cells in which an episode may start.

        :param goal: the goal's cell
        :return: the cells in which an episode may start
        """
        free = self.free_cells
        starts = free[free != goal]
        if not len(starts):
            raise ValueError(f"map {self.name!r} has no free cell but the goal's")
        return starts

    def _check_reachable(self, goal: int) -> None:
        """Refuse a map on which some start could never be solved."""
        closed = self.walls.ravel().copy()
        queue = deque([goal])
        closed[goal] = True
        while queue:
            cell = queue.popleft()
            for neighbour in (cell - self.width, cell + self.width, cell - 1, cell + 1):
                if not closed[neighbour]:
                    closed[neighbour] = True
                    queue.append(neighbour)
        if not closed.all():
            row, column = divmod(int(np.flatnonzero(~closed)[0]), self.width)
            raise ValueError(
                f"map {self.name!r}: the goal cannot be reached from row {row}, column {column}: "
                "open a door there or make it a wall"
            )
