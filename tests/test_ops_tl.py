"""OPS-TL: its bandit. What it shares with PRQL is tested there, for both."""

from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env

from sb3_caps import OPSTL
from sb3_caps.reuse.episodic import EpisodeState
from tests.hand_walk import Walk, go_left, go_right


def make(n_envs: int = 1, **kwargs: Any) -> OPSTL:
    env = make_vec_env(Walk, n_envs)
    kwargs = {"source_policies": [go_left, go_right, go_left], "policy_kwargs": {"net_arch": [16]}, **kwargs}
    return OPSTL("MlpPolicy", env, buffer_size=2000, seed=0, device="cpu", **kwargs)


def test_upper_bounds_by_hand() -> None:
    model = make()
    model.mean_returns = np.array([0.5, 0.2, 0.0])
    # 2 ln 8 = 4.158883; over 4, 4 and 0 tries
    np.testing.assert_allclose(model.upper_bounds(np.array([4, 4, 0])), [0.5 + 1.019667, 0.2 + 1.019667, np.inf])
    # 2 ln 10 = 4.605170; over 8, 1 and 1
    np.testing.assert_allclose(
        model.upper_bounds(np.array([8, 1, 1])), [0.5 + 0.758714, 0.2 + 2.145966, 2.145966], rtol=1e-6
    )
    model.bandit_exploration = 0.0
    np.testing.assert_allclose(model.upper_bounds(np.array([8, 1, 1])), [0.5, 0.2, 0.0])


def test_every_source_is_tried_first() -> None:
    model = make()
    chosen = []
    for _ in range(3):
        arm = model._select(1, np.zeros(3, dtype=np.int64))
        model._finish_episodes(arm, np.array([0.3]))
        chosen += arm.tolist()
    assert chosen == [0, 1, 2]


def test_the_highest_bound_is_chosen() -> None:
    model = make()
    model.episode_counts = np.array([8, 1, 1])
    model.mean_returns = np.array([0.5, 0.2, 0.0])
    none = np.zeros(3, dtype=np.int64)
    # The bounds of the test above: 1.259, 2.346 and 2.146. After a second try of the second source its bound is
    # 0.2 + √(2 ln 11 / 2) = 1.749, so the third is next
    assert model._select(1, none).tolist() == [1]
    assert model._select(2, none).tolist() == [1, 2]
    # The same with that try under way in another environment
    assert model._select(1, np.array([0, 1, 0])).tolist() == [2]
    model.bandit_exploration = 0.0
    assert model._select(2, none).tolist() == [0, 0]


def test_environments_that_start_together_spread_over_the_sources() -> None:
    model = make(n_envs=6)
    model.learn(6)
    assert model._episodes is not None
    np.testing.assert_array_equal(np.bincount(model._episodes.arms), [2, 2, 2])


def test_the_bandit_finds_the_source_that_pays() -> None:
    model = make(n_envs=2, reuse_decay=1.0, gradient_steps=0).learn(4000)
    assert model.episode_counts is not None
    assert model.mean_returns is not None
    # Followed all the way, the second source gets γ³ and the others nothing
    np.testing.assert_allclose(model.mean_returns, [0.0, 0.99**3, 0.0])
    assert model.episode_counts.argmax() == 1
    assert model.episode_counts[1] > 0.8 * model.episode_counts.sum()


def test_exploration_is_that_of_dqn() -> None:
    model = make(exploration_fraction=0.5, exploration_final_eps=0.2)
    rates: list[float] = []

    def watched(epsilon: float, episodes: EpisodeState) -> float:
        rates.append(epsilon)
        return epsilon

    model._random_probability = watched  # type: ignore[method-assign]
    model.learn(200)
    # At random until learning starts, as for every learned policy; then from 1 to 0.2 over half of the run
    assert set(rates[:100]) == {1.0}
    assert rates[-1] == pytest.approx(0.2)


def test_a_negative_weight_of_the_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="bandit_exploration must not be negative, but is -2"):
        make(bandit_exploration=-2)
