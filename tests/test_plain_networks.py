"""A stack of networks acts as each of its members does by itself, or declines the member."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.dqn.policies import CnnPolicy, DQNPolicy
from torch import nn

from sb3_caps import as_source
from sb3_caps.continuous.options import BoxOptionSet
from sb3_caps.reuse.options import OptionSet
from sb3_caps.sources.evaluate import architecture
from tests.toy_box import REACH, ToyBox
from tests.toy_world import LENGTH, Corridor

VECTORS = spaces.Box(0.0, 1.0, (LENGTH,), np.float32)
IMAGES = spaces.Box(0, 255, (3, 36, 36), np.uint8)
ACTIONS = spaces.Discrete(5)


def dqn(seed: int = 0) -> Any:
    th.manual_seed(seed)
    return DQNPolicy(VECTORS, ACTIONS, lambda _: 0.0)


def actor() -> Any:
    th.manual_seed(0)
    env = Corridor()
    env.action_space = ACTIONS
    return PPO("MlpPolicy", env, n_steps=8, batch_size=8).policy


def images() -> Any:
    th.manual_seed(0)
    return CnnPolicy(IMAGES, ACTIONS, lambda _: 0.0)


def turned(module: Any, inputs: Any, outputs: th.Tensor) -> th.Tensor:
    return -outputs


def turned_inputs(module: Any, inputs: Any) -> Any:
    return tuple(-each for each in inputs)


def hook(make: Callable[[], Any], name: str) -> Any:
    policy = make()
    policy.get_submodule(name).register_forward_hook(turned)
    return policy


def early_hook(make: Callable[[], Any], name: str) -> Any:
    policy = make()
    policy.get_submodule(name).register_forward_pre_hook(turned_inputs)
    return policy


def last_action(observation: Any, deterministic: bool = True) -> th.Tensor:
    return th.full((len(observation),), 4)


def replaced(make: Callable[[], Any], name: str, method: str, value: Any) -> Any:
    policy = make()
    setattr(policy.get_submodule(name), method, value)
    return policy


def minus(layer: nn.Linear) -> Any:
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    return lambda values: -nn.functional.linear(values, weight, bias)


def with_layer(make: Callable[[], Any], parent: str, place: str, layer: nn.Module) -> Any:
    policy = make()
    setattr(policy.get_submodule(parent), place, layer)
    return policy


def compiled(make: Callable[[], Any], parent: str, place: str) -> Any:
    policy = make()
    owner = policy.get_submodule(parent)
    # An engine that compiles nothing, but wraps as any other
    setattr(owner, place, th.compile(getattr(owner, place), backend="eager"))
    return policy


CHANGED: dict[str, Callable[[], Any]] = {
    "a hook on a layer": lambda: hook(dqn, "q_net.q_net.0"),
    "a hook on the network": lambda: hook(dqn, "q_net"),
    "a hook on the features": lambda: hook(actor, "features_extractor"),
    "a hook before a layer": lambda: early_hook(actor, "mlp_extractor.policy_net.2"),
    "another forward of the network": lambda: replaced(dqn, "q_net", "forward", minus(nn.Linear(LENGTH, 5))),
    "another forward of a layer": lambda: replaced(actor, "action_net", "forward", minus(nn.Linear(64, 5))),
    "another _predict": lambda: replaced(dqn, "", "_predict", last_action),
    "another _predict of the network": lambda: replaced(dqn, "q_net", "_predict", last_action),
    "another _predict of an actor": lambda: replaced(actor, "", "_predict", last_action),
    "a matrix without bias": lambda: with_layer(dqn, "q_net.q_net", "2", nn.Linear(64, 64, bias=False)),
    "a head without bias": lambda: with_layer(actor, "", "action_net", nn.Linear(64, 5, bias=False)),
    "dropout": lambda: with_layer(dqn, "q_net.q_net", "1", nn.Dropout(0.9)),
    "normalised weights": lambda: with_layer(
        dqn, "q_net.q_net", "2", nn.utils.parametrizations.weight_norm(nn.Linear(64, 64))
    ),
    "a network that is not a sequence": lambda: with_layer(dqn, "q_net", "q_net", nn.Bilinear(LENGTH, LENGTH, 5)),
    "a compiled network": lambda: compiled(dqn, "", "q_net"),
    "compiled layers": lambda: compiled(dqn, "q_net", "q_net"),
    "a compiled actor": lambda: compiled(actor, "", "mlp_extractor"),
    "a padded convolution": lambda: with_layer(
        images, "q_net.features_extractor.cnn", "2", nn.Conv2d(32, 64, 4, stride=2, padding=1)
    ),
    "a dilated convolution": lambda: with_layer(
        images, "q_net.features_extractor.cnn", "4", nn.Conv2d(64, 64, 2, stride=1, dilation=2)
    ),
    "a grouped convolution": lambda: with_layer(
        images, "q_net.features_extractor.cnn", "4", nn.Conv2d(64, 64, 3, groups=2)
    ),
    "a convolution without bias": lambda: with_layer(
        images, "q_net.features_extractor.cnn", "4", nn.Conv2d(64, 64, 3, bias=False)
    ),
}


def fitted(policy: Any) -> Any:
    """The first matrix after convolutions fits what they put out."""
    extractor: Any = getattr(getattr(policy, "q_net", None), "features_extractor", None)
    if hasattr(extractor, "cnn"):
        with th.no_grad():
            flat = extractor.cnn(th.zeros(1, *IMAGES.shape)).shape[1]
        extractor.linear[0] = nn.Linear(flat, extractor.linear[0].out_features)
    if isinstance(getattr(getattr(policy, "q_net", None), "q_net", None), nn.Bilinear):
        plain = policy.q_net.q_net
        plain.forward = lambda values: nn.Bilinear.forward(plain, values, values)
    return policy


def batch_of(policy: BasePolicy) -> np.ndarray:
    if policy.observation_space == IMAGES:
        return np.random.default_rng(0).integers(0, 256, (20, *IMAGES.shape), dtype=np.uint8)
    return np.random.default_rng(0).random((20, LENGTH), dtype=np.float32)


@pytest.mark.parametrize("change", list(CHANGED))
def test_what_is_not_plain_goes_alone(change: str) -> None:
    th.manual_seed(1)
    policy = fitted(CHANGED[change]())
    batch = batch_of(policy)
    expected, _ = policy.predict(batch, deterministic=True)
    one_by_one = [int(policy.predict(observation, deterministic=True)[0]) for observation in batch]
    np.testing.assert_array_equal(one_by_one, expected)
    options = OptionSet([as_source(policy, deterministic=True)], policy.observation_space, ACTIONS)
    assert options._stacks == []
    starts = np.ones(len(batch), dtype=bool)
    np.testing.assert_array_equal(options.actions(batch, (None,), starts)[0][:, 0], expected)
    found = [options.actions(row[None], (None,), starts[:1])[0][0, 0] for row in batch]
    np.testing.assert_array_equal(found, expected)


def actor_with_another_head() -> Any:
    return with_layer(actor, "", "action_net", nn.Sequential(nn.Linear(64, 9), nn.ELU(), nn.Linear(9, 5)))


@pytest.mark.parametrize("make", [dqn, actor, images, actor_with_another_head])
def test_what_is_plain_is_stacked(make: Callable[[], Any]) -> None:
    policy = make()
    options = OptionSet([policy], policy.observation_space, ACTIONS)
    assert len(options._stacks) == 1
    batch = batch_of(policy)
    expected, _ = policy.predict(batch, deterministic=True)
    np.testing.assert_array_equal(options.actions(batch, (), np.ones(20, dtype=bool))[0][:, 0], expected)


def test_other_types_of_numbers_go_alone() -> None:
    policy = dqn().double()
    assert architecture(policy) is None
    assert architecture(dqn()) is not None


def test_what_was_compiled_as_a_whole() -> None:
    model = DQN("MlpPolicy", Corridor(), seed=0, buffer_size=1)
    batch = np.eye(LENGTH, dtype=np.float32)
    expected, _ = model.predict(batch, deterministic=True)
    in_place: Any = DQN("MlpPolicy", Corridor(), seed=0, buffer_size=1)
    in_place.q_net.compile(backend="eager")
    wrapped: Any = DQN("MlpPolicy", Corridor(), seed=0, buffer_size=1)
    wrapped.policy = th.compile(wrapped.policy, backend="eager")
    for given in (in_place, wrapped, wrapped.policy):
        source = as_source(given)
        assert isinstance(source.policy, DQNPolicy)
        np.testing.assert_array_equal(source.actions(batch, None, np.ones(LENGTH, dtype=bool))[0], expected)


def continuous(algorithm: Any) -> Any:
    return algorithm("MlpPolicy", ToyBox(), policy_kwargs={"net_arch": [8]}, seed=0, device="cpu").policy


BOX_CHANGED: dict[str, Callable[[], Any]] = {
    "a hook on a layer of SAC": lambda: hook(lambda: continuous(SAC), "actor.mu"),
    "a hook on the actor of TD3": lambda: hook(lambda: continuous(TD3), "actor"),
    "a hook before a layer of PPO": lambda: early_hook(lambda: continuous(PPO), "action_net"),
    "another forward": lambda: replaced(lambda: continuous(SAC), "actor.mu", "forward", minus(nn.Linear(8, 2))),
    "another _predict": lambda: replaced(
        lambda: continuous(PPO), "", "_predict", lambda observation, deterministic=True: th.ones(len(observation), 2)
    ),
    "a matrix without bias": lambda: with_layer(lambda: continuous(TD3), "actor.mu", "0", nn.Linear(2, 8, bias=False)),
    "a compiled actor": lambda: compiled(lambda: continuous(SAC), "", "actor"),
    "compiled layers of SAC": lambda: compiled(lambda: continuous(SAC), "actor", "latent_pi"),
    "compiled layers of TD3": lambda: compiled(lambda: continuous(TD3), "actor", "mu"),
}


@pytest.mark.parametrize("change", list(BOX_CHANGED))
def test_what_is_not_plain_goes_alone_for_continuous_actions_too(change: str) -> None:
    th.manual_seed(1)
    policy = BOX_CHANGED[change]()
    batch = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    expected = np.clip(policy.predict(batch, deterministic=True)[0], -REACH, REACH)
    options = BoxOptionSet([as_source(policy)], policy.observation_space, policy.action_space)
    assert options._box_stacks == []
    starts = np.ones(len(batch), dtype=bool)
    found = options.unscaled(options.actions(batch, (None,), starts)[0][:, 0])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    one_by_one = [options.unscaled(options.actions(row[None], (None,), starts[:1])[0][:, 0])[0] for row in batch]
    np.testing.assert_allclose(one_by_one, expected, atol=1e-5)
