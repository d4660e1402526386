"""The actor: votes of sources by hand-worked numbers, and that what it learns is added to them."""

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_caps import CAPS
from sb3_caps.caps.networks import ActorLayers, ResidualActor
from sb3_caps.sources.evaluate import layers_of
from tests.toy_world import RIGHT, Corridor

FEATURES = th.zeros(1, 4)
ARCH = {"pi": [8], "vf": [8], "activation_fn": "Tanh"}


def made(votes: list[float], n_actions: int = 3) -> ResidualActor:
    actor = ResidualActor(4, len(votes), n_actions, ARCH)
    actor.start_from(np.array(votes))
    return actor


def probabilities(actor: ResidualActor, sources: list[int], features: th.Tensor = FEATURES) -> list[float]:
    with th.no_grad():
        return actor(features, th.tensor([sources], dtype=th.long))[1].exp()[0].tolist()


def test_at_first_it_does_what_its_sources_do_as_far_as_they_vote() -> None:
    # 0.7 of the probability over three actions, 0.3 for that of the source
    assert probabilities(made([0.3]), [2]) == pytest.approx([0.7 / 3, 0.7 / 3, 0.7 / 3 + 0.3])
    # Votes for the same action add up
    assert probabilities(made([0.2, 0.3]), [1, 1]) == pytest.approx([0.5 / 3, 0.5 / 3 + 0.5, 0.5 / 3])
    assert probabilities(made([0.2, 0.2]), [0, 1]) == pytest.approx([0.4, 0.4, 0.2])
    # An action that is not known is a vote for none: the others share what is left
    assert probabilities(made([0.3]), [-1]) == pytest.approx([1 / 3] * 3)


def test_without_sources_or_votes_it_is_random() -> None:
    assert probabilities(made([]), []) == pytest.approx([1 / 3] * 3)
    assert probabilities(made([0.0, 0.0]), [0, 1]) == pytest.approx([1 / 3] * 3)


def test_what_is_learned_of_actions_is_added_to_the_logarithm_of_the_votes() -> None:
    actor = made([0.4])
    with th.no_grad():
        actor.policy_net[-1].bias.copy_(th.tensor([0.0, 0.0, np.log(3.0), 0.0]))  # type: ignore[operator]
    # 0.2, 0.2 and 0.6, the second one three times as likely as before: 0.2, 0.6 and 0.6
    assert probabilities(actor, [2]) == pytest.approx([1 / 7, 3 / 7, 3 / 7], rel=1e-5)


def test_which_source_votes_is_learned_and_how_much_they_vote_together_is_not() -> None:
    actor = made([0.2, 0.2])
    with th.no_grad():
        actor.policy_net[-1].bias.copy_(th.tensor([100.0, 0.0, 0.0, 0.0, 0.0]))  # type: ignore[operator]
    assert probabilities(actor, [0, 1]) == pytest.approx([0.6, 0.2, 0.2])


def test_it_can_learn_to_follow_one_source_here_and_another_there() -> None:
    th.manual_seed(0)
    actor = made([0.2, 0.2], n_actions=2)
    places = th.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0]])
    sources, right = th.tensor([[0, 1], [0, 1]]), th.tensor([[0], [1]])
    optimizer = th.optim.Adam(actor.parameters(), lr=1e-2)
    for _ in range(100):
        loss = -actor(places, sources)[1].gather(1, right).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05


def test_values_in_another_unit() -> None:
    actor, features = made([0.3]), th.randn(5, 4)
    before, policy = actor.value_net(features), actor(features, th.zeros(5, 1, dtype=th.long))[1]
    actor.rescale(0.5)
    th.testing.assert_close(actor.value_net(features), 0.5 * before)
    th.testing.assert_close(actor(features, th.zeros(5, 1, dtype=th.long))[1], policy)


def test_it_begins_as_the_network_of_the_best_source() -> None:
    """Its probabilities are those of PPO's own distribution, and a source that is as good goes on voting."""
    space, actions = spaces.Box(-1, 1, (4,)), spaces.Discrete(3)
    policy = ActorCriticPolicy(space, actions, lambda _: 0.0, net_arch=[8])
    with th.no_grad():
        policy.action_net.weight.mul_(100.0)  # type: ignore[operator]
    layers = ActorLayers(layers_of(policy)[1:], [*policy.mlp_extractor.value_net, policy.value_net])  # type: ignore[index]
    observations = th.randn(5, 4, generator=th.Generator().manual_seed(0))
    expected = policy.get_distribution(observations).distribution.probs  # type: ignore[union-attr]

    actor = made([0.5])
    actor.start_from(np.array([0.5]), layers, unit=4.0)
    # What is worth 4 in rewards is worth 1
    th.testing.assert_close(actor.value_net(observations), policy.predict_values(observations) / 4.0)
    for features, wanted in zip(observations[:, None], expected, strict=True):
        assert probabilities(actor, [2], features) == pytest.approx(wanted.tolist(), rel=1e-5)

    actor = made([0.25, 0.25])
    actor.start_from(np.array([0.25, 0.25]), layers)
    # The second one votes with a quarter, the rest of the prior is random: 0.25, 0.25 and 0.5
    prior = expected[0] * th.tensor([0.25, 0.25, 0.5])
    assert probabilities(actor, [0, 2], observations[:1]) == pytest.approx((prior / prior.sum()).tolist(), abs=2e-3)


def test_a_network_of_another_shape_votes() -> None:
    policy = ActorCriticPolicy(spaces.Box(-1, 1, (4,)), spaces.Discrete(3), lambda _: 0.0, net_arch=[16])
    layers = [*policy.mlp_extractor.policy_net, policy.action_net]
    actor = made([0.3])
    actor.start_from(np.array([0.3]), ActorLayers(layers, [*policy.mlp_extractor.value_net, policy.value_net]))
    assert probabilities(actor, [2]) == pytest.approx([0.7 / 3, 0.7 / 3, 0.7 / 3 + 0.3])


def test_in_a_run_it_begins_with_the_weights_of_a_model_and_not_of_q_values() -> None:
    ppo, dqn = PPO("MlpPolicy", Corridor(), seed=0), DQN("MlpPolicy", Corridor(), seed=0)
    # One that is better than random actions
    with th.no_grad():
        ppo.policy.action_net.bias[RIGHT] = 100.0  # type: ignore[operator]
    for source, taken in ((ppo, True), (dqn, False)):
        model = CAPS("MlpPolicy", Corridor(), source_policies=[source], seed=0, actor_kwargs={"learning_rate": 0.0})
        model.learn(400)
        assert model._actor_started
        first: Any = model.policy.actor.policy_net[0]
        given: Any = ppo.policy.mlp_extractor.policy_net[0]
        assert th.equal(first.weight, given.weight) == taken
