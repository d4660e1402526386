"""Ctrl-C at any moment in a source policy: what is stored afterwards is what happened."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_caps import CAPS, CUP, IBRL, OPSTL, PRQL, ContinuousCAPS, JumpStart, QDagger
from tests.hand_walk import RIGHT, Stroll, Walk, go_left, stroll_left
from tests.soak import times

CONTINUOUS: list[type[Any]] = [ContinuousCAPS, CUP, IBRL]
ALGORITHMS: list[type[Any]] = [CAPS, PRQL, OPSTL, JumpStart, QDagger, *CONTINUOUS]
N_ENVS = 2


class Interrupted:
    """
    A source that goes to the right until the middle and then back, where somebody presses Ctrl-C now and then.

    :param calls: in which of its calls
    """

    def __init__(self, calls: set[int]) -> None:
        self.calls, self.n_calls, self.armed = calls, 0, False

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        self.n_calls += 1
        if self.n_calls in self.calls and self.armed:
            raise KeyboardInterrupt
        return (observations.argmax(axis=1) < 2).astype(np.int64)


class InterruptedStroll(Interrupted):
    """The same with continuous actions."""

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return 2.0 * super().__call__(observations)[:, None] - 1.0


def check(model: Any) -> None:
    """Every row of the replay buffer is a step of the world, and sources are where they were asked."""
    buffer, size = model.replay_buffer, model.replay_buffer.size()
    if size == 0:
        return
    rows = [np.asarray(each)[:size] for each in (buffer.observations, buffer.next_observations, buffer.actions)]
    places, following = (each.reshape(size, N_ENVS, -1).argmax(axis=-1) for each in rows[:2])
    actions = rows[2].reshape(size, N_ENVS)
    continuous = isinstance(model, tuple(CONTINUOUS))
    if continuous:
        actions = (actions > 0).astype(np.int64)
    np.testing.assert_array_equal(following, np.where(actions == RIGHT, places + 1, np.maximum(places - 1, 0)))
    np.testing.assert_array_equal(np.asarray(buffer.rewards)[:size], following == 4)
    # One row goes on where the one before ended, or an episode begins
    goes_on = following[:-1] == places[1:]
    assert (goes_on | (places[1:] == 0)).all()
    if continuous:
        steps, envs = np.divmod(np.arange(size * N_ENVS), N_ENVS)
        answers, after = buffer.answers.before[steps, envs, 0, 0], buffer.answers.after(steps, envs)[:, 0, 0]
        np.testing.assert_array_equal(answers > 0, places.ravel() < 2)
        went_on = following.ravel() != 4
        np.testing.assert_array_equal(after[went_on] > 0, following.ravel()[went_on] < 2)
    if isinstance(model, CAPS):
        np.testing.assert_array_equal(buffer.option_actions[:size, :, 0], places < 2)
        # After a terminal state nothing follows
        after, ended = buffer.next_option_actions[:size, :, 0], following == 4
        np.testing.assert_array_equal(after[~ended], (following < 2)[~ended])
        acted = buffer.options[:size] == 0
        np.testing.assert_array_equal(actions[acted], (places < 2)[acted])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=times(5, 50), deadline=None)
@given(calls=st.sets(st.integers(1, 120), min_size=1, max_size=8), reset=st.booleans())
@example(calls={1, 2, 3, 30, 31, 32, 33}, reset=False)
@example(calls={1, 2, 3, 30, 31, 32, 33}, reset=True)
def test_an_interruption_in_any_call_of_a_source(algorithm: type[Any], calls: set[int], reset: bool) -> None:
    arguments: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "learning_starts": 10, "batch_size": 8}
    if algorithm in (PRQL, OPSTL):
        arguments["reuse_decay"] = 1.0
    continuous = algorithm in CONTINUOUS
    env = DummyVecEnv([lambda: (Stroll if continuous else Walk)(horizon=7)] * N_ENVS)
    source = (InterruptedStroll if continuous else Interrupted)(calls)
    sources = [source, stroll_left if continuous else go_left]
    model = algorithm("MlpPolicy", env, source_policies=sources, buffer_size=2000, **arguments)
    # It was tried when the model was made, with none of these calls
    source.n_calls, source.armed, n_interrupted = 0, True, 0
    while source.n_calls < max(calls):
        size = model.replay_buffer.size()
        try:
            model.learn(60, reset_num_timesteps=reset)
        except KeyboardInterrupt:
            n_interrupted += 1
        assert model.replay_buffer.size() >= size
        check(model)
    assert n_interrupted == len(calls)
    # The model is whole: it learns and acts
    model.learn(40, reset_num_timesteps=False)
    check(model)
    assert len(model.predict(np.eye(5, dtype=np.float32), deterministic=True)[0]) == 5


class Faulty(gym.RewardWrapper[Any, Any]):
    """One reward is no number."""

    n_steps = 0

    def reward(self, reward: Any) -> float:
        self.n_steps += 1
        return float("nan") if self.n_steps == 16 else float(reward)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_after_a_step_that_was_refused_the_environments_are_reset(algorithm: type[Any]) -> None:
    continuous = algorithm in CONTINUOUS
    env = DummyVecEnv([lambda: Faulty((Stroll if continuous else Walk)(horizon=7))] * N_ENVS)
    sources = [(InterruptedStroll if continuous else Interrupted)(set()), stroll_left if continuous else go_left]
    arguments: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "learning_starts": 10, "batch_size": 8}
    model = algorithm("MlpPolicy", env, source_policies=sources, buffer_size=2000, **arguments)
    with pytest.raises(ValueError, match="reward of environment 0 is nan"):
        model.learn(200)
    assert model.replay_buffer.size() == 15
    model.learn(60, reset_num_timesteps=False)
    check(model)
