"""Images by way of source features: learn a new task from what convolutional networks have learned to see."""

import argparse
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps import CAPS, SourceFeatures, VecSourceFeatures

SIZE, PIXELS = 9, 4
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])


class Room(gym.Env):
    """
    A room seen from above: the agent is a white square, and the place it has to go to is not shown.

    :param goal: row and column
    """

    def __init__(self, goal: tuple[int, int]) -> None:
        self.goal = goal
        self.observation_space = spaces.Box(0, 255, (SIZE * PIXELS, SIZE * PIXELS, 1), np.uint8)
        self.action_space = spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start anywhere but at the goal."""
        super().reset(seed=seed)
        cells = [cell for cell in np.ndindex(SIZE, SIZE) if cell != self.goal]
        self.place = np.array(cells[self.np_random.integers(len(cells))])
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """
        :param action: up, down, left or right
        """
        self.place = np.clip(self.place + MOVES[action], 0, SIZE - 1)
        arrived = tuple(self.place) == self.goal
        return self._picture(), float(arrived), arrived, False, {}

    def _picture(self) -> np.ndarray:
        cells = np.zeros((SIZE, SIZE), np.uint8)
        cells[tuple(self.place)] = 255
        return cells.repeat(PIXELS, axis=0).repeat(PIXELS, axis=1)[..., None]


def make_rooms(goal: tuple[int, int], number: int, seed: int = 0) -> VecEnv:
    """
    :param goal: row and column
    :param number: how many rooms step together
    :param seed: of the starts
    :return: the rooms, with episodes of at most 50 steps
    """
    return make_vec_env(lambda: gym.wrappers.TimeLimit(Room(goal), 50), number, seed)


def random_pictures(env: VecEnv, steps: int = 50) -> np.ndarray:
    """
    :param env: of the new task
    :param steps: how many
    :return: what random actions come to see
    """
    env.reset()
    actions = [np.array([env.action_space.sample() for _ in range(env.num_envs)]) for _ in range(steps)]
    return np.concatenate([env.step(action)[0] for action in actions])


def main(argv: Sequence[str] | None = None) -> CAPS:
    """
    :param argv: the arguments, those of the process by default
    :return: the trained model
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=20_000, help="steps of CAPS on the new task")
    parser.add_argument("--source-timesteps", type=int, default=10_000, help="steps of PPO on each old one")
    parser.add_argument("--episodes", type=int, default=50, help="episodes of the evaluation")
    args = parser.parse_args(argv)

    # Networks that you have already: they go to two of the corners
    corners = ((0, 0), (SIZE - 1, SIZE - 1))
    sources = [
        PPO("CnnPolicy", make_rooms(corner, 8), n_steps=64, batch_size=128, n_epochs=4, seed=0).learn(
            args.source_timesteps
        )
        for corner in corners
    ]

    # The new place is in none of them
    goal = (1, SIZE - 2)
    rooms = make_rooms(goal, 8)
    features = SourceFeatures(sources, random_pictures(rooms))
    model = CAPS("MlpPolicy", VecSourceFeatures(rooms, features), source_policies=features.policies, verbose=1, seed=0)
    model.learn(args.timesteps)

    env = VecSourceFeatures(make_rooms(goal, 1, seed=1), features)
    returns, _ = evaluate_policy(model, env, args.episodes)
    print(f"CAPS: {returns:.0%} of the episodes arrive")
    return model


if __name__ == "__main__":
    main()
