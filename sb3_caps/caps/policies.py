"""The networks of CAPS: option values Q_O, and the terminations β on their last hidden layer."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn
from torch.nn.modules.conv import _ConvNd

from sb3_caps.caps.choices import choose, to_interrupt
from sb3_caps.common.batches import channels_last, distinct_rows, part, with_batch_axis
from sb3_caps.common.checks import check_n_envs
from sb3_caps.common.networks import ArrayNetwork, as_inputs, feature_layers, runs_as_arrays, sigmoid
from sb3_caps.common.options import OptionSet

Execution: TypeAlias = Literal["call-and-return", "interrupting"]
# Arguments of Adam that exclude its fused implementation, or choose it
ADAM_VARIANTS = {"fused", "foreach", "capturable", "differentiable"}
# What is the same in training and evaluation mode
WITHOUT_MODES = (
    QNetwork,
    FlattenExtractor,
    NatureCNN,
    nn.Sequential,
    nn.Flatten,
    nn.Linear,
    nn.Conv2d,
    nn.ReLU,
    nn.Tanh,
)
# The active option of each environment, and what recurrent sources remember (`SourceStates`): as wide as SB3's type
OptionState: TypeAlias = tuple[Any, ...]


class SequencePass(NamedTuple):
    """
    A pass of the network along sequences.

    :param hidden: the last hidden layer in all states
    :param values: Q_O(s, o) in all states, of shape (states, options)
    :param backward: takes the derivative of a loss by the values in the steps, and sets the gradients
    """

    hidden: th.Tensor
    values: th.Tensor
    backward: Callable[[th.Tensor], None]


class CAPSPolicy(DQNPolicy):
    """
    Policy class with the option-value network, its target network and the terminations of CAPS.

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

    termination_net: nn.Linear
    termination_optimizer: th.optim.SGD

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
        self.termination_learning_rate = termination_learning_rate
        self.initial_termination = initial_termination
        self.termination = termination
        self.execution = execution
        self.interruption_margin = interruption_margin
        self.averaged = averaged
        self.options = options if options is not None else OptionSet(None, observation_space, action_space)
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)
        # Where a pass is all overhead, one more costs as much as the first: not so with convolutions
        self.is_small = not any(isinstance(module, _ConvNd) for module in self.q_net.modules())
        self._has_modes = not all(type(module) in WITHOUT_MODES for module in self.q_net.modules())
        self._terminations_as_arrays = ArrayNetwork([self.termination_net])
        self._online_as_arrays = self._as_arrays(self.q_net)
        self._target_as_arrays = self._as_arrays(self.q_net_target)

    def _as_arrays(self, network: QNetwork) -> ArrayNetwork | None:
        features, space = feature_layers(network.features_extractor), self.observation_space
        layers = [] if features is None else [*features, *network.q_net]
        # The last hidden layer, which is looked at as well, has to be an array on its own
        return ArrayNetwork(layers, space) if layers and runs_as_arrays(layers[:-1], space) else None

    def _build(self, lr_schedule: Schedule) -> None:
        # One call for all parameters takes a third of a gradient step off
        if self.optimizer_class in (th.optim.Adam, th.optim.AdamW) and not self.optimizer_kwargs.keys() & ADAM_VARIANTS:
            self.optimizer_kwargs = {**self.optimizer_kwargs, "fused": True}
        super()._build(lr_schedule)
        values = self.q_net.q_net[-1]
        assert isinstance(values, nn.Linear)
        self.termination_net = nn.Linear(values.in_features, len(self.options))
        # β starts the same in all states
        beta = np.broadcast_to(self.initial_termination, 2)
        start = np.repeat(np.log(beta / (1 - beta)), [self.options.n_sources, self.options.n_actions])
        with th.no_grad():
            self.termination_net.weight.zero_()
            self.termination_net.bias.copy_(th.as_tensor(start, dtype=th.float32))
        self.q_net_average = deepcopy(self.q_net).requires_grad_(False) if self.averaged else None
        # Its gradient has a closed form (Equation 2), see `step_terminations`: the optimizer keeps its learning rate,
        # with which it is saved, but SGD.step would take longer than the network
        self.termination_net.requires_grad_(False)
        self.termination_optimizer = th.optim.SGD(self.termination_net.parameters(), lr=self.termination_learning_rate)

    def make_q_net(self) -> QNetwork:
        # SB3's Q-network, with a value for each option in place of each action
        net_args = {**self.net_args, "action_space": spaces.Discrete(len(self.options))}
        return QNetwork(**self._update_features_extractor(net_args, features_extractor=None)).to(self.device)

    def hidden(self, obs: PyTorchObs) -> th.Tensor:
        """
        The last hidden layer, which option values and terminations share.

        :param obs: Observations
        :return: the representation of the state
        """
        hidden = self.q_net.extract_features(obs, self.q_net.features_extractor)
        # One by one: a slice of a Sequential would build a new one in every call
        for layer in list(self.q_net.q_net)[:-1]:
            hidden = layer(hidden)
        return hidden

    def hidden_and_values(self, obs: np.ndarray | dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """
        One forward pass for the few states of a step.

        :param obs: Observations
        :return: what ``hidden`` and ``values`` return, as arrays
        """
        device = self.termination_net.weight.device
        arrays = self._online_as_arrays
        if arrays is not None and isinstance(obs, np.ndarray) and len(obs) <= arrays.most_rows and device.type == "cpu":
            *_, hidden, values = arrays.outputs(as_inputs(obs, self.observation_space))
            return hidden, values
        with th.no_grad():
            features = self.hidden(obs_as_tensor(obs, device))
            return features.cpu().numpy(), self.values(features).cpu().numpy()

    def target_values(self, obs: PyTorchObs) -> th.Tensor:
        """
        :param obs: Observations
        :return: Q_O(s, o) by the target network, of shape (states, options)
        """
        arrays = self._target_as_arrays
        if arrays is not None and isinstance(obs, th.Tensor) and obs.is_cpu and len(obs) <= arrays.most_rows:
            return th.from_numpy(arrays(as_inputs(obs.numpy(), self.observation_space)))
        with th.no_grad():
            if self.is_small:
                return self.q_net_target(obs)
            obs, places = self._distinct(obs)
            return self.q_net_target(obs)[places]

    def along_sequences(self, obs: PyTorchObs, n_steps: int) -> SequencePass:
        """
        One pass along sequences, to be differentiated in their steps and not in their last successors.

        :param obs: Observations, those of the steps first
        :param n_steps: Number of steps
        :return: the pass
        """
        arrays = self._online_as_arrays
        if arrays is not None and isinstance(obs, th.Tensor) and obs.is_cpu and len(obs) <= arrays.most_rows:
            outputs = arrays.outputs(as_inputs(obs.numpy(), self.observation_space))
            hidden, values = th.from_numpy(outputs[-2]), th.from_numpy(outputs[-1])
            return SequencePass(hidden, values, lambda slopes: arrays.backward(outputs, slopes.numpy()))
        if self.is_small:
            hidden = self.hidden(obs)
            values = self.values(hidden)
            return SequencePass(hidden.detach(), values.detach(), partial(self._backward, values[:n_steps]))
        obs, places = self._distinct(obs)
        # Those of the steps come first, and only they need gradients
        n_first = int(places[:n_steps].max()) + 1
        hidden = self.hidden(channels_last(part(obs, 0, n_first)))
        steps = self.values(hidden)[places[:n_steps]]
        with th.no_grad():
            hidden = th.cat([hidden, self.hidden(part(obs, n_first))])[places]
            return SequencePass(hidden, self.values(hidden), partial(self._backward, steps))

    def _backward(self, values: th.Tensor, slopes: th.Tensor) -> None:
        self.optimizer.zero_grad()
        values.backward(slopes)

    def _distinct(self, obs: PyTorchObs) -> tuple[PyTorchObs, th.Tensor]:
        """
        Games come back to the same screens, and a batch holds some of them several times: a network that treats each
        by itself need look only once.
        """
        n_obs = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        if isinstance(obs, dict) or not obs.is_cpu or self._has_modes:
            return obs, th.arange(n_obs, device=self.device)
        firsts, places = distinct_rows(obs.numpy())
        return (obs if len(firsts) == n_obs else obs[firsts]), th.as_tensor(places)

    def values(self, hidden: th.Tensor) -> th.Tensor:
        """
        :param hidden: what ``hidden`` returned
        :return: Q_O(s, o), of shape (states, options)
        """
        return self.q_net.q_net[-1](hidden)

    def terminations(self, hidden: th.Tensor) -> th.Tensor:
        """
        :param hidden: what ``hidden`` returned
        :return: β_o(s), of shape (states, options)
        """
        if self.termination is not None:
            return hidden.new_full((len(hidden), len(self.options)), self.termination)
        return th.sigmoid(self.termination_net(hidden))

    def terminations_array(self, hidden: np.ndarray) -> np.ndarray:
        """
        As ``terminations``, for the few states of a step: there an operation of torch costs more than its numbers.

        :param hidden: what ``hidden`` returned
        :return: β_o(s), of shape (states, options)
        """
        if self.termination is not None:
            return np.full((len(hidden), len(self.options)), self.termination, dtype=np.float32)
        return sigmoid(self._terminations_as_arrays(hidden))

    def step_terminations(self, hidden: np.ndarray, options: np.ndarray, advantages: np.ndarray) -> float:
        """
        The online step of β (Equation 2) in the states that were just reached.

        :param hidden: the last hidden layer in each state s'
        :param options: the option o with which it was reached
        :param advantages: Q_O(s', o) - max Q_O(s', ·), plus the regularization
        :return: the loss, β weighted with the advantage
        """
        [(weight, bias)] = self._terminations_as_arrays.parameters()
        beta = sigmoid((hidden * weight[options]).sum(axis=1) + bias[options])
        # β is a sigmoid, so ∂β/∂θ = β (1 - β) times the features
        learning_rate = self.termination_optimizer.param_groups[0]["lr"]
        slopes = np.float32(-learning_rate) * beta * (1 - beta) * advantages
        # Several environments may have arrived with one option: of shape (options, environments)
        steps = np.equal.outer(np.arange(len(self.options)), options) * slopes
        weight += steps @ hidden
        bias += steps.sum(axis=1)
        if not self.termination_net.weight.is_cpu:
            self.termination_net.weight.copy_(th.from_numpy(weight))
            self.termination_net.bias.copy_(th.from_numpy(bias))
        return float(beta @ advantages) / len(options)

    def set_training_mode(self, mode: bool) -> None:
        """
        Put the policy in either training or evaluation mode.

        :param mode: if true, set to training mode, else set to evaluation mode
        """
        # Twice for every gradient step: only where there are layers that it makes a difference to
        if self._has_modes:
            super().set_training_mode(mode)

    def _predict(self, obs: PyTorchObs, deterministic: bool = True) -> th.Tensor:
        """The greedy option. Its action needs the sources, see ``predict``."""
        return self.q_net._predict(obs, deterministic=deterministic)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: OptionState | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        epsilon: float = 0.0,
    ) -> tuple[np.ndarray, OptionState]:
        """
        Act through options. The active option is the state, as a recurrent policy's hidden state is.

        :param observation: the input observation
        :param state: The state that the last call returned, None to choose an option anew
        :param episode_start: Which environments start an episode
        :param deterministic: Options terminate where β ≥ 0.5 instead of with probability β
        :param epsilon: Probability to choose a new option at random
        :return: the actions and the next state
        """
        self.set_training_mode(False)
        obs_tensor, vectorized = self.obs_to_tensor(observation)
        values, beta = self.values_and_terminations(obs_tensor)
        envs = np.arange(len(values))
        starts = np.zeros(len(envs), dtype=bool) if episode_start is None else np.asarray(episode_start, dtype=bool)
        check_n_envs("episode_start", starts.size, len(envs))
        if state is None:
            state = (np.zeros(len(envs), dtype=np.int64), self.options.initial_states())
            starts = np.ones(len(envs), dtype=bool)
        active, source_states = state
        check_n_envs("state", len(active), len(envs))

        threshold = 0.5 if deterministic else np.random.random(len(envs))
        # `random() < β` never holds at β = 0 and always at β = 1; at 0.5 a deterministic option does end
        ends = starts | (beta[envs, active] >= threshold if deterministic else threshold < beta[envs, active])
        if self.execution == "interrupting":
            ends |= to_interrupt(values, self.interruption_margin)[envs, active]
        active = np.where(ends, choose(values, epsilon), active)

        batch = observation if vectorized else with_batch_axis(observation)
        emitted = self.options.as_emitted(batch, normalized=True)
        actions, source_states = self.options.actions(emitted, source_states, starts)
        taken = actions[envs, active]
        return (taken if vectorized else taken[0]), (active, source_states)

    def values_and_terminations(self, obs: PyTorchObs) -> tuple[np.ndarray, np.ndarray]:
        """
        :param obs: Observations
        :return: the option values and the terminations that ``predict`` acts by, each of shape (states, options)
        """
        with th.no_grad():
            hidden = self.hidden(obs)
            values = self.values(hidden) if self.q_net_average is None else self.q_net_average(obs)
            return values.cpu().numpy(), self.terminations(hidden).cpu().numpy()

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
            execution=self.execution,
            interruption_margin=self.interruption_margin,
            averaged=self.averaged,
        )
        return data


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
