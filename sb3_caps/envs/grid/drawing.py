"""Pictures of the grid world as RGB arrays, drawn with NumPy alone."""

from collections.abc import Sequence

import numpy as np

from sb3_caps.envs.grid.maps import GridMap

CELL = 24
FLOOR = np.array([(250, 247, 240), (243, 239, 230)], dtype=np.uint8)
WALL = np.array((58, 64, 82), dtype=np.uint8)
WALL_TOP = np.array((84, 92, 115), dtype=np.uint8)
SHADE = np.array((214, 207, 193), dtype=np.uint8)
GOAL, GOAL_RING = (46, 160, 103), (255, 255, 255)
AGENT, AGENT_RING, TRAIL = (226, 87, 76), (255, 255, 255), (226, 87, 76)


def draw_map(grid_map: GridMap, goal: int) -> np.ndarray:
    """
    Draw a map without an agent.

    :param grid_map: the map
    :param goal: the goal's cell
    :return: the picture without an agent, of shape (height * CELL, width * CELL, 3)
    """
    rows, columns = np.indices(grid_map.walls.shape)
    floor = FLOOR[(rows + columns) % 2]
    picture = np.where(grid_map.walls[..., None], WALL, floor).repeat(CELL, axis=0).repeat(CELL, axis=1)
    walls = grid_map.walls.repeat(CELL, axis=0).repeat(CELL, axis=1)
    # A light upper edge on the walls and their shadow on the floor below make rooms stand out.
    open_above = ~np.roll(walls, 1, axis=0) & walls
    for thickness in range(3):
        picture[np.roll(open_above, thickness, axis=0) & walls] = WALL_TOP
    under_wall = np.roll(walls, 1, axis=0) & ~walls
    for thickness in range(4):
        picture[np.roll(under_wall, thickness, axis=0) & ~walls] = SHADE
    row, column = divmod(goal, grid_map.width)
    for radius, colour in ((0.42, GOAL), (0.29, GOAL_RING), (0.17, GOAL)):
        _disc(picture, row + 0.5, column + 0.5, radius, colour)
    return picture


def draw_agent(picture: np.ndarray, trail: Sequence[tuple[float, float]]) -> np.ndarray:
    """
    Draw the agent and its path.

    :param picture: what :func:`draw_map` returned; it is not changed
    :param trail: the positions (row, column) so far, the present one last
    :return: a new picture with the agent and the way it has come, older parts fainter
    """
    picture = picture.copy()
    for age, (start, end) in enumerate(zip(trail[-2::-1], trail[:0:-1], strict=True)):
        opacity = max(0.12, 0.6 * 0.93**age)
        for part in np.linspace(0.0, 1.0, 6)[1:]:
            row, column = np.asarray(start) * part + np.asarray(end) * (1.0 - part)
            _disc(picture, row, column, 0.09, TRAIL, opacity)
    row, column = trail[-1]
    _disc(picture, row, column, 0.36, AGENT_RING)
    _disc(picture, row, column, 0.3, AGENT)
    return picture


def _disc(
    picture: np.ndarray, row: float, column: float, radius: float, colour: tuple[int, int, int], opacity: float = 1.0
) -> None:
    """Draw a disc with a smooth edge; position and radius are in cells."""
    centre, reach = np.array((row, column)) * CELL, radius * CELL + 1.0
    low = np.maximum(np.floor(centre - reach).astype(int), 0)
    high = np.minimum(np.ceil(centre + reach).astype(int), picture.shape[:2])
    y, x = np.ogrid[low[0] : high[0], low[1] : high[1]]
    distance = np.hypot(y + 0.5 - centre[0], x + 0.5 - centre[1])
    cover = opacity * np.clip(radius * CELL + 0.5 - distance, 0.0, 1.0)[..., None]
    patch = picture[low[0] : high[0], low[1] : high[1]]
    patch[...] = np.rint(patch * (1.0 - cover) + np.array(colour) * cover)
