"""The policies of ContinuousCAPS: SAC's networks, β, the networks that did best, and how they act through options."""

from typing import Any, TypeAlias, get_args

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, NatureCNN, create_mlp
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.sac.policies import SACPolicy
from torch import nn

from sb3_caps.caps.gate import ACTOR, BEST, Gate
from sb3_caps.caps.policies import ADAM_VARIANTS
from sb3_caps.continuous.options import BoxOptionSet
from sb3_caps.replay.batches import with_batch_axis
from sb3_caps.reuse.checks import check_n_envs
from sb3_caps.reuse.execution import Execution, OptionExecution
from sb3_caps.reuse.growth import map_rows
from sb3_caps.sources.act import frozen_copy, length_of

# The active option of each environment, what recurrent sources remember, and the random numbers of the episodes
BoxState: TypeAlias = tuple[Any, ...]


class ContinuousCAPSPolicy(SACPolicy):
    """
    Policy class of SAC with source policies.

    Everything that is not listed is as in SB3's SAC.

    :param options: The sources and the actor
    :param gate: What to act by
    :param execution: How options are executed where the critic chooses: ``"interrupting"`` takes in each state what is
        worth most, ``"call-and-return"`` follows an option until its β ends it
    """

    termination_net: nn.Sequential

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Box,
        lr_schedule: Schedule,
        *args: Any,
        options: BoxOptionSet | None = None,
        gate: Gate | None = None,
        execution: Execution = "interrupting",
        **kwargs: Any,
    ) -> None:
        if execution not in get_args(Execution):
            raise ValueError(f"execution must be one of {get_args(Execution)}, not {execution!r}.")
        self.options = options if options is not None else BoxOptionSet(None, observation_space, action_space)
        self.gate = gate or Gate(ACTOR)
        self.execution_mode: Execution = execution
        # From which `predict` has its own: the model's, where the policy belongs to one
        self.rng = np.random.default_rng()
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        if not self.options.n_sources:
            # The very networks, numbers and rounding of SB3's SAC
            super()._build(lr_schedule)
            return
        # One call for all parameters takes a third of a gradient step off
        if self.optimizer_class in (th.optim.Adam, th.optim.AdamW) and not self.optimizer_kwargs.keys() & ADAM_VARIANTS:
            self.optimizer_kwargs = {**self.optimizer_kwargs, "fused": True}
        super()._build(lr_schedule)
        self._build_terminations(lr_schedule(1))

    def _build_terminations(self, learning_rate: float) -> None:
        """What there is beside SAC's networks as soon as there are sources."""
        arch = self.net_arch if isinstance(self.net_arch, list) else self.net_arch["qf"]
        layers = create_mlp(self.critic.features_extractor.features_dim, len(self.options), arch)
        self.termination_net = nn.Sequential(*layers).to(self.device)
        self.termination_optimizer = self.optimizer_class(
            self.termination_net.parameters(),
            lr=learning_rate,  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )
        # The networks that did best in whole episodes
        self.actor_best, self.critic_best = frozen_copy(self.actor), frozen_copy(self.critic)
        self.termination_best = frozen_copy(self.termination_net)

    def set_options(self, options: BoxOptionSet, places: np.ndarray) -> None:
        """
        Choose from other options from now on. What stays keeps its numbers, in networks and optimizers.

        :param options: the options
        :param places: for each where it was, -1 for one that was not there
        """
        had_sources, self.options = self.options.n_sources > 0, options
        if not options.n_sources:
            # SAC's networks are left
            for name in ("termination_net", "termination_optimizer", "actor_best", "critic_best", "termination_best"):
                if hasattr(self, name):
                    delattr(self, name)
        elif had_sources:
            for net, optimizers in ((self.termination_net, [self.termination_optimizer]), (self.termination_best, [])):
                last: Any = net[-1]
                map_rows(last, places.tolist(), 0.0, 0.0, optimizers)
        else:
            # Nobody else's draws depend on it
            with th.random.fork_rng():
                self._build_terminations(self.actor.optimizer.param_groups[0]["lr"])

    def values_of(self, critic: ContinuousCritic, observations: PyTorchObs, actions: th.Tensor) -> th.Tensor:
        """
        What several actions in each state are worth.

        :param critic: the critics to ask
        :param observations: of shape (states, ...)
        :param actions: of shape (states, candidates, dimensions)
        :return: the lowest Q(s, a) of all critics, of shape (states, candidates)
        """
        n_states, n_candidates, _ = actions.shape
        features = critic.extract_features(observations, critic.features_extractor)
        features = features.repeat_interleave(n_candidates, dim=0)
        inputs = th.cat([features, actions.flatten(0, 1)], dim=1)
        values = th.cat([q_net(inputs) for q_net in critic.q_networks], dim=1).min(dim=1).values
        return values.reshape(n_states, n_candidates)

    @property
    def execution(self) -> OptionExecution:
        """How options are executed."""
        disabled = self.gate.mask(self.options.source_names)
        return OptionExecution(self.execution_mode, tuple(np.where(disabled, -np.inf, 0.0).tolist()))

    def disabled(self) -> th.Tensor:
        """:return: which options are disabled, of shape (options,)"""
        return th.as_tensor(self.gate.mask(self.options.names), device=self.device)

    def keep_best(self) -> None:
        """Keep the networks as they are now."""
        self.actor_best.load_state_dict(self.actor.state_dict())
        self.critic_best.load_state_dict(self.critic.state_dict())
        self.termination_best.load_state_dict(self.termination_net.state_dict())

    def termination_logits(self, observations: PyTorchObs, best: bool = False) -> th.Tensor:
        """
        :param observations: of shape (states, ...)
        :param best: whether by the networks that did best
        :return: β of each option before the logistic function, of shape (states, options)
        """
        critic, net = (self.critic_best, self.termination_best) if best else (self.critic, self.termination_net)
        with th.no_grad():
            features = critic.extract_features(observations, critic.features_extractor)
        logits: th.Tensor = net(features)
        return logits

    @th.no_grad()
    def choose(
        self,
        observations: PyTorchObs,
        source_actions: np.ndarray,
        own_actions: np.ndarray,
        active: np.ndarray,
        starts: np.ndarray,
        best: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        Let the critic choose between the actor and the sources.

        :param observations: of shape (environments, ...)
        :param source_actions: what each source does, of shape (environments, sources, dimensions)
        :param own_actions: what the actor does, of shape (environments, dimensions)
        :param active: the active option of each environment
        :param starts: which environments start an episode
        :param best: whether by the networks that did best
        :return: the options and their actions, of shape (environments, dimensions)
        """
        actions = np.concatenate([source_actions, own_actions[:, None]], axis=1)
        critic = self.critic_best if best else self.critic
        values = self.values_of(critic, observations, th.as_tensor(actions, device=self.device)).cpu().numpy()
        execution = self.execution
        beta = np.zeros(0)
        if execution.mode == "call-and-return":
            beta = th.sigmoid(self.termination_logits(observations, best)).cpu().numpy()
        ends, chosen = execution.ends(values, beta), execution.greedy_options(values)
        options = execution.next_options(active, starts, ends, chosen)
        return options, actions[np.arange(len(options)), options]

    def values_and_terminations(self, observation: np.ndarray | dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """
        :param observation: Observations
        :return: the values of what each option would do there, by the critic that ``predict`` acts by, and β of each,
            both of shape (states, options). Sources are asked as at the start of an episode.
        """
        self.set_training_mode(False)
        tensors, vectorized = self.obs_to_tensor(observation)
        emitted = self.options.as_emitted(observation if vectorized else with_batch_axis(observation), normalized=True)
        with th.no_grad():
            own = self._predict(tensors, deterministic=True)
            starts = np.ones(len(own), dtype=bool)
            answers, _ = self.options.actions(emitted, self.options.initial_states(), starts)
            candidates = th.cat([th.as_tensor(answers, device=self.device), own[:, None]], dim=1)
            best = self.gate.controller == BEST
            values = self.values_of(self.critic_best if best else self.critic, tensors, candidates)
            # Without sources nothing else can be better
            beta = th.zeros_like(values)
            if self.options.n_sources:
                beta = self.termination_logits(tensors, best).sigmoid()
        return values.cpu().numpy(), beta.cpu().numpy()

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        best = self.gate.controller == BEST
        found: th.Tensor = (self.actor_best if best else self.actor)(observation, deterministic)
        return found

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: BoxState | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, BoxState | None]:
        """
        Act by what the gate says. The active option is the state, as a recurrent policy's hidden state is.

        :param observation: the input observation
        :param state: The state that the last call returned, None to choose an option anew
        :param episode_start: Which environments start an episode
        :param deterministic: Whether the actor and sources take their likeliest action
        :return: the actions and the next state
        """
        controller = self.gate.controller
        if controller == ACTOR or not self.options.n_sources:
            return super().predict(observation, state, episode_start, deterministic)
        self.set_training_mode(False)
        tensors, vectorized = self.obs_to_tensor(observation)
        batch = observation if vectorized else with_batch_axis(observation)
        emitted = self.options.as_emitted(batch, normalized=True)
        n_envs = length_of(emitted)
        starts = np.zeros(n_envs, dtype=bool) if episode_start is None else np.asarray(episode_start, dtype=bool)
        check_n_envs("episode_start", starts.size, n_envs)
        if state is None:
            rng = np.random.default_rng(0) if deterministic else self.rng.spawn(1)[0]
            state = (np.zeros(n_envs, dtype=np.int64), self.options.initial_states(), rng)
            starts = np.ones(n_envs, dtype=bool)
        active, source_states, rng = state
        check_n_envs("state", len(active), n_envs)
        answers, source_states = self.options.actions(emitted, source_states, starts, rng=rng)
        if controller.is_source:
            active = np.full(n_envs, self.options.names.index(controller.name))
            taken = answers[np.arange(n_envs), active]
        else:
            with th.no_grad():
                own = self._predict(tensors, deterministic).cpu().numpy()
            best = controller == BEST
            active, taken = self.choose(tensors, answers, own, active, starts, best)
        actions = self.options.unscaled(taken)
        return (actions if vectorized else actions[0]), (active, source_states, rng)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        data.update(options=self.options, gate=self.gate, execution=self.execution_mode)
        return data


MlpPolicy = ContinuousCAPSPolicy


class CnnPolicy(ContinuousCAPSPolicy):
    """
    Policy class of ContinuousCAPS for images, see ``ContinuousCAPSPolicy``.

    :param features_extractor_class: Features extractor to use
    """

    def __init__(
        self, *args: Any, features_extractor_class: type[BaseFeaturesExtractor] = NatureCNN, **kwargs: Any
    ) -> None:
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)


class MultiInputPolicy(ContinuousCAPSPolicy):
    """
    Policy class of ContinuousCAPS for Dict observations, see ``ContinuousCAPSPolicy``.

    :param features_extractor_class: Features extractor to use
    """

    def __init__(
        self, *args: Any, features_extractor_class: type[BaseFeaturesExtractor] = CombinedExtractor, **kwargs: Any
    ) -> None:
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)
