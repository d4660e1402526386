"""The policies of CAPS: its networks, and how they act through options."""

from collections.abc import Mapping
from copy import deepcopy
from numbers import Real
from typing import Any, ClassVar, TypeAlias, TypeVar, get_args

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, NatureCNN
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.dqn.policies import DQNPolicy
from torch import nn

from sb3_caps.caps.acting import ActingNetwork, draw
from sb3_caps.caps.exploration import epsilon_greedy
from sb3_caps.caps.gate import ACTOR, BEST, SAMPLED_ACTOR, Gate
from sb3_caps.caps.networks import OptionEstimates, OptionQNetwork, ResidualActor, add_action_values
from sb3_caps.replay.batches import distinct_rows, part, with_batch_axis
from sb3_caps.reuse.checks import check_n_envs
from sb3_caps.reuse.execution import Execution, OptionExecution
from sb3_caps.reuse.options import OptionSet
from sb3_caps.sources import Observations
from sb3_caps.sources.act import length_of
from sb3_caps.sources.masks import check_action_masks, random_actions

# Arguments of Adam that exclude its fused implementation, or choose it
ADAM_VARIANTS = {"fused", "foreach", "capturable", "differentiable"}
# The active option of each environment, what recurrent sources remember (`SourceStates`), and the random numbers of the
# episodes: as wide as SB3's type
OptionState: TypeAlias = tuple[Any, ...]
Network = TypeVar("Network", bound=nn.Module)


class CAPSPolicy(DQNPolicy):
    """
    Policy class with the option-value network of CAPS and its target network.

    Everything that is not listed is as in SB3's DQN.

    :param options: The options to choose from; the action space alone makes primitive options
    :param termination: A fixed β for all options, None to learn it
    :param initial_termination: The β to start learning from, one number or one for sources and one for primitives
    :param termination_learning_rate: Learning rate of β where it is learned online, see ``CAPS``; None where it is
        learned with the values, by a hidden layer of its own
    :param execution: How options are executed: ``"interrupting"`` ends a source when another option has a value that
        is higher by the margin; ``"call-and-return"``, the paper's, when β says so. None for call-and-return with a
        fixed ``termination`` and for interrupting otherwise.
    :param margin: How much higher that value must be, in the unit of the values
    :param shared_values: Whether value and termination of a source are built on those of the action that it takes.
        Then only what following the source further adds is left to learn. The paper learns them separately.
    :param averaging: How far a running average of the network follows it in each gradient step: options are executed
        by the average, which is steadier than the network. None to act by the network itself, as the paper does.
    :param gate: What to act by, and which sources are disabled
    :param actor_learning_rate: Learning rate of the actor
    :param actor_arch: Layers of the actor, see ``ResidualActor``; None for two as wide as those of the values
    """

    # For a network of one's own, a subclass with another `forward`
    q_net_class: ClassVar[type[OptionQNetwork]] = OptionQNetwork
    q_net: OptionQNetwork
    q_net_target: OptionQNetwork

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        *args: Any,
        options: OptionSet | None = None,
        termination: float | None = None,
        initial_termination: float | tuple[float, float] = 0.5,
        termination_learning_rate: float | None = None,
        execution: Execution | None = None,
        margin: float = 0.0,
        shared_values: bool = True,
        averaging: float | None = 0.0025,
        gate: Gate | None = None,
        actor_learning_rate: float = 0.0,
        actor_arch: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if "use_sde" in kwargs:
            # Only PPO and A2C pass it, where they are given a file of ours
            raise TypeError("This is a CAPS model: load it with CAPS.load, or pass it in source_policies.")
        if averaging is not None and not (isinstance(averaging, Real) and 0 < averaging <= 1):
            raise ValueError(f"averaging must be None or a share above 0 and up to 1, not {averaging}.")
        if execution not in (None, *get_args(Execution)):
            raise ValueError(f"execution must be None or one of {get_args(Execution)}, not {execution!r}.")
        self.options = options if options is not None else OptionSet(None, observation_space, action_space)
        self.termination = termination
        self.initial_termination = initial_termination
        self.termination_learning_rate = termination_learning_rate
        if execution is None:
            execution = "interrupting" if termination is None else "call-and-return"
        self.execution_mode: Execution = execution
        self.margin = margin
        self.shared_values = shared_values
        self.averaging = averaging
        self.gate = gate or Gate()
        self.actor_learning_rate = actor_learning_rate
        self.actor_arch = actor_arch
        # From which `predict` has its own: the model's, where the policy belongs to one
        self.rng = np.random.default_rng()
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        # One call for all parameters takes a third of a gradient step off
        if self.optimizer_class in (th.optim.Adam, th.optim.AdamW) and not self.optimizer_kwargs.keys() & ADAM_VARIANTS:
            self.optimizer_kwargs = {**self.optimizer_kwargs, "fused": True}
        super()._build(lr_schedule)
        self.termination_optimizer = th.optim.SGD(
            self.q_net.termination_net.parameters(), lr=self.termination_learning_rate or 0.0
        )
        self.q_net_average = None if self.averaging is None else _frozen_copy(self.q_net)
        # As they were at the start of the latest episode, and those that did best in whole episodes
        self.q_net_before = _frozen_copy(self.q_net)
        self.q_net_best = _frozen_copy(self.q_net)
        if self.actor_arch is None:
            self.actor_arch = {"pi": self.net_arch, "vf": self.net_arch, "activation_fn": "Tanh"}
        self.actor = ResidualActor(
            self.q_net.features_dim, self.options.n_sources, self.options.n_actions, self.actor_arch
        ).to(self.device)
        self.actor_before = _frozen_copy(self.actor)
        self.actor_peak = _frozen_copy(self.actor)
        self.actor_optimizer = th.optim.Adam(self.actor.parameters(), lr=self.actor_learning_rate, fused=True)

    def make_q_net(self) -> OptionQNetwork:
        """:return: a network with an output for each option"""
        net_args = {
            **self.net_args,
            "action_space": spaces.Discrete(len(self.options)),
            "termination": self.termination,
            "initial_termination": self._initial_terminations(),
            "deep_termination": self.termination is None and self.termination_learning_rate is None,
            "n_shared": self.options.n_sources if self.shared_values else 0,
        }
        return self.q_net_class(**self._update_features_extractor(net_args, features_extractor=None)).to(self.device)

    def _initial_terminations(self) -> np.ndarray:
        starts = np.broadcast_to(self.initial_termination, 2)
        return np.repeat(starts, [self.options.n_sources, self.options.n_actions])

    def set_options(self, options: OptionSet, places: np.ndarray) -> None:
        """
        Choose from other options from now on. What stays keeps its numbers, in networks and optimizers.

        :param options: the options
        :param places: for each where it was, -1 for one that was not there
        """
        self.options = options
        for network in self.networks():
            optimizers = [self.optimizer, self.termination_optimizer] if network is self.q_net else []
            initial = self._initial_terminations()
            network.map_options(places, options.n_sources, self.shared_values, initial, optimizers)
        for actor in self.actors():
            optimizers = [self.actor_optimizer] if actor is self.actor else []
            actor.map_options(places, options.n_sources, optimizers)

    @property
    def acting_net(self) -> OptionQNetwork:
        """The network that options are executed by while learning."""
        return self.q_net if self.q_net_average is None else self.q_net_average

    @property
    def execution(self) -> OptionExecution:
        """How options are executed."""
        disabled = self.gate.mask(self.options.source_names)
        return OptionExecution(self.execution_mode, tuple(np.where(disabled, -np.inf, self.margin).tolist()))

    def disabled(self) -> th.Tensor | None:
        """:return: which options are disabled, of shape (options,), None where none is"""
        return th.as_tensor(self.gate.mask(self.options.names), device=self.device) if self.gate.disabled else None

    def begin_episode(self) -> None:
        """Remember the networks as they are now: those that an episode began with have been seen to act."""
        _copy(self.acting_net, self.q_net_before)
        _copy(self.actor, self.actor_before)

    def keep_best(self) -> None:
        """Keep the networks as they were at the start of the latest episode."""
        _copy(self.q_net_before, self.q_net_best)

    def keep_peak(self) -> None:
        """Keep the actor as it was at the start of the latest episode, to go back to."""
        _copy(self.actor_before, self.actor_peak)

    def return_to_peak(self) -> None:
        """Let the actor go on from where it was worth most, with fresh moments."""
        _copy(self.actor_peak, self.actor)
        self.actor_optimizer.state.clear()

    def acting(self, best: bool = False) -> ActingNetwork:
        """
        :param best: whether by the networks that did best, and not by the latest ones
        :return: what acts for the few observations of a step
        """
        if best:
            return ActingNetwork(self, self.q_net_best, self.actor)
        return ActingNetwork(self, self.acting_net, self.actor)

    def greedy_options(self, values: th.Tensor, allowed: th.Tensor | None = None) -> th.Tensor:
        """
        :param values: Q_O(s, o), of shape (..., options)
        :param allowed: which options are allowed in each state, of the same shape; None for all
        :return: the option with the highest value in each state, among those that still are one
        """
        if (disabled := self.disabled()) is not None:
            values = values.masked_fill(disabled, -th.inf)
        if allowed is not None:
            values = values.masked_fill(~allowed, -th.inf)
        return values.argmax(dim=-1)

    def networks(self) -> list[OptionQNetwork]:
        """:return: the network and all that were copied from it"""
        networks = (self.q_net, self.q_net_target, self.q_net_average, self.q_net_before, self.q_net_best)
        return [network for network in networks if network is not None]

    def actors(self) -> tuple[ResidualActor, ...]:
        """:return: the actor and all that were copied from it"""
        return self.actor, self.actor_before, self.actor_peak

    def rescale(self, factor: float) -> None:
        """
        Express all values in another unit.

        :param factor: what to multiply them with
        """
        for network in self.networks():
            network.rescale(factor)
        for actor in self.actors():
            actor.rescale(factor)

    def features_of(self, obs: PyTorchObs, n_rows: int, batch_size: int) -> th.Tensor:
        """
        :param obs: many observations
        :param n_rows: how many
        :param batch_size: how many to look at in one pass: the layers of images take far more memory than they do
        :return: what the layers of values see of them
        """
        parts = (part(obs, start, start + batch_size) for start in range(0, n_rows, batch_size))
        return th.cat([self.q_net.features(each) for each in parts])

    def evaluate(
        self, obs: PyTorchObs, option_actions: th.Tensor, network: OptionQNetwork | None = None
    ) -> OptionEstimates:
        """
        One pass for a batch. Games come back to the same screens: each distinct one is looked at once.

        :param obs: Observations
        :param option_actions: the actions of the sources, of shape (states, sources)
        :param network: the network, ``q_net`` if None
        :return: option values and terminations, each of shape (states, options)
        """
        network = network or self.q_net
        if isinstance(obs, dict) or obs.ndim != 4 or not obs.is_cpu or _sees_the_batch(network):
            return self.complete(network(obs), option_actions)
        distinct, places = distinct_rows(obs)
        # The layout in which the backward pass of convolutions is fastest
        found = network(distinct.contiguous(memory_format=th.channels_last))
        return self.complete(OptionEstimates(*(part[places] for part in found)), option_actions)

    def complete(self, estimates: OptionEstimates, option_actions: th.Tensor) -> OptionEstimates:
        """
        :param estimates: what the network puts out
        :param option_actions: the actions of the sources, of shape (states, sources)
        :return: what it says of each option: with ``shared_values``, that of its action is part of it
        """
        if not self.shared_values or option_actions.shape[1] == 0:
            return estimates
        if self.termination is not None:
            return estimates._replace(values=add_action_values(estimates.values, option_actions))
        both = add_action_values(th.stack(estimates), option_actions.expand(2, -1, -1))
        return OptionEstimates(*both.unbind())

    def values_and_terminations(
        self, observation: np.ndarray | dict[str, np.ndarray], option_actions: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        :param observation: Observations
        :param option_actions: what the options do there, of shape (states, options); None to ask the sources, as at
            the start of an episode
        :return: the option values and terminations that ``predict`` acts by, each of shape (states, options)
        """
        self.set_training_mode(False)
        if option_actions is None:
            starts = np.ones(length_of(observation), dtype=bool)
            emitted = self.options.as_emitted(observation, normalized=True)
            option_actions, _ = self.options.actions(emitted, self.options.initial_states(), starts)
        acting = self.acting(best=self.gate.controller == BEST)
        return acting(self._as_learned(observation), option_actions[:, : self.options.n_sources])

    def _as_learned(self, observations: Observations) -> Observations:
        """:return: the same observations in the layout of the networks"""
        tensors, _ = self.obs_to_tensor(observations)
        if isinstance(tensors, dict):
            return {key: value.numpy(force=True) for key, value in tensors.items()}
        return tensors.numpy(force=True)

    def actor_options(
        self,
        acting: ActingNetwork,
        observations: Observations,
        option_actions: np.ndarray,
        rng: np.random.Generator | None,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        Let the actor choose.

        :param acting: the networks
        :param observations: one for each environment
        :param option_actions: what each option does there
        :param rng: to draw actions with, None for the most likely ones
        :param action_masks: which actions are allowed, None for all
        :return: the option in each environment, a source that takes the same action where the actor listens to sources
            and a primitive elsewhere, and how likely the actor is to take that action
        """
        n_sources, rows = acting.actor.n_sources, np.arange(len(option_actions))
        sources = option_actions[:, :n_sources]
        probabilities = acting.action_probabilities(observations, sources, action_masks)
        actions = probabilities.argmax(axis=1) if rng is None else draw(probabilities, rng.random(len(rows)))
        options = n_sources + actions
        agrees = sources == actions[:, None]
        if n_sources and acting.actor.share > 0.0:
            options = np.where(agrees.any(axis=1), agrees.argmax(axis=1), options)
        return options, probabilities[rows, actions]

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: OptionState | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        epsilon: float = 0.0,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, OptionState]:
        """
        Act through options. The active option is the state, as a recurrent policy's hidden state is.

        :param observation: the input observation
        :param state: The state that the last call returned, None to choose an option anew
        :param episode_start: Which environments start an episode
        :param deterministic: Options terminate where β ≥ 0.5 instead of with probability β
        :param epsilon: Probability to choose a new option at random
        :param action_masks: Which actions the environments allow, of shape (environments, actions); None for all
        :return: the actions and the next state
        """
        self.set_training_mode(False)
        if not isinstance(observation, dict):
            observation = np.asarray(observation)
        vectorized = self.is_vectorized_observation(observation)
        batch = observation if vectorized else with_batch_axis(observation)
        emitted = self.options.as_emitted(batch, normalized=True)
        n_envs = length_of(emitted)
        starts = np.zeros(n_envs, dtype=bool) if episode_start is None else np.asarray(episode_start, dtype=bool)
        check_n_envs("episode_start", starts.size, n_envs)
        if state is None:
            # Deterministic is reproducible, also where the actor or a source has to draw
            rng = np.random.default_rng(0) if deterministic else self.rng.spawn(1)[0]
            state = (np.zeros(n_envs, dtype=np.int64), self.options.initial_states(), rng)
            starts = np.ones(n_envs, dtype=bool)
        active, source_states, rng = state
        check_n_envs("state", len(active), n_envs)
        if n_envs == 0:
            return np.zeros(0, dtype=np.int64), state
        if action_masks is not None:
            action_masks = check_action_masks(action_masks, n_envs, self.options.n_actions)

        actions, source_states = self.options.actions(emitted, source_states, starts, action_masks, rng)
        allowed = None if action_masks is None else actions >= 0
        controller = self.gate.controller
        if controller.is_source:
            active = np.full(n_envs, self.options.names.index(controller.name))
            if allowed is not None:
                # Where the source does what is not allowed, anything that is
                drawn = self.options.n_sources + random_actions(n_envs, self.options.n_actions, rng, action_masks)
                active = np.where(allowed[np.arange(n_envs), active], active, drawn)
        else:
            acting, batch = self.acting(best=controller == BEST), self._as_learned(batch)
            if controller == ACTOR:
                active, _ = self.actor_options(acting, batch, actions, None, action_masks)
            elif controller == SAMPLED_ACTOR:
                active, _ = self.actor_options(acting, batch, actions, rng, action_masks)
            else:
                values, beta = acting(batch, actions[:, : self.options.n_sources])
                values, beta = self.execution.among(allowed, values, beta)
                ends = self.execution.ends(values, beta, None if deterministic else rng.random(n_envs))
                chosen = epsilon_greedy(values, epsilon, rng, self.execution.greedy_options(values), allowed)
                active = self.execution.next_options(active, starts, ends, chosen)
        taken = actions[np.arange(n_envs), active]
        return (taken if vectorized else np.array(taken[0])), (active, source_states, rng)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As torch's, but ``averaging`` may differ from that of the saved model: an average starts as the network."""
        n_options = len(state_dict.get("q_net.termination_net.bias", ())) or len(self.options)
        if n_options != len(self.options):
            raise ValueError(
                f"This is a CAPS model with {n_options - self.options.n_actions} source policies and not with "
                f"{self.options.n_sources}: load it with CAPS.load, or pass it in source_policies."
            )
        own = {key: value for key, value in state_dict.items() if not key.startswith("q_net_average.")}
        if self.q_net_average is not None:
            network = {key.removeprefix("q_net."): value for key, value in own.items() if key.startswith("q_net.")}
            own |= {f"q_net_average.{key}": value for key, value in network.items()}
            own |= {key: value for key, value in state_dict.items() if key.startswith("q_net_average.")}
        return super().load_state_dict(own, *args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        data.update(
            options=self.options,
            termination=self.termination,
            initial_termination=self.initial_termination,
            termination_learning_rate=self.termination_learning_rate,
            execution=self.execution_mode,
            margin=self.margin,
            shared_values=self.shared_values,
            averaging=self.averaging,
            gate=self.gate,
            actor_learning_rate=self.actor_learning_rate,
            actor_arch=self.actor_arch,
        )
        return data


def _frozen_copy(network: Network) -> Network:
    """One that acts and is not trained: dropout and batch normalization must not go on in it."""
    return deepcopy(network).requires_grad_(False).eval()


def _copy(source: nn.Module, target: nn.Module) -> None:
    target.load_state_dict(source.state_dict())


def _sees_the_batch(network: nn.Module) -> bool:
    """Whether an observation may come out otherwise beside others, or the second time."""
    layers = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
    return any(isinstance(module, layers) for module in network.modules())


MlpPolicy = CAPSPolicy


class CnnPolicy(CAPSPolicy):
    """
    Policy class of CAPS for images, see ``CAPSPolicy``.

    :param features_extractor_class: Features extractor to use
    """

    def __init__(
        self, *args: Any, features_extractor_class: type[BaseFeaturesExtractor] = NatureCNN, **kwargs: Any
    ) -> None:
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)


class MultiInputPolicy(CAPSPolicy):
    """
    Policy class of CAPS for Dict observations, see ``CAPSPolicy``.

    :param features_extractor_class: Features extractor to use
    """

    def __init__(
        self, *args: Any, features_extractor_class: type[BaseFeaturesExtractor] = CombinedExtractor, **kwargs: Any
    ) -> None:
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)
