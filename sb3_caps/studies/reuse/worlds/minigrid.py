"""MiniGrid's levels as Gymnasium environments with a flat vector of bits."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_caps.extras import require

# What a cell holds, and the state of a door: open, closed or locked
N_OBJECTS, N_STATES = 11, 3


class MiniGrid(gym.ObservationWrapper):
    """
    A level of MiniGrid: what the agent sees of it, each of 7×7 cells as one bit for its object and one for its state.

    :param level: its id without ``MiniGrid-``
    """

    def __init__(self, level: str) -> None:
        require("minigrid", "reuse")
        super().__init__(gym.make(f"MiniGrid-{level}"))
        cells = int(np.prod(self.env.observation_space["image"].shape[:2]))  # type: ignore[index]
        self.observation_space = spaces.Box(0, 1, (cells * (N_OBJECTS + N_STATES),), np.uint8)

    def observation(self, observation: dict[str, Any]) -> np.ndarray:
        """:return: the bits"""
        objects, _, states = observation["image"].reshape(-1, 3).T
        bits = np.concatenate([np.eye(N_OBJECTS, dtype=np.uint8)[objects], np.eye(N_STATES, dtype=np.uint8)[states]], 1)
        return bits.ravel()
