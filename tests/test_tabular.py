"""Tabular learners: each update against numbers worked out by hand."""

from typing import Any

import numpy as np
import pytest

from sb3_caps.tabular import (
    OPSTL,
    PRQL,
    CAPSConfig,
    Experiment,
    Learner,
    OPSTLConfig,
    OptionCritic,
    OptionCriticConfig,
    PRQLConfig,
    QConfig,
    QLearning,
    Steps,
    TabularCAPS,
)
from sb3_caps.tabular.base import argmax, epsilon_greedy, hyperbolic
from sb3_caps.tabular.caps import sigmoid
from sb3_caps.tabular.option_critic import sample, softmax
from tests.small_grid import RIGHT, TASK

ONE = np.array([0])


def learn(learner: Learner, action: int, reward: float = 0.0, terminated: bool = False) -> None:
    """One step of run 0 from state 0 to state 1; the active option never ends, so that it can be looked at."""
    draws = np.full((1, learner.columns), 0.999999)
    step = Steps(ONE, ONE, np.array([action]), np.array([reward]), np.array([1]), np.array([terminated]), draws)
    learner.learn(step)


# CAPS


def caps(**changes: Any) -> TabularCAPS:
    """Three states, a source that goes right, and values of the five options in state 1."""
    config = CAPSConfig(sources=[np.full(3, RIGHT)], **changes)
    learner = TabularCAPS([config], 3)
    learner.values[1] = [0.4, 0.0, 0.0, 0.8, 0.2]
    learner.option[0] = 0
    return learner


def test_caps_updates_every_option_that_agrees() -> None:
    learner = caps()
    learn(learner, RIGHT)
    # Source: 0.5 · 0.95 · (0.5 · 0.4 + 0.5 · 0.8). Primitive "right": 0.5 · 0.95 · (0.5 · 0.2 + 0.5 · 0.8).
    np.testing.assert_allclose(learner.values[0], [0.285, 0.0, 0.0, 0.0, 0.2375])
    # The second time the old value counts half: 0.5 · 0.285 + 0.5 · 0.95 · U(source), in which β has moved a little.
    beta = 1 / (1 + np.exp(-0.02))
    learn(learner, RIGHT)
    assert learner.values[0, 0] == pytest.approx(0.1425 + 0.475 * ((1 - beta) * 0.4 + beta * 0.8))


def test_caps_without_concurrent_updates_changes_the_active_option_only() -> None:
    learner = caps(concurrent=False)
    learn(learner, RIGHT)
    np.testing.assert_allclose(learner.values[0], [0.285, 0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(("regularization", "expected"), [(0.0, 0.02), (0.1, 0.015), (0.8, -0.02)])
def test_caps_termination_by_hand(regularization: float, expected: float) -> None:
    learner = caps(regularization=regularization)
    learn(learner, RIGHT)
    # θ − 0.2 · β(1 − β) · (0.4 − 0.8 + ρ), for the active option in the new state alone.
    theta = np.zeros((3, 5))
    theta[1, 0] = expected
    np.testing.assert_allclose(learner.theta, theta, atol=1e-12)


def test_caps_termination_sees_the_values_after_their_update() -> None:
    learner = caps()
    draws = np.full((1, 3), 0.999999)
    # Blocked by a wall in state 1 while going left: its value falls to 0.5 · 0.8 + 0.5 · 0.95 · 0.8 = 0.78 first.
    learner.option[0] = 0
    learner.learn(Steps(ONE, np.array([1]), np.array([2]), np.zeros(1), np.array([1]), np.array([False]), draws))
    assert learner.values[1, 3] == pytest.approx(0.78)
    assert learner.theta[1, 0] == pytest.approx(0.2 * 0.25 * (0.78 - 0.4))


def test_caps_at_a_terminal_state() -> None:
    learner = caps()
    learn(learner, RIGHT, reward=1.0, terminated=True)
    np.testing.assert_allclose(learner.values[0], [0.5, 0.0, 0.0, 0.0, 0.5])
    np.testing.assert_array_equal(learner.theta, 0.0)


@pytest.mark.parametrize("termination", [0.0, 0.5, 1.0])
def test_caps_with_a_fixed_termination(termination: float) -> None:
    learner = caps(termination=termination)
    learn(learner, RIGHT)
    expected = 0.5 * 0.95 * ((1 - termination) * 0.4 + termination * 0.8)
    assert learner.values[0, 0] == pytest.approx(expected)
    np.testing.assert_allclose(learner.greedy().termination, termination)


def test_caps_start_of_terminations() -> None:
    learner = caps(initial_termination=(0.2, 0.9))
    np.testing.assert_allclose(learner.greedy().termination[0, 0], [0.2, 0.9, 0.9, 0.9, 0.9])


def test_caps_termination_goes_to_one_as_one_over_the_visits() -> None:
    # With values that stay, θ' = α_β β(1 − β) |A| for each visit, so that 2θ + 2 sinh θ = α_β |A| N after N visits,
    # and 1 − β is about 1 / (α_β |A| N) in the end.
    learner = caps(learning_rate=0.0, termination_learning_rate=2.0)
    for _ in range(3000):
        learn(learner, RIGHT)
    theta = learner.theta[1, 0]
    assert 2 * theta + 2 * np.sinh(theta) == pytest.approx(2.0 * 0.4 * 3000, rel=0.01)
    assert 1 - sigmoid(theta) == pytest.approx(1 / (2.0 * 0.4 * 3000), rel=0.02)


def test_caps_call_and_return() -> None:
    learner = caps(half_life=1e-9)
    learner.episodes[:] = 1
    draws = np.array([[0.0, 0.9, 0.0]])
    step = Steps(ONE, ONE, np.array([RIGHT]), np.zeros(1), np.array([1]), np.array([False]), draws)
    learner.learn(step)
    assert learner.option[0] == 3  # the source ended, and "left" has the highest value in state 1
    learner.option[0] = 0
    learner.learn(step._replace(draws=np.array([[0.99, 0.9, 0.0]])))
    assert learner.option[0] == 0


def test_caps_with_different_option_sets_in_one_batch() -> None:
    source = np.full(3, RIGHT)
    learner = TabularCAPS([CAPSConfig([source] * 2, primitives=False), CAPSConfig()], 3)
    draws = np.array([[0.5, 0.0, choice] for choice in (0.0, 0.999)])
    for choice in draws:
        learner.begin(np.array([0, 1]), np.array([0, 0]), np.tile(choice, (2, 1)))
        assert learner.option[0] < 2
        assert learner.option[1] < 4
    # An option that does not exist is never the best, even when all others are negative.
    learner.values[:] = -1.0
    learner.values[:3, 2:] = 5.0
    assert (learner.greedy().options[0] < 2).all()


def test_bad_configurations() -> None:
    with pytest.raises(ValueError, match="no option"):
        CAPSConfig(primitives=False)
    with pytest.raises(ValueError, match="initial_termination"):
        CAPSConfig(initial_termination=1.0)
    with pytest.raises(ValueError, match="termination must be from 0 to 1"):
        CAPSConfig(termination=1.5)
    with pytest.raises(ValueError, match="each of 3 states"):
        TabularCAPS([CAPSConfig([np.zeros(4, dtype=int)])], 3)
    with pytest.raises(ValueError, match="number of source policies"):
        PRQL([PRQLConfig()], 3)
    with pytest.raises(ValueError, match="at least one option"):
        OptionCriticConfig([])
    with pytest.raises(ValueError, match="temperature"):
        OptionCriticConfig([np.zeros((3, 4))], temperature=0.0)
    with pytest.raises(ValueError, match="give one of each"):
        Experiment(QLearning([QConfig()], 40), [TASK], [1, 2], 5)
    with pytest.raises(ValueError, match="episodes must be at least 1"):
        Experiment(QLearning([QConfig()], 40), [TASK], [1], 0)


# The baselines


def test_q_learning_by_hand() -> None:
    learner = QLearning([QConfig()], 3)
    learner.values[0, 2], learner.values[1, 1] = 0.2, 0.8
    learn(learner, 2)
    assert learner.values[0, 2] == pytest.approx(0.2 + 0.5 * (0.95 * 0.8 - 0.2))
    learn(learner, 2, reward=1.0, terminated=True)
    assert learner.values[0, 2] == pytest.approx(0.48 + 0.5 * (1.0 - 0.48))


def test_epsilon_schedule_and_choice() -> None:
    np.testing.assert_allclose(hyperbolic(np.array([800.0]), np.array([0, 800, 2400])), [1.0, 0.5, 0.25])
    np.testing.assert_array_equal(hyperbolic(np.array([np.inf]), np.array([0, 10**9])), 1.0)
    values = np.array([[0.1, 0.7, 0.7, 0.0]] * 4)
    epsilon = np.full(4, 0.3)
    explore, choice = np.array([0.2, 0.2, 0.4, 0.4]), np.array([0.1, 0.9, 0.4, 0.6])
    # Random among four, then greedy among the two that are equal.
    np.testing.assert_array_equal(epsilon_greedy(values, epsilon, explore, choice), [0, 3, 1, 2])
    np.testing.assert_array_equal(argmax(values[:2], np.array([0.0, 0.9999999])), [1, 2])


def test_ties_are_broken_at_random_or_by_order() -> None:
    values, explore, choice = np.array([[0.1, 0.7, 0.7, 0.7]] * 2), np.array([0.9, 0.2]), np.array([0.99, 0.99])
    first = np.array([False, False])
    # The greedy choice is the first of the equal ones; exploration is as random as before.
    np.testing.assert_array_equal(epsilon_greedy(values, np.full(2, 0.3), explore, choice, first), [1, 3])
    np.testing.assert_array_equal(epsilon_greedy(values, np.full(2, 0.3), explore, choice), [3, 3])


def test_prql_by_hand() -> None:
    learner = PRQL([PRQLConfig(sources=[np.full(3, RIGHT)])], 3)
    learner.values[0] = [0.0, 0.5, 0.0, 0.0]
    for value in (0.5, 0.3):
        learner.end(ONE, np.array([value]))
    np.testing.assert_allclose(learner.gains, [[0.4, 0.0]])
    # After 100 episodes τ = 5: the source is drawn with probability e² / (e² + 1) = 0.881.
    learner.episodes[0] = 100
    for draw, chosen in ((0.88, 0), (0.882, 1)):
        learner.begin(ONE, ONE, np.array([[0.0, 0.0, 0.0, 0.0, draw]]))
        assert learner.chosen[0] == chosen

    # The new policy, chosen last, is greedy whatever is drawn.
    assert learner.act(ONE, ONE, np.zeros((1, 5)))[0] == 1
    learner.begin(ONE, ONE, np.zeros((1, 5)))
    actions, psi = [], []
    for draws in ([0.99, 0.0, 0.0], [0.96, 0.94, 0.99], [0.96, 0.96, 0.0]):
        psi.append(float(learner.psi[0]))
        actions.append(int(learner.act(ONE, ONE, np.array([[*draws, 0.0, 0.0]]))[0]))
    np.testing.assert_allclose(psi, [1.0, 0.95, 0.9025])
    # ψ = 1: the source. 0.96 is above ψ: at random (the last action), and then greedily.
    assert actions == [RIGHT, 3, 1]


def test_ops_tl_by_hand() -> None:
    sources = [np.full(3, RIGHT), np.full(3, 0)]
    for bonus, chosen in ((0.1, 0), (1.0, 1)):
        learner = OPSTL([OPSTLConfig(sources=sources, bonus=bonus, reuse_half_life=3.0)], 3)
        learner.begin(ONE, ONE, np.zeros((1, 4)))
        for arm, value in ((0, 0.6), (1, 0.4), (0, 0.4)):
            learner.chosen[0] = arm
            learner.end(ONE, np.array([value]))
        np.testing.assert_allclose(learner.gains, [[0.5, 0.4]])
        # 0.5 + b √(2 ln 3 / 2) = 0.5 + 1.048 b against 0.4 + b √(2 ln 3 / 1) = 0.4 + 1.482 b.
        learner.begin(ONE, ONE, np.zeros((1, 4)))
        assert learner.chosen[0] == chosen
    # In episode 3 with K = 3 the source is followed with probability one half, then 0.475.
    assert learner.psi[0] == 0.5
    assert learner.act(ONE, ONE, np.array([[0.49, 0.9, 0.0, 0.0]]))[0] == 0
    assert learner.psi[0] == pytest.approx(0.475)
    learner.values[0, 2] = 1.0
    assert learner.act(ONE, ONE, np.array([[0.48, 0.999, 0.0, 0.0]]))[0] == 2


def test_ops_tl_plays_every_arm_first() -> None:
    learner = OPSTL([OPSTLConfig(sources=[np.full(3, action) for action in range(4)])], 3)
    played = []
    for _ in range(4):
        learner.begin(ONE, ONE, np.full((1, 4), 0.5))
        played.append(int(learner.chosen[0]))
        learner.end(ONE, np.array([1.0]))
    assert sorted(played) == [0, 1, 2, 3]


def test_option_critic_by_hand() -> None:
    learner = OptionCritic([OptionCriticConfig([np.zeros((3, 4))] * 2)], 3)
    learner.values[0, 0] = 0.2
    learn(learner, 1, reward=1.0, terminated=True)
    assert learner.values[0, 0] == pytest.approx(0.6)
    assert learner.action_values[0, 0, 1] == pytest.approx(0.5)
    # Advantage −0.1, uniform policy: every preference gains 0.005 · 0.25, and the action taken loses 0.005.
    np.testing.assert_allclose(learner.preferences[0, 0], [0.00125, -0.00375, 0.00125, 0.00125])

    learner.values[1] = [0.4, 0.8]
    learn(learner, 2)
    # β = 0.5 at first: 0.95 · (0.5 · 0.4 + 0.5 · 0.8) = 0.57; θ + 0.05 · 0.25 · 0.4.
    assert learner.values[0, 0] == pytest.approx(0.5 * 0.6 + 0.5 * 0.57)
    assert learner.theta[1, 0] == pytest.approx(0.005)


def test_the_papers_temperature_neither_overflows_nor_explores() -> None:
    probabilities = softmax(np.array([[1.0, 0.9999, 0.0], [0.3, 0.3, 0.0]]), np.full(2, 1e-5))
    np.testing.assert_allclose(probabilities, [[1.0, np.exp(-10.0), 0.0], [0.5, 0.5, 0.0]], rtol=1e-4, atol=1e-12)
    np.testing.assert_array_equal(sample(probabilities, np.array([0.9, 0.6])), [0, 1])


def test_option_critic_explores_only_when_asked() -> None:
    preferences = np.zeros((3, 4))
    preferences[:, 1] = 1.0
    silent, exploring = (OptionCritic([OptionCriticConfig([preferences], half_life=k)], 3) for k in (0.0, 800.0))
    draws = np.array([[0.99, 0.5, 0.0, 0.0]])
    assert silent.act(ONE, ONE, draws)[0] == 1
    assert exploring.act(ONE, ONE, draws)[0] == 3
