"""The grid world as a Gymnasium environment."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded

from sb3_caps.envs.grid.drawing import draw_agent, draw_map
from sb3_caps.envs.grid.dynamics import ACTIONS, HORIZON, NOISE, check_noise, inside, move
from sb3_caps.envs.grid.maps import Goal, GridMap
from sb3_caps.extras import require


class GridEnv(gym.Env[np.int64, np.int64]):
    """
    Grid navigation of the probabilistic policy reuse literature, the domain of Figures 1 to 7 of the CAPS paper.

    ## Description
    An agent walks through a building of rooms and corridors to a goal. Its position (row, column) is real-valued,
    but it sees only the cell that it is in. A move goes one cell in its direction, with noise drawn uniformly from
    (-0.2, 0.2) added to both coordinates. A move whose straight path meets a wall leaves the position as it was.

    ## Action Space
    `Discrete(4)`: 0 up, 1 down, 2 left, 3 right. `action_meanings` has their names.

    ## Observation Space
    `Discrete(height * width)`: the cell, `row * width + column`, row 0 being the top row.

    ## Starting State
    Uniform over the free area outside the goal's cell: a free cell, then a position inside it.
    `reset(options={"position": (row, column)})` starts there instead.

    ## Rewards
    1 when a move ends in the goal's cell, else 0.

    ## Episode End
    Terminated in the goal's cell; truncated after 100 steps (`horizon`).

    ## Arguments
    `gymnasium.make("sb3_caps/Grid-v0", map="rooms", goal="g")`, and one id for each task of the paper: `GridG1-v0` to
    `GridG4-v0`, `GridTarget-v0` (g), `GridTargetPrime-v0` (g') and `GridChanged-v0` (g on the changed map).

    ## Version History
    * v0: first version

    :param map: `"rooms"` or `"rooms_changed"`, the path of a text file, the text of a map, or a `GridMap`
    :param goal: the name of a goal on the map, a cell number, or (row, column)
    :param noise: the largest deviation of a move in each coordinate
    :param horizon: the number of steps after which an episode is truncated
    :param render_mode: `"rgb_array"`, `"human"` (a pygame window) or None
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "human"], "render_fps": 8}  # noqa: RUF012, the type is Gymnasium's

    def __init__(
        self,
        map: str | Path | GridMap = "rooms",
        goal: Goal = "g",
        noise: float = NOISE,
        horizon: int = HORIZON,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode must be one of {self.metadata['render_modes']} or None, not {render_mode!r}")
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1, not {horizon}")
        self.map = GridMap.load(map)
        self.goal = self.map.goal_cell(goal)
        self.noise = check_noise(noise)
        self.horizon = int(horizon)
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Discrete(self.map.n_cells)
        self.action_space = gym.spaces.Discrete(len(ACTIONS))
        self.action_meanings = list(ACTIONS)
        self._starts = self.map.start_cells(self.goal)
        self._trail: list[tuple[float, float]] = []
        self._running = False
        self._background: np.ndarray | None = None
        self._window: Any = None
        self._clock: Any = None

    @property
    def position(self) -> tuple[float, float]:
        """Where the agent is: (row, column)."""
        return self._trail[-1]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed)
        unknown = set(options or {}) - {"position"}
        if unknown:
            raise ValueError(f"unknown options {sorted(unknown)}: the only one is 'position', a (row, column)")
        if options and "position" in options:
            position = self._checked_start(options["position"])
        else:
            index, row, column = self.np_random.random(3).tolist()
            cell = int(self._starts[int(index * len(self._starts))])
            position = (float(inside(cell // self.map.width, row)), float(inside(cell % self.map.width, column)))
        self._trail = [position]
        self._running = True
        if self.render_mode == "human":
            self._show()
        return self._observation(), self._info()

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        if not self._running:
            raise ResetNeeded("call reset() before step(): no episode is running")
        if not self.action_space.contains(action):
            raise ValueError(f"action must be one of 0 to {len(ACTIONS) - 1}, not {action!r}")
        row_noise, column_noise = ((2.0 * self.np_random.random(2) - 1.0) * self.noise).tolist()
        self._trail.append(move(self.map.walls, *self.position, int(action), row_noise, column_noise))
        observation = self._observation()
        terminated = bool(observation == self.goal)
        truncated = not terminated and len(self._trail) > self.horizon
        self._running = not (terminated or truncated)
        if self.render_mode == "human":
            self._show()
        return observation, float(terminated), terminated, truncated, self._info()

    def render(self) -> np.ndarray | None:
        if not self._trail:
            raise ResetNeeded("call reset() before render(): there is no agent yet")
        if self.render_mode is None:
            gym.logger.warn("render() does nothing without a render_mode: pass render_mode='rgb_array'")
        if self.render_mode != "rgb_array":
            return None
        return self._picture()

    def close(self) -> None:
        if self._window is not None:
            pygame = require("pygame", "games")
            pygame.display.quit()
            self._window = None

    def _checked_start(self, position: tuple[float, float]) -> tuple[float, float]:
        row, column = (float(value) for value in position)
        inside = 0 <= row < self.map.height and 0 <= column < self.map.width
        if not inside or self.map.walls[int(row), int(column)] or self._cell(row, column) == self.goal:
            raise ValueError(f"cannot start at {position}: it must be in a free cell other than the goal's")
        return row, column

    def _cell(self, row: float, column: float) -> int:
        return int(row) * self.map.width + int(column)

    def _observation(self) -> np.int64:
        return np.int64(self._cell(*self.position))

    def _info(self) -> dict[str, Any]:
        return {"position": np.array(self.position)}

    def _picture(self) -> np.ndarray:
        if self._background is None:
            self._background = draw_map(self.map, self.goal)
        return draw_agent(self._background, self._trail)

    def _show(self) -> None:
        """Draw into a window at the speed of ``render_fps``."""
        pygame = require("pygame", "games")
        picture = self._picture()
        if self._window is None:
            pygame.display.init()
            self._window = pygame.display.set_mode((picture.shape[1], picture.shape[0]))
            pygame.display.set_caption(f"sb3_caps grid: {self.map.name}")
            self._clock = pygame.time.Clock()
        pygame.event.pump()
        self._window.blit(pygame.surfarray.make_surface(picture.swapaxes(0, 1)), (0, 0))
        pygame.display.flip()
        self._clock.tick(self.metadata["render_fps"])
