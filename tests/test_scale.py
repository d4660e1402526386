"""The unit of returns: what it is, that values stay what they are in it, and that nothing else depends on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

import sb3_caps  # noqa: F401, registers the environments
from sb3_caps import CAPS
from sb3_caps.envs.grid import optimal_policy
from sb3_caps.reuse.scale import ReturnScale
from tests.toy_world import LENGTH, Corridor, go_right, right_then_stay


def test_scale_by_hand() -> None:
    scale = ReturnScale(gamma=0.5, n_envs=2)
    nothing = np.array([False, False])
    rewards = np.array([0.0, 3.0], dtype=np.float32)
    # As long as nothing was paid there is no unit
    assert scale.normalize(rewards).tolist() == [0.0, 3.0]
    assert scale.update(np.zeros(2), nothing) == 1.0
    assert scale.value == 0.0
    # The first payment makes it, and values that were 0 stay
    assert scale.update(np.array([1.0, 0.0]), nothing) == 1.0
    assert scale.value == 1.0
    # 0.5 * 1 + 1 = 1.5 and -4: the largest counts, whatever its sign
    assert scale.update(np.array([1.0, -4.0]), np.array([True, False])) == 0.25
    assert scale.value == 4.0
    # The first episode ended, so its sum starts again: 1, and 0.5 * -4 - 2.5 = -4.5
    assert scale.update(np.array([1.0, -2.5]), nothing) == pytest.approx(4 / 4.5)
    assert scale.sums.tolist() == [1.0, -4.5]
    # It never falls
    assert scale.update(np.array([0.0, 0.0]), np.array([True, True])) == 1.0
    assert scale.value == 4.5
    assert scale.sums.tolist() == [0.0, 0.0]
    np.testing.assert_allclose(scale.normalize(rewards), [0.0, 3.0 / 4.5], rtol=1e-6)


def all_values(model: CAPS) -> tuple[th.Tensor, th.Tensor]:
    """What each of the networks says of the options in every cell."""
    cells = th.eye(LENGTH)
    sources = th.as_tensor(np.stack([go_right(cells.numpy()), right_then_stay(cells.numpy())], axis=1))
    with th.no_grad():
        found = [model.policy.evaluate(cells, sources, network) for network in model.policy.networks()]
    return th.stack([each.values for each in found]), th.stack([each.terminations for each in found])


def test_values_stay_the_same_in_the_unit_of_the_task() -> None:
    model = CAPS(
        "MlpPolicy", Corridor(), source_policies=[go_right, right_then_stay], learning_starts=20, safe=False, seed=0
    )
    model.learn(200)
    scale = model._scale
    # The corridor pays 1 at the end of an episode and nothing before
    model._tell(np.array([1.0], dtype=np.float32), np.array([True]))
    assert scale.value == 1.0
    th.manual_seed(0)
    with th.no_grad():  # networks that differ
        for network in model.policy.networks():
            for parameter in network.parameters():
                parameter.add_(0.1 * th.randn_like(parameter))
    assert len(model.policy.networks()) == 5
    values, beta = all_values(model)
    for reward in (7.0, -30.0, 2.0):
        model._tell(np.array([reward], dtype=np.float32), np.array([True]))
        now, beta_now = all_values(model)
        th.testing.assert_close(now * scale.value, values, rtol=1e-5, atol=1e-5)
        assert th.equal(beta_now, beta)
    assert scale.value == 30.0
    assert (now.abs() < values.abs()).all()


@pytest.mark.parametrize("how", ["set", "load", "export"])
@pytest.mark.parametrize("first", [False, True])
def test_values_stay_the_same_where_normalization_is_switched(first: bool, how: str, tmp_path: Path) -> None:
    """In the unit of the task, whether it is switched on or off. Nothing is learned here."""
    sources = [DQN("MlpPolicy", Corridor(), buffer_size=1)] if how == "export" else [go_right]
    arguments: dict[str, Any] = {"learning_starts": 1000, "buffer_size": 2000, "seed": 0, "normalize_returns": first}
    model = CAPS("MlpPolicy", Corridor(), source_policies=sources, **arguments).learn(40)
    model._tell(np.array([-30.0], dtype=np.float32), np.array([True]))
    cells, taken = th.eye(LENGTH), th.zeros(LENGTH, 1, dtype=th.long)

    def in_rewards(unit: float) -> list[th.Tensor]:
        with th.no_grad():
            values = [model.policy.evaluate(cells, taken, network).values for network in model.policy.networks()[:1]]
            return [unit * each for each in (*values, model.policy.actor.value_net(cells))]

    before = in_rewards(30.0 if first else 1.0)
    for switched in (not first, first):
        if how == "set":
            model.normalize_returns = switched
        else:
            file = tmp_path / ("model.npz" if how == "export" else "model.zip")
            if how == "export":
                model.export(file)
            else:
                model.save(file)
            model = CAPS.load(file, env=Corridor(), normalize_returns=switched)
        model.learn(5, reset_num_timesteps=False)
        assert model._scale.value == 30.0
        for old, now in zip(before, in_rewards(30.0 if switched else 1.0), strict=True):
            th.testing.assert_close(now, old, rtol=1e-5, atol=1e-5)


def test_values_of_the_actor_stay_the_same_in_the_unit_of_the_task() -> None:
    model = CAPS("MlpPolicy", Corridor(), source_policies=[go_right], learning_starts=20, seed=0).learn(200)
    scale, actors = model._scale, [model.policy.actor, model.policy.actor_peak]

    def outputs() -> list[list[th.Tensor]]:
        """Values and preferences of both in every cell."""
        with th.no_grad():
            both = [(actor.value_net(th.eye(LENGTH)), actor.policy_net(th.eye(LENGTH))) for actor in actors if actor]
        return [list(each) for each in zip(*both, strict=True)]

    values, preferences = outputs()
    before = scale.value
    assert before == 1.0
    model._tell(np.array([-30.0], dtype=np.float32), np.array([True]))
    assert scale.value == 30.0
    values_now, preferences_now = outputs()
    assert len(values) == 2
    for old, now in zip(values, values_now, strict=True):
        th.testing.assert_close(now * scale.value, old, rtol=1e-5, atol=1e-5)
    for old, now in zip(preferences, preferences_now, strict=True):
        assert th.equal(old, now)


def test_a_run_that_begins_anew_begins_new_sums() -> None:
    scale = ReturnScale(gamma=1.0, n_envs=1)
    scale.update(np.array([3.0]), np.array([False]))
    scale.reset(2)
    scale.update(np.array([1.0, 2.0]), np.array([False, False]))
    assert (scale.value, scale.sums.tolist()) == (3.0, [1.0, 2.0])


def test_without_normalization_nothing_is_rescaled() -> None:
    model = CAPS(
        "MlpPolicy",
        Corridor(),
        source_policies=[go_right, right_then_stay],
        learning_starts=20,
        normalize_returns=False,
        safe=False,
    )
    model.learn(40)
    values, _ = all_values(model)
    model._tell(np.array([100.0], dtype=np.float32), np.array([True]))
    assert th.equal(all_values(model)[0], values)
    model.replay_buffer.rewards[:] = 5.0
    data = model._sample(32)
    assert (data.rewards == 5.0).all()
    _, targets = model._estimates_and_targets(data)
    data = data._replace(rewards=data.rewards + 10)
    # A reward counts as it is
    _, higher = model._estimates_and_targets(data)
    last = data.mask.sum(dim=0) - 1
    columns = th.arange(len(last))
    th.testing.assert_close(higher[last, columns], targets[last, columns] + 10)


class Hills(Corridor):
    """Every step pays or costs something, no round number, and may lead anywhere: it matters what is done where."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(np.sin(2.0 * self.position + 2.0 * int(action)) + 0.1 * self.np_random.normal())
        observation, _, done, truncated, info = super().step(action)
        if not done and self.np_random.random() < 0.5:
            self.position = int(self.np_random.integers(LENGTH - 1))
            observation = self.observe()
        return observation, reward, done, truncated, info


def balance(observations: np.ndarray) -> np.ndarray:
    """Push the cart to where the pole falls."""
    return (observations[:, 2] + 0.5 * observations[:, 3] > 0).astype(np.int64)


# Where rewards are rare, a source that finds them: a run without any says nothing
WORLDS: dict[str, tuple[Callable[[], gym.Env], Callable[[], Any]]] = {
    "sparse": (Corridor, lambda: go_right),
    "dense": (Hills, lambda: right_then_stay),
    "CartPole": (lambda: gym.make("CartPole-v1"), lambda: balance),
    "grid": (lambda: gym.make("sb3_caps/GridTarget-v0"), lambda: optimal_policy("rooms", "g")),
}
N_STEPS = 1000


def run(world: str, factor: float) -> CAPS:
    make, source = WORLDS[world]
    env = make_vec_env(lambda: gym.wrappers.TransformReward(make(), lambda reward: factor * float(reward)), seed=2)
    model = CAPS("MlpPolicy", env, source_policies=[source()], buffer_size=N_STEPS, seed=2)
    return model.learn(N_STEPS)


@pytest.mark.parametrize("world", WORLDS)
def test_the_same_run_whatever_the_scale_of_the_rewards(world: str) -> None:
    """Powers of two change no digit of a number, so that runs are the same to the last bit."""
    plain = run(world, 1.0)
    assert plain._n_updates == (N_STEPS - 100) // 2
    assert plain._scale.value > 0
    assert np.count_nonzero(plain.replay_buffer.rewards) >= 5
    seen = np.asarray(plain.replay_buffer.observations).reshape(N_STEPS, *(plain.observation_space.shape or ()))
    for factor in (1 / 64, 64.0):
        scaled = run(world, factor)
        np.testing.assert_array_equal(scaled.replay_buffer.rewards, factor * plain.replay_buffer.rewards)
        np.testing.assert_array_equal(scaled.replay_buffer.actions, plain.replay_buffer.actions)
        np.testing.assert_array_equal(scaled.replay_buffer.options, plain.replay_buffer.options)
        assert scaled._scale.value == factor * plain._scale.value
        for key, value in plain.policy.state_dict().items():
            assert th.equal(scaled.policy.state_dict()[key], value), key
        expected, _ = plain.predict(seen, deterministic=True)
        np.testing.assert_array_equal(scaled.predict(seen, deterministic=True)[0], expected)
