"""How one agent moves: the rules of the grid world for a single position (``batched.py`` has them for many)."""

from math import floor
from typing import Any

import numpy as np

ACTIONS = ("up", "down", "left", "right")
STEP = 1.0
NOISE = 0.2
HORIZON = 100

# Of each action: does it move along the rows (up, down) or along the columns, and in which direction?
VERTICAL = (True, True, False, False)
DIRECTION = (-STEP, STEP, -STEP, STEP)


def check_noise(noise: float) -> float:
    """
    Check that a move can cross only one border sideways.

    :param noise: the largest deviation of a move in each coordinate
    :return: the same, if a move can still cross only one border sideways
    """
    if not 0.0 <= noise < 0.5:
        raise ValueError(f"noise must be in [0, 0.5), not {noise}")
    return noise


def inside(edge: Any, draw: Any) -> Any:
    """
    A coordinate inside a cell.

    :param edge: where the cell begins, a number or an array of them
    :param draw: from 0 to below 1, how far inside it
    :return: their sum, which rounding may not push into the next cell
    """
    return np.minimum(edge + draw, np.nextafter(edge + 1.0, 0.0))


def move(
    walls: np.ndarray, row: float, column: float, action: int, row_noise: float, column_noise: float
) -> tuple[float, float]:
    """
    Move by one step. A move whose straight path meets a wall leaves the position as it was.

    :param walls: True where there is a wall, of shape (height, width)
    :param row: the vertical position: cell ``floor(row)``
    :param column: the horizontal position
    :param action: an index of ``ACTIONS``
    :param row_noise: what is added to the vertical position
    :param column_noise: what is added to the horizontal position
    :return: the new position
    """
    vertical = VERTICAL[action]
    new_row = row + (row_noise + DIRECTION[action] if vertical else row_noise)
    new_column = column + (column_noise if vertical else column_noise + DIRECTION[action])
    if vertical:
        path = _path(row, new_row, column, new_column)
    else:
        path = [(r, c) for c, r in _path(column, new_column, row, new_row)]
    return (row, column) if any(walls[cell] for cell in path) else (new_row, new_column)


def _path(along: float, new_along: float, across: float, new_across: float) -> list[tuple[int, int]]:
    """
    The cells on the straight path in order, as (along, across). A move crosses up to two borders along its direction
    and at most one across it: the path runs in the old lane, then in the new one, and turns where it crosses over.
    """
    start, end, lane, new_lane = floor(along), floor(new_along), floor(across), floor(new_across)
    turn = end
    if lane != new_lane:
        border = max(lane, new_lane)
        turn = floor(along + (new_along - along) * ((border - across) / (new_across - across)))
        # Rounding must not put the turn beside the path.
        turn = min(max(turn, min(start, end)), max(start, end))
    direction = 1 if end >= start else -1
    cells = [(cell, lane) for cell in range(start, turn + direction, direction)]
    return cells + [(cell, new_lane) for cell in range(turn, end + direction, direction)]
