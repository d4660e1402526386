"""The targets of option values, against numbers worked out by hand and a slow implementation of the rule."""

import numpy as np
import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st

from sb3_caps.caps.targets import option_targets
from sb3_caps.replay.type_aliases import OptionReplayBufferSamples


def sequences(
    rewards: np.ndarray, dones: np.ndarray, agreements: np.ndarray, mask: np.ndarray
) -> OptionReplayBufferSamples:
    unused = th.zeros(rewards.shape, dtype=th.long)
    return OptionReplayBufferSamples(
        observations=th.zeros(1),
        actions=unused,
        rewards=th.as_tensor(rewards, dtype=th.float32),
        dones=th.as_tensor(dones),
        options=unused,
        agreements=th.as_tensor(agreements),
        option_actions=unused,
        mask=th.as_tensor(mask),
        places=unused.numpy(),
    )


def one_step(
    reward: float, done: bool, beta: list[float], values: list[float], greedy: int, gamma: float = 0.9
) -> list[float]:
    data = sequences(np.array([[reward]]), np.array([[done]]), np.ones((1, 1, len(beta)), bool), np.array([[True]]))
    targets = option_targets(data, gamma, th.tensor([[greedy]]), th.tensor([[values]]), th.tensor([[beta]]))
    return targets[0, 0].tolist()


def test_one_step_by_hand() -> None:
    # U(s', 0) = 0.75 * 2 + 0.25 * 4 = 2.5,  U(s', 1) = 0.5 * 4 + 0.5 * 4 = 4,  U(s', 2) = 0 * -1 + 1 * 4 = 4
    targets = one_step(1.0, False, beta=[0.25, 0.5, 1.0], values=[2.0, 4.0, -1.0], greedy=1)
    assert targets == pytest.approx([1 + 0.9 * 2.5, 1 + 0.9 * 4, 1 + 0.9 * 4])


def test_greedy_option_is_the_online_networks_but_its_value_the_targets() -> None:
    # Double Q: the online network prefers option 0, which the target network values at 2
    targets = one_step(0.0, False, beta=[1.0, 1.0], values=[2.0, 4.0], greedy=0)
    assert targets == pytest.approx([1.8, 1.8])


def test_no_bootstrap_from_a_terminal_state() -> None:
    assert one_step(1.0, True, beta=[0.3, 0.7], values=[5.0, 9.0], greedy=1) == [1.0, 1.0]


def test_two_steps_by_hand() -> None:
    # Second step: terminal, reward 1, so its target is 1 for every option.
    # First step: in s' option 0 agrees with the action taken, so its value there is 1 and not 0.5;
    # the greedy option is 1, which does not agree and keeps its 0.8.
    # U(s', 0) = 0.5 * 1 + 0.5 * 0.8 = 0.9,  U(s', 1) = 0.8
    data = sequences(
        rewards=np.array([[0.0], [1.0]]),
        dones=np.array([[False], [True]]),
        agreements=np.array([[[True, True]], [[True, False]]]),
        mask=np.array([[True], [True]]),
    )
    greedy = th.tensor([[1], [0]])
    values = th.tensor([[[0.5, 0.8]], [[7.0, 7.0]]])
    beta = th.full((2, 1, 2), 0.5)
    targets = option_targets(data, 0.9, greedy, values, beta)
    assert targets[:, 0].flatten().tolist() == pytest.approx([0.9 * 0.9, 0.9 * 0.8, 1.0, 1.0])


def test_a_step_outside_of_the_sequence_is_not_followed() -> None:
    data = sequences(
        rewards=np.array([[0.0], [1.0]]),
        dones=np.array([[False], [True]]),
        agreements=np.ones((2, 1, 1), dtype=bool),
        mask=np.array([[True], [False]]),
    )
    targets = option_targets(data, 0.5, th.zeros(2, 1, dtype=th.long), th.full((2, 1, 1), 3.0), th.zeros(2, 1, 1))
    assert targets[0, 0, 0] == pytest.approx(0.5 * 3.0)


def slow_target(t: int, option: int, data: dict[str, np.ndarray], gamma: float) -> float:
    """The rule for one sequence and one option, by recursion, straight from its description."""

    def value(o: int) -> float:
        following = t + 1 < len(data["rewards"]) and data["mask"][t + 1] and data["agreements"][t + 1][o]
        return slow_target(t + 1, o, data, gamma) if following else float(data["next_values"][t][o])

    if data["dones"][t]:
        return float(data["rewards"][t])
    beta = float(data["next_terminations"][t][option])
    continuation = (1 - beta) * value(option) + beta * value(int(data["next_greedy"][t]))
    return float(data["rewards"][t]) + gamma * continuation


@given(seed=st.integers(0, 2**32 - 1), length=st.integers(1, 6), n=st.integers(1, 4), n_options=st.integers(1, 5))
def test_targets_equal_a_slow_implementation(seed: int, length: int, n: int, n_options: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (length, n)
    dones = rng.random(shape) < 0.2
    arrays = {
        "rewards": rng.normal(size=shape).astype(np.float32),
        "dones": dones,
        "agreements": rng.random((*shape, n_options)) < 0.5,
        # A sequence ends after a terminal state, or anywhere
        "mask": np.arange(length)[:, None] < rng.integers(1, length + 1, size=n),
        "next_greedy": rng.integers(n_options, size=shape),
        "next_values": rng.normal(size=(*shape, n_options)).astype(np.float32),
        "next_terminations": rng.random((*shape, n_options)).astype(np.float32),
    }
    data = sequences(*(arrays[key] for key in ("rewards", "dones", "agreements", "mask")))
    later = (th.as_tensor(arrays[key]) for key in ("next_greedy", "next_values", "next_terminations"))
    targets = option_targets(data, 0.97, *later).numpy()
    for column in range(n):
        single = {key: value[:, column] for key, value in arrays.items()}
        for t in np.flatnonzero(single["mask"]):
            expected = [slow_target(int(t), option, single, 0.97) for option in range(n_options)]
            np.testing.assert_allclose(targets[t, column], expected, rtol=1e-4, atol=1e-4)
