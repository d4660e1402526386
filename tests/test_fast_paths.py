"""What is fast gives the same as what is plain, and the same again with the same seed."""

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.dqn.policies import CnnPolicy, DQNPolicy
from torch import nn

from sb3_caps import CAPS, as_source
from sb3_caps.caps.losses import option_targets
from sb3_caps.replay.batches import distinct_rows, part
from sb3_caps.reuse.options import OptionSet
from sb3_caps.sources.evaluate import SourceStack, architecture
from tests.paper import paper
from tests.toy_world import RIGHT, Corridor, go_left, go_right

ACTIONS = spaces.Discrete(5)
# What they do in the ten cells of the corridor
NO_SOURCES = np.zeros((10, 0), dtype=np.int64)
SPACES: dict[str, spaces.Space] = {
    "vector": spaces.Box(-1, 1, (6,)),
    "integers": spaces.Box(0, 9, (2, 3), np.int64),
    "number": spaces.Discrete(7),
    "image": spaces.Box(0, 255, (2, 36, 36), np.uint8),
}


def observations(kind: str, number: int) -> np.ndarray:
    space = SPACES[kind]
    space.seed(0)
    return np.array([space.sample() for _ in range(number)])


def policies(kind: str, number: int, **arguments: Any) -> list[BasePolicy]:
    policy_class = CnnPolicy if kind == "image" else DQNPolicy
    return [policy_class(SPACES[kind], ACTIONS, lambda _: 0.0, **arguments) for _ in range(number)]


def stack_of(found: Sequence[BasePolicy], **arguments: Any) -> SourceStack:
    return SourceStack(list(range(len(found))), found, **arguments)


@pytest.mark.parametrize("kind", list(SPACES))
@pytest.mark.parametrize("n_envs", [1, 4, 300])
def test_stacked_sources_act_as_each_alone(kind: str, n_envs: int) -> None:
    if kind == "image" and n_envs > 4:
        pytest.skip("slow, and no other path than with four")
    found = policies(kind, 3)
    batch = observations(kind, n_envs)
    alone = [policy.predict(batch, deterministic=True)[0] for policy in found]
    np.testing.assert_array_equal(stack_of(found).greedy_actions(batch).T, alone)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ELU])
def test_stacked_sources_with_other_activations(activation: type[nn.Module]) -> None:
    found = policies("vector", 2, activation_fn=activation, net_arch=[9])
    stack, batch = stack_of(found), observations("vector", 20)
    assert (stack.networks.arrays is None) == (activation is nn.ELU)
    np.testing.assert_array_equal(
        stack.greedy_actions(batch).T, [policy.predict(batch, deterministic=True)[0] for policy in found]
    )


def test_actors_are_stacked_too() -> None:
    found = [ActorCriticPolicy(SPACES["vector"], ACTIONS, lambda _: 0.0) for _ in range(2)]
    batch = observations("vector", 20)
    np.testing.assert_array_equal(
        stack_of(found).greedy_actions(batch).T, [policy.predict(batch, deterministic=True)[0] for policy in found]
    )


def test_only_plain_networks_of_one_architecture_are_stacked() -> None:
    env = make_vec_env(lambda: Corridor())
    small = {"net_arch": [8]}
    sources = [
        DQN("MlpPolicy", env, policy_kwargs=small),
        go_right,
        DQN("MlpPolicy", env),
        as_source(DQN("MlpPolicy", env, policy_kwargs=small), action_map=lambda actions: (actions + 1) % 3),
        PPO("MlpPolicy", env, n_steps=8, batch_size=8),
        DQN("MlpPolicy", env, policy_kwargs=small, seed=1),
    ]
    options = OptionSet(sources, env.observation_space, spaces.Discrete(3))
    batch = np.eye(10, dtype=np.float32)
    actions, _ = options.actions(batch, options.initial_states(), np.ones(10, dtype=bool))
    assert [stack.members for stack in options._stacks] == [[0, 5], [2], [4]]
    for i, source in enumerate(options.sources):
        np.testing.assert_array_equal(actions[:, i], source.actions(batch, None, np.ones(10, dtype=bool))[0])


def test_a_subclass_may_do_anything_so_it_goes_alone() -> None:
    class Contrary(DQNPolicy):
        def _predict(self, obs: Any, deterministic: bool = True) -> th.Tensor:
            return self.q_net(obs).argmin(dim=1)

    assert architecture(Contrary(SPACES["vector"], ACTIONS, lambda _: 0.0)) is None
    assert architecture(policies("vector", 1)[0]) is not None


@pytest.mark.parametrize("kind", ["box", "discrete", "image", "dict"])
@pytest.mark.parametrize("termination", [None, 0.3])
@pytest.mark.parametrize("settings", [{}, paper()])
def test_acting_pass_equals_the_network(kind: str, termination: float | None, settings: dict[str, Any]) -> None:
    policy = {"image": "CnnPolicy", "dict": "MultiInputPolicy"}.get(kind, "MlpPolicy")
    env = make_vec_env(lambda: Corridor(kind), n_envs=3, seed=0)
    arguments: dict[str, Any] = {"learning_starts": 10, "buffer_size": 100, "termination": termination, "seed": 0}
    model = CAPS(policy, env, source_policies=[go_right], **arguments, **settings)
    model.learn(60)
    assert model._last_obs is not None
    network, sources = model.policy.acting(), model._last_option_actions[:, :1]
    assert (network.hidden is not None) == (kind in ("box", "discrete"))
    with th.no_grad():
        found = model.policy.acting_net(model.policy.obs_to_tensor(model._last_obs)[0])
        expected = model.policy.complete(found, th.as_tensor(sources))
    both = (expected.values, expected.terminations)
    for ours, theirs in zip(network(model._last_obs, sources), both, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["box", "discrete", "image", "dict"])
def test_acting_pass_of_the_actor_equals_its_network(kind: str) -> None:
    policy = {"image": "CnnPolicy", "dict": "MultiInputPolicy"}.get(kind, "MlpPolicy")
    env = make_vec_env(lambda: Corridor(kind), n_envs=3, seed=0)
    model = CAPS(policy, env, source_policies=[go_right], learning_starts=10, buffer_size=100, seed=0).learn(60)
    assert model._last_obs is not None
    actor, acting = model.policy.actor, model.policy.acting()
    actor.start_from(np.array([0.3]))
    with th.no_grad():
        actor.policy_net[-1].weight.normal_()  # type: ignore[operator]
    assert (acting.preferences is not None) == (kind in ("box", "discrete"))
    with th.no_grad():
        features = model.policy.acting_net.features(model.policy.obs_to_tensor(model._last_obs)[0])
        sources = model._last_option_actions[:, :1]
        expected = actor(features, th.as_tensor(sources))[1].exp().numpy()
    np.testing.assert_allclose(acting.action_probabilities(model._last_obs, sources), expected, rtol=1e-4, atol=1e-6)
    # How likely an action is, is what is learned from
    options, likely = model.policy.actor_options(acting, model._last_obs, model._last_option_actions, model.rng)
    actions = model._last_option_actions[np.arange(3), options]
    np.testing.assert_allclose(likely, expected[np.arange(3), actions], rtol=1e-4, atol=1e-6)


def test_the_actor_begins_with_the_votes_of_its_sources() -> None:
    """Two sources that vote with 0.3 and 0.1, and 0.2 for each of three actions."""
    model = CAPS("MlpPolicy", Corridor(), source_policies=[go_right, go_left], seed=0)
    model.policy.actor.start_from(np.array([0.3, 0.1]))
    n_envs = 20_000
    observations = np.zeros((n_envs, 10), dtype=np.float32)

    def choose(sources: list[int], rng: np.random.Generator | None) -> tuple[np.ndarray, np.ndarray]:
        actions = np.tile([*sources, 0, 1, 2], (n_envs, 1))
        return model.policy.actor_options(model.policy.acting(), observations, actions, rng)

    # Both agree on 0
    options, likely = choose([0, 0], None)
    assert set(options) == {0}
    np.testing.assert_allclose(likely, 0.6, rtol=1e-2)
    # 0.5 for 2 and 0.3 for 1
    assert set(choose([2, 1], None)[0]) == {0}
    # What is drawn is the option of a source where one agrees
    options, likely = choose([2, 1], np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(options, minlength=5) / n_envs, [0.5, 0.3, 0.2, 0, 0], atol=0.015)
    np.testing.assert_allclose(likely, np.array([0.5, 0.3, 0.2])[options], rtol=1e-2)


def test_a_hook_of_the_actor_is_seen() -> None:
    model = CAPS("MlpPolicy", Corridor(), source_policies=[go_right], seed=0)
    model.policy.actor.policy_net[-1].register_forward_hook(lambda _, __, found: found + th.tensor([0.0, 50.0, 0, 0]))
    observations, sources = np.eye(10, dtype=np.float32)[:2], np.full((2, 1), RIGHT)
    found = model.policy.acting().action_probabilities(observations, sources)
    np.testing.assert_allclose(found, [[1, 0, 0]] * 2, atol=1e-6)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_arrays_of_a_copy_are_its_own(copied: Any) -> None:
    model = CAPS("MlpPolicy", Corridor(), seed=0)
    observation = np.eye(10, dtype=np.float32)
    before, _ = model.policy.acting()(observation, NO_SOURCES)
    twin = copied(model.policy)
    with th.no_grad():
        twin.acting_net.q_net[-1].bias += 1
    np.testing.assert_array_equal(model.policy.acting()(observation, NO_SOURCES)[0], before)
    np.testing.assert_allclose(twin.acting()(observation, NO_SOURCES)[0], before + 1, rtol=1e-5)


def test_arrays_follow_parameters_that_learn() -> None:
    model = CAPS("MlpPolicy", Corridor(), seed=0)
    observation = np.eye(10, dtype=np.float32)
    network = model.policy.acting()
    model.policy.load_state_dict(CAPS("MlpPolicy", Corridor(), seed=1).policy.state_dict())
    with th.no_grad():
        expected = model.policy.acting_net(th.as_tensor(observation)).values.numpy()
    np.testing.assert_allclose(network(observation, NO_SOURCES)[0], expected, rtol=1e-5, atol=1e-6)


def test_many_observations_are_left_to_torch() -> None:
    model = CAPS("MlpPolicy", Corridor(), policy_kwargs={"net_arch": [512, 512]}, seed=0)
    network = model.policy.acting()
    assert network.hidden is not None
    assert network.most_rows == 1
    observations = np.eye(10, dtype=np.float32)
    first, _ = network(observations[:1], NO_SOURCES[:1])
    np.testing.assert_allclose(network(observations, NO_SOURCES)[0][:1], first, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["vector", "image"])
def test_what_comes_back_is_remembered_and_only_that(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = policies(kind, 3, **({} if kind == "image" else {"net_arch": [256, 256]}))
    stack, batch = stack_of(found), observations(kind, 12)
    evaluated: list[int] = []
    plain = stack.networks.greedy_actions

    def counted(rows: np.ndarray) -> np.ndarray:
        evaluated.append(len(rows))
        return plain(rows)

    monkeypatch.setattr(stack.networks, "greedy_actions", counted)
    alone = np.array([policy.predict(batch, deterministic=True)[0] for policy in found])
    # New ones, some of them again and in another order, none new, and one that is there twice
    for rows in ([0, 1, 2], [5, 2, 0, 7], [7, 1], [9, 9]):
        np.testing.assert_array_equal(stack.greedy_actions(batch[rows]).T, alone[:, rows])
    assert evaluated == [3, 2, 2]


def test_a_view_of_an_image_is_the_same_image() -> None:
    stack, batch = stack_of(policies("image", 2)), observations("image", 3)
    answers = stack.greedy_actions(batch)
    view = np.moveaxis(np.ascontiguousarray(np.moveaxis(batch, 1, -1)), -1, 1)
    np.testing.assert_array_equal(stack.greedy_actions(view), answers)
    assert stack.cache is not None
    assert len(stack.cache.places) == 3


def test_small_networks_are_evaluated_sooner_than_remembered() -> None:
    assert stack_of(policies("vector", 3)).cache is None
    assert stack_of(policies("vector", 30)).cache is not None


def test_the_cache_starts_over_when_it_is_full() -> None:
    found, batch = policies("vector", 2, net_arch=[256, 256]), observations("vector", 40)
    stack = stack_of(found, cache_size=10)
    assert stack.cache is not None
    alone = np.array([policy.predict(batch, deterministic=True)[0] for policy in found])
    for start in (*range(0, 40, 4), 0):
        np.testing.assert_array_equal(stack.greedy_actions(batch[start : start + 4]).T, alone[:, start : start + 4])
        assert len(stack.cache.places) <= 10
    np.testing.assert_array_equal(stack.greedy_actions(batch).T, alone)


@pytest.mark.parametrize("kind", ["box", "wide box", "discrete", "image", "dict"])
@pytest.mark.parametrize("sequence_length", [1, 4])
def test_a_gradient_step_is_that_of_the_plain_loss(kind: str, sequence_length: int) -> None:
    """Beside it each network in a pass of its own, and Huber's loss differentiated by torch."""
    policy = {"image": "CnnPolicy", "dict": "MultiInputPolicy"}.get(kind, "MlpPolicy")
    env = make_vec_env(lambda: Corridor(kind.split()[-1]), n_envs=2, seed=0)
    # The norm is so small that gradients are clipped
    arguments: dict[str, Any] = {"sequence_length": sequence_length, "max_grad_norm": 0.05, "learning_starts": 1000}
    if kind == "wide box":  # too wide for arrays
        arguments["policy_kwargs"] = {"net_arch": [512, 512]}
    model = CAPS(policy, env, seed=0, source_policies=[go_right], **paper(**arguments))
    model.learn(60)
    with th.no_grad():
        # So that errors are on both sides of 1
        list(model.q_net.q_net.parameters())[-1].add_(th.linspace(-2, 2, len(model.options)))
    plain = copy.deepcopy(model.q_net)
    state = model.rng.bit_generator.state
    data = model.replay_buffer.sample(8)
    length, n_sequences = data.mask.shape
    split: Any = [part(data.observations, 0, length * n_sequences), part(data.observations, n_sequences)]
    shape = (length, n_sequences, -1)
    with th.no_grad():
        after = plain(split[1])
        targets = option_targets(
            data,
            model.gamma,
            after.values.argmax(dim=1).reshape(shape[:2]),
            model.q_net_target(split[1]).values.reshape(shape),
            after.terminations.reshape(shape),
        )
    errors = nn.functional.smooth_l1_loss(plain(split[0]).values.reshape(shape), targets, reduction="none")
    loss = errors[data.agreements & data.mask[..., None]].sum() / data.mask.sum()
    loss.backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
    model.rng.bit_generator.state = state
    model.train(gradient_steps=1, batch_size=8)
    assert model.logger.name_to_value["train/loss"] == pytest.approx(loss.item(), rel=1e-4)
    for ours, theirs in zip(model.q_net.q_net.parameters(), plain.q_net.parameters(), strict=True):
        assert ours.grad is not None
        th.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


def test_distinct_rows() -> None:
    batch = th.tensor([[1, 2], [3, 4], [1, 2], [5, 6], [3, 4]])
    distinct, places = distinct_rows(batch)
    assert distinct.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert places.tolist() == [0, 1, 0, 2, 1]


def test_screens_that_are_in_a_batch_several_times_are_looked_at_once() -> None:
    model = CAPS("CnnPolicy", make_vec_env(lambda: Corridor("image")), seed=0)
    screens = th.as_tensor(observations("image", 3))
    obs, weights = screens[[0, 1, 0, 1, 2, 0]], th.randn(6, 3)
    looked_at: list[int] = []
    model.q_net.features_extractor.register_forward_hook(lambda _, inputs, __: looked_at.append(len(inputs[0])))
    no_sources = th.zeros(6, 0, dtype=th.long)
    estimates = model.policy.evaluate(obs, no_sources)
    target_values = model.policy.evaluate(obs, no_sources, model.q_net_target).values
    assert looked_at == [3]
    (estimates.values * weights).sum().backward()
    gradients = [parameter.grad for parameter in model.q_net.q_net.parameters()]
    model.q_net.zero_grad()
    th.testing.assert_close(target_values, model.q_net_target(obs).values, rtol=1e-4, atol=1e-5)
    plain = model.q_net(obs)
    th.testing.assert_close(estimates, plain, rtol=1e-4, atol=1e-5)
    (plain.values * weights).sum().backward()
    for ours, parameter in zip(gradients, model.q_net.q_net.parameters(), strict=True):
        th.testing.assert_close(ours, parameter.grad, rtol=1e-3, atol=1e-5)


class NormalizedCNN(NatureCNN):
    """A network that looks at the whole batch."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space)
        self.norm = nn.BatchNorm1d(self.features_dim)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.norm(super().forward(observations))


def test_networks_that_look_at_the_batch_see_all_of_it() -> None:
    extractor = {"features_extractor_class": NormalizedCNN}
    model = CAPS("CnnPolicy", make_vec_env(lambda: Corridor("image")), policy_kwargs=extractor, seed=0)
    looked_at: list[int] = []
    model.q_net.features_extractor.register_forward_hook(lambda _, inputs, __: looked_at.append(len(inputs[0])))
    model.policy.evaluate(th.as_tensor(observations("image", 1))[[0] * 6], th.zeros(6, 0, dtype=th.long))
    assert looked_at == [6]


def test_fused_adam_is_a_default_and_no_more() -> None:
    assert CAPS("MlpPolicy", Corridor()).policy.optimizer.defaults["fused"] is True
    plain = CAPS("MlpPolicy", Corridor(), policy_kwargs={"optimizer_kwargs": {"foreach": True}})
    assert plain.policy.optimizer.defaults["fused"] is None
    other = CAPS("MlpPolicy", Corridor(), policy_kwargs={"optimizer_class": th.optim.RMSprop})
    assert isinstance(other.policy.optimizer, th.optim.RMSprop)


def test_fused_adam_learns_what_plain_adam_does() -> None:
    def trained(**optimizer: Any) -> CAPS:
        env = make_vec_env(lambda: Corridor(), n_envs=2, seed=0)
        model = CAPS("MlpPolicy", env, seed=0, learning_starts=1000, policy_kwargs={"optimizer_kwargs": optimizer})
        model.learn(40)
        model.train(gradient_steps=20, batch_size=16)
        return model

    for ours, theirs in zip(trained().q_net.parameters(), trained(fused=False).q_net.parameters(), strict=True):
        th.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["box", "discrete", "image"])
def test_same_seed_same_run_to_the_last_bit(kind: str) -> None:
    policy = "CnnPolicy" if kind == "image" else "MlpPolicy"

    def parameters() -> list[th.Tensor]:
        env = make_vec_env(lambda: Corridor(kind), n_envs=2, seed=3)
        sources = [DQN(policy, env, seed=i, buffer_size=1) for i in range(2)]
        model = CAPS(policy, env, seed=3, source_policies=sources, learning_starts=20, batch_size=8, buffer_size=100)
        return list(model.learn(100).policy.parameters())

    for first, second in zip(parameters(), parameters(), strict=True):
        assert th.equal(first, second)


def test_stacks_are_not_saved() -> None:
    env = make_vec_env(lambda: Corridor())
    options = OptionSet([DQN("MlpPolicy", env)], env.observation_space, spaces.Discrete(3))
    options.actions(np.eye(10, dtype=np.float32), options.initial_states(), np.ones(10, dtype=bool))
    assert isinstance(options._stacks[0], SourceStack)
    for twin in (pickle.loads(pickle.dumps(options)), copy.deepcopy(options)):
        assert "_stacks" not in vars(twin)
        assert [stack.members for stack in twin._stacks] == [[0]]
