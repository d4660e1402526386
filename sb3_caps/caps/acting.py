"""The pass of the networks while acting: in NumPy where they are small and plain, in torch otherwise."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch as th
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import obs_as_tensor
from torch import nn

from sb3_caps.caps.networks import OptionQNetwork, ResidualActor
from sb3_caps.sources import Observations
from sb3_caps.sources.evaluate import ARRAY_ACTIVATIONS, as_inputs, is_as_built, most_rows, runs_as_arrays

if TYPE_CHECKING:
    from sb3_caps.caps.policies import CAPSPolicy

Layer: TypeAlias = Callable[[np.ndarray], np.ndarray]


class ActingNetwork:
    """
    Option values and terminations, and what the actor does, for the few observations of a step.

    For one observation, an operation of torch on a layer of 64 units takes longer to start than to compute; NumPy
    starts sooner. It shares the memory of the networks' tensors, and is made anew where an episode begins. Whatever it
    does not know (other layers or classes, hooks, images, another device) is left to torch.

    :param policy: what to act by
    :param network: which network of it
    :param actor: which actor of it
    """

    def __init__(self, policy: "CAPSPolicy", network: OptionQNetwork, actor: ResidualActor) -> None:
        self.policy, self.network, self.actor, self.space = policy, network, actor, policy.observation_space
        self.options = policy.options
        # Up to the last hidden layer, and from there to the values and to the terminations
        self.hidden: list[Layer] | None = None
        self.values: list[Layer] = []
        self.terminations: list[Layer] = []
        self.preferences: list[Layer] | None = None
        if self._is_plain():
            *hidden, last = map(_layer, self.network.q_net)
            self.hidden, self.values = hidden, [last]
            if policy.termination is None:
                self.terminations = [*map(_layer, self._termination_layers())]
            self.most_rows = most_rows([*self.network.q_net], self.space)
            if runs_as_arrays([*actor.policy_net], self.space) and is_as_built(actor):
                self.preferences = [*map(_layer, actor.policy_net)]

    def __call__(self, observations: Observations, source_actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """
        :param observations: one for each environment
        :param source_actions: the actions of the sources, of shape (environments, sources)
        :return: option values and terminations, each of shape (environments, options)
        """
        if self.hidden is None or not self._takes(observations):
            with th.no_grad():
                found = self.network(obs_as_tensor(observations, self.policy.device))
                found = self.policy.complete(found, th.as_tensor(source_actions, device=self.policy.device))
            return found.values.cpu().numpy(), found.terminations.cpu().numpy()
        hidden = _through(self.hidden, as_inputs(observations, self.space))
        values = self._complete(_through(self.values, hidden), source_actions)
        if self.policy.termination is not None:
            return values, np.full(values.shape, self.policy.termination, dtype=np.float32)
        return values, sigmoid(self._complete(_through(self.terminations, hidden), source_actions))

    def action_probabilities(
        self, observations: Observations, source_actions: np.ndarray, action_masks: np.ndarray | None = None
    ) -> np.ndarray:
        """
        :param observations: one for each environment
        :param source_actions: the actions of the sources, of shape (environments, sources), -1 where it has none
        :param action_masks: which actions are allowed, of shape (environments, actions), None for all
        :return: how likely the actor is to take each action, of shape (environments, actions)
        """
        if self.preferences is None or not self._takes(observations):
            with th.no_grad():
                features = self.network.features(obs_as_tensor(observations, self.policy.device))
                sources = th.as_tensor(source_actions, device=self.policy.device)
                masks = None if action_masks is None else th.as_tensor(action_masks, device=self.policy.device)
                found: np.ndarray = self.actor(features, sources, masks)[1].exp().cpu().numpy()
            return found
        outputs = _through(self.preferences, as_inputs(observations, self.space))
        n_sources, rows = self.actor.n_sources, np.arange(len(outputs))
        learned = outputs[:, n_sources:]
        share = min(max(self.actor.share.item(), 0.0), 1.0 - 1e-6)
        prior = np.full(learned.shape, (1.0 - share) / learned.shape[1], dtype=np.float32)
        votes = share * softmax(outputs[:, :n_sources]) if n_sources else outputs[:, :0]
        if action_masks is not None:
            votes = votes * (source_actions >= 0)
        for i in range(n_sources):
            prior[rows, source_actions[:, i]] += votes[:, i]
        logits = learned + np.log(prior)
        return softmax(logits if action_masks is None else np.where(action_masks, logits, -np.inf))

    def _takes(self, observations: Observations) -> bool:
        return not isinstance(observations, dict) and len(observations) <= self.most_rows

    def _complete(self, outputs: np.ndarray, source_actions: np.ndarray) -> np.ndarray:
        """As ``CAPSPolicy.complete`` does."""
        n_sources = source_actions.shape[1]
        if self.policy.shared_values and n_sources:
            outputs[:, :n_sources] += np.take_along_axis(outputs[:, n_sources:], source_actions, axis=1)
        return outputs

    def _termination_layers(self) -> list[nn.Module]:
        return [*self.network.termination_hidden, self.network.termination_net]

    def _is_plain(self) -> bool:
        """Whether this class knows all that the network does, from observations to values."""
        network = self.network
        return (
            type(network) is OptionQNetwork
            and network.device.type == "cpu"
            and type(network.features_extractor) is FlattenExtractor
            # A number picks a row of the first matrix, and there has to be a hidden layer for both heads to share
            and type(network.q_net[0]) is nn.Linear
            and len(network.q_net) > 1
            and runs_as_arrays([*network.q_net, *self._termination_layers()], self.space)
            and is_as_built(network)
        )


def softmax(logits: np.ndarray) -> np.ndarray:
    """:return: probabilities, which do not overflow"""
    weights: np.ndarray = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def draw(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """
    :param weights: of shape (draws, options)
    :param uniform: for each draw a number from 0 to below 1
    :return: for each an option, as likely as its weight is high
    """
    ends = weights.cumsum(axis=1)
    return (uniform[:, None] * ends[:, -1:] >= ends).sum(axis=1)


def sigmoid(values: np.ndarray) -> np.ndarray:
    """:return: the logistic function, which does not overflow"""
    return 0.5 * (1.0 + np.tanh(0.5 * values))


def _layer(layer: nn.Module) -> Layer:
    if isinstance(layer, nn.Linear):
        return partial(_linear, layer.weight.detach().numpy().T, layer.bias.detach().numpy())
    return ARRAY_ACTIVATIONS[type(layer)]


def _linear(weight: np.ndarray, bias: np.ndarray, values: np.ndarray) -> np.ndarray:
    outputs = weight[values] if values.ndim == 1 else values @ weight
    outputs += bias
    return outputs


def _through(layers: list[Layer], values: np.ndarray) -> np.ndarray:
    for layer in layers:
        values = layer(values)
    return values
