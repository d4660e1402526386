"""
Small networks without the overhead of torch, and networks of one architecture evaluated together.

For one observation an operation of torch on a layer of 64 units takes longer to start than to compute; numpy starts
sooner. Networks of one architecture become one: their layers are stacked, so that 16 of them start as many operations
as one does, and read their weights in one go.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space, maybe_transpose, preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor, NatureCNN
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.dqn.policies import DQNPolicy
from torch import nn
from torch.nn import functional as F

ARRAY_ACTIVATIONS: dict[type[nn.Module], Callable[[np.ndarray], np.ndarray]] = {
    nn.ReLU: lambda values: np.maximum(values, 0, out=values),
    nn.Tanh: lambda values: np.tanh(values, out=values),
}
# Their derivatives, as functions of what they returned
ARRAY_SLOPES: dict[type[nn.Module], Callable[[np.ndarray], np.ndarray]] = {
    nn.ReLU: lambda values: values > 0,
    nn.Tanh: lambda values: 1 - values**2,
}
# Above so many multiplications numpy starts threads of its own, which get in the way of torch's
MOST_MULTIPLICATIONS = 2**18
# About 20 MB of remembered actions
MOST_REMEMBERED = 2**16
ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.ELU, nn.LeakyReLU, nn.SiLU, nn.GELU, nn.Sigmoid)


def layers_of(policy: BasePolicy) -> list[nn.Module] | None:
    """
    The layers from preprocessed observations to the numbers whose greatest is the deterministic action.

    :param policy: an SB3 policy
    :return: its layers in order, None for a policy that is more than that
    """
    # Subclasses may do anything in between, so only these very classes
    if type(policy).__module__ == DQNPolicy.__module__ and isinstance(policy, DQNPolicy):
        extractor = feature_layers(policy.q_net.features_extractor)
        head = list(policy.q_net.q_net)
    elif type(policy).__module__ == ActorCriticPolicy.__module__ and isinstance(policy, ActorCriticPolicy):
        extractor = feature_layers(policy.pi_features_extractor)
        head = [*policy.mlp_extractor.policy_net, policy.action_net]
    else:
        return None
    layers = [] if extractor is None else [*extractor, *head]
    known = (nn.Linear, nn.Conv2d, nn.Flatten, *ELEMENTWISE)
    return layers if layers and all(isinstance(layer, known) for layer in layers) else None


def feature_layers(extractor: BaseFeaturesExtractor) -> list[nn.Module] | None:
    """
    :param extractor: a features extractor
    :return: its layers in order, None for one that is not known
    """
    if type(extractor) is FlattenExtractor:
        return [extractor.flatten]
    if type(extractor) is NatureCNN:
        return [*extractor.cnn, *extractor.linear]
    return None


def runs_as_arrays(layers: Sequence[nn.Module] | None, space: spaces.Space) -> bool:
    """
    :param layers: a network
    :param space: the observations that it takes
    :return: whether ``ArrayNetwork`` can evaluate it
    """
    if layers is None or not isinstance(space, (spaces.Box, spaces.Discrete)) or is_image_space(space):
        return False
    # A number is looked up in the first matrix
    has_matrix = any(isinstance(layer, nn.Linear) for layer in layers)
    known = all(type(layer) in (nn.Linear, nn.Flatten, *ARRAY_ACTIVATIONS) for layer in layers)
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


def as_inputs(observations: np.ndarray, space: spaces.Space) -> np.ndarray:
    """
    What SB3's ``preprocess_obs`` and ``FlattenExtractor`` do, for a batch of vectors or numbers.

    :param observations: a batch of observations
    :param space: their space
    :return: the inputs of a network, of shape (batch, inputs), or the numbers themselves, of shape (batch,)
    """
    if isinstance(space, spaces.Discrete):
        return observations.reshape(-1)
    return observations.reshape(len(observations), -1).astype(np.float32)


class ArrayNetwork:
    """
    A network that ``runs_as_arrays``, always with the parameters that it has at the moment: on a CPU, arrays share
    the memory of its tensors.

    :param layers: its layers
    :param space: the observations that it takes, None for the outputs of other layers
    """

    def __init__(self, layers: Sequence[nn.Module], space: spaces.Space | None = None) -> None:
        self.layers = [layer for layer in layers if not isinstance(layer, nn.Flatten)]
        self.most_rows = most_rows(layers, space)
        self._arrays: list[tuple[np.ndarray, ...]] = []
        self._address = -1

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """
        :param inputs: what ``as_inputs`` returned, or other layers
        :return: its outputs
        """
        return self.outputs(inputs)[-1]

    def outputs(self, inputs: np.ndarray) -> list[np.ndarray]:
        """
        :param inputs: what ``as_inputs`` returned, or other layers
        :return: the inputs, and after them the outputs of each layer
        """
        found = [inputs]
        for layer, parameters in zip(self.layers, self.parameters(), strict=True):
            values = found[-1]
            found.append(_linear(values, *parameters) if parameters else ARRAY_ACTIVATIONS[type(layer)](values))
        return found

    def backward(self, outputs: Sequence[np.ndarray], slopes: np.ndarray) -> None:
        """
        Set the gradients of the parameters.

        :param outputs: what ``outputs`` returned
        :param slopes: the derivative of a loss by the outputs of the last layer, in the first so many rows
        """
        n_rows, arrays = len(slopes), self.parameters()
        for i in reversed(range(len(self.layers))):
            layer, inputs = self.layers[i], outputs[i][:n_rows]
            if not isinstance(layer, nn.Linear):
                slopes = slopes * ARRAY_SLOPES[type(layer)](outputs[i + 1][:n_rows])
                continue
            weight = arrays[i][0]
            if inputs.ndim == 1:
                by_weight = np.zeros_like(weight)
                np.add.at(by_weight.T, inputs, slopes)
            else:
                by_weight = slopes.T @ inputs
            for parameter, gradient in ((layer.weight, by_weight), (layer.bias, slopes.sum(axis=0))):
                if parameter.requires_grad:
                    parameter.grad = th.from_numpy(gradient)
            if i:
                slopes = slopes @ weight

    def parameters(self) -> list[tuple[np.ndarray, ...]]:
        """:return: for each layer its weight and bias, or nothing"""
        if not self.layers:
            return []
        weight: th.Tensor = self.layers[0].weight  # type: ignore[assignment]
        # Views live as long as the tensors stay where they are
        if weight.data_ptr() != self._address or not weight.is_cpu:
            self._address = weight.data_ptr()
            self._arrays = [
                tuple(parameter.detach().cpu().numpy() for parameter in layer.parameters()) for layer in self.layers
            ]
        return self._arrays

    def __getstate__(self) -> dict[str, Any]:
        # A copy has tensors of its own
        return {**self.__dict__, "_arrays": [], "_address": -1}


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

    def greatest(self, observations: np.ndarray) -> np.ndarray:
        """:return: for each network and observation, which output is the greatest"""
        values = as_inputs(observations, self.space)
        for layer in self.layers:
            if not isinstance(layer, tuple):
                values = layer(values)
            elif values.ndim == 1:
                values = layer[0][:, values] + layer[1]
            else:
                values = values @ layer[0] + layer[1]
        return values.argmax(axis=-1)


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

    def greatest(self, observations: np.ndarray) -> np.ndarray:
        """:return: for each network and observation, which output is the greatest"""
        if self.arrays is not None and len(observations) <= self.arrays.most_rows:
            return self.arrays.greatest(observations)
        return self.outputs(observations).argmax(axis=-1)

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


class Memory:
    """
    What was made of observations. Where that never changes, an observation that comes back has the answer that it had,
    and telling that takes a fiftieth of the time of a convolutional network.

    :param answer: takes a batch of observations, returns as many rows
    :param capacity: how many observations to remember: when there are more, it starts over
    """

    def __init__(self, answer: Callable[[np.ndarray], np.ndarray], capacity: int = MOST_REMEMBERED) -> None:
        self.answer, self.capacity = answer, capacity
        self.numbers: dict[bytes, int] = {}
        self.answers: np.ndarray | None = None

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """:return: a row for each observation"""
        if len(self.numbers) + len(observations) > self.capacity:
            self.numbers.clear()
        if len(observations) > self.capacity:
            return self.answer(observations)
        # 16 bytes, by which no two observations will ever be mistaken for each other
        rows = np.ascontiguousarray(observations).reshape(len(observations), -1)
        keys = [blake2b(row.data, digest_size=16).digest() for row in rows]
        new = [i for i, key in enumerate(keys) if key not in self.numbers]
        if new:
            found = self.answer(observations[new] if len(new) < len(keys) else observations)
            if self.answers is None:
                self.answers = np.zeros((self.capacity, *found.shape[1:]), dtype=found.dtype)
            self.answers[[self.numbers.setdefault(keys[i], len(self.numbers)) for i in new]] = found
        assert self.answers is not None
        return self.answers[[self.numbers[key] for key in keys]]


class RememberingStack:
    """
    A stack that remembers what its networks answered: their parameters never change.

    :param stack: the networks
    :param capacity: how many observations to remember
    """

    def __init__(self, stack: NetworkStack, capacity: int = MOST_REMEMBERED) -> None:
        self.stack = stack
        self.memory = Memory(lambda observations: stack.greatest(observations).T, capacity)

    def greatest(self, observations: np.ndarray) -> np.ndarray:
        """:return: for each network and observation, which output is the greatest"""
        return self.memory(observations).T


def stack_of(policies: Sequence[BasePolicy]) -> RememberingStack:
    """
    :param policies: policies with the same ``architecture``
    :return: their networks as one
    """
    networks = [layers_of(policy) or [] for policy in policies]
    return RememberingStack(NetworkStack(networks, policies[0].observation_space, policies[0].normalize_images))


def architecture(policy: BasePolicy) -> str | None:
    """
    :param policy: an SB3 policy
    :return: the same for policies that can be evaluated together, None for one that has to go by itself
    """
    layers = layers_of(policy)
    if layers is None or not isinstance(policy.action_space, spaces.Discrete):
        return None
    return f"{layers} {policy.observation_space} {policy.normalize_images} {policy.device}"


def sigmoid(values: np.ndarray) -> np.ndarray:
    """:return: the logistic function, which does not overflow and is precise where it is small"""
    return np.exp(-np.logaddexp(0.0, -values))


def clip_grad_norm(parameters: Sequence[nn.Parameter], max_norm: float) -> None:
    """
    What torch's ``clip_grad_norm_`` does, which multiplies all gradients also where nothing is to be clipped, by 1.

    :param parameters: whose gradients to clip
    :param max_norm: the norm that they may have together
    """
    norms = [th.linalg.vector_norm(parameter.grad) for parameter in parameters if parameter.grad is not None]
    # Near the border torch decides
    if norms and not th.linalg.vector_norm(th.stack(norms)) < 0.999 * max_norm:
        nn.utils.clip_grad_norm_(parameters, max_norm)


def _linear(values: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    outputs = weight.T[values] if values.ndim == 1 else np.dot(values, weight.T)
    outputs += bias
    return outputs
