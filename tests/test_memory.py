"""Memory stays level, however long a run."""

import ctypes
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_caps import CAPS
from sb3_caps.sources.evaluate import FIRST_CACHED, ObservationCache
from tests.soak import times
from tests.toy_world import Corridor, go_right

STATUS = Path("/proc/self/statm")
N_ENVS = 25


def resident() -> float:
    """:return: the memory of this process, in MB"""
    gc.collect()
    # What malloc keeps for later is not kept by us
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(STATUS.read_text().split()[1]) * 4096 / 1e6


@pytest.mark.skipif(not STATUS.exists(), reason="the system does not say how much memory a process takes")
@pytest.mark.parametrize(
    ("kind", "steps", "arguments"),
    [
        ("box", times(100_000, 1_000_000), {}),
        (
            "image",
            times(5_000, 100_000),
            {"optimize_memory_usage": True, "replay_buffer_kwargs": {"compression": "zlib"}},
        ),
    ],
)
def test_a_long_run_with_a_small_buffer(kind: str, steps: int, arguments: dict[str, Any]) -> None:
    policy, small = ("CnnPolicy", {}) if kind == "image" else ("MlpPolicy", {"net_arch": [32]})
    env = DummyVecEnv([lambda: Corridor(kind)] * N_ENVS)
    source = DQN(policy, Corridor(kind), seed=0, buffer_size=10)
    model = CAPS(
        policy,
        env,
        source_policies=[source, go_right],
        buffer_size=1000,
        learning_starts=100,
        train_freq=20,
        policy_kwargs=small,
        seed=0,
        **arguments,
    )
    # Until the buffer has been full twice, and torch and malloc have what they need
    model.learn(25_000 if kind == "box" else 7500, log_interval=100)
    before = resident()
    model.learn(steps, reset_num_timesteps=False, log_interval=100)
    grown = resident() - before
    print(f"{kind}: {grown:.2f} MB more after {steps:,} steps")
    # With compressed images malloc settles at 3 to 4 MB more, after 100,000 steps as after 1,400,000
    assert grown < 5.0


def test_observations_that_never_come_back_are_not_remembered_for_long() -> None:
    cache = ObservationCache(lambda observations: observations[:, :1].copy())
    rng = np.random.default_rng(0)
    for _ in range(times(200, 20_000)):
        observations = rng.random((100, 4))
        np.testing.assert_array_equal(cache(observations), observations[:, :1])
        assert len(cache.places) <= FIRST_CACHED


def test_observations_that_come_back_are_remembered() -> None:
    n_asked = 0

    def answer(observations: np.ndarray) -> np.ndarray:
        nonlocal n_asked
        n_asked += len(observations)
        return observations * 2

    cache = ObservationCache(answer, capacity=4 * FIRST_CACHED)
    world = np.arange(3 * FIRST_CACHED, dtype=np.int64)[:, None]
    rng = np.random.default_rng(0)
    for _ in range(2000):
        observations = world[rng.integers(len(world), size=50)]
        np.testing.assert_array_equal(cache(observations), observations * 2)
    # Every one is asked about once, and some again before it is clear that they come back
    assert n_asked < 1.5 * len(world)
    assert cache.limit == 4 * FIRST_CACHED
    # More at once than there is room for
    many = np.arange(5 * FIRST_CACHED, dtype=np.int64)[:, None]
    np.testing.assert_array_equal(cache(many), many * 2)
    np.testing.assert_array_equal(cache(world[:10]), world[:10] * 2)
