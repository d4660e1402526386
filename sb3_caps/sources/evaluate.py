"""
Evaluating many source networks at once, and none of them twice for the same observation.

All of this is for speed alone: a source that is not known here acts by itself, and all of them would. For one
observation an operation of torch on a layer of 64 units takes longer to start than to compute; numpy starts sooner.
Networks of one architecture become one: their layers are stacked, so that 16 of them start as many operations as one
does, and read their weights in one go. And because sources never change, the actions of large ones are remembered.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space, maybe_transpose, preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor, MlpExtractor, NatureCNN
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn
from torch.nn import functional as F

from sb3_caps.sources.act import SourcePolicy, draw

ARRAY_ACTIVATIONS: dict[type[nn.Module], Callable[[np.ndarray], np.ndarray]] = {
    nn.ReLU: lambda values: np.maximum(values, 0, out=values),
    nn.Tanh: lambda values: np.tanh(values, out=values),
}
ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.ELU, nn.LeakyReLU, nn.SiLU, nn.GELU, nn.Sigmoid)
# Above so many multiplications numpy starts threads of its own, which get in the way of torch's
MOST_MULTIPLICATIONS = 2**18
# About 20 MB of remembered actions, where observations come back; where they do not, so many are tried at a time
CACHE_SIZE = 2**16
FIRST_CACHED = 2**12
# Of those that are drawn from, the scores of all actions are remembered: so many bytes at most
MOST_REMEMBERED = 2**26
# Networks with fewer parameters are evaluated sooner than an observation is looked up and remembered
SMALLEST_CACHED = 2**16


class SourceStack:
    """
    Sources of one architecture, evaluated as one network. What large ones did before is remembered.

    :param members: the sources' places in the option set
    :param policies: their policies
    :param cache_size: how many observations to remember
    :param drawn: the places in this stack of those that draw their actions
    """

    def __init__(
        self,
        members: list[int],
        policies: Sequence[BasePolicy],
        cache_size: int = CACHE_SIZE,
        drawn: Sequence[int] = (),
    ) -> None:
        self.members, self.drawn = members, np.array(drawn, dtype=np.int64)
        networks = [layers_of(policy) or [] for policy in policies]
        self.networks = NetworkStack(networks, policies[0].observation_space, policies[0].normalize_images)
        n_parameters = sum(parameter.numel() for layers in networks for parameter in nn.ModuleList(layers).parameters())
        if drawn:
            assert isinstance(policies[0].action_space, spaces.Discrete)
            cache_size = min(cache_size, MOST_REMEMBERED // (4 * len(policies) * int(policies[0].action_space.n)))
        self.cache = ObservationCache(self._evaluate, cache_size) if n_parameters >= SMALLEST_CACHED else None

    def actions(self, observations: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """
        :param observations: one for each environment, as the environment emits them
        :param rng: what actions are drawn with, None for the likeliest ones
        :return: the action of each source, of shape (environments, members)
        """
        found = self._evaluate(observations) if self.cache is None else self.cache(observations)
        if not len(self.drawn):
            return found
        actions: np.ndarray = found.argmax(axis=-1)
        if rng is not None:
            actions[:, self.drawn] = draw(found[:, self.drawn], rng)
        return actions

    def greedy_actions(self, observations: np.ndarray) -> np.ndarray:
        """
        :param observations: one for each environment, as the environment emits them
        :return: the likeliest action of each source, of shape (environments, members)
        """
        return self.actions(observations)

    def _evaluate(self, observations: np.ndarray) -> np.ndarray:
        """:return: what is remembered: the actions, or the scores of all actions to draw by"""
        if len(self.drawn):
            return self.networks.scores(observations).swapaxes(0, 1)
        return self.networks.greedy_actions(observations).T


def stack_sources(sources: Sequence[SourcePolicy]) -> list[SourceStack]:
    """
    :param sources: all source policies
    :return: those that are plain networks, grouped by architecture; all others act by themselves
    """
    groups: dict[str, dict[int, BasePolicy]] = {}
    for i, source in enumerate(sources):
        policy = source.network
        key = None if policy is None else architecture(policy)
        if policy is not None and key is not None:
            groups.setdefault(key, {})[i] = policy
    return [
        SourceStack(
            list(group),
            list(group.values()),
            drawn=[place for place, i in enumerate(group) if not sources[i].deterministic],
        )
        for group in groups.values()
    ]


def architecture(policy: BasePolicy) -> str | None:
    """
    :param policy: an SB3 policy
    :return: the same for policies that can be evaluated together, None for one that has to act by itself
    """
    layers = layers_of(policy)
    if layers is None or not isinstance(policy.action_space, spaces.Discrete):
        return None
    return f"{layers} {policy.observation_space} {policy.normalize_images} {policy.device}"


def layers_of(policy: BasePolicy) -> list[nn.Module] | None:
    """
    The layers from preprocessed observations to the numbers whose greatest is the deterministic action.

    :param policy: an SB3 policy
    :return: its layers in order, None for a policy that is more than that
    """
    # Subclasses may do anything in between, so only these very classes
    if (
        type(policy).__module__ == DQNPolicy.__module__
        and isinstance(policy, DQNPolicy)
        and type(policy.q_net) is QNetwork
    ):
        extractor, head = feature_layers(policy.q_net.features_extractor), _listed(policy.q_net.q_net)
    elif (
        type(policy).__module__ == ActorCriticPolicy.__module__
        and isinstance(policy, ActorCriticPolicy)
        and type(policy.mlp_extractor) is MlpExtractor
    ):
        extractor = feature_layers(policy.pi_features_extractor)
        head = _listed(policy.mlp_extractor.policy_net, policy.action_net)
    else:
        return None
    layers = [] if extractor is None else [*extractor, *head]
    return layers if layers and all(map(_is_known, layers)) and is_as_built(policy) else None


def is_as_built(network: nn.Module) -> bool:
    """
    :param network: a policy or a network
    :return: whether nothing was put in the way of what its classes do: no hook, and no method of an object of its own
    """
    return all(parameter.dtype == th.float32 for parameter in network.parameters()) and not any(
        module._forward_hooks
        or module._forward_pre_hooks
        or any(callable(getattr(type(module), name, None)) for name in vars(module))
        for module in network.modules()
    )


def _is_known(layer: nn.Module) -> bool:
    """Whether a stack computes what the layer does."""
    if isinstance(layer, nn.Conv2d):
        plain = layer.padding == (0, 0) and layer.dilation == (1, 1) and layer.groups == 1
        return type(layer) is nn.Conv2d and plain and layer.bias is not None
    if isinstance(layer, nn.Linear):
        return type(layer) is nn.Linear and layer.bias is not None
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim) == (1, -1)
    return type(layer) in ELEMENTWISE


def feature_layers(extractor: BaseFeaturesExtractor) -> list[nn.Module] | None:
    """
    :param extractor: a features extractor
    :return: its layers in order, None for one that is not known
    """
    if type(extractor) is FlattenExtractor:
        return [extractor.flatten]
    if type(extractor) is NatureCNN:
        return _listed(extractor.cnn, extractor.linear)
    return None


def _listed(*modules: nn.Module) -> list[nn.Module]:
    """:return: the layers of these, one after the other"""
    return [layer for module in modules for layer in (module if type(module) is nn.Sequential else [module])]


def runs_as_arrays(layers: Sequence[nn.Module] | None, space: spaces.Space) -> bool:
    """
    :param layers: a network
    :param space: the observations that it takes
    :return: whether numpy can evaluate it
    """
    if layers is None or not isinstance(space, (spaces.Box, spaces.Discrete)) or is_image_space(space):
        return False
    # A number is looked up in the first matrix
    has_matrix = any(isinstance(layer, nn.Linear) for layer in layers)
    arrays = (nn.Linear, nn.Flatten, *ARRAY_ACTIVATIONS)
    known = all(_is_known(layer) and type(layer) in arrays for layer in layers)
    return known and (has_matrix or not isinstance(space, spaces.Discrete))


def most_rows(layers: Sequence[nn.Module], space: spaces.Space | None) -> int:
    """
    :param layers: a network that ``runs_as_arrays``
    :param space: what it takes, None for the outputs of other layers
    :return: up to how many observations at once that is faster than torch
    """
    sizes = [layer.in_features * layer.out_features for layer in layers if isinstance(layer, nn.Linear)]
    if isinstance(space, spaces.Discrete):
        sizes = sizes[1:]
    return MOST_MULTIPLICATIONS // max(sizes, default=1)


def as_inputs(observations: Any, space: spaces.Space) -> np.ndarray:
    """
    What SB3's ``preprocess_obs`` and ``FlattenExtractor`` do, for a batch of vectors or numbers.

    :param observations: a batch of observations
    :param space: their space
    :return: the inputs of a network, of shape (batch, inputs), or the numbers themselves, of shape (batch,)
    """
    flat: np.ndarray = observations.reshape(len(observations), -1)
    return flat[:, 0] if isinstance(space, spaces.Discrete) else flat.astype(np.float32)


class ArrayStack:
    """
    Networks of one architecture that ``runs_as_arrays``, with the parameters that they have now.

    :param networks: their layers
    :param space: the observations that they take
    """

    def __init__(self, networks: Sequence[Sequence[nn.Module]], space: spaces.Space) -> None:
        self.space, self.most_rows = space, most_rows(networks[0], space)
        self.layers: list[tuple[np.ndarray, np.ndarray] | Callable[[np.ndarray], np.ndarray]] = []
        for layers in zip(*networks, strict=True):
            if isinstance(layers[0], nn.Linear):
                weights = np.stack([layer.weight.detach().numpy().T for layer in layers])
                self.layers.append((weights, np.stack([layer.bias.detach().numpy()[None] for layer in layers])))
            elif not isinstance(layers[0], nn.Flatten):
                self.layers.append(ARRAY_ACTIVATIONS[type(layers[0])])

    def outputs(self, observations: np.ndarray) -> np.ndarray:
        """:return: what the last layers put out, of shape (networks, observations, outputs)"""
        values = as_inputs(observations, self.space)
        for layer in self.layers:
            if not isinstance(layer, tuple):
                values = layer(values)
            elif values.ndim == 1:
                values = layer[0][:, values] + layer[1]
            else:
                values = values @ layer[0] + layer[1]
        return values


class NetworkStack:
    """
    Networks of one architecture, convolutions included, with the parameters that they have now.

    :param networks: their layers
    :param space: the observations that they take
    :param normalize_images: whether images are divided by 255
    """

    def __init__(self, networks: Sequence[Sequence[nn.Module]], space: spaces.Space, normalize_images: bool) -> None:
        self.space, self.normalize_images, self.size = space, normalize_images, len(networks)
        self.device = next(nn.ModuleList(networks[0]).parameters()).device
        as_arrays = runs_as_arrays(networks[0], space) and self.device.type == "cpu"
        self.arrays = ArrayStack(networks, space) if as_arrays else None
        self.layers = list(zip(*networks, strict=True))
        # Of convolutions, the channels of all networks side by side; matrices are too large to be copied
        self.filters = [
            (th.cat([layer.weight for layer in layers]).detach(), th.cat([layer.bias for layer in layers]).detach())
            for layers in self.layers
            if isinstance(layers[0], nn.Conv2d)
        ]

    def greedy_actions(self, observations: np.ndarray) -> np.ndarray:
        """:return: for each network and observation, which output is the greatest"""
        return self.scores(observations).argmax(axis=-1)

    def scores(self, observations: np.ndarray) -> np.ndarray:
        """:return: the same as ``outputs``, by numpy where that is faster"""
        if self.arrays is not None and len(observations) <= self.arrays.most_rows:
            return self.arrays.outputs(observations)
        return self.outputs(observations)

    @th.no_grad()
    def outputs(self, observations: np.ndarray) -> np.ndarray:
        """:return: what the last layers put out, of shape (networks, observations, outputs)"""
        observations = maybe_transpose(observations, self.space)
        tensor = preprocess_obs(obs_as_tensor(observations, self.device), self.space, self.normalize_images)
        assert isinstance(tensor, th.Tensor)
        filters, side_by_side = iter(self.filters), 1
        for layers in self.layers:
            if isinstance(layers[0], nn.Conv2d):
                # All first layers see the same image; from then on each network has its own channels
                tensor = F.conv2d(tensor, *next(filters), layers[0].stride, groups=side_by_side)
                side_by_side = self.size
            elif isinstance(layers[0], nn.Flatten):
                tensor = tensor.reshape(len(tensor), side_by_side, -1).transpose(0, 1).expand(self.size, -1, -1)
            elif isinstance(layers[0], nn.Linear):
                tensor = th.stack([layer(values) for layer, values in zip(layers, tensor, strict=True)])
            else:
                tensor = layers[0](tensor)
        return tensor.cpu().numpy()


class ObservationCache:
    """
    What was made of observations. Where that never changes, an observation that comes back has the answer that it had,
    and telling that takes a fiftieth of the time of a convolutional network.

    :param answer: takes a batch of observations, returns as many rows
    :param capacity: how many observations to remember, at most: when there are more, it starts over. It comes to so
        many only where observations come back, and stays small where they do not.
    """

    def __init__(self, answer: Callable[[np.ndarray], np.ndarray], capacity: int = CACHE_SIZE) -> None:
        self.answer, self.capacity = answer, capacity
        self.limit, self.found = min(FIRST_CACHED, capacity), 0
        self.places: dict[bytes, int] = {}
        self.answers: np.ndarray | None = None

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """:return: a row for each observation"""
        if len(self.places) + len(observations) > self.limit:
            self._make_room(len(observations))
        if len(observations) > self.limit:
            return self.answer(observations)
        # 16 bytes, by which no two observations of a type will ever be mistaken for each other
        rows, dtype = np.ascontiguousarray(observations).reshape(len(observations), -1), observations.dtype.str.encode()
        keys = [dtype + blake2b(row.data, digest_size=16).digest() for row in rows]
        new = [i for i, key in enumerate(keys) if key not in self.places]
        self.found += len(keys) - len(new)
        if new:
            found = self.answer(observations[new] if len(new) < len(keys) else observations)
            if self.answers is None:
                self.answers = np.zeros((self.capacity, *found.shape[1:]), dtype=found.dtype)
            self.answers[[self.places.setdefault(keys[i], len(self.places)) for i in new]] = found
        assert self.answers is not None
        return self.answers[[self.places[key] for key in keys]]

    def _make_room(self, n_observations: int) -> None:
        """
        Remember more where one in sixteen was known already, else start over.

        :param n_observations: how many come now
        """
        if self.found * 16 >= len(self.places):
            self.limit = min(2 * self.limit, self.capacity)
        if len(self.places) + n_observations > self.limit:
            self.places.clear()
        self.found = 0
