"""Sources with other spaces: a controller for one cart drives another that has other sensors and one more button."""

import argparse
from collections.abc import Sequence
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from sb3_caps import CAPS, as_source

COAST = 0
# The new cart tells angle and angular speed in degrees first, then position and speed in centimetres
UNITS = np.array([180 / np.pi, 180 / np.pi, 100.0, 100.0])
ORDER = [2, 3, 0, 1]


class NewCart(gym.Wrapper):
    """CartPole with other sensors, and a third action: 0 coasts, 1 pushes left, 2 pushes right."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(**kwargs)
        return self._read(observation), info

    def step(self, action: int) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        """
        :param action: 0, 1 or 2
        """
        cart = self.unwrapped
        assert isinstance(cart, CartPoleEnv)
        cart.force_mag = 0.0 if action == COAST else 10.0
        observation, reward, terminated, truncated, info = self.env.step(max(int(action) - 1, 0))
        return self._read(observation), reward, terminated, truncated, info

    def _read(self, observation: np.ndarray) -> np.ndarray:
        return (observation[ORDER] * UNITS).astype(np.float32)


def to_old_sensors(observations: np.ndarray) -> np.ndarray:
    """
    :param observations: a batch of the new cart's
    :return: the same in the old cart's order and units
    """
    return (observations / UNITS)[:, ORDER].astype(np.float32)


def to_new_buttons(actions: np.ndarray) -> np.ndarray:
    """
    :param actions: 0 (left) and 1 (right)
    :return: 1 (left) and 2 (right)
    """
    return actions + 1


def main(argv: Sequence[str] | None = None) -> CAPS:
    """
    :param argv: the arguments, those of the process by default
    :return: the trained model
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=20_000, help="steps of CAPS on the new cart")
    parser.add_argument("--source-timesteps", type=int, default=15_000, help="steps of PPO on the old one")
    parser.add_argument("--episodes", type=int, default=20, help="episodes of the evaluation")
    args = parser.parse_args(argv)

    old = PPO("MlpPolicy", "CartPole-v1", seed=0).learn(args.source_timesteps)
    source = as_source(old, name="old cart", observation_map=to_old_sensors, action_map=to_new_buttons)

    model = CAPS("MlpPolicy", Monitor(NewCart()), source_policies=[source], verbose=1, seed=0)
    model.learn(args.timesteps)
    mean, _ = evaluate_policy(model, Monitor(NewCart()), args.episodes)
    print(f"CAPS: mean return {mean:.1f}")
    return model


if __name__ == "__main__":
    main()
