"""What ContinuousCAPS learns by: numbers worked by hand, and an independent slow implementation."""

import math

import numpy as np
import pytest
import torch as th
from stable_baselines3 import SAC

from sb3_caps.continuous import ContinuousCAPS, losses
from tests.toy_box import ToyBox, away, home


def test_the_best_candidate_is_bootstrapped_from() -> None:
    candidates = th.tensor([[1.0, 3.0, 2.0], [0.0, -1.0, 0.5]])
    assert losses.bootstrap_values(candidates).tolist() == [[3.0], [0.5]]


def test_td_targets() -> None:
    rewards, dones, values = th.tensor([[1.0], [1.0]]), th.tensor([[0.0], [1.0]]), th.tensor([[10.0], [10.0]])
    # 1 + 0.9 · 10, and nothing after a terminal state
    assert losses.td_targets(rewards, dones, 0.9, values).tolist() == [[10.0], [1.0]]


def test_critic_loss() -> None:
    values, targets = (th.tensor([[1.0], [3.0]]), th.tensor([[2.0], [2.0]])), th.tensor([[2.0], [2.0]])
    # ½ · (1 + 1) / 2 of the first critic, nothing of the second
    assert losses.critic_loss(values, targets).item() == pytest.approx(0.5)


def test_entropy_loss() -> None:
    log_coef = th.tensor(0.5, requires_grad=True)
    loss = losses.entropy_loss(log_coef, th.tensor([[1.0], [3.0]]), -1.0)
    assert loss.item() == pytest.approx(-0.5)
    loss.backward()
    # Less entropy than wanted: the coefficient grows
    assert log_coef.grad is not None
    assert log_coef.grad.item() == pytest.approx(-1.0)


def test_actor_loss() -> None:
    loss = losses.actor_loss(th.tensor(0.1), th.tensor([[2.0], [4.0]]), th.tensor([[1.0], [2.0]]))
    assert loss.item() == pytest.approx(0.1 * 3 - 1.5)


def test_the_pull_is_in_the_unit_of_values() -> None:
    means, answers = th.tensor([[0.0, 1.0], [0.5, 0.5]]), th.tensor([[0.0, 0.0], [0.5, 0.0]])
    values = th.tensor([[0.0], [4.0]])
    # The standard deviation of 0 and 4 is 4 / √2; the squares are 1 and ¼
    assert losses.pull_loss(means, answers, values).item() == pytest.approx(4 / math.sqrt(2) * 1.25 / 2)
    assert losses.pull_loss(means, answers, 1000 * values).item() == pytest.approx(4000 / math.sqrt(2) * 1.25 / 2)


def test_cloning_loss() -> None:
    loss = losses.cloning_loss(th.tensor([[0.0, 1.0]]), th.tensor([[-1.0, -3.0]]), th.tensor([[0.0, 0.0]]), -2.0)
    assert loss.item() == pytest.approx(0.5 + 0.1 * 1.0)


def test_terminations_are_where_something_else_is_better() -> None:
    values = th.tensor([[1.0, 2.0]])
    # The first is not best, the second is: cross entropies of β = ½ and of β = σ(-2)
    loss = losses.termination_loss(th.tensor([[0.0, -2.0]]), values)
    assert loss.item() == pytest.approx((math.log(2) + math.log(1 + math.exp(-2))) / 2, rel=1e-5)


def _learned(seed: int = 0) -> ContinuousCAPS:
    model = ContinuousCAPS(
        "MlpPolicy",
        ToyBox(),
        source_policies=[home, away],
        learning_starts=20,
        policy_kwargs={"net_arch": [8]},
        seed=seed,
        device="cpu",
    )
    return model.learn(400)


def test_targets_are_those_of_a_slow_implementation() -> None:
    model = _learned()
    data = model.replay_buffer.sample(7)
    assert isinstance(data.next_observations, th.Tensor)
    coef = th.tensor(0.3)
    th.manual_seed(5)
    with th.no_grad():
        found = model._next_values(data, coef)
    th.manual_seed(5)
    with th.no_grad():
        drawn, log_probs = model.actor.action_log_prob(data.next_observations)
        for i in range(7):
            state = data.next_observations[i : i + 1]
            worth = []
            for action in [*data.next_source_actions[i], drawn[i]]:
                worth.append(min(each.item() for each in model.critic_target(state, action[None])))
            worth[-1] -= 0.3 * log_probs[i].item()
            assert found[i].item() == pytest.approx(max(worth), rel=1e-4, abs=1e-5)
            # The sources' answers are what they would do there
            np.testing.assert_allclose(data.next_source_actions[i, 0].numpy(), home(state[0].numpy()) / 2, atol=1e-6)
            np.testing.assert_allclose(data.next_source_actions[i, 1].numpy(), away(state[0].numpy()) / 2, atol=1e-6)


def test_without_sources_it_is_sac_to_the_bit() -> None:
    arguments = {"learning_starts": 30, "policy_kwargs": {"net_arch": [8]}, "seed": 3, "device": "cpu"}
    theirs = SAC("MlpPolicy", ToyBox(), **arguments).learn(120)  # type: ignore[arg-type]
    ours = ContinuousCAPS("MlpPolicy", ToyBox(), **arguments).learn(120)  # type: ignore[arg-type]
    for one, other in zip(theirs.policy.parameters(), ours.policy.parameters(), strict=True):
        assert th.equal(one, other)
    assert theirs.log_ent_coef is not None
    assert ours.log_ent_coef is not None
    assert th.equal(theirs.log_ent_coef, ours.log_ent_coef)
