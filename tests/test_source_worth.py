"""What sources are worth on a task before anything is learned."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, VecTransposeImage

from sb3_caps import as_source
from sb3_caps.sources import SourceWorth, evaluate_sources
from tests.toy_world import LENGTH, Corridor, MaskableCorridor, go_left, go_right, positions


def half_way(observations: Any) -> np.ndarray:
    """Comes to the end from the right half alone."""
    return np.where(positions(observations) >= LENGTH // 2, 1, 2)


def test_returns_of_each_source() -> None:
    found = evaluate_sources({"right": go_right, "left": go_left, "half": half_way}, Corridor(), n_eval_episodes=40)
    assert found[:2] == [SourceWorth("right", 1.0, 0.0, 40), SourceWorth("left", 0.0, 0.0, 40)]
    name, mean, std, episodes = found[2]
    assert (name, episodes) == ("half", 40)
    assert mean == pytest.approx(4 / 9, abs=0.2)
    assert std == pytest.approx(np.sqrt(mean * (1 - mean)))
    assert evaluate_sources([half_way], Corridor(), n_eval_episodes=40) == [SourceWorth("half_way", mean, std, 40)]
    assert evaluate_sources([half_way], Corridor(), n_eval_episodes=40, seed=1)[0].mean != mean
    assert evaluate_sources([], Corridor()) == []


def vectors() -> VecEnv:
    return make_vec_env(Corridor, n_envs=2, seed=3)


@pytest.mark.parametrize(
    "env",
    [
        "sb3_caps/Corridor-v0",
        Corridor("image"),
        vectors(),
        VecNormalize(VecNormalize(vectors())),
        VecTransposeImage(make_vec_env(lambda: Corridor("image"))),
    ],
)
def test_environments_as_users_have_them(env: Any) -> None:
    if isinstance(env, str):
        gym.register(env, entry_point="tests.toy_world:Corridor")
    try:
        found = evaluate_sources([go_right, half_way], env)
    finally:
        gym.registry.pop("sb3_caps/Corridor-v0", None)
    assert found[0] == SourceWorth("go_right", 1.0, 0.0, 10)
    assert 0 < found[1].mean < 1


def test_it_is_that_of_the_model() -> None:
    dqn = DQN("MlpPolicy", "CartPole-v1", seed=0, buffer_size=1)
    env = make_vec_env("CartPole-v1")
    env.seed(0)
    mean, std = evaluate_policy(dqn, env, 10)
    (found,) = evaluate_sources([dqn], "CartPole-v1")
    assert found[:1] == ("dqn",)
    np.testing.assert_allclose(found[1:], [mean, std, 10])


def test_sources_draw_as_they_do_while_they_are_reused() -> None:
    model = PPO("MlpPolicy", Corridor(), seed=0, n_steps=8, batch_size=8)
    sources: dict[str, Any] = {"drawn": as_source(model, deterministic=False), "likeliest": model}
    drawn, likeliest = evaluate_sources(sources, Corridor(), n_eval_episodes=30)
    assert drawn.mean > likeliest.mean
    assert evaluate_sources(sources, Corridor(), n_eval_episodes=30) == [drawn, likeliest]


@pytest.mark.filterwarnings("error")
def test_masks_of_the_environment_reach_the_source() -> None:
    class Strict(MaskableCorridor):
        def step(self, action: int) -> Any:
            assert self.action_masks()[action]
            return super().step(action)

    model = MaskablePPO("MlpPolicy", MaskableCorridor(), seed=0)
    assert evaluate_sources([model], Strict(), n_eval_episodes=3)[0].episodes == 3


@pytest.mark.parametrize(
    ("sources", "env", "episodes", "error", "message"),
    [
        ([go_right], Corridor(), 0, ValueError, "n_eval_episodes must be a whole number of at least 1, not 0"),
        ([go_right], Corridor(), 2.5, ValueError, "n_eval_episodes must be a whole number of at least 1, not 2.5"),
        ([lambda o: np.zeros((len(o), 2))], "Pendulum-v1", 1, ValueError, "returned actions of shape"),
        (go_right, Corridor(), 1, ValueError, "source_policies must be a list of source policies"),
        ([DQN("MlpPolicy", "CartPole-v1", buffer_size=1)], Corridor(), 1, ValueError, "'dqn' expects observations"),
        ([lambda observations: 1], Corridor(), 1, ValueError, r"'<lambda>' returned actions of shape \(\)"),
        ([lambda o: np.full(len(o), 3)], Corridor(), 1, ValueError, "'<lambda>' returned an action out of range"),
    ],
)
def test_bad_input(sources: Any, env: Any, episodes: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        evaluate_sources(sources, env, episodes)
