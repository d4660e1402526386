"""A small world with continuous actions: two coordinates are to be moved to the origin."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

STEPS = 10
# An action of SB3's networks is half as large
REACH = 2.0


class ToyBox(gym.Env[Any, Any]):
    """
    Each step moves by a tenth of the action, and costs the distance to the origin.

    :param kind: what is observed: "vector", "dict" or "image"
    :param falls: whether an episode ends where the first coordinate leaves [-2, 2]
    """

    def __init__(self, kind: str = "vector", falls: bool = False) -> None:
        self.kind, self.falls = kind, falls
        self.action_space: spaces.Box = spaces.Box(-REACH, REACH, (2,))
        vector = spaces.Box(-np.inf, np.inf, (2,))
        self.observation_space: spaces.Space[Any] = {
            "vector": vector,
            "dict": spaces.Dict({"where": vector}),
            "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
        }[kind]
        self.where, self.steps = np.zeros(2), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.where, self.steps = self.np_random.uniform(-1, 1, size=2), 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.where = self.where + 0.1 * action
        self.steps += 1
        fell = self.falls and abs(self.where[0]) > 2
        return self._observation(), -float(np.abs(self.where).sum()), fell, self.steps >= STEPS, {}

    def _observation(self) -> Any:
        where = self.where.astype(np.float32)
        if self.kind == "dict":
            return {"where": where}
        if self.kind == "image":
            return np.full((36, 36, 1), 127 + 60 * np.clip(where.sum(), -2, 2), dtype=np.uint8)
        return where


def home(observations: np.ndarray) -> np.ndarray:
    """The best policy: straight to the origin."""
    return np.clip(-10.0 * observations, -REACH, REACH)


def away(observations: np.ndarray) -> np.ndarray:
    """The worst policy."""
    return -home(observations)
