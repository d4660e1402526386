"""The network of CAPS: option values Q_O and terminations β, two heads on the same layers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import create_mlp
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.dqn.policies import QNetwork
from torch import nn
from torch.nn import functional as F

from sb3_caps.reuse.growth import map_rows

# By how much the values of a new source are below those of actions, in units of the returns
HAIR = 1e-6
# And the logit of its vote below the mean of others: a probability of 1e-7, which learning can still raise
QUIET = 16.0


class OptionEstimates(NamedTuple):
    """
    What the network says of each state, both of shape (states, options).

    :param values: Q_O(s, o)
    :param termination_logits: β_o(s) before the logistic function
    """

    values: th.Tensor
    termination_logits: th.Tensor

    @property
    def terminations(self) -> th.Tensor:
        """β_o(s)."""
        return th.sigmoid(self.termination_logits)


def add_action_values(outputs: th.Tensor, option_actions: th.Tensor) -> th.Tensor:
    """
    Build what is said of a source on what is said of the action that it takes.

    :param outputs: of shape (..., states, options)
    :param option_actions: the action of each source, of shape (..., states, sources); one that is not known (-1) counts
        as the one with the lowest output
    :return: the same, with the output of the action added to that of each source. What is learned of a source does not
        reach that of the action: following a bad source would teach that its first action is bad.
    """
    actions = outputs.detach()[..., option_actions.shape[-1] :]
    taken = actions.gather(-1, option_actions.clamp(min=0))
    unknown = option_actions < 0
    if unknown.any():
        taken = th.where(unknown, actions.min(dim=-1, keepdim=True).values, taken)
    return outputs + F.pad(taken, (0, actions.shape[-1]))


class OptionQNetwork(QNetwork):
    """
    Option-value network: SB3's Q-network with an output for each option, and the terminations on its last hidden layer.
    Whether an action is the best one is no linear function of what its value is linear in: β may have a layer of its
    own between.

    Everything that is not listed is as in SB3's DQN.

    :param termination: A fixed β for all options, None to learn it
    :param initial_termination: The β to start learning from, one for each option
    :param deep_termination: Whether β has a hidden layer of its own, as wide as the last one of the values
    :param n_shared: How many options, the first ones, have outputs that ``add_action_values`` completes: their values
        start at 0
    """

    def __init__(
        self,
        *args: Any,
        termination: float | None = None,
        initial_termination: np.ndarray | float = 0.5,
        deep_termination: bool = False,
        n_shared: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.termination = termination
        self.initial_termination = initial_termination
        self.deep_termination = deep_termination
        self.n_shared = n_shared
        last = self.q_net[-1]
        assert isinstance(last, nn.Linear)
        own = [last.in_features] if deep_termination else []
        self.termination_hidden = nn.Sequential(*create_mlp(last.in_features, 0, own, self.activation_fn))
        self.termination_net = nn.Linear(last.in_features, last.out_features)
        # β starts the same in all states
        nn.init.zeros_(self.termination_net.weight)
        with th.no_grad():
            self.termination_net.bias.copy_(th.logit(th.as_tensor(initial_termination, dtype=th.float32)))
            last.weight[:n_shared], last.bias[:n_shared] = 0.0, 0.0
            # What `add_action_values` adds to it is that of a primitive
            self.termination_net.bias[:n_shared] -= self.termination_net.bias[-1].clone()

    def forward(self, obs: PyTorchObs) -> OptionEstimates:  # type: ignore[override]
        """
        :param obs: Observations
        :return: option values and terminations. What is learned of actions shapes the layers below; β and, where they
            share the values of actions, the values of sources take them as they are, so that bad sources do no harm.
        """
        hidden = self.extract_features(obs, self.features_extractor)
        *layers, last = self.q_net
        for layer in layers:
            hidden = layer(hidden)
        values, frozen = last(hidden), hidden.detach()
        if self.n_shared and th.is_grad_enabled():
            is_source = th.arange(values.shape[1], device=values.device) < self.n_shared
            values = th.where(is_source, last(frozen), values)
        return OptionEstimates(values, self.termination_logits(frozen))

    def features(self, obs: PyTorchObs) -> th.Tensor:
        """
        :param obs: Observations
        :return: what the layers of values see, for others to use as it is
        """
        return self.extract_features(obs, self.features_extractor).detach()

    def termination_logits(self, hidden: th.Tensor) -> th.Tensor:
        """
        :param hidden: the last hidden layer, of shape (states, units)
        :return: β_o(s) before the logistic function, of shape (states, options)
        """
        if self.termination is None:
            return self.termination_net(self.termination_hidden(hidden))
        fixed = th.logit(th.tensor(self.termination, device=hidden.device))
        return fixed.expand(len(hidden), self.termination_net.out_features)

    @th.no_grad()
    def rescale(self, factor: float) -> None:
        """
        Express all values in another unit.

        :param factor: what to multiply them with
        """
        for parameter in self.q_net[-1].parameters():
            parameter.mul_(factor)

    def map_options(
        self,
        places: np.ndarray,
        n_sources: int,
        shared: bool,
        initial_termination: np.ndarray,
        optimizers: Sequence[th.optim.Optimizer | None],
    ) -> None:
        """
        Have outputs for other options. Override it for a network with other layers that have one for each option.

        :param places: for each option where it was, -1 for a source that was not there. The values of that are a hair
            below those of the actions that it takes, or below the mean of all actions where they are learned apart: so
            it is nowhere the best option, and the greedy policy stays what it is.
        :param n_sources: number of sources
        :param shared: whether ``add_action_values`` completes their outputs
        :param initial_termination: The β to start learning from, one for each option
        :param optimizers: those that move this network
        """
        last: Any = self.q_net[-1]
        actions = slice(n_sources - len(places), None)
        weight, bias, logit = 0.0, 0.0, 0.0
        if not shared:
            weight, bias = (parameter.detach()[actions].mean(dim=0) for parameter in (last.weight, last.bias))
            logit = float(th.logit(th.as_tensor(initial_termination[0], dtype=th.float32)))
        map_rows(last, places.tolist(), weight, bias - HAIR, optimizers)
        map_rows(self.termination_net, places.tolist(), 0.0, logit, optimizers)
        self.action_space = spaces.Discrete(len(places))
        self.n_shared, self.initial_termination = n_sources if shared else 0, initial_termination

    def _predict(self, observation: PyTorchObs, deterministic: bool = True) -> th.Tensor:
        """The greedy option."""
        return self(observation).values.argmax(dim=1)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        data.update(
            termination=self.termination,
            initial_termination=self.initial_termination,
            deep_termination=self.deep_termination,
            n_shared=self.n_shared,
        )
        return data


class ActorLayers(NamedTuple):
    """
    The layers of an actor-critic: from features to what is said of each action, and to the value of the state.

    :param policy: up to the logits
    :param value: up to the value
    """

    policy: Sequence[nn.Module]
    value: Sequence[nn.Module]


class ResidualActor(nn.Module):
    """
    A policy over actions, and the values of states: what learns from advantages rather than from values of options.

    It begins with what the sources do: in each state one of them votes with a fixed share, the rest is random, and what
    is learned of actions is added to the logarithm of that. So it starts at the level of its sources, whatever they
    are, learns which of them to follow where, and moves away from all of them state by state. Where the best source is
    an actor-critic of the same shape, what is learned begins as its networks.
    It works on the features of the Q-network, and shapes none of them.

    :param features_dim: number of features
    :param n_sources: number of source policies
    :param n_actions: number of actions
    :param arch: units of the hidden layers of the policy ("pi") and of the values ("vf"), and the name of their
        activation in ``torch.nn`` ("activation_fn")
    """

    share: th.Tensor

    def __init__(self, features_dim: int, n_sources: int, n_actions: int, arch: Mapping[str, Any]) -> None:
        super().__init__()
        self.n_sources = n_sources
        activation_fn = getattr(nn, arch["activation_fn"])
        # Which source votes, and what is added for each action
        self.policy_net = nn.Sequential(*create_mlp(features_dim, n_sources + n_actions, arch["pi"], activation_fn))
        self.value_net = nn.Sequential(*create_mlp(features_dim, 1, arch["vf"], activation_fn))
        # Of all votes together
        self.register_buffer("share", th.zeros(1))
        *hidden, last = [layer for layer in self.policy_net if isinstance(layer, nn.Linear)]
        for layer in hidden:
            nn.init.orthogonal_(layer.weight, np.sqrt(2))
            nn.init.zeros_(layer.bias)
        # At first it is the same in all states
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(
        self, features: th.Tensor, source_actions: th.Tensor, action_masks: th.Tensor | None = None
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        :param features: of shape (states, features)
        :param source_actions: the action of each source, of shape (states, sources), -1 where it has none
        :param action_masks: which actions are allowed, of shape (states, actions), None for all
        :return: what is learned of each action, and log π(a|s), both of shape (states, actions)
        """
        outputs = self.policy_net(features)
        learned = outputs[:, self.n_sources :]
        n_actions = learned.shape[1]
        share = self.share.clamp(0.0, 1.0 - 1e-6)
        prior = (1.0 - share) / n_actions
        if self.n_sources:
            votes = share * F.softmax(outputs[:, : self.n_sources], dim=1)
            agrees = source_actions[:, :, None] == th.arange(n_actions, device=learned.device)
            prior = prior + (votes[:, :, None] * agrees).sum(dim=1)
        logits = learned + prior.log()
        if action_masks is not None:
            logits = logits.masked_fill(~action_masks, -th.inf)
        return learned, F.log_softmax(logits, dim=1)

    @th.no_grad()
    def start_from(self, votes: np.ndarray, best: ActorLayers | None = None, unit: float = 1.0) -> None:
        """
        Follow each source with the same probability in all states, and random actions otherwise.

        :param votes: the probability of each source
        :param best: the networks of the best source: where they fit, they come in place of its votes
        :param unit: what a value of 1 is worth in rewards
        """
        last = self.policy_net[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        *own, _ = self.policy_net
        if best is not None and [*map(_outline, [*own, *self.value_net])] == [
            *map(_outline, [*best.policy[:-1], *best.value])
        ]:
            for layer, found in zip([*own, *self.value_net], [*best.policy[:-1], *best.value], strict=True):
                layer.load_state_dict(found.state_dict())
            head: Any = best.policy[-1]
            last.weight[self.n_sources :], last.bias[self.n_sources :] = head.weight, head.bias
            self.rescale(1.0 / unit)
            # Those that are as good as that one still vote
            votes = np.where(np.arange(len(votes)) == votes.argmax(), 0.0, votes)
        total = float(votes.sum())
        self.share.fill_(total)
        if total > 0.0:
            # No source is ruled out for good
            last.bias[: self.n_sources] = th.as_tensor(votes / total + 1e-3, dtype=th.float32).log()

    def map_options(self, places: np.ndarray, n_sources: int, optimizers: Sequence[th.optim.Optimizer | None]) -> None:
        """
        Listen to other sources. What a new one votes for becomes more likely by less than 1e-6, in any state.

        :param places: for each option where it was, -1 for a source that was not there
        :param n_sources: number of sources
        :param optimizers: those that move this actor
        """
        last: Any = self.policy_net[-1]
        weight, bias = 0.0, 0.0
        if self.n_sources:
            weight, bias = (each.detach()[: self.n_sources].mean(dim=0) for each in (last.weight, last.bias))
        map_rows(last, places.tolist(), weight, bias - QUIET, optimizers)
        self.n_sources = n_sources
        if n_sources == 0:
            self.share.zero_()

    @th.no_grad()
    def rescale(self, factor: float) -> None:
        """
        Express all values in another unit.

        :param factor: what to multiply them with
        """
        for parameter in self.value_net[-1].parameters():
            parameter.mul_(factor)


def _outline(layer: nn.Module) -> tuple[Any, ...]:
    """What two layers have in common where one can take the place of the other."""
    return type(layer), *(tuple(parameter.shape) for parameter in layer.parameters())
