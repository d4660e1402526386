"""The source policies of the Monster Kong study: useless ones, and networks that imitate the planner."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN

from sb3_caps import CAPS
from sb3_caps.envs.monster_kong.planner import plan
from sb3_caps.envs.monster_kong.vec_env import MonsterKongVecEnv
from sb3_caps.studies.monster_kong.sources import (
    REQUIRED_SUCCESS,
    UselessPolicy,
    follow,
    network_file,
    pictures_of_starts,
    standardize,
    train_networks,
)
from tests.toy_world import SMALL_MAP as MAP


@pytest.mark.parametrize("algorithm", [DQN, partial(CAPS, policy_kwargs={"averaging": 0.1})])
def test_standardized_layers_tell_pictures_apart(algorithm: Any) -> None:
    model = algorithm("CnnPolicy", MonsterKongVecEnv(1, MAP, "princess", "pixels"), buffer_size=1, device="cpu", seed=0)
    pictures = pictures_of_starts(MAP, "princess")
    assert pictures.shape == (len(plan(MAP, "princess").starts), 2, 84, 84)

    def features() -> th.Tensor:
        values = pictures.float() / 255
        for layer in [*model.q_net.features_extractor.cnn, model.q_net.features_extractor.linear[0]]:
            values = layer(values)
        return values

    assert features().std(0).max() < 0.1, "nothing to mend"
    standardize(model, pictures)
    th.testing.assert_close(features().mean(0), th.zeros(512), atol=1e-3, rtol=0)
    th.testing.assert_close(features().std(0, correction=0), th.ones(512), atol=1e-3, rtol=0)
    copies = [model.q_net_target] + ([model.policy.q_net_average] if algorithm is not DQN else [])
    for copy in copies:
        for ours, theirs in zip(model.q_net.parameters(), copy.parameters(), strict=True):
            assert th.equal(ours, theirs)


def test_useless_sources_have_no_aim() -> None:
    observations = np.random.default_rng(0).random((6000, 21)).astype(np.float32)
    actions = UselessPolicy(0)(observations)
    np.testing.assert_array_equal(actions, UselessPolicy(0)(observations))
    assert np.bincount(actions, minlength=6).min() > 800
    assert (actions != UselessPolicy(1)(observations)).mean() > 0.7


def played_from_every_start(model: DQN, goal: str, observation: str) -> float:
    """The share of episodes that reach the goal, one from each start, in the environment itself."""
    starts = plan(MAP, goal).starts.astype(np.int64)
    games = MonsterKongVecEnv(len(starts), MAP, goal, observation)
    games.reset()
    games.states, games.previous = starts, starts.copy()
    observations: Any = games._observer.many(starts, starts)
    won, over = np.zeros(len(starts), dtype=bool), np.zeros(len(starts), dtype=bool)
    while not over.all():
        observations, rewards, dones, _ = games.step(model.predict(observations, deterministic=True)[0])
        won |= ~over & (rewards > 0)
        over |= dones
    return float(won.mean())


def test_episodes_are_followed_as_they_are_played() -> None:
    solution = plan(MAP, "princess")
    best = follow(solution, lambda before, after: solution.actions[after])
    assert best.successes == 1
    # An episode starts with the same picture twice; none goes on at its end
    assert set(solution.starts) <= set(best.after[best.before == best.after])
    assert not solution.table.reached("princess")[best.after].any()

    env = MonsterKongVecEnv(1, MAP, "princess", "features")
    model = DQN("MlpPolicy", env, buffer_size=1, seed=1, device="cpu")
    # Weights so large that the network does different things in different places
    with th.no_grad():
        for parameter in model.q_net.parameters():
            parameter.normal_()
    draw = env._observer.many
    episodes = follow(solution, lambda before, after: model.predict(draw(before, after), deterministic=True)[0])
    assert episodes.successes == played_from_every_start(model, "princess", "features")
    assert 0 < episodes.successes < 1, "a policy that always wins, or never, would compare little"


@pytest.mark.parametrize("observation", ["features", "pixels"])
def test_source_networks_imitate_the_planner(tmp_path: Path, observation: str) -> None:
    said: list[str] = []
    train_networks(MAP, ["diamond"], observation, tmp_path, batch_size=16, report=said.append)
    model = DQN.load(network_file(tmp_path, MAP, "diamond", observation), device="cpu")
    share = played_from_every_start(model, "diamond", observation)
    assert share > REQUIRED_SUCCESS
    assert f"in {share:.1%} of its episodes" in said[0]


def test_source_networks_are_trained_once_and_must_be_good(tmp_path: Path) -> None:
    said: list[str] = []
    train_networks(MAP, ["diamond"], "features", tmp_path, batch_size=16, report=said.append)
    written = network_file(tmp_path, MAP, "diamond", "features").stat().st_mtime_ns
    train_networks(MAP, ["diamond"], "features", tmp_path, report=said.append)
    assert network_file(tmp_path, MAP, "diamond", "features").stat().st_mtime_ns == written
    with pytest.raises(ValueError, match="less than 95%"):
        train_networks(MAP, ["coin"], "features", tmp_path, passes=1, batch_size=200, report=said.append)
