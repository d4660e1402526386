"""OPS-TL: its bandit. What it shares with PRQL is tested there, for both."""

from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env

from sb3_caps import OPSTL
from sb3_caps.reuse.selectors import LEARNED
from tests.hand_walk import Walk, go_left, go_right
from tests.test_prql import counts, finish, means


def make(n_envs: int = 1, **kwargs: Any) -> Any:
    env = make_vec_env(Walk, n_envs)
    kwargs = {"source_policies": [go_left, go_right, go_left], "policy_kwargs": {"net_arch": [16]}, **kwargs}
    return OPSTL("MlpPolicy", env, buffer_size=2000, seed=0, device="cpu", **kwargs)


def known(model: Any, tries: list[int], gains: list[float]) -> Any:
    """Let each source have had so many episodes with such a mean, where the largest return was 1."""
    for arm, (n, gain) in enumerate(zip(tries, gains, strict=True)):
        for _ in range(n):
            finish(model, arm, gain)
    model.selector.largest = 1.0
    return model.selector


def test_upper_bounds_by_hand() -> None:
    # 2 ln 8 = 4.158883; over 4, 4 and 0 tries
    selector = known(make(), [4, 4, 0], [0.5, 0.2, 0.0])
    np.testing.assert_allclose(selector.upper_bounds, [0.5 + 1.019667, 0.2 + 1.019667, np.inf], rtol=1e-6)
    # 2 ln 10 = 4.605170; over 8, 1 and 1
    selector = known(make(), [8, 1, 1], [0.5, 0.2, 0.0])
    np.testing.assert_allclose(selector.upper_bounds, [0.5 + 0.758714, 0.2 + 2.145966, 2.145966], rtol=1e-6)
    selector.bandit_exploration = 0.0
    np.testing.assert_allclose(selector.upper_bounds, [0.5, 0.2, 0.0])


def test_every_source_is_tried_first() -> None:
    model = make()
    chosen = []
    for _ in range(3):
        chosen.append(model.selector.choose())
        finish(model, model.selector.sources.index(chosen[-1]), 0.3)
    assert chosen == model.selector.sources


def test_the_highest_bound_is_chosen() -> None:
    selector = known(make(), [8, 1, 1], [0.5, 0.2, 0.0])
    # The bounds of the test above: 1.259, 2.346 and 2.146. With a second try of the second source under way its bound
    # is 0.2 + √(2 ln 11 / 2) = 1.749, so the third is next
    assert [selector.select(env) for env in range(2)] == selector.sources[1:]
    selector.bandit_exploration = 0.0
    assert selector.choose() == selector.sources[0]


def test_the_model_acts_by_the_learned_policy() -> None:
    assert make().selector.decide() == LEARNED


def test_environments_that_start_together_spread_over_the_sources() -> None:
    model = make(n_envs=6)
    model.learn(6)
    np.testing.assert_array_equal(np.bincount(model._sources), [2, 2, 2])


def test_the_bandit_finds_the_source_that_pays() -> None:
    model = make(n_envs=2, reuse_decay=1.0, gradient_steps=0).learn(4000)
    # Followed all the way, the second source gets γ³ and the others nothing
    np.testing.assert_allclose(means(model), [0.0, 0.99**3, 0.0])
    assert counts(model)[1] > 0.8 * sum(counts(model))


def test_exploration_is_that_of_dqn() -> None:
    model = make(exploration_fraction=0.5, exploration_final_eps=0.2)
    rates: list[float] = []
    rule = model._random_probabilities

    def watched(epsilon: float, steps: np.ndarray) -> np.ndarray:
        rates.extend(rule(epsilon, steps))
        return rule(epsilon, steps)

    model._random_probabilities = watched
    model.learn(200)
    # At random until learning starts, as for every learned policy; then from 1 to 0.2 over half of the run
    assert set(rates[:100]) == {1.0}
    assert rates[-1] == pytest.approx(0.2)


def test_a_negative_weight_of_the_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="bandit_exploration must be a number of at least 0, not -2"):
        make(bandit_exploration=-2)
