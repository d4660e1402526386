"""A grid of two small rooms, for tests of tabular learners."""

from sb3_caps.envs.grid import GridMap, GridTask

SMALL = GridMap.from_text("########\n#..#...#\n#......#\n#..#..x#\n########")
TASK = GridTask(SMALL, "x")
RIGHT = 3
