"""QDagger: its loss, the weight of it, and the phase in which the teacher acts. The rest is in test_jump_start.py."""

import math
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from torch.nn import functional as F

from sb3_caps import QDagger
from sb3_caps.replay.draws import drawing_from
from tests.hand_walk import LEFT, RIGHT, Walk, go_left, go_right
from tests.test_jump_start import NO_EXPLORATION, make, tried
from tests.test_prql import SMALL, Actions, means, prefer


def taught(returns: tuple[float, float, float] = (0.0, 1.0, 0.2), **kwargs: Any) -> Any:
    """A student that knows its teacher, the second source."""
    return tried(make(QDagger, **kwargs), list(returns))


def judge(model: Any, *returns: float) -> None:
    """Let the student have had episodes with these returns."""
    for gain in returns:
        model.selector.recent.add(gain)


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1e-3, 5.0), (1e4, -1e6)])
def test_the_weight_falls_from_1_to_0_between_the_random_policy_and_the_teacher(scale: float, shift: float) -> None:
    model = taught(tuple(scale * gain + shift for gain in (-70.0, -10.0, -50.0)), teacher_fraction=0.0)  # type: ignore[arg-type]
    weights = []
    for gain in (-50, -50, -50, -20, -20, -20, -5, -35, -95):
        judge(model, scale * gain + shift)
        weights.append(model.distillation_weight)
    # 1 until three episodes have ended; then the mean of the latest three, as a share of the way from -10 to -50:
    # -50, -40, -30, -20, -15, -20 and -45
    np.testing.assert_allclose(weights, [1, 1, 1, 0.75, 0.5, 0.25, 0.125, 0.25, 0.875], atol=1e-6)
    judge(model, *[scale * -95 + shift] * 3)
    assert model.distillation_weight == 1
    judge(model, *[scale * 7 + shift] * 3)
    assert model.distillation_weight == 0


def test_nothing_is_distilled_before_the_teacher_is_known_or_when_it_is_no_better_than_chance() -> None:
    assert make(QDagger).distillation_weight == 0
    assert taught((0.0, 0.5, 0.5)).distillation_weight == 0
    assert taught((0.0, 0.5, 0.7)).distillation_weight == 0
    assert taught((0.0, 0.5, 0.4)).distillation_weight == 1


def test_the_loss_by_hand() -> None:
    q_values = th.tensor([[0.0, 0.04 * math.log(3)], [0.0, 0.0]], requires_grad=True)
    actions = th.tensor([1, 0])
    # T = 0.05 * (1 - 0.2) = 0.04. Probabilities of the teacher's actions are 3/4 and 1/2: their logarithms are
    # -0.287682 and -0.693147, with a mean of -0.490415
    model = taught(temperature=0.05)
    assert model.value_temperature == pytest.approx(0.04)
    loss = model.distillation_loss(q_values, actions)
    assert loss.item() == pytest.approx(0.04**2 * 0.490415, rel=1e-5)
    # The gradient is T (probability - 1 for the teacher's action), for each of two samples
    loss.backward()
    assert q_values.grad is not None
    np.testing.assert_allclose(q_values.grad, 0.02 * np.array([[0.25, -0.25], [-0.5, 0.5]]), rtol=1e-5)

    # Rewards a thousand times larger: T = 40, and the gradient is that of Huber's loss where it is linear
    model = taught((0.0, 1000.0, 200.0), temperature=0.05)
    large = th.tensor([[0.0, 40 * math.log(3)], [0.0, 0.0]], requires_grad=True)
    loss = model.distillation_loss(large, actions)
    assert loss.item() == pytest.approx(40 * 0.490415, rel=1e-5)
    loss.backward()
    assert large.grad is not None
    np.testing.assert_allclose(large.grad, 0.5 * np.array([[0.25, -0.25], [-0.5, 0.5]]), rtol=1e-5)


def test_training_minimises_dqns_loss_and_the_weighted_distillation_loss() -> None:
    model = taught(teacher_fraction=0.0, learning_starts=10, gradient_steps=0).learn(40)
    judge(model, 0.4, 0.4, 0.4)
    # (1 - 0.4) / (1 - 0.2)
    assert model.distillation_weight == pytest.approx(0.75)
    with drawing_from(deepcopy(model.rng)):
        data = model.replay_buffer.sample(16)
    q_values = model.q_net(data.observations)
    with th.no_grad():
        following = model.q_net_target(data.next_observations).amax(1)
        targets = data.rewards[:, 0] + 0.99 * (1 - data.dones[:, 0]) * following
    expected = F.smooth_l1_loss(q_values[th.arange(16), data.actions[:, 0]], targets)
    # T = 0.01 * 0.8; the teacher always goes to the right
    probabilities = (q_values / 0.008).softmax(dim=1)[:, RIGHT]
    expected = expected - 0.75 * 0.008**2 * probabilities.log().mean()
    gradients = th.autograd.grad(expected, list(model.q_net.parameters()))

    model.train(gradient_steps=1, batch_size=16)
    for parameter, gradient in zip(model.q_net.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        np.testing.assert_allclose(parameter.grad, gradient, rtol=1e-4, atol=1e-7)
    assert gradients[-1].abs().max() > 0


def test_the_teacher_acts_first_and_the_student_learns_from_it() -> None:
    model = taught(teacher_fraction=0.5, learning_starts=0, gradient_steps=0, **NO_EXPLORATION)
    prefer(model, LEFT)
    taken = Actions()
    model.learn(200, callback=taken)
    actions = np.concatenate(taken.actions)
    # An episode of four steps that has started with the teacher also ends with it
    assert actions[:100].all()
    assert not actions[104:].any()

    model = taught(teacher_fraction=1.0, learning_rate=1e-2, train_freq=1, learning_starts=8, **NO_EXPLORATION)
    prefer(model, LEFT)
    model.learn(200, log_interval=None)
    assert model.distillation_weight == 1
    assert model.predict(np.eye(5, dtype=np.float32), deterministic=True)[0].all()
    assert model._use.steps[RIGHT] == 200


def test_random_steps_replace_some_of_the_teachers() -> None:
    rates: dict[str, Any] = {"exploration_initial_eps": 0.4, "exploration_final_eps": 0.4}
    model = taught(n_envs=20, teacher_fraction=1.0, gradient_steps=0, **rates)
    prefer(model, LEFT)
    taken = Actions()
    model.learn(20_000, callback=taken)
    # Half of the random steps go to the right, too
    assert np.mean(taken.actions[1:]) == pytest.approx(0.8, abs=0.02)


def test_the_temperature_is_in_the_rewards_that_the_student_learns_from() -> None:
    env = VecNormalize(make_vec_env(Walk, 1))
    model: Any = QDagger("MlpPolicy", env, source_policies=[go_left, go_right], **SMALL)
    tried(model, [0.0, 1.0, 0.2]).learn(50)
    env.ret_rms.var = np.array(0.25)
    # Rewards are divided by the root of 0.25
    assert model.value_temperature == pytest.approx(0.008 / 0.5, rel=1e-4)
    env.norm_reward = False
    assert model.value_temperature == pytest.approx(0.008)


class Numbers(gym.Env[Any, np.int64]):
    """
    Ten steps; 1 for the action that a source can read from the observation.

    :param space: what is observed
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.observation = self.observation_space.sample()
        return self.observation, {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == reads(_batch(self.observation))[0])
        self.observation = self.observation_space.sample()
        self.steps += 1
        return self.observation, reward, self.steps == 10, False, {}


def _batch(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {key: np.asarray(value)[None] for key, value in observation.items()}
    return np.asarray(observation)[None]


def reads(observations: Any) -> np.ndarray:
    """The first number of each observation is odd, or its first pixel in the layout of the environment is bright."""
    if isinstance(observations, dict):
        observations = observations["image"]
    if observations.ndim == 1:
        return observations % 2
    assert observations.shape[1:] == (36, 40, 3)
    return (observations[:, 0, 39, 0] > 127).astype(np.int64)


IMAGE = spaces.Box(0, 255, (36, 40, 3), np.uint8)


@pytest.mark.parametrize(
    ("policy", "space"),
    [
        ("MlpPolicy", spaces.Discrete(6)),
        ("CnnPolicy", IMAGE),
        ("MultiInputPolicy", spaces.Dict({"image": IMAGE, "number": spaces.Discrete(3)})),
    ],
)
def test_the_teacher_is_asked_about_what_the_environment_emits(policy: str, space: spaces.Space[Any]) -> None:
    env = make_vec_env(lambda: Numbers(space), 2)
    arguments: dict[str, Any] = {"buffer_size": 300, "seed": 0, "device": "cpu", "gradient_steps": 0}
    model = QDagger(policy, env, source_policies=[reads], **arguments).learn(140)
    assert model.selector.guide == model.selector.sources[0]
    assert means(model)[0] == 10
    assert model.replay_buffer is not None
    data = model.replay_buffer.sample(200)
    # Where the teacher acted, and these are most of the steps, it took the action that it is asked for
    rewarded = data.rewards[:, 0] == 1
    agreeing = model._teacher_actions(data.observations) == data.actions[:, 0]
    assert th.equal(agreeing, rewarded)
    model.train(gradient_steps=2, batch_size=8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"teacher_fraction": 1.1}, "teacher_fraction must be a number from 0 to 1, not 1.1"),
        ({"teacher_fraction": float("nan")}, "teacher_fraction must be a number, not nan"),
        ({"temperature": 0}, "temperature must be above 0, not 0"),
        ({"temperature": float("nan")}, "temperature must be a number, not nan"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(QDagger, **arguments)
