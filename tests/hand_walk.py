"""A corridor to walk along, small enough that every number in it can be worked out by hand."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

LEFT, RIGHT = 0, 1


class Walk(gym.Env[np.ndarray, np.int64]):
    """
    Cells in a row: start in the first, 1 for reaching the last, truncated after ``horizon`` steps.

    :param length: number of cells
    :param horizon: number of steps
    """

    def __init__(self, length: int = 5, horizon: int = 20) -> None:
        self.length, self.horizon = length, horizon
        self.observation_space = spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = spaces.Discrete(2)

    def _observation(self) -> np.ndarray:
        return np.eye(self.length, dtype=np.float32)[self.cell]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.steps = 0, 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.cell = max(self.cell - 1, 0) if action == LEFT else self.cell + 1
        self.steps += 1
        arrived = self.cell == self.length - 1
        return self._observation(), float(arrived), arrived, self.steps >= self.horizon and not arrived, {}


def go_left(observations: np.ndarray) -> np.ndarray:
    """A source that never arrives."""
    return np.full(len(observations), LEFT)


def go_right(observations: np.ndarray) -> np.ndarray:
    """A source that arrives by the shortest way."""
    return np.full(len(observations), RIGHT)


class Stroll(gym.ActionWrapper[np.ndarray, np.ndarray, np.int64]):
    """
    The same with continuous actions: above 0 is to the right.

    :param horizon: number of steps
    """

    def __init__(self, horizon: int = 20) -> None:
        super().__init__(Walk(horizon=horizon))
        self.action_space = spaces.Box(-1.0, 1.0, (1,))

    def action(self, action: np.ndarray) -> np.int64:
        return np.int64(action[0] > 0)


def stroll_left(observations: np.ndarray) -> np.ndarray:
    """``go_left`` for continuous actions."""
    return np.full((len(observations), 1), -1.0)


def stroll_right(observations: np.ndarray) -> np.ndarray:
    """``go_right`` for continuous actions."""
    return np.full((len(observations), 1), 1.0)
