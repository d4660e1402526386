"""Sources see what the environment emits, whatever wrappers made of it; their actions fit into the replay buffer."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from sb3_caps import CAPS, as_source
from sb3_caps.replay.buffers import OptionReplayBuffer
from sb3_caps.sources import ObservationNormalizer, unwrapped
from tests.toy_world import LENGTH, RIGHT, Corridor

STARTS = np.ones(4, dtype=bool)
pytestmark = pytest.mark.filterwarnings("ignore:The environment is already wrapped with a `Monitor`")


class Seen:
    """A source that remembers what it was shown."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, observations: Any) -> np.ndarray:
        self.seen.append(observations)
        return np.full(len(observations), RIGHT)


def plain(kind: str = "box") -> VecEnv:
    return make_vec_env(lambda: Corridor(kind), n_envs=2, seed=0)


def normalized(env: VecEnv, scale: float = 1.0, **arguments: Any) -> VecNormalize:
    """With statistics that do not change and clip nothing."""
    found = VecNormalize(env, training=False, norm_reward=False, clip_obs=1e6, **arguments)
    moments: Any = found.obs_rms
    moments.mean, moments.var = np.linspace(0, 1, LENGTH) * scale, np.linspace(1, 3, LENGTH) ** 2 * scale
    return found


LAYERS: dict[str, Callable[[], VecEnv]] = {
    "two": lambda: normalized(normalized(plain(), 2.0)),
    "two, and what changes nothing": lambda: VecMonitor(normalized(VecCheckNan(VecMonitor(normalized(plain(), 2.0))))),
    "one under a monitor": lambda: VecMonitor(normalized(plain())),
    "one over frames": lambda: normalized_frames(VecFrameStack(plain(), 2)),
}


def normalized_frames(env: VecEnv) -> VecNormalize:
    found = VecNormalize(env, training=False, norm_reward=False)
    moments: Any = found.obs_rms
    moments.mean, moments.var = np.full(2 * LENGTH, 0.3), np.full(2 * LENGTH, 2.0)
    return found


@pytest.mark.parametrize("layers", list(LAYERS))
def test_normalisations_are_undone_one_after_the_other(layers: str) -> None:
    source, env = Seen(), LAYERS[layers]()
    model = CAPS("MlpPolicy", env, source_policies=[source], seed=0, learning_starts=10)
    model.learn(80)
    emitted = 2 * LENGTH if "frames" in layers else LENGTH
    for shown in source.seen:
        assert shown.shape[1] == emitted
        np.testing.assert_allclose(shown, np.rint(shown), atol=1e-5)
        # Each frame is the place where the agent is, and before an episode none
        assert set(np.rint(shown).sum(axis=1)) <= {1.0, emitted / LENGTH}
    emits, layers_over = unwrapped(env)
    observations = np.eye(emitted, dtype=np.float32)[:4]
    seen_by_learner: Any = observations
    for layer in reversed(layers_over):
        seen_by_learner = layer.normalize_obs(seen_by_learner)
    model.predict(seen_by_learner)
    np.testing.assert_allclose(source.seen[-1], observations, atol=1e-5)
    assert source.seen[-1].dtype == emits.observation_space.dtype


def test_images_keep_their_layout_under_a_monitor() -> None:
    for env in (VecMonitor(VecTransposeImage(plain("image"))), VecCheckNan(VecMonitor(plain("image")))):
        source = Seen()
        CAPS("CnnPolicy", env, source_policies=[source], seed=0, buffer_size=100).learn(4)
        assert {shown.shape[1:] for shown in source.seen} == {(36, 36, 2)}


def test_stacked_frames_are_what_the_environment_emits() -> None:
    source = Seen()
    env = VecMonitor(VecTransposeImage(VecFrameStack(plain("image"), 3)))
    CAPS("CnnPolicy", env, source_policies=[source], seed=0, buffer_size=100).learn(4)
    assert {shown.shape[1:] for shown in source.seen} == {(36, 36, 6)}


class Counter(gym.Env[np.ndarray, int]):
    """Emits whole numbers."""

    observation_space = spaces.Box(0, 50, (2,), np.int16)
    action_space: Any = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self._seen(), 1.0, False, self.time == 20, {}

    def _seen(self) -> np.ndarray:
        return np.array([self.time, 50 - self.time], dtype=np.int16)


def test_whole_numbers_stay_whole() -> None:
    source = Seen()
    env = VecNormalize(make_vec_env(Counter))
    model = CAPS("MlpPolicy", env, source_policies=[source], seed=0)
    model.learn(50)
    often_seen = np.array([[3, 47], [9, 41]], dtype=np.int16)
    model.predict(env.normalize_obs(often_seen))
    assert source.seen[-1].dtype == np.int16
    np.testing.assert_array_equal(source.seen[-1], often_seen)


def test_a_model_trained_under_two_normalisations_acts_as_it_did() -> None:
    env = normalized(normalized(plain(), 2.0))
    model = DQN("MlpPolicy", env, seed=0, buffer_size=100)
    observations = np.eye(LENGTH, dtype=np.float32)[:4]
    inner: Any = env.venv
    expected, _ = model.predict(env.normalize_obs(inner.normalize_obs(observations)), deterministic=True)
    source = as_source(model)
    for each in (source, pickle.loads(pickle.dumps(source)), copy.deepcopy(source)):
        np.testing.assert_array_equal(each.actions(observations, None, STARTS)[0], expected)
    # It does not follow statistics that go on
    moments: Any = env.obs_rms
    moments.mean += 100.0
    np.testing.assert_array_equal(source.actions(observations, None, STARTS)[0], expected)


def test_a_normalizer_follows_its_environments_and_copies_do_not() -> None:
    env = normalized(normalized(plain(), 2.0))
    normalizer: Any = ObservationNormalizer(env)
    observations = np.eye(LENGTH, dtype=np.float32)
    before: Any = normalizer.normalize(observations)
    copied: Any = pickle.loads(pickle.dumps(normalizer))
    np.testing.assert_allclose(copied.normalize(observations), before)
    np.testing.assert_allclose(copied.unnormalize(before), observations, atol=1e-5)
    inner: Any = env.venv
    inner.obs_rms.mean = inner.obs_rms.mean + 5.0
    assert not np.allclose(normalizer.normalize(observations), before)
    np.testing.assert_allclose(copied.normalize(observations), before)


@pytest.mark.parametrize(
    ("n_actions", "dtype"),
    [(1, "int8"), (128, "int8"), (129, "int16"), (32_768, "int16"), (32_769, "int32"), (70_000, "int32")],
)
def test_actions_of_sources_are_stored_in_the_smallest_type_that_holds_them(n_actions: int, dtype: str) -> None:
    space = spaces.Box(0, 1, (1,), np.float32)
    buffer = OptionReplayBuffer(4, space, spaces.Discrete(n_actions), n_sources=2)
    assert buffer.option_actions.dtype == buffer.next_option_actions.dtype == np.dtype(dtype)
    observation, last = np.zeros((1, 1), dtype=np.float32), n_actions - 1
    buffer.add(
        observation,
        observation,
        np.array([last]),
        np.zeros(1),
        np.zeros(1, dtype=bool),
        [{}],
        option_actions=np.array([[last, -1]]),
        next_option_actions=np.array([[-1, last]]),
    )
    assert buffer.option_actions[0].tolist() == [[last, -1]]
    assert buffer.next_option_actions[0].tolist() == [[-1, last]]
    assert buffer.agreements[0, 0, :2].tolist() == [True, False]
    assert np.flatnonzero(buffer.agreements[0, 0, 2:]).tolist() == [last]


class ManyActions(Corridor):
    """Only the last of many actions goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(40_000)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return super().step(RIGHT if action == 39_999 else 0)


def take_the_last(observations: np.ndarray) -> np.ndarray:
    return np.full(len(observations), 39_999)


def test_a_run_with_many_actions() -> None:
    settings: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "buffer_size": 64, "safe": False}
    model: Any = CAPS("MlpPolicy", ManyActions(), source_policies=[take_the_last], seed=0, **settings)
    model.learn(20)
    assert (model.replay_buffer.option_actions[:20] == 39_999).all()
