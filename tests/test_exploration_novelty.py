"""Episodes of random choices, and random choices that rather fall on what is new."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

from sb3_caps import CAPS
from sb3_caps.caps.exploration import OptionExploration, epsilon_greedy
from sb3_caps.replay.visits import VisitCounts
from tests.paper import paper
from tests.toy_world import LENGTH, Corridor

GREEDY: dict[str, Any] = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0}


def make(n_envs: int = 2, kind: str = "box", **kwargs: Any) -> CAPS:
    env = make_vec_env(Corridor, n_envs=n_envs, seed=0, env_kwargs={"kind": kind})
    policy = {"dict": "MultiInputPolicy", "image": "CnnPolicy"}.get(kind, "MlpPolicy")
    arguments = {"termination": 1.0, "gradient_steps": 0, "learning_starts": 0, "buffer_size": 10_000, "seed": 0}
    return CAPS(policy, env, **paper(**(arguments | kwargs)))


def test_actions_are_counted_for_each_observation() -> None:
    counts = VisitCounts()
    red, blue = np.array([1.0, 2.0], dtype=np.float32), np.array([1.0, 2.5], dtype=np.float32)
    counts.add(np.stack([red, red, red, blue]), np.array([0, 2, 0, 0]))
    asked = counts.places(np.stack([blue, red]), np.array([[0, 1, 2], [2, 1, 0]]))
    assert counts.counts[asked].tolist() == [[1, 0, 0], [1, 0, 2]]


def test_weights_and_rates_for_each_environment() -> None:
    np.random.seed(0)
    n_envs = 30_000
    values = np.tile([0.0, 0.0, 1.0], (n_envs, 1))
    weights = np.tile([0.0, 1.0, 3.0], (n_envs, 1))
    weights[n_envs // 2 :] = [2.0, 0.0, 2.0]
    epsilon = np.repeat([[0.0, 1.0]], n_envs // 2, axis=0).ravel()
    drawn = epsilon_greedy(values, epsilon, weights)
    assert (drawn[epsilon == 0] == 2).all()
    for half, shares in ((slice(n_envs // 2), [0, 1 / 4, 3 / 4]), (slice(n_envs // 2, None), [1 / 2, 0, 1 / 2])):
        of_half = drawn[half][epsilon[half] == 1]
        np.testing.assert_allclose(np.bincount(of_half, minlength=3) / len(of_half), shares, atol=0.02)


def test_a_share_of_the_episodes_is_random_and_the_others_are_not() -> None:
    model = make(n_envs=20, exploration_kwargs={"episodes": 0.3}, **GREEDY)
    with th.no_grad():
        last = model.q_net.q_net[-1]
        assert isinstance(last, th.nn.Linear)
        last.weight.zero_()
        last.bias.copy_(th.tensor([0.0, 0.0, 1.0]))
    model.learn(5_000, log_interval=10**9)
    buffer, shares = model.replay_buffer, []
    for env in range(20):
        ends = np.flatnonzero(buffer.last_steps[: buffer.pos, env]) + 1
        episodes = np.split(buffer.options[: buffer.pos, env], ends)[:-1]
        shares += [float((episode == 2).mean()) for episode in episodes]
    # Greedy ones stand still until they are truncated; a random one takes every option
    greedy = np.array(shares) == 1.0
    assert len(shares) > 100
    np.testing.assert_allclose((~greedy).mean(), 0.3, atol=0.1)
    np.testing.assert_allclose(np.array(shares)[~greedy].mean(), 1 / 3, atol=0.06)


def test_what_is_new_comes_first() -> None:
    """With so high an exponent an action is taken again only after all others: counts differ by one at most."""
    model = make(n_envs=1, exploration_kwargs={"novelty": 200.0, "episodes": 1.0}, **GREEDY)
    model.learn(60, log_interval=10**9)
    found = model.replay_buffer.action_visits(np.eye(LENGTH, dtype=np.float32), np.tile(np.arange(3), (LENGTH, 1)))
    assert found.sum() == 60
    assert (np.ptp(found, axis=1) <= 1).all()


@pytest.mark.parametrize("kind", ["dict", "discrete", "image"])
def test_any_observation_is_told_from_others(kind: str) -> None:
    model = make(n_envs=1, kind=kind, exploration_kwargs={"novelty": 200.0, "episodes": 1.0}, **GREEDY)
    model.learn(80, log_interval=10**9)
    counts = model.replay_buffer.action_counts
    assert counts is not None
    assert counts.counts.sum() == 80
    # Three actions in each place but the last, none of them much oftener than the others
    assert np.count_nonzero(counts.counts) > 80 // 4
    assert counts.counts.max() <= 80 // 6


@pytest.mark.parametrize("weights", [[1.0, 1.0, 2.0], np.array([1.0, 1.0, 2.0])])
def test_weights_of_options_count_beside_novelty(weights: Any) -> None:
    model = make(exploration_kwargs={"novelty": 1.0, "weights": weights})
    model.learn(100, log_interval=10**9)
    buffer, exploration = model.replay_buffer, model._exploration
    assert isinstance(exploration, OptionExploration)
    place = np.eye(LENGTH, dtype=np.float32)[[LENGTH - 1]]  # where an episode ends nothing was done yet
    fresh = exploration.random_weights(buffer.action_visits(place, np.arange(3)[None]))
    assert fresh is not None
    np.testing.assert_allclose(fresh / fresh.sum(), [[0.25, 0.25, 0.5]])
    buffer.action_counts = counts = VisitCounts()
    counts.add(np.repeat(place, 4, axis=0), np.array([0, 2, 2, 2]))
    # Taken once, never and three times: 1/2, 1 and 1/4, times 1, 1 and 2
    seen = exploration.random_weights(buffer.action_visits(place, np.arange(3)[None]))
    assert seen is not None
    np.testing.assert_allclose(seen / seen[0, 1], [[0.5, 1.0, 0.5]])


def test_observations_are_counted_as_they_were_before_they_were_normalized() -> None:
    env = VecNormalize(make_vec_env(Corridor, n_envs=2, seed=0))
    model = CAPS(
        "MlpPolicy", env, **paper(exploration_kwargs={"novelty": 1.0}, learning_starts=20, buffer_size=1_000, seed=0)
    ).learn(300)
    counts = model.replay_buffer.action_counts
    assert counts is not None
    assert np.count_nonzero(counts.counts) <= 3 * (LENGTH - 1)
    found = model.replay_buffer.action_visits(np.eye(LENGTH, dtype=np.float32), np.tile(np.arange(3), (LENGTH, 1)))
    assert found.sum() == model.num_timesteps


def test_a_run_goes_on_with_its_counts(tmp_path: Path) -> None:
    def started() -> CAPS:
        return make(exploration_kwargs={"novelty": 2.0, "episodes": 0.5}, gradient_steps=1).learn(300)

    model = started()
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = CAPS.load(tmp_path / "model", env=model.get_env())
    loaded.load_replay_buffer(tmp_path / "buffer")
    assert isinstance(loaded._exploration, OptionExploration)
    assert isinstance(model._exploration, OptionExploration)
    np.testing.assert_array_equal(loaded._exploration.random_episodes, model._exploration.random_episodes)
    loaded.learn(100, reset_num_timesteps=False)
    counts = loaded.replay_buffer.action_counts
    assert counts is not None
    assert counts.counts.sum() == loaded.num_timesteps >= 400
    loaded.replay_buffer.reset()
    assert loaded.replay_buffer.action_counts is not None
    assert loaded.replay_buffer.action_counts.counts.sum() == 0
    # One seed, one run
    again = started()
    np.testing.assert_array_equal(again.replay_buffer.options, model.replay_buffer.options)


def test_a_buffer_without_counts_is_refused(tmp_path: Path) -> None:
    make().learn(100).save_replay_buffer(tmp_path / "buffer")
    model = make(exploration_kwargs={"novelty": 1.0})
    with pytest.raises(ValueError, match=r"buffer of another model, with no counts of actions for novelty"):
        model.load_replay_buffer(tmp_path / "buffer")
    # Nor does one that comes in another way
    model.replay_buffer = make().replay_buffer
    with pytest.raises(ValueError, match="novelty needs a replay buffer that counts actions"):
        model.learn(100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"episodes": 1.5}, r"\['episodes'\] must be a number from 0 to 1, not 1.5"),
        ({"novelty": -1.0}, r"\['novelty'\] must be a number of at least 0, not -1.0"),
        ({"novelty": LinearSchedule(3.0, 0.0, 1.0)}, r"\['novelty'\] must be a number .*not Linear"),
        ({"episodes": LinearSchedule(1.0, 0.0, 1.0)}, r"\['episodes'\] must be a number .*not Linear"),
        ({"novelty": 1.0, "durations": "drawn"}, "novelty in exploration_kwargs needs 'durations': 'termination'"),
        ({"durations": "forever"}, r"\['durations'\] must be one of \('drawn', 'termination'\)"),
        ({"newness": 1.0}, "exploration_kwargs must be a dict with some of durations, share, weights.*newness"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(exploration_kwargs=arguments)
