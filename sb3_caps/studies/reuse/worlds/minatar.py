"""MinAtar's games as Gymnasium environments with a flat vector of bits."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_caps.extras import require


class MinAtar(gym.Env[np.ndarray, np.int64]):
    """
    A game of MinAtar, its 10×10×n bits in one row. An episode is truncated after ``horizon`` steps.

    :param game: ``"breakout"``, ``"asterix"``, ``"freeway"``, ``"seaquest"`` or ``"space_invaders"``
    :param sticky: how likely the last action is repeated in place of the chosen one
    :param ramping: whether the game gets harder as it goes on
    :param sign: of the rewards; with -1 a lost game pays 1
    :param horizon: the largest number of steps
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012, the type is Gymnasium's

    def __init__(
        self, game: str, sticky: float = 0.1, ramping: bool = True, sign: float = 1.0, horizon: int = 1000
    ) -> None:
        self.game = require("minatar", "reuse").Environment(game, sticky, ramping)
        self.actions = self.game.minimal_action_set()
        self.sign, self.horizon, self.steps = sign, horizon, 0
        self.action_space = spaces.Discrete(len(self.actions))
        self.observation_space = spaces.Box(0, 1, (int(np.prod(self.game.state_shape())),), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.game.seed(seed)
        self.game.reset()
        self.steps = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, over = self.game.act(self.actions[int(action)])
        self.steps += 1
        reward = self.sign * reward + (self.sign < 0 and over)
        return self._observation(), float(reward), bool(over), self.steps >= self.horizon, {}

    def _observation(self) -> np.ndarray:
        return self.game.state().ravel().view(np.uint8)
