"""A bonus for observations that were rarely seen."""

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule

from sb3_caps import CAPS, PiecewiseLinear
from sb3_caps.replay.buffers import OptionReplayBuffer
from sb3_caps.replay.visits import VisitCounts
from tests.paper import paper
from tests.test_training import trained_a_little
from tests.toy_world import Corridor


def test_counts_by_hand() -> None:
    counts = VisitCounts()
    red, blue = np.array([1.0, 2.0], dtype=np.float32), np.array([1.0, 2.5], dtype=np.float32)
    first = counts.add(np.stack([red, blue, red]))
    assert first[0] == first[2] != first[1]
    assert counts.counts[first].tolist() == [2, 1, 2]
    # The bytes count, wherever they lie in memory
    assert counts.add(np.asfortranarray(np.stack([blue, red]))).tolist() == [first[1], first[0]]
    assert counts.counts[first].tolist() == [3, 2, 3]


def test_counts_of_dicts_tell_all_keys_apart() -> None:
    counts = VisitCounts()
    observations = {"a": np.array([[1], [1], [2]], np.uint8), "b": np.array([[3], [4], [3]], np.uint8)}
    assert len(set(counts.add(observations).tolist())) == 3


def test_the_buffer_counts_what_followed_each_step() -> None:
    """Two environments, a buffer of three rows that goes round: what fell out of it was seen all the same."""
    space = spaces.Box(0, 9, (1,), np.float32)
    buffer = OptionReplayBuffer(6, space, spaces.Discrete(2), "cpu", 2, count_visits=True)
    walk = np.array([[0, 5], [1, 5], [0, 6], [1, 5], [2, 5]], dtype=np.float32)
    none = np.zeros(2, dtype=np.int64)
    for now, then in itertools.pairwise(walk):
        buffer.add(now[:, None], then[:, None], none, np.zeros(2), np.zeros(2, dtype=bool), [{}, {}])
    # Seen as successors: 1, 0, 1, 2 and 5, 6, 5, 5; the oldest of the four steps is gone
    for kept in (buffer, pickle.loads(pickle.dumps(buffer))):
        for env, expected in enumerate([[1, 2, 1], [1, 3, 3]]):
            visits = kept.get_sequences(np.arange(3), np.full(3, env)).visits
            assert visits is not None
            assert visits[0].tolist() == expected
    buffer.reset()
    assert buffer.visit_counts is not None
    assert buffer.visit_counts.counts.sum() == 0


@pytest.mark.parametrize(
    ("bonus", "now"),
    [(0.5, 0.5), (LinearSchedule(1.0, 0.2, 1.0), 0.2), (PiecewiseLinear([(0, 0.0), (800, 0.6)]), 0.3)],
)
def test_learning_with_a_bonus_is_learning_from_higher_rewards(bonus: Any, now: float) -> None:
    """A gradient step is that of a model without, in whose buffer the bonus stands, counted anew."""
    model = trained_a_little(**paper(exploration_kwargs={"bonus": bonus}))
    reference = trained_a_little(**paper())
    buffer = reference.replay_buffer
    rows = np.arange(buffer.pos)
    for store in buffer.stores.values():
        successors = np.stack([store.get_next(rows, np.full(len(rows), env)) for env in range(2)], axis=1)
    places = successors.argmax(axis=-1)  # where in the corridor
    buffer.rewards[: buffer.pos] += now / np.bincount(places.ravel())[places]
    for trained in (model, reference):
        np.random.seed(5)
        trained.train(gradient_steps=1, batch_size=64)
    for ours, theirs in zip(model.q_net.parameters(), reference.q_net.parameters(), strict=True):
        th.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_sequences_that_end_early_leave_the_loss_a_number() -> None:
    model = trained_a_little(**paper(exploration_kwargs={"bonus": 0.1}, sequence_length=8))
    buffer = model.replay_buffer
    data = buffer.get_sequences(np.full(4, buffer.size() - 1), np.zeros(4, dtype=np.int64))
    assert not data.mask[1:].any()
    assert data.visits is not None
    assert data.visits.min() >= 1
    model.train(gradient_steps=20, batch_size=256)
    assert np.isfinite(model.logger.name_to_value["train/loss"])


def test_a_run_goes_on_with_its_counts(tmp_path: Path) -> None:
    env = make_vec_env(Corridor, n_envs=2, seed=0)
    model = CAPS("MlpPolicy", env, learning_starts=20, seed=0, **paper(exploration_kwargs={"bonus": 0.1})).learn(200)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = CAPS.load(tmp_path / "model", env=env)
    loaded.load_replay_buffer(tmp_path / "buffer")
    loaded.learn(100, reset_num_timesteps=False)
    counts = loaded.replay_buffer.visit_counts
    assert counts is not None
    assert counts.counts.sum() == loaded.num_timesteps >= 300


def test_a_buffer_without_counts_is_refused(tmp_path: Path) -> None:
    env = make_vec_env(Corridor, n_envs=2, seed=0)
    CAPS("MlpPolicy", env, learning_starts=20, seed=0, **paper()).learn(100).save_replay_buffer(tmp_path / "buffer")
    model = CAPS("MlpPolicy", env, learning_starts=20, seed=0, **paper(exploration_kwargs={"bonus": 0.1}))
    with pytest.raises(ValueError, match=r"buffer of another model, with no counts of visits for a bonus"):
        model.load_replay_buffer(tmp_path / "buffer")
    # Nor does one that comes in another way
    model.replay_buffer = CAPS("MlpPolicy", env, **paper()).replay_buffer
    with pytest.raises(ValueError, match="A bonus needs a replay buffer that counts visits"):
        model.learn(100)
