"""The replay buffers that keep what sources do."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sb3_caps.continuous.buffers import SourceAnswers, SourceDictReplayBuffer, SourceReplayBuffer

N_ENVS, N_SOURCES, DIMENSIONS = 2, 3, 2


def answers_of(observations: np.ndarray) -> np.ndarray:
    """What three sources do: anything that tells observations apart."""
    return np.stack([np.stack([observations[:, 0] * k, observations[:, 0] - k], axis=1) for k in range(3)], axis=1)


@pytest.mark.parametrize("size", [7, 100])
def test_each_step_has_the_answers_before_and_after_it(size: int) -> None:
    rng = np.random.default_rng(0)
    kept = SourceAnswers(size, (N_ENVS, N_SOURCES, DIMENSIONS))
    expected: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    before = rng.normal(size=(N_ENVS, N_SOURCES, DIMENSIONS)).astype(np.float32)
    for step in range(40):
        after = rng.normal(size=before.shape).astype(np.float32)
        kept.add(step % size, before, after)
        expected[step % size] = before, after
        # Sometimes an episode ends, in one environment or in all
        ends = rng.random(N_ENVS) < 0.2
        before = np.where(ends[:, None, None], rng.normal(size=before.shape), after).astype(np.float32)
        for place, (was, then) in expected.items():
            for env in range(N_ENVS):
                np.testing.assert_array_equal(kept.before[place, env], was[env])
                found = kept.after(np.array([place]), np.array([env]))[0]
                np.testing.assert_array_equal(found, then[env])
    # What was overwritten is forgotten
    assert len(kept.after_cut) == kept.is_cut.sum()


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("optimized", [False, True])
def test_samples_belong_together(as_dict: bool, optimized: bool) -> None:
    if as_dict and optimized:
        pytest.skip("SB3 has no such buffer")
    vector = spaces.Box(-np.inf, np.inf, (1,))
    space: Any = spaces.Dict({"x": vector}) if as_dict else vector
    buffer_class = SourceDictReplayBuffer if as_dict else SourceReplayBuffer
    kwargs = {"handle_timeout_termination": False} if optimized else {}
    buffer = buffer_class(60, space, spaces.Box(-1, 1, (2,)), "cpu", N_ENVS, optimized, n_sources=N_SOURCES, **kwargs)
    rng = np.random.default_rng(0)

    def emitted(values: np.ndarray) -> Any:
        return {"x": values} if as_dict else values

    now = rng.normal(size=(N_ENVS, 1)).astype(np.float32)
    for _ in range(50):
        following = rng.normal(size=(N_ENVS, 1)).astype(np.float32)
        buffer.add(
            emitted(now),
            emitted(following),
            np.zeros((N_ENVS, 2)),
            now[:, 0],
            np.zeros(N_ENVS),
            [{}] * N_ENVS,
            source_actions=answers_of(now),
            next_source_actions=answers_of(following),
        )
        now = following
    # One buffer of SB3 keeps an observation once, and loses the last one that has no successor
    data = buffer.sample(200)
    before: Any = data.observations
    after: Any = data.next_observations
    observations, followers = (before["x"], after["x"]) if as_dict else (before, after)
    np.testing.assert_allclose(data.source_actions, answers_of(observations.numpy()), atol=1e-6)
    np.testing.assert_allclose(data.next_source_actions, answers_of(followers.numpy()), atol=1e-6)
    np.testing.assert_allclose(data.rewards.numpy(), observations.numpy())


def test_four_sources_of_six_dimensions_take_a_hundred_megabytes_for_a_million_steps() -> None:
    kept = SourceAnswers(1000, (1, 4, 6))
    assert kept.before.nbytes * 1000 == 96_000_000
