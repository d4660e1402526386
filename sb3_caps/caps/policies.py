"""The networks of CAPS: option values Q_O and terminations β, two heads of one network."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, NatureCNN
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn

from sb3_caps.caps.exploration import epsilon_greedy
from sb3_caps.common.batches import distinct_rows, with_batch_axis
from sb3_caps.common.checks import check_n_envs
from sb3_caps.common.execution import Execution, OptionExecution
from sb3_caps.common.options import OptionSet

# Arguments of Adam that exclude its fused implementation, or choose it
ADAM_VARIANTS = {"fused", "foreach", "capturable", "differentiable"}
# The active option of each environment, and what recurrent sources remember (`SourceStates`): as wide as SB3's type
OptionState: TypeAlias = tuple[Any, ...]


class OptionEstimates(NamedTuple):
    """
    What the network says of each state, both of shape (states, options).

    :param values: Q_O(s, o)
    :param terminations: β_o(s)
    """

    values: th.Tensor
    terminations: th.Tensor


class OptionQNetwork(QNetwork):
    """
    Option-value network: SB3's Q-network with an output for each option, and the terminations on its last hidden layer.

    Everything that is not listed is as in SB3's DQN.

    :param termination: A fixed β for all options, None to learn it
    :param initial_termination: The β to start learning from, one for each option
    """

    def __init__(
        self, *args: Any, termination: float | None = None, initial_termination: np.ndarray | float = 0.5, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.termination = termination
        self.initial_termination = initial_termination
        last = self.q_net[-1]
        assert isinstance(last, nn.Linear)
        self.termination_net = nn.Linear(last.in_features, last.out_features)
        # β starts the same in all states
        nn.init.zeros_(self.termination_net.weight)
        with th.no_grad():
            self.termination_net.bias.copy_(th.logit(th.as_tensor(initial_termination, dtype=th.float32)))

    def forward(self, obs: PyTorchObs) -> OptionEstimates:  # type: ignore[override]
        """
        :param obs: Observations
        :return: option values and terminations. The loss of one head does not reach the other: β's stops at the head.
        """
        hidden = self.q_net[:-1](self.extract_features(obs, self.features_extractor))
        return OptionEstimates(self.q_net[-1](hidden), self.terminations(hidden.detach()))

    def terminations(self, hidden: th.Tensor) -> th.Tensor:
        """
        :param hidden: the last hidden layer, of shape (states, units)
        :return: β_o(s), of shape (states, options)
        """
        if self.termination is not None:
            return hidden.new_full((len(hidden), self.termination_net.out_features), self.termination)
        return th.sigmoid(self.termination_net(hidden))

    def _predict(self, observation: PyTorchObs, deterministic: bool = True) -> th.Tensor:
        """The greedy option."""
        return self(observation).values.argmax(dim=1)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        data.update(termination=self.termination, initial_termination=self.initial_termination)
        return data


class CAPSPolicy(DQNPolicy):
    """
    Policy class with the option-value network of CAPS and its target network.

    Everything that is not listed is as in SB3's DQN.

    :param options: The options to choose from; the action space alone makes primitive options
    :param termination: A fixed β for all options, None to learn it
    :param initial_termination: The β to start learning from, one number or one for sources and one for primitives
    :param termination_learning_rate: Learning rate of β
    :param execution: Whether an active option runs until it terminates (``"call-and-return"``) or
        also ends where another option has a higher value (``"interrupting"``); only ``predict`` looks at it
    :param interruption_margin: How much higher, as a share of it
    :param averaged: Whether ``predict`` acts by a running average of the network, which the algorithm keeps up to date
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
        termination_learning_rate: float = 0.00025,
        execution: Execution = "call-and-return",
        interruption_margin: float = 0.0,
        averaged: bool = False,
        **kwargs: Any,
    ) -> None:
        self.options = options if options is not None else OptionSet(None, observation_space, action_space)
        self.termination = termination
        self.initial_termination = initial_termination
        self.termination_learning_rate = termination_learning_rate
        self.execution = OptionExecution(execution, interruption_margin)
        self.averaged = averaged
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        # One call for all parameters takes a third of a gradient step off
        if self.optimizer_class in (th.optim.Adam, th.optim.AdamW) and not self.optimizer_kwargs.keys() & ADAM_VARIANTS:
            self.optimizer_kwargs = {**self.optimizer_kwargs, "fused": True}
        super()._build(lr_schedule)
        self.termination_optimizer = th.optim.SGD(
            self.q_net.termination_net.parameters(), lr=self.termination_learning_rate
        )
        self.q_net_average = deepcopy(self.q_net).requires_grad_(False) if self.averaged else None

    def make_q_net(self) -> OptionQNetwork:
        """:return: a network with an output for each option"""
        starts = np.broadcast_to(self.initial_termination, 2)
        net_args = {
            **self.net_args,
            "action_space": spaces.Discrete(len(self.options)),
            "termination": self.termination,
            "initial_termination": np.repeat(starts, [self.options.n_sources, self.options.n_actions]),
        }
        return self.q_net_class(**self._update_features_extractor(net_args, features_extractor=None)).to(self.device)

    def evaluate(self, obs: PyTorchObs, network: OptionQNetwork | None = None) -> OptionEstimates:
        """
        One pass for a batch. Games come back to the same screens: each distinct one is looked at once.

        :param obs: Observations
        :param network: the network, ``q_net`` if None
        :return: option values and terminations, each of shape (states, options)
        """
        network = network or self.q_net
        if isinstance(obs, dict) or obs.ndim != 4 or not obs.is_cpu or _sees_the_batch(network):
            return network(obs)
        distinct, places = distinct_rows(obs)
        # The layout in which the backward pass of convolutions is fastest
        values, beta = network(distinct.contiguous(memory_format=th.channels_last))
        return OptionEstimates(values[places], beta[places])

    def values_and_terminations(self, observation: np.ndarray | dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """
        :param observation: Observations
        :return: the option values and terminations that ``predict`` acts by, each of shape (states, options)
        """
        network = self.q_net if self.q_net_average is None else self.q_net_average
        with th.no_grad():
            values, beta = network(self.obs_to_tensor(observation)[0])
        return values.cpu().numpy(), beta.cpu().numpy()

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
        values, beta = self.values_and_terminations(batch)
        starts = np.zeros(len(values), dtype=bool) if episode_start is None else np.asarray(episode_start, dtype=bool)
        check_n_envs("episode_start", starts.size, len(values))
        if state is None:
            state = (np.zeros(len(values), dtype=np.int64), self.options.initial_states())
            starts = np.ones(len(values), dtype=bool)
        active, source_states = state
        check_n_envs("state", len(active), len(values))

        draws = None if deterministic else np.random.random(len(values))
        ends = self.execution.ends(values, beta, draws)
        active = self.execution.next_options(active, starts, ends, epsilon_greedy(values, epsilon))
        emitted = self.options.as_emitted(batch, normalized=True)
        actions, source_states = self.options.actions(emitted, source_states, starts, action_masks)
        taken = actions[np.arange(len(active)), active]
        return (taken if vectorized else np.array(taken[0])), (active, source_states)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As torch's, but ``averaging`` may differ from that of the saved model: an average starts as the network."""
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
            execution=self.execution.mode,
            interruption_margin=self.execution.margin,
            averaged=self.averaged,
        )
        return data


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
