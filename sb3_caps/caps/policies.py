"""The policies of CAPS: its networks, and how they act through options."""

from collections.abc import Mapping
from copy import deepcopy
from numbers import Real
from typing import Any, ClassVar, TypeAlias, get_args

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, NatureCNN
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.dqn.policies import DQNPolicy
from torch import nn
from torch.nn import functional as F

from sb3_caps.caps.exploration import epsilon_greedy
from sb3_caps.caps.networks import OptionEstimates, OptionQNetwork, share
from sb3_caps.caps.trials import KEPT, LATEST
from sb3_caps.replay.batches import distinct_rows, with_batch_axis
from sb3_caps.reuse.checks import check_n_envs
from sb3_caps.reuse.execution import Execution, OptionExecution
from sb3_caps.reuse.options import OptionSet

# Arguments of Adam that exclude its fused implementation, or choose it
ADAM_VARIANTS = {"fused", "foreach", "capturable", "differentiable"}
# The active option of each environment, and what recurrent sources remember (`SourceStates`): as wide as SB3's type
OptionState: TypeAlias = tuple[Any, ...]


class CAPSPolicy(DQNPolicy):
    """
    Policy class with the option-value network of CAPS and its target network.

    Everything that is not listed is as in SB3's DQN.

    :param options: The options to choose from; the action space alone makes primitive options
    :param termination: A fixed β for all options, None to learn it
    :param initial_termination: The β to start learning from, one number or one for sources and one for primitives
    :param termination_learning_rate: Learning rate of β where it is learned online, see ``CAPS``; None where it is
        learned with the values, by a hidden layer of its own
    :param execution: How options are executed: ``"interrupting"`` ends a source where another option has a value that
        is higher by the margin; ``"call-and-return"``, the paper's, where β says so. None for call-and-return with a
        fixed ``termination`` and for interrupting otherwise.
    :param margin: How much higher than that of a source, in the unit of the values
    :param shared_values: Whether values and terminations of a source are built on those of the action that it takes,
        so that a source has no more to learn than what following it further adds. The paper learns them apart.
    :param averaging: How far a running average of the network follows it in each gradient step: options are executed
        by the average, which is steadier than the network. None to act by the network itself, as the paper does.
    """

    # For a network of one's own, a subclass with another `forward`
    q_net_class: ClassVar[type[OptionQNetwork]] = OptionQNetwork
    q_net: OptionQNetwork
    q_net_target: OptionQNetwork
    acts_by: th.Tensor
    standings: th.Tensor

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
        # The network that did best in whole episodes, and what `predict` acts by: see `Trials`
        self.q_net_kept = _frozen_copy(self.q_net)
        self.register_buffer("acts_by", th.tensor(LATEST))
        # Of each source: -1 is no option any more, see `Trials`
        self.register_buffer("standings", th.ones(self.options.n_sources, dtype=th.int8))

    def make_q_net(self) -> OptionQNetwork:
        """:return: a network with an output for each option"""
        starts = np.broadcast_to(self.initial_termination, 2)
        net_args = {
            **self.net_args,
            "action_space": spaces.Discrete(len(self.options)),
            "termination": self.termination,
            "initial_termination": np.repeat(starts, [self.options.n_sources, self.options.n_actions]),
            "deep_termination": self.termination is None and self.termination_learning_rate is None,
            "n_shared": self.options.n_sources if self.shared_values else 0,
        }
        return self.q_net_class(**self._update_features_extractor(net_args, features_extractor=None)).to(self.device)

    @property
    def acting_net(self) -> OptionQNetwork:
        """The network that options are executed by while learning."""
        return self.q_net if self.q_net_average is None else self.q_net_average

    @property
    def execution(self) -> OptionExecution:
        """How options are executed."""
        margins = np.where(self.standings.numpy(force=True) < 0, -np.inf, self.margin)
        return OptionExecution(self.execution_mode, tuple(margins.tolist()))

    def given_up(self) -> th.Tensor:
        """:return: which options are none any more, of shape (options,)"""
        return F.pad(self.standings < 0, (0, self.options.n_actions))

    def greedy_options(self, values: th.Tensor) -> th.Tensor:
        """
        :param values: Q_O(s, o), of shape (states, options)
        :return: the option with the highest value in each state, among those that still are one
        """
        return values.masked_fill(self.given_up(), -th.inf).argmax(dim=1)

    def networks(self) -> list[OptionQNetwork]:
        """:return: the network and all that were copied from it"""
        networks = (self.q_net, self.q_net_target, self.q_net_average, self.q_net_kept)
        return [network for network in networks if network is not None]

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
        values, logits = estimates
        return OptionEstimates(
            share(values, option_actions), logits if self.termination is not None else share(logits, option_actions)
        )

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
        network = self.q_net_kept if int(self.acts_by) == KEPT else self.acting_net
        with th.no_grad():
            found = network(self.obs_to_tensor(observation)[0])
            if option_actions is None:
                starts = np.ones(len(found.values), dtype=bool)
                emitted = self.options.as_emitted(observation, normalized=True)
                option_actions, _ = self.options.actions(emitted, self.options.initial_states(), starts)
            sources = th.as_tensor(option_actions[:, : self.options.n_sources], device=self.device)
            found = self.complete(found, sources)
        return found.values.cpu().numpy(), found.terminations.cpu().numpy()

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
        :param action_masks: Which actions the environments allow, for sources that ask for it
        :return: the actions and the next state
        """
        self.set_training_mode(False)
        vectorized = self.is_vectorized_observation(observation)
        batch = observation if vectorized else with_batch_axis(observation)
        emitted = self.options.as_emitted(batch, normalized=True)
        n_envs = len(next(iter(emitted.values()))) if isinstance(emitted, dict) else len(emitted)
        starts = np.zeros(n_envs, dtype=bool) if episode_start is None else np.asarray(episode_start, dtype=bool)
        check_n_envs("episode_start", starts.size, n_envs)
        if state is None:
            state = (np.zeros(n_envs, dtype=np.int64), self.options.initial_states())
            starts = np.ones(n_envs, dtype=bool)
        active, source_states = state
        check_n_envs("state", len(active), n_envs)

        actions, source_states = self.options.actions(emitted, source_states, starts, action_masks)
        if int(self.acts_by) >= 0:
            active = np.full(n_envs, int(self.acts_by))
        else:
            values, beta = self.values_and_terminations(batch, actions)
            ends = self.execution.ends(values, beta, None if deterministic else np.random.random(n_envs))
            chosen = epsilon_greedy(values, epsilon, greedy=self.execution.greedy_options(values))
            active = self.execution.next_options(active, starts, ends, chosen)
        taken = actions[np.arange(n_envs), active]
        return (taken if vectorized else np.array(taken[0])), (active, source_states)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As torch's, but ``averaging`` may differ from that of the saved model: an average starts as the network."""
        n_sources = len(state_dict.get("standings", self.standings))
        if n_sources != self.options.n_sources:
            raise ValueError(
                f"This is a CAPS model with {n_sources} source policies and not with {self.options.n_sources}: load it "
                "with CAPS.load, or pass it in source_policies."
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
        )
        return data


def _frozen_copy(network: OptionQNetwork) -> OptionQNetwork:
    """One that acts and is not trained: dropout and batch normalization must not go on in it."""
    return deepcopy(network).requires_grad_(False).eval()


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
