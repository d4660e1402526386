"""The paper's grid on arrays: the same moves as ``GridEnv``, without a Python loop over agents."""

import numpy as np
from gymnasium import spaces

from sb3_caps.envs.grid.batched import WallTable
from sb3_caps.envs.grid.dynamics import ACTIONS, HORIZON, NOISE, inside
from sb3_caps.envs.grid.maps import Goal, GridMap
from sb3_caps.studies.reuse.worlds.batched import World


class Grid(World):
    """
    Walk to a goal through rooms and corridors, see ``GridEnv``.

    :param grid_map: the name of a map
    :param goal: a goal on it
    """

    def __init__(self, grid_map: str, goal: Goal) -> None:
        self.map = GridMap.load(grid_map)
        self.goal = self.map.goal_cell(goal)
        self.starts = self.map.start_cells(self.goal)
        self.walls = WallTable([self.map])
        super().__init__(spaces.Discrete(self.map.n_cells), len(ACTIONS), HORIZON)

    def start(self, generator: np.random.Generator, count: int) -> np.ndarray:
        corner = np.stack(np.divmod(generator.choice(self.starts, count), self.map.width), axis=1)
        return inside(corner, generator.random((count, 2)))

    def step(
        self, states: np.ndarray, actions: np.ndarray, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        states = self.walls.move(states, actions, generator.uniform(-NOISE, NOISE, states.shape))
        reached = self.observe(states) == self.goal
        return states, reached.astype(np.float64), reached

    def observe(self, states: np.ndarray) -> np.ndarray:
        corner = np.floor(states).astype(np.int64)
        return corner[:, 0] * self.map.width + corner[:, 1]
