"""CAPS learns: faster with good sources, and to the optimum with useless ones."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

from sb3_caps import CAPS
from sb3_caps.common.evaluation import discounted_returns
from tests.toy_world import LENGTH, RIGHT, STAY, Corridor, go_left

SIZE = 12
GOAL = (SIZE - 1, SIZE - 1)


class Field(gym.Env[np.int64, Any]):
    """A square to cross from one corner to the other: up, down, left, right; too far for a random walk."""

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(SIZE * SIZE)
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.int64, dict]:
        super().reset(seed=seed)
        self.position, self.time = np.zeros(2, dtype=np.int64), 0
        return np.int64(0), {}

    def step(self, action: int) -> tuple[np.int64, float, bool, bool, dict]:
        move = ((-1, 0), (1, 0), (0, -1), (0, 1))[action]
        self.position, self.time = np.clip(self.position + move, 0, SIZE - 1), self.time + 1
        done = tuple(self.position) == GOAL
        return np.int64(self.position @ (SIZE, 1)), float(done), done, not done and self.time >= 60, {}


def to_the_bottom(cells: np.ndarray) -> np.ndarray:
    """The way to another goal: down, then left."""
    return np.where(cells // SIZE < SIZE - 1, 1, 2)


def to_the_right(cells: np.ndarray) -> np.ndarray:
    """The way to another goal: right, then up."""
    return np.where(cells % SIZE < SIZE - 1, 3, 0)


def test_good_sources_reach_what_dqn_does_not_in_the_same_steps() -> None:
    arguments: dict[str, Any] = {
        "learning_rate": 1e-3,
        "buffer_size": 20_000,
        "learning_starts": 200,
        "gamma": 0.95,
        "target_update_interval": 200,
        "exploration_fraction": 0.5,
        "seed": 4,
    }
    sources = [to_the_bottom, to_the_right]
    returns = {}
    for name, model in {
        "dqn": DQN("MlpPolicy", Field(), **arguments),
        "caps": CAPS(
            "MlpPolicy",
            Field(),
            source_policies=sources,
            initial_termination=0.2,
            sequence_length=8,
            execution="interrupting",
            **arguments,
        ),
    }.items():
        model.learn(5000)
        env = make_vec_env(Field, n_envs=1, seed=0)
        returns[name] = discounted_returns(model, env, gamma=0.95, n_episodes=1).mean()
    optimum = 0.95 ** (2 * (SIZE - 1) - 1)
    assert returns["caps"] >= 0.8 * optimum
    assert returns["dqn"] < 0.8 * optimum


def stay(observations: np.ndarray) -> np.ndarray:
    return np.full(len(observations), STAY)


def test_useless_sources_do_not_stop_it_from_reaching_the_optimum() -> None:
    env = make_vec_env(Corridor, n_envs=4, seed=0)
    model = CAPS(
        "MlpPolicy",
        env,
        source_policies=[go_left, stay, go_left, stay],
        learning_rate=1e-3,
        learning_starts=400,
        gamma=0.9,
        train_freq=1,
        target_update_interval=100,
        termination_learning_rate=0.02,
        exploration_fraction=0.5,
        seed=1,
    )
    model.learn(12_000)
    # From every start the option chosen is the one that walks to the end, and it is kept or chosen again
    choices, _ = model.predict(np.eye(LENGTH, dtype=np.float32)[:-1], deterministic=True)
    assert choices.tolist() == [RIGHT] * (LENGTH - 1)
    returns = discounted_returns(model, make_vec_env(Corridor, n_envs=8, seed=3), gamma=0.9, n_episodes=64)
    # The optimum from a uniform start: the reward comes after LENGTH - 1 - position steps
    optimum = np.mean([0.9 ** (LENGTH - 2 - position) for position in range(LENGTH - 1)])
    assert returns.mean() >= 0.85 * optimum
    assert returns.min() >= 0.9 ** (LENGTH - 2) - 1e-9
