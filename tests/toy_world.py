"""A small world for the tests: a corridor to walk along, seen in every kind of observation space."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

LENGTH = 10
LEFT, RIGHT, STAY = 0, 1, 2
# A level of Monster Kong in which everything is near
SMALL_MAP = """
##########
#........#
#.D....P.#
####HH####
#...HH...#
#.B.HH.C.#
##########
"""


class Corridor(gym.Env[Any, Any]):
    """
    The agent starts anywhere but at the end, where it gets a reward of 1 and the episode ends.

    :param kind: of observation: "box", "discrete", "dict", "image" (channels last) or "image_first"
    :param horizon: an episode is truncated after so many steps
    """

    def __init__(self, kind: str = "box", horizon: int = 30) -> None:
        image = spaces.Box(0, 255, (36, 36, 2), np.uint8)
        vector = spaces.Box(0.0, 1.0, (LENGTH,), np.float32)
        kinds: dict[str, spaces.Space] = {
            "box": vector,
            "discrete": spaces.Discrete(LENGTH),
            "dict": spaces.Dict({"image": image, "vector": vector}),
            "image": image,
            "image_first": spaces.Box(0, 255, (2, 36, 36), np.uint8),
        }
        self.kind, self.horizon = kind, horizon
        self.observation_space = kinds[kind]
        self.action_space = spaces.Discrete(3)
        self.position, self.time = 0, 0

    def observe(self) -> Any:
        vector = np.eye(LENGTH, dtype=np.float32)[self.position]
        image = np.zeros((36, 36, 2), dtype=np.uint8)
        image[:, 3 * self.position : 3 * self.position + 3] = (200, 100)
        return {
            "box": vector,
            "discrete": self.position,
            "dict": {"image": image, "vector": vector},
            "image": image,
            "image_first": np.moveaxis(image, -1, 0),
        }[self.kind]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.time = int(self.np_random.integers(LENGTH - 1)), 0
        return self.observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position = int(np.clip(self.position + (-1, 1, 0)[int(action)], 0, LENGTH - 1))
        self.time += 1
        done = self.position == LENGTH - 1
        return self.observe(), float(done), done, not done and self.time >= self.horizon, {}


class MaskableCorridor(Corridor):
    """Moving right is forbidden in every second place, standing still everywhere."""

    def action_masks(self) -> np.ndarray:
        return masks_of(np.array([self.position]))[0]


def masks_of(places: np.ndarray) -> np.ndarray:
    return np.stack([np.full(len(places), True), places % 2 == 0, np.full(len(places), False)], axis=1)


def positions(observations: Any) -> np.ndarray:
    """Where the agents of a batch of observations are, whatever their kind."""
    if isinstance(observations, dict):
        observations = observations["vector"]
    observations = np.asarray(observations)
    if observations.ndim == 4:
        channel_last = observations.shape[-1] == 2
        row = observations[:, 0, :, 0] if channel_last else observations[:, 0, 0, :]
        return row.argmax(axis=1) // 3
    return observations if observations.ndim == 1 else observations.argmax(axis=1)


def go_right(observations: Any) -> np.ndarray:
    return np.full(len(positions(observations)), RIGHT)


def go_left(observations: Any) -> np.ndarray:
    return np.full(len(positions(observations)), LEFT)


def right_then_stay(observations: Any) -> np.ndarray:
    """Useful in the first half of the corridor only."""
    return np.where(positions(observations) < LENGTH // 2, RIGHT, STAY)
