"""Monster Kong as a Gymnasium environment."""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from sb3_caps.envs.monster_kong.drawing import painter
from sb3_caps.envs.monster_kong.level import Setting, load_level
from sb3_caps.envs.monster_kong.observations import observer
from sb3_caps.envs.monster_kong.physics import ACTIONS
from sb3_caps.envs.monster_kong.planner import plan
from sb3_caps.envs.monster_kong.status import draw_status
from sb3_caps.extras import require

HORIZON = 1200
RENDER_FPS = 30
WINDOW_SCALE = 2
METADATA: dict[str, Any] = {"render_modes": ["human", "rgb_array"], "render_fps": RENDER_FPS}


class MonsterKongEnv(gym.Env[npt.NDArray[Any], np.int64]):
    """
    ## Description
    A platform game with ladders, gaps and spikes: reach one of four objects. It is the game of the Pygame Learning
    Environment in the variant of "Context-Aware Policy Reuse" (Section 5.2), written from its rules. The map has tiles
    of 15 pixels; the agent is as large as a tile. It walks 5 pixels in a step, climbs half of that, jumps with a speed
    of 7 pixels a step, and falls with a gravity of 0.85 and at most 8 pixels a step. In the air it can still move
    sideways. A ladder catches it whether it rises or falls. The dynamics are deterministic.

    ## Action Space
    `Discrete(6)`; an action without effect, such as `up` away from ladders, is a no-op.

    - 0: up
    - 1: down
    - 2: left
    - 3: right
    - 4: jump
    - 5: no-op

    ## Observation Space
    - `"pixels"`: `Box(0, 255, (84, 84, 2), uint8)`, the last two pictures in gray, the newer one in the second channel,
      without the border of bricks. The first observation of an episode shows the same picture twice.
    - `"features"`: `Box(-1, 1, (21,), float32)`: horizontal and vertical position, vertical velocity (downwards is
      positive), 1 if bricks carry the agent, 1 if a ladder does, then sine and cosine of both positions at four
      wavelengths. It tells the state exactly.

    Neither shows which object is the goal. Rendered pictures do: they mark it, and tell how many steps are left.

    ## Starting State
    Anywhere on bricks, uniformly over the multiples of 5 pixels, but not where the agent would touch a spike or the
    goal. `reset(options={"start": (column, row)})` starts on the given tile, counted from 0 at the upper left corner.

    ## Rewards
    1 for reaching the goal, 0 otherwise.

    ## Episode End
    The episode ends when the agent touches the goal or a spike (`info["is_success"]` tells which), and is truncated
    after 1200 steps.

    ## Arguments
    :param setting: the map: `"a"` or `"b"` (the paper's two settings), the path of a map, or its text: a line for each
        row of tiles, `.` empty, `#` brick, `H` ladder, `^` spike, `D` diamond, `B` gem, `C` coin, `P` princess
    :param goal: the object to reach: `"diamond"`, `"gem"`, `"coin"` or `"princess"`
    :param observation: `"pixels"` or `"features"`
    :param horizon: the number of steps after which an episode is truncated
    :param render_mode: `None`, `"rgb_array"` (a picture at full size) or `"human"` (a window)

    ## Version History
    * v0: Initial version
    """

    metadata = METADATA

    def __init__(
        self,
        setting: Setting = "a",
        goal: str = "princess",
        observation: str = "pixels",
        horizon: int = HORIZON,
        render_mode: str | None = None,
    ) -> None:
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1, not {horizon}.")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(
                f"Unknown render_mode {render_mode!r}: pass None or one of {self.metadata['render_modes']}."
            )
        self.setting, self.goal, self.observation = setting, goal, observation
        self.horizon = horizon
        self.render_mode = render_mode
        self.level = load_level(setting)
        self.observer = observer(self.level, observation)
        self.observation_space = self.observer.space
        self.action_space = spaces.Discrete(len(ACTIONS))
        self.action_meanings = list(ACTIONS)

        # Solving the task checks that every start can reach the goal.
        self.plan = plan(self.level, goal)
        self.table = self.plan.table
        self._starts = self.plan.starts
        # A memoryview gives plain integers, several times faster than indexing an array.
        self._successors = self.table.successors.ravel().data
        self._reached = self.table.reached(goal).tobytes()
        self._ended = (self.table.reached(goal) | self.table.spiked).tobytes()
        self.state = -1
        self.previous = -1
        self.steps = 0
        self._running = False
        self._window: Any = None
        self._clock: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        """
        Start an episode.

        :param seed: seed of the starts
        :param options: ``{"start": (column, row)}`` for a certain start
        :return: the first observation and an empty dictionary
        """
        super().reset(seed=seed)
        unknown = set(options or {}) - {"start"}
        if unknown:
            raise ValueError(f"Unknown options {sorted(unknown)}: the only one is 'start', a pair (column, row).")
        if options:
            column, row = options["start"]
            self.state = self.table.start_at(column, row, self.level.name)
            if self._ended[self.state]:
                raise ValueError(f"The start {options['start']} touches the goal ({self.goal}).")
        else:
            self.state = int(self._starts[self.np_random.integers(len(self._starts))])
        self.previous = self.state
        self.steps = 0
        self._running = True
        if self.render_mode == "human":
            self.render()
        return self.observer.one(self.state, self.state), {}

    def step(self, action: np.int64 | int) -> tuple[npt.NDArray[Any], float, bool, bool, dict[str, Any]]:
        """
        One step of the game.

        :param action: 0 to 5, see the class
        :return: observation, reward, terminated, truncated, information
        """
        if not self._running:
            raise ResetNeeded("Call reset() before step(): there is no episode, or it has ended.")
        if action not in self.action_space:
            raise ValueError(f"Action {action!r} is out of range: pass 0 to {len(ACTIONS) - 1} ({', '.join(ACTIONS)}).")
        previous = self.previous = self.state
        state = self.state = self._successors[previous * len(ACTIONS) + int(action)]
        self.steps += 1
        terminated = bool(self._ended[state])
        reached = bool(self._reached[state])
        truncated = self.steps >= self.horizon and not terminated
        info: dict[str, Any] = {}
        if terminated or truncated:
            self._running = False
            info["is_success"] = reached
        if self.render_mode == "human":
            self.render()
        return self.observer.one(previous, state), float(reached), terminated, truncated, info

    def place(self, state: int, previous: int, steps: int) -> None:
        """
        Continue from any point of an episode.

        :param state: the state to continue from
        :param previous: the state before it
        :param steps: the number of steps of the episode so far
        """
        self.state, self.previous, self.steps = state, previous, steps
        self._running = state >= 0 and not self._ended[state] and steps < self.horizon

    def optimal_action(self) -> int:
        """An action on a shortest path from the present state to the goal."""
        return int(self.plan.actions[self.state])

    def render(self) -> npt.NDArray[np.uint8] | None:
        """
        Draw the game.

        :return: the picture at full size, or nothing if it went to a window
        """
        if self.render_mode is None:
            gym.logger.warn(
                "render() was called without a render_mode: pass 'rgb_array' or 'human' to the environment."
            )
            return None
        if self.render_mode == "rgb_array":
            return self.picture()
        self._show(self.picture())
        return None

    def picture(self) -> npt.NDArray[np.uint8]:
        """The game at full size with its goal and the steps left, whatever the render mode."""
        if self.state < 0:
            raise ResetNeeded("Call reset() before render().")
        return draw_status(painter(self.level).full(self.state), self.level, self.goal, self.horizon - self.steps)

    def _show(self, picture: npt.NDArray[np.uint8]) -> None:
        pygame = require("pygame", "games")
        height, width = picture.shape[:2]
        size = (width * WINDOW_SCALE, height * WINDOW_SCALE)
        if self._window is None:
            pygame.display.init()
            self._window = pygame.display.set_mode(size)
            pygame.display.set_caption(f"Monster Kong: reach the {self.goal}")
            self._clock = pygame.time.Clock()
        surface = pygame.surfarray.make_surface(picture.swapaxes(0, 1))
        self._window.blit(pygame.transform.scale(surface, size), (0, 0))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(RENDER_FPS)

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            require("pygame", "games").display.quit()
            self._window = None
