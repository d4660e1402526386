"""CAPS learns: faster with good sources, and to the optimum with useless ones."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env

from sb3_caps import CAPS
from sb3_caps.caps.arguments import DQN_DEFAULTS
from sb3_caps.reuse.evaluation import discounted_returns
from tests.paper import paper
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


FIELD: dict[str, Any] = {"buffer_size": 20_000, "gamma": 0.95, "seed": 4}
# SB3's DQN, a bit faster
FIELD_OF_DQN = FIELD | DQN_DEFAULTS
FIELD_OF_DQN |= {
    "learning_rate": 1e-3,
    "learning_starts": 200,
    "target_update_interval": 200,
    "exploration_fraction": 0.5,
}
LIKE_THE_PAPER = FIELD_OF_DQN | paper(
    sequence_length=8, termination_kwargs={"initial": 0.2}, policy_kwargs={"execution": "interrupting"}
)


def share_of_the_optimum(model: BaseAlgorithm, steps: int = 5000) -> float:
    """What is learned in so many steps, evaluated in one episode: nothing there is random."""
    model.learn(steps)
    returns = discounted_returns(model, make_vec_env(Field, n_envs=1, seed=0), gamma=0.95, n_episodes=1)
    return float(returns.mean() / 0.95 ** (2 * (SIZE - 1) - 1))


def test_dqn_does_not_cross_the_field() -> None:
    assert share_of_the_optimum(DQN("MlpPolicy", Field(), **FIELD_OF_DQN)) < 0.8


# The defaults try the sources first, which takes a part of so short a run
@pytest.mark.parametrize(("settings", "steps"), [(FIELD, 10_000), (LIKE_THE_PAPER, 5_000)])
def test_good_sources_cross_the_field(settings: dict[str, Any], steps: int) -> None:
    sources = [to_the_bottom, to_the_right]
    model = CAPS("MlpPolicy", Field(), source_policies=sources, **settings)
    assert share_of_the_optimum(model, steps) >= 0.8


def stay(observations: np.ndarray) -> np.ndarray:
    return np.full(len(observations), STAY)


USELESS_LIKE_THE_PAPER = DQN_DEFAULTS | paper(termination_kwargs={"learning_rate": 0.02})
USELESS_LIKE_THE_PAPER |= {"learning_rate": 1e-3, "train_freq": 1, "target_update_interval": 100}


@pytest.mark.parametrize(("settings", "steps"), [({}, 8_000), (USELESS_LIKE_THE_PAPER, 12_000)])
def test_useless_sources_do_not_stop_it_from_reaching_the_optimum(settings: dict[str, Any], steps: int) -> None:
    env = make_vec_env(Corridor, n_envs=4, seed=0)
    sources = [go_left, stay, go_left, stay]
    arguments: dict[str, Any] = {"learning_starts": 400, "gamma": 0.9, "exploration_fraction": 0.5, "seed": 1}
    model = CAPS("MlpPolicy", env, source_policies=sources, **arguments, **settings)
    model.learn(steps)
    # From every start the option chosen is the one that walks to the end, and it is kept or chosen again
    choices, _ = model.predict(np.eye(LENGTH, dtype=np.float32)[:-1], deterministic=True)
    assert choices.tolist() == [RIGHT] * (LENGTH - 1)
    returns = discounted_returns(model, make_vec_env(Corridor, n_envs=8, seed=3), gamma=0.9, n_episodes=64)
    # The optimum from a uniform start: the reward comes after LENGTH - 1 - position steps
    optimum = np.mean([0.9 ** (LENGTH - 2 - position) for position in range(LENGTH - 1)])
    assert returns.mean() >= 0.85 * optimum
    assert returns.min() >= 0.9 ** (LENGTH - 2) - 1e-9
