"""Targets and losses, against numbers worked out by hand and slow implementations of the rules."""

import math
from typing import Any

import numpy as np
import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st

from sb3_caps.caps.losses import (
    actor_loss,
    option_loss,
    option_targets,
    termination_loss,
    vtrace,
)
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
        learned=th.as_tensor(agreements & mask[..., None]),
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


def test_option_loss_by_hand() -> None:
    values = th.tensor([[[0.0, 1.0, 5.0]], [[2.0, 0.0, 0.0]]], requires_grad=True)
    targets = th.tensor([[[0.5, 4.0, 0.0]], [[2.0, 9.0, 9.0]]])
    learned = th.tensor([[[True, True, False]], [[True, False, False]]])
    # Huber: 0.5 * 0.5² = 0.125, and 3 - 0.5 = 2.5; the third is 0. Two steps
    loss = option_loss(values, targets, learned, n_steps=2)
    assert loss.item() == pytest.approx((0.125 + 2.5) / 2)
    loss.backward()
    assert values.grad is not None
    # The slope is the error, at most 1, and what is not learned has none
    assert values.grad.flatten().tolist() == [-0.25, -0.5, 0.0, 0.0, 0.0, 0.0]


def test_termination_loss_by_hand() -> None:
    """Three sources and two actions in one state: the first two sources take action 1, the third action 0."""
    values = th.tensor([[[3.0, 0.5, 9.0, 2.0, 1.0]]])
    logits = th.tensor([[[0.0, math.log(3), 0.0, 0.0, math.log(3)]]], requires_grad=True)
    actions, mask = th.tensor([[[1, 1, 0]]]), th.tensor([[True]])
    third = th.tensor([False, False, True, False, False])
    # Without the third source action 0 is worth 2 and action 1 is worth 3, that of the best source that takes it: so
    # the third source and action 0 end, and all others go on. β is 1/2, 3/4, 1/2, 1/2 and 3/4
    loss = termination_loss(logits, values, actions, third, mask)
    expected = -(math.log(1 / 2) + math.log(1 / 4) + math.log(1 / 2) + math.log(1 / 2) + math.log(1 / 4))
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.flatten().tolist() == pytest.approx([0.5, 0.75, -0.5, -0.5, 0.75])
    # With it, its 9 is the worth of action 0, and it is the others that end
    loss = termination_loss(logits, values, actions, th.zeros(5, dtype=th.bool), mask)
    assert loss.item() == pytest.approx(-(3 * math.log(1 / 2) + 2 * math.log(3 / 4)))


def test_equally_good_actions_all_go_on() -> None:
    values, logits = th.tensor([[[1.0, 1.0, 0.0]]]), th.zeros(1, 1, 3, requires_grad=True)
    none = th.zeros(1, 1, 0, dtype=th.long)
    termination_loss(logits, values, none, th.zeros(3, dtype=th.bool), th.tensor([[True]])).backward()
    assert logits.grad is not None
    assert logits.grad.flatten().tolist() == [0.5, 0.5, -0.5]


def test_nothing_is_learned_of_a_source_whose_action_is_not_known() -> None:
    values, logits = th.tensor([[[9.0, 1.0, 0.0]]]), th.zeros(1, 1, 3, requires_grad=True)
    termination_loss(logits, values, th.tensor([[[-1]]]), th.zeros(3, dtype=th.bool), th.tensor([[True]])).backward()
    assert logits.grad is not None
    # Nor is its value that of any action
    assert logits.grad.flatten().tolist() == [0.0, 0.5, -0.5]


@given(seed=st.integers(0, 2**32 - 1), n_sources=st.integers(0, 3), n_actions=st.integers(1, 3))
def test_termination_loss_equals_a_slow_implementation(seed: int, n_sources: int, n_actions: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (3, 2)
    values = rng.integers(3, size=(*shape, n_sources + n_actions)).astype(np.float32)
    logits = rng.normal(size=values.shape).astype(np.float32)
    sources = rng.integers(n_actions, size=(*shape, n_sources))
    disabled = np.append(rng.random(n_sources) < 0.3, np.zeros(n_actions, dtype=bool))
    mask = np.array([[True, True], [True, False], [False, False]])
    total = 0.0
    for step in zip(*np.nonzero(mask), strict=True):
        taken = [*sources[step], *range(n_actions)]
        worth = [
            max(values[step][o] for o in range(len(taken)) if taken[o] == action and not disabled[o])
            for action in range(n_actions)
        ]
        for option, action in enumerate(taken):
            beta = 1 / (1 + math.exp(-logits[step][option]))
            total -= math.log(beta if worth[action] < max(worth) else 1 - beta)
    tensors = (th.as_tensor(each) for each in (logits, values, sources, disabled, mask))
    assert termination_loss(*tensors).item() == pytest.approx(total / 3, rel=1e-4)


def test_vtrace_by_hand() -> None:
    # δ₀ = 0 + 0.5 * 4 - 2 = 0, δ₁ = 1 + 0.5 * 6 - 4 = 0, δ₂ = 8 - 6 = 2 at a terminal state
    # The last advantage is 2. With a ratio of 0.5 it moves the value of its state by 1, and reaches the step before
    # with 0.5 * 0.8: 0 + 0.4 * 1 = 0.4. That counts fully, so the first one is 0 + 0.4 * 0.4 = 0.16, at a ratio of 0.25
    targets, advantages = vtrace(
        th.tensor([0.0, 1.0, 8.0]),
        th.tensor([2.0, 4.0, 6.0]),
        th.tensor([4.0, 6.0, 99.0]),
        th.tensor([False, False, True]),
        th.tensor([False, False, True]),
        th.tensor([0.25, 1.0, 0.5]),
        gamma=0.5,
        trace=0.8,
    )
    assert advantages.tolist() == pytest.approx([0.16, 0.4, 2.0])
    assert targets.tolist() == pytest.approx([2.04, 4.4, 7.0])


def test_vtrace_of_a_truncated_episode_bootstraps_and_stops_there() -> None:
    # δ₀ = 1 + 0.5 * 10 - 0 = 6 from the value of the observation that the first episode was cut off in; what the next
    # episode paid is not its concern
    targets, advantages = vtrace(
        th.tensor([1.0, 100.0]),
        th.tensor([0.0, 0.0]),
        th.tensor([10.0, 0.0]),
        th.tensor([False, False]),
        th.tensor([True, True]),
        th.ones(2),
        gamma=0.5,
        trace=1.0,
    )
    assert advantages.tolist() == [6.0, 100.0]
    assert targets.tolist() == [6.0, 100.0]


def test_vtrace_of_the_policy_itself_is_the_return() -> None:
    """With λ = 1 and all ratios 1: the sum of rewards, whatever the values are."""
    rewards, gamma = [3.0, -1.0, 2.0], 0.9
    last = th.tensor([False, False, True])
    values = th.tensor([5.0, -7.0, 0.5])
    targets, _ = vtrace(th.tensor(rewards), values, values.roll(-1, 0), last, last, th.ones(3), gamma, trace=1.0)
    returns = [sum(gamma**i * reward for i, reward in enumerate(rewards[t:])) for t in range(3)]
    assert targets.tolist() == pytest.approx(returns)


@given(seed=st.integers(0, 2**32 - 1), n_steps=st.integers(1, 8))
def test_vtrace_equals_its_sum(seed: int, n_steps: int) -> None:
    """v_s = V(s) + Σ_t γ^(t-s) (Π λ ρ) ρ_t δ_t over the rest of the episode, as the paper has it (Equation 1)."""
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, n_steps))
    last_steps = rng.random(n_steps) < 0.3
    dones = last_steps & (rng.random(n_steps) < 0.5)
    last_steps[-1] = True
    ratios = rng.random(n_steps)
    gamma, trace = 0.9, 0.7
    arrays: dict[str, Any] = {"rewards": rewards, "values": values, "next_values": next_values}
    arrays |= {"dones": dones, "last_steps": last_steps, "ratios": ratios}
    tensors: dict[str, Any] = {name: th.as_tensor(array) for name, array in arrays.items()}
    targets, advantages = vtrace(**tensors, gamma=gamma, trace=trace)
    errors = rewards + np.where(dones, 0.0, gamma * next_values) - values
    for s in range(n_steps):
        end = s + int(last_steps[s:].argmax())
        corrections = [
            gamma ** (t - s) * np.prod(trace * ratios[s:t]) * ratios[t] * errors[t] for t in range(s, end + 1)
        ]
        assert targets[s].item() == pytest.approx(values[s] + sum(corrections), abs=1e-6)
        # An advantage is of the action taken: its own step counts fully
        later = targets[s + 1].item() - values[s + 1] if s < end else 0.0
        assert advantages[s].item() == pytest.approx(errors[s] + gamma * trace * later, abs=1e-6)


def test_actor_loss_by_hand() -> None:
    """Ratios of 1.5, 0.5, 1.5, 0.5 and 1.1 at a clip range of 0.2."""
    ratios = th.tensor([1.5, 0.5, 1.5, 0.5, 1.1])
    old = th.full((5,), 0.3).log()
    log_probs = (old + ratios.log()).requires_grad_()
    advantages = th.tensor([2.0, 2.0, -2.0, -2.0, 1.0])
    weights = th.tensor([1.0, 0.5, 1.0, 0.25, 1.0])
    loss = actor_loss(log_probs, old, advantages, weights, clip_range=0.2)
    # Of a good action 1.2 * 2 at most, of a bad one 0.8 * -2 at most
    expected = [1.2 * 2, 0.5 * 0.5 * 2, 1.5 * -2, 0.25 * 0.8 * -2, 1.1]
    assert loss.item() == pytest.approx(-sum(expected) / 5)
    loss.backward()
    assert log_probs.grad is not None
    # What moved far enough in the right direction moves no further; ∂ ratio / ∂ log π = ratio
    assert log_probs.grad.tolist() == pytest.approx([0.0, -0.1, 0.6, 0.0, -0.22])


def test_the_first_step_of_the_actor_is_that_of_the_policy_gradient() -> None:
    old = th.tensor([0.1, 0.7]).log()
    log_probs = old.clone().requires_grad_()
    actor_loss(log_probs, old, th.tensor([3.0, -1.0]), th.ones(2), clip_range=0.2).backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-1.5, 0.5])
