"""How β is learned online, as in the paper, against steps by hand; where it starts, and where it stays."""

from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from torch.nn import functional as F

from sb3_caps import CAPS
from tests.paper import paper
from tests.test_training import SOURCES, terminations, trained_a_little
from tests.toy_world import Corridor, go_right


def test_gradient_steps_leave_terminations_alone() -> None:
    model = trained_a_little()
    before = [parameter.clone() for parameter in model.q_net.termination_net.parameters()]
    model.train(gradient_steps=3, batch_size=32)
    for old, new in zip(before, model.q_net.termination_net.parameters(), strict=True):
        assert th.equal(old, new)


def arrive(model: CAPS, observations: np.ndarray, options: list[int], starts: list[bool]) -> None:
    """The online step of β in environments that have just arrived."""
    model._last_obs = observations
    model._last_options, model._last_episode_starts = np.array(options), np.array(starts)
    model._last_option_actions, _ = model.options.actions(
        observations, model.options.initial_states(), model._last_episode_starts
    )
    model._learn_terminations()


def test_termination_step_by_hand() -> None:
    beta = {"learning_rate": 0.1, "regularization": 0.1}
    model = CAPS("MlpPolicy", Corridor(), **paper(termination_kwargs=beta, policy_kwargs={"net_arch": [2]}))
    first, _, last = model.q_net.q_net
    assert isinstance(first, th.nn.Linear)
    assert isinstance(last, th.nn.Linear)
    with th.no_grad():  # in the first cell the hidden layer is (2, 3), and the values are 0, 0.5 and 1
        first.weight.zero_()
        first.bias.copy_(th.tensor([2.0, 3.0]))
        last.weight.zero_()
        last.bias.copy_(th.tensor([0.0, 0.5, 1.0]))
    before = [parameter.clone() for parameter in (*first.parameters(), *last.parameters())]
    # A second environment starts an episode there: it has not arrived with its option
    arrive(model, np.eye(10, dtype=np.float32)[[0, 0]], options=[1, 0], starts=[False, True])
    # The advantage is 0.5 - 1 + 0.1 = -0.4. β = 0.5, so the gradient is 0.25 * -0.4 = -0.1, and θ moves by
    # -0.1 * -0.1 = 0.01 times the features
    head = model.q_net.termination_net
    assert head.weight.tolist() == [[0, 0], pytest.approx([0.02, 0.03]), [0, 0]]
    assert head.bias.tolist() == pytest.approx([0, 0.01, 0])
    # So the option that was not the best one is now more likely to end there
    assert terminations(model, th.tensor([[2.0, 3.0]]))[0, 1].item() > 0.5
    # and nothing but β has learned
    for old, new in zip(before, (*first.parameters(), *last.parameters()), strict=True):
        assert th.equal(old, new)


def test_several_arrivals_with_one_option_add_up() -> None:
    """The objective whose gradient Equation 2 is: β weighted with the advantage, one term for each transition."""
    env = make_vec_env(Corridor, n_envs=8, seed=0)
    settings = paper(termination_kwargs={"learning_rate": 0.3})
    model = CAPS("MlpPolicy", env, source_policies=SOURCES, seed=0, **settings)
    th.manual_seed(0)
    with th.no_grad():
        model.q_net.termination_net.weight.normal_()
    head = model.q_net.termination_net
    weight, bias = (parameter.detach().clone().requires_grad_() for parameter in head.parameters())
    options = [0, 1, 1, 5, 2, 1, 3, 0]
    observations = np.eye(10, dtype=np.float32)[[0, 1, 1, 2, 3, 4, 5, 6]]
    with th.no_grad():
        tensor = th.as_tensor(observations)
        hidden = model.q_net.q_net[:-1](tensor)
        values = model.q_net(tensor).values
        advantages = values[th.arange(8), options] - values.max(dim=1).values + 0.005
    beta = th.sigmoid(F.linear(hidden, weight, bias))
    (beta[th.arange(8), options] * advantages).sum().backward()
    assert weight.grad is not None
    assert bias.grad is not None
    arrive(model, observations, options, [False] * 8)
    th.testing.assert_close(head.weight, weight - 0.3 * weight.grad, rtol=1e-4, atol=1e-5)
    th.testing.assert_close(head.bias, bias - 0.3 * bias.grad, rtol=1e-4, atol=1e-5)


def test_online_terminations_equal_a_replay_of_the_run() -> None:
    """Equation 2 for every arrival of the run, none for the first state of an episode, none in the warm-up."""
    learning_starts, rho = 40, 0.01
    model = CAPS(
        "MlpPolicy",
        make_vec_env(lambda: Corridor(horizon=7), n_envs=2, seed=0),
        seed=1,
        source_policies=SOURCES,
        learning_starts=learning_starts,
        gradient_steps=0,  # the network stays as it is, so that the run can be replayed
        **paper(termination_kwargs={"learning_rate": 0.05, "regularization": rho}),
    )
    model.learn(200)
    buffer, trained = model.replay_buffer, model.q_net.termination_net
    head = th.nn.Linear(64, 6)
    with th.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    for row in range(1, buffer.size()):
        if 2 * row < learning_starts:
            continue
        gradients: list[tuple[int, th.Tensor, th.Tensor]] = []
        for env in range(2):
            if buffer.dones[row - 1, env]:
                continue
            state = th.as_tensor(buffer.stores[None].get(np.array([row]), np.array([env])))
            with th.no_grad():
                hidden, values = model.q_net.q_net[:-1](state)[0], model.q_net(state).values[0]
                option = int(buffer.options[row - 1, env])
                beta = th.sigmoid(head(hidden))[option]
                gradients.append((option, beta * (1 - beta) * (values[option] - values.max() + rho), hidden))
        with th.no_grad():
            for option, slope, hidden in gradients:
                head.weight[option] -= 0.05 * slope * hidden
                head.bias[option] -= 0.05 * slope
    assert head.bias.abs().max() > 1e-4
    th.testing.assert_close(trained.bias, head.bias, rtol=1e-3, atol=1e-6)
    th.testing.assert_close(trained.weight, head.weight, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("settings", "layers"), [({}, 2), (paper(), 0), ({"termination": 0.5}, 0)])
def test_terminations_that_are_learned_with_the_values_have_a_layer_of_their_own(
    settings: dict[str, Any], layers: int
) -> None:
    model = CAPS("MlpPolicy", Corridor(), source_policies=SOURCES, **settings)
    assert {len(network.termination_hidden) for network in model.policy.networks()} == {layers}


def test_the_layer_of_terminations_has_the_activation_of_the_network() -> None:
    model = CAPS("MlpPolicy", Corridor(), policy_kwargs={"activation_fn": th.nn.Tanh})
    assert [type(layer) for layer in model.q_net.termination_hidden] == [th.nn.Linear, th.nn.Tanh]


@pytest.mark.parametrize("settings", [{}, paper()])
def test_fixed_termination_is_never_trained(settings: dict[str, Any]) -> None:
    model = CAPS("MlpPolicy", Corridor(), source_policies=SOURCES, termination=0.5, learning_starts=10, **settings)
    model.learn(200)
    assert th.count_nonzero(model.q_net.termination_net.weight) == 0
    assert terminations(model, th.zeros(2, 64)).tolist() == [[0.5] * 6] * 2


@pytest.mark.parametrize("shared_values", [False, True])
def test_initial_termination_of_sources_and_primitives(shared_values: bool) -> None:
    model = CAPS(
        "MlpPolicy",
        Corridor(),
        source_policies=[go_right],
        termination_kwargs={"initial": (0.1, 0.9)},
        policy_kwargs={"shared_values": shared_values},
    )
    _, beta = model.policy.values_and_terminations(np.eye(10, dtype=np.float32))
    np.testing.assert_allclose(beta, [[0.1, 0.9, 0.9, 0.9]] * 10, rtol=1e-5)
