"""Replay by errors: what is drawn more often, how much more often, and what is not."""

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb3_caps.replay.buffers import OptionReplayBuffer
from sb3_caps.replay.type_aliases import OptionReplayBufferSamples

N_ENVS = 2


def filled(n_steps: int, rows: int = 20, **arguments: Any) -> OptionReplayBuffer:
    """A buffer of one long episode in each environment, in which the reward of a step is its number."""
    buffer = OptionReplayBuffer(
        rows * N_ENVS, spaces.Box(0, 1, (1,)), spaces.Discrete(2), "cpu", n_envs=N_ENVS, n_sources=0, **arguments
    )
    for step in range(n_steps):
        add(buffer, step)
    return buffer


def add(buffer: OptionReplayBuffer, step: int) -> None:
    number, no = np.full(N_ENVS, float(step)), np.zeros(N_ENVS, dtype=bool)
    buffer.add(number[:, None], number[:, None] + 1, np.zeros(N_ENVS, dtype=int), number, no, [{}] * N_ENVS)


def every_step(buffer: OptionReplayBuffer) -> OptionReplayBufferSamples:
    """All steps as sequences of one, environment by environment."""
    starts, envs = (grid.reshape(-1) for grid in np.meshgrid(np.arange(buffer.size()), np.arange(N_ENVS)))
    return buffer.get_sequences(starts, envs)


def set_errors(buffer: OptionReplayBuffer, errors: dict[tuple[int, int], float]) -> None:
    """Errors of steps by (number, environment), 0 for all others."""
    data = every_step(buffer)
    places = zip(data.rewards[0].tolist(), (data.places[0] % N_ENVS).tolist(), strict=True)
    buffer.update_priorities(data, np.array([[errors.get((int(step), env), 0.0) for step, env in places]]))


def shares(buffer: OptionReplayBuffer, n_samples: int = 400) -> np.ndarray:
    """How often sequences start with each place of the buffer."""
    buffer.rng = np.random.default_rng(0)
    counts = np.zeros(buffer.priorities.values.size if buffer.prioritized_share else buffer.rewards.size)
    for _ in range(n_samples):
        counts += np.bincount(buffer.sample(50 * buffer.sequence_length).places[0], minlength=len(counts))
    return counts.reshape(-1, N_ENVS) / counts.sum()


def test_priorities_by_hand() -> None:
    buffer = filled(3, prioritized_share=1.0)
    # Steps that nobody has looked at come first
    assert buffer.priorities.values[:3].tolist() == [[1.0, 1.0]] * 3
    set_errors(buffer, {(0, 0): 0.499, (1, 1): 3.999})
    # 0.5^0.6 = 0.659754, 4^0.6 = 2.297397, 0.001^0.6 = 0.015849
    expected = [[0.659754, 0.015849], [0.015849, 2.297397], [0.015849, 0.015849]]
    np.testing.assert_allclose(buffer.priorities.values[:3], expected, rtol=1e-4)
    assert buffer.priorities.highest == pytest.approx(2.297397)
    # A new step is as interesting as the most interesting one so far
    add(buffer, 3)
    np.testing.assert_allclose(buffer.priorities.values[3], [2.297397] * 2, rtol=1e-6)
    assert (buffer.priorities.values[4:] == 0).all()


def test_steps_outside_of_a_sequence_keep_their_priority() -> None:
    buffer = filled(5, prioritized_share=1.0, sequence_length=4)
    data = buffer.get_sequences(np.array([3]), np.array([1]))
    assert data.mask[:, 0].tolist() == [True, True, False, False]
    buffer.update_priorities(data, np.full((4, 1), 0.031))
    # 0.032^0.6 = 0.126791
    np.testing.assert_allclose(buffer.priorities.values[:6, 1], [1, 1, 1, 0.126791, 0.126791, 0], rtol=1e-4)
    assert buffer.priorities.values[:6, 0].tolist() == [1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("n_steps", [10, 33])
def test_steps_are_drawn_by_their_priority(n_steps: int) -> None:
    """Also in a full ring buffer, whose oldest step is somewhere in the middle."""
    buffer = filled(n_steps, prioritized_share=1.0)
    assert buffer.full == (n_steps == 33)
    set_errors(buffer, {(n_steps - 7, 1): 2.0, (n_steps - 2, 0): 0.25})
    found = shares(buffer)
    np.testing.assert_allclose(found, buffer.priorities.values / buffer.priorities.values.sum(), atol=0.015)
    row = (n_steps - 7) % 20
    assert found.argmax() == row * N_ENVS + 1
    assert buffer.rewards[row, 1] == n_steps - 7


def test_half_of_the_sequences_are_drawn_by_priority() -> None:
    buffer = filled(10, prioritized_share=0.5)
    set_errors(buffer, {(4, 0): 1000.0})
    priorities = buffer.priorities.values[:10]
    expected = 0.5 * priorities / priorities.sum() + 0.5 / 20
    np.testing.assert_allclose(shares(buffer)[:10], expected, atol=0.015)


def test_share_0_draws_uniformly() -> None:
    buffer = filled(10)
    assert buffer.prioritized_share == 0.0
    # Errors are told to every buffer
    set_errors(buffer, {(4, 0): 1000.0})
    np.testing.assert_allclose(shares(buffer)[:10], 1 / 20, atol=0.01)


@pytest.mark.parametrize("n_steps", [18, 33])
def test_a_step_with_a_large_error_is_anywhere_in_its_sequences(n_steps: int) -> None:
    buffer = filled(n_steps, prioritized_share=1.0, sequence_length=4)
    one_by_one = filled(n_steps, prioritized_share=1.0)
    step = n_steps - 6
    set_errors(one_by_one, {(step, 1): 1e6})
    buffer.priorities.values[:] = one_by_one.priorities.values
    data = buffer.sample(4 * 1000)
    held = (data.rewards == step) & data.mask & th.as_tensor(data.places % N_ENVS == 1)
    assert held.any(dim=0).float().mean() > 0.98
    # Each position in the sequence is as likely as the others
    np.testing.assert_allclose(held.float().mean(dim=1), 0.25, atol=0.05)


def test_sequences_begin_no_earlier_than_the_oldest_step() -> None:
    buffer = filled(33, prioritized_share=1.0, sequence_length=4)
    buffer.priorities.values[:] = 0.0
    buffer.priorities.values[33 % 20, 0] = 1.0
    data = buffer.sample(4 * 100)
    assert (data.rewards[0] == 33 - 20).all()
    assert data.mask.all()


def test_sums_are_renewed() -> None:
    """They may be a few samples old, and not older."""
    buffer = filled(10, prioritized_share=1.0)
    buffer.sample(10)
    set_errors(buffer, {(7, 0): 1e9})
    drawn = [buffer.sample(10).rewards[0].tolist() for _ in range(32)]
    assert drawn[-1] == [7] * 10
    # A buffer that was emptied forgets them
    buffer.reset()
    add(buffer, 5)
    assert buffer.sample(10).rewards[0].tolist() == [5] * 10
    assert buffer.priorities.highest == 1.0


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_from_0_to_1(share: float) -> None:
    with pytest.raises(ValueError, match="prioritized_share must be a share from 0 to 1"):
        filled(0, prioritized_share=share)
