"""Learning from what source networks see."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_caps import CAPS, SourceFeatures, VecSourceFeatures, as_source
from sb3_caps.envs.monster_kong.vec_env import MonsterKongVecEnv


def games(n_envs: int = 2, observation: str = "pixels", horizon: int = 1200) -> VecEnv:
    return MonsterKongVecEnv(n_envs, observation=observation, horizon=horizon)


def played(env: VecEnv, steps: int) -> np.ndarray:
    env.seed(0)
    generator = np.random.default_rng(0)
    found: list[Any] = [env.reset()]
    for _ in range(steps):
        found.append(env.step(generator.integers(6, size=env.num_envs))[0])
    return np.concatenate(found)


def image_models() -> list[BaseAlgorithm]:
    return [DQN("CnnPolicy", games(), buffer_size=1, seed=1), PPO("CnnPolicy", games(), seed=2, n_steps=32)]


def hidden_layers(models: list[BaseAlgorithm], observations: np.ndarray) -> np.ndarray:
    """As SB3 computes them."""
    found = []
    with th.no_grad():
        for model in models:
            tensor, _ = model.policy.obs_to_tensor(observations)
            if isinstance(model, DQN):
                features = model.q_net.extract_features(tensor, model.q_net.features_extractor)
            else:
                policy: Any = model.policy
                features = policy.mlp_extractor.forward_actor(policy.extract_features(tensor))
            found.append(features.numpy())
    return np.concatenate(found, axis=1)


def test_features_are_the_principal_components_of_the_hidden_layers() -> None:
    models, observations = image_models(), played(games(), 30)
    features = SourceFeatures(models, observations, n_components=5)
    assert features.n_features == 5 + 6 + 6
    found = features(observations)[:, :5]
    # Uncorrelated and of one size over the given observations
    np.testing.assert_allclose(np.cov(found, rowvar=False, ddof=0), 0.3**2 * np.eye(5), atol=1e-4)
    # By the eigenvectors of the covariance: the sign of each is anyone's choice
    hidden = hidden_layers(models, observations).astype(np.float64)
    variances, directions = np.linalg.eigh(np.cov(hidden, rowvar=False, ddof=0))
    for i in range(5):
        expected = (hidden - hidden.mean(axis=0)) @ directions[:, -1 - i] * 0.3 / np.sqrt(variances[-1 - i])
        sign = np.sign(expected @ found[:, i])
        np.testing.assert_allclose(found[:, i] * sign, expected, atol=2e-3)


def test_sources_act_on_features_as_on_observations() -> None:
    models, observations = image_models(), played(games(), 20)
    features = SourceFeatures([as_source(models[0], name="first"), models[1]], observations)
    assert [policy.name for policy in features.policies] == ["first", "ppo"]
    for policy, model in zip(features.policies, models, strict=True):
        actions, _ = policy.actions(features(observations), None, np.zeros(len(observations), dtype=bool))
        np.testing.assert_array_equal(actions, model.predict(observations, deterministic=True)[0])


def test_no_more_components_than_there_are() -> None:
    models, observations = image_models(), played(games(1), 9)
    assert SourceFeatures(models, observations).n_features - 12 < 10


def test_what_ends_an_episode_is_seen_as_features_too() -> None:
    models, horizon = image_models(), 5
    plain, wrapped = games(horizon=horizon), games(horizon=horizon)
    features = SourceFeatures(models, played(games(), 20))
    env = VecSourceFeatures(wrapped, features)
    for each in (plain, env):
        each.seed(3)
    observations: Any = plain.reset()
    np.testing.assert_array_equal(env.reset(), features(observations))
    ended = 0
    for _ in range(12):
        actions = np.array([0, 1])
        observations, rewards, dones, infos = plain.step(actions)
        found = env.step(actions)
        np.testing.assert_array_equal(found[0], features(observations))
        np.testing.assert_array_equal(found[1], rewards)
        np.testing.assert_array_equal(found[2], dones)
        for i in np.flatnonzero(dones):
            ended += 1
            expected = features(infos[i]["terminal_observation"][None])[0]
            np.testing.assert_array_equal(found[3][i]["terminal_observation"], expected)
            assert found[3][i]["TimeLimit.truncated"] == infos[i]["TimeLimit.truncated"]
    assert ended == 4


@pytest.mark.parametrize("normalized", [False, True])
def test_caps_learns_from_features_and_is_saved(tmp_path: Path, normalized: bool) -> None:
    features = SourceFeatures(image_models(), played(games(), 20), n_components=8)
    env: VecEnv = VecSourceFeatures(games(), features)
    if normalized:
        env = VecNormalize(env, norm_reward=False)
    model = CAPS("MlpPolicy", env, source_policies=features.policies, learning_starts=10, buffer_size=200, seed=0)
    model.learn(64)
    assert model.options.names[:2] == ["dqn", "ppo"]
    model.save(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model", env=env)
    observations: Any = env.reset()
    first, second = (each.predict(observations, deterministic=True)[0] for each in (model, loaded))
    np.testing.assert_array_equal(first, second)
    loaded.learn(16, reset_num_timesteps=False)
    assert loaded.num_timesteps == 80


def test_environments_share_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    features = SourceFeatures(image_models(), played(games(), 20))
    first, second = VecSourceFeatures(games(), features), VecSourceFeatures(games(), features)
    first.seed(1)
    expected = first.reset()
    evaluated: list[int] = []
    monkeypatch.setattr(features._networks[0], "outputs", lambda rows: evaluated.append(len(rows)))
    second.seed(1)
    np.testing.assert_array_equal(second.reset(), expected)
    assert evaluated == []


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([], "at least one model"),
        ([lambda observations: observations], "has no hidden layer to take features from"),
        ([as_source(lambda x: x, name="mine", action_map=lambda a: a)], "Source policy 'mine' has no hidden layer"),
    ],
)
def test_what_has_no_features_is_refused(models: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SourceFeatures(models, np.zeros((3, 84, 84, 2), dtype=np.uint8))


def test_observations_that_say_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="at least two observations"):
        SourceFeatures(image_models(), played(games(1), 0))
    with pytest.raises(ValueError, match="no difference between the observations"):
        SourceFeatures(image_models(), np.repeat(played(games(1), 0), 3, axis=0))


def test_environments_that_the_models_do_not_fit_are_refused() -> None:
    env = games(observation="features")
    features = SourceFeatures([DQN("MlpPolicy", env, buffer_size=1)], played(env, 20))
    assert isinstance(VecSourceFeatures(env, features).observation_space, spaces.Box)
    with pytest.raises(ValueError, match="expects observations of"):
        VecSourceFeatures(games(), features)
