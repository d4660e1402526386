"""Context-Aware Policy Reuse."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import MlpExtractor
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.common.utils import get_parameters_by_name
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn

from sb3_caps.caps.arguments import DQN_DEFAULTS, VECTOR_DEFAULTS, Actor, Termination, check_arguments
from sb3_caps.caps.collector import OptionCollector
from sb3_caps.caps.exploration import Exploration
from sb3_caps.caps.losses import actor_loss, option_loss, option_targets, termination_loss, vtrace
from sb3_caps.caps.networks import ActorLayers, OptionEstimates
from sb3_caps.caps.policies import CAPSPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy, OptionState
from sb3_caps.caps.reports import ReuseReports
from sb3_caps.caps.selection import Selection
from sb3_caps.caps.student import Student, teach
from sb3_caps.replay.batches import part
from sb3_caps.replay.buffers import OptionReplayBuffer
from sb3_caps.replay.type_aliases import OptionReplayBufferSamples
from sb3_caps.reuse.selectors import Selector
from sb3_caps.sources.evaluate import ELEMENTWISE, layers_of

# Beside the loss of the values: β must not decide how far a step of all goes when its gradient is clipped
TERMINATION_WEIGHT = 0.1
# How often each step of the survey is used to fit the values of states before the actor moves
VALUE_EPOCHS = 20


class CAPS(ReuseReports, OptionCollector):
    """
    Context-Aware Policy Reuse (CAPS)

    Learns when to reuse which source policy for a new task, and when to stop. Source policies and single actions are
    options. CAPS learns a value and a termination for each of them.

    Paper: Li, Gu, Zhu and Zhang: Context-Aware Policy Reuse, AAMAS 2019, https://arxiv.org/abs/1806.03793
    It builds on SB3's DQN, an off-policy algorithm. In addition to option values it learns an actor, a policy over the
    same options that follows advantages. The returns of whole episodes decide whether sources, actor or values act.
    ``CAPS(policy, env, source_policies=[...])`` is what we recommend for any task.
    ``CAPS(policy, env, source_policies=[...], **PAPER)`` is the paper's algorithm. Arguments whose default is None
    depend on the observations: DQN's for images (``DQN_DEFAULTS``), else ``VECTOR_DEFAULTS``, which learn faster.

    :param policy: The policy model to use (MlpPolicy, CnnPolicy, MultiInputPolicy)
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: The learning rate of the option values, or a function of the remaining progress (1 to 0)
    :param buffer_size: size of the replay buffer
    :param learning_starts: how many steps to collect transitions for before learning starts; until then actions are
        random
    :param batch_size: Minibatch size for each gradient update, in steps
    :param tau: the soft update coefficient ("Polyak update", between 0 and 1) default 1 for hard update
    :param gamma: the discount factor
    :param train_freq: Update the model every so many steps, or a tuple like ``(5, "step")`` or ``(2, "episode")``
    :param gradient_steps: How many gradient steps to do after each rollout (see ``train_freq``);
        ``-1`` for as many as steps were done in the environment
    :param replay_buffer_class: Replay buffer class to use, a subclass of ``OptionReplayBuffer``
    :param replay_buffer_kwargs: Keyword arguments to pass to the replay buffer on creation. Half of the sequences are
        drawn by their errors; ``{"prioritized_share": 0}`` draws all of them uniformly.
    :param optimize_memory_usage: Enable a memory efficient variant of the replay buffer
    :param n_steps: Must be 1: see ``sequence_length`` for longer backups
    :param target_update_interval: update the target network every ``target_update_interval`` environment steps
    :param exploration_fraction: fraction of entire training period over which the exploration rate is reduced
    :param exploration_initial_eps: initial value of random action probability
    :param exploration_final_eps: final value of random action probability
    :param max_grad_norm: The maximum value for the gradient clipping
    :param stats_window_size: Number of episodes to average success rate, length and reward over when logging
    :param tensorboard_log: the log location for tensorboard (if None, no logging)
    :param policy_kwargs: additional arguments to be passed to the policy on creation, see ``CAPSPolicy`` for
        ``execution``, ``shared_values`` and ``averaging``
    :param verbose: Verbosity level: 0 for no output, 1 for info messages (such as device), 2 for debug messages
    :param seed: Seed for the pseudo random generators
    :param device: Device (cpu, cuda, ...) on which the code should be run; auto for the GPU if possible
    :param source_policies: The policies to reuse: a list of anything that ``as_source`` takes, or a dictionary by name
    :param termination: A fixed β for all options (the paper's ablation; 1 chooses anew in every state),
        None to learn it
    :param termination_kwargs: How β is learned and where it is used, see ``Termination``
    :param sequence_length: Length of the sequences to learn from; 1 is the paper. Longer ones back values up
        along a sequence for as long as an option agrees with the actions taken.
    :param exploration_schedule: The exploration rate as a function of the remaining progress,
        in place of the three ``exploration_*`` numbers
    :param exploration: How the values of options explore: ``"steps"`` draws actions, ``"terminations"``, the paper's,
        draws options that run until they terminate. Or a function with the parameters of ``epsilon_greedy``
    :param actor_kwargs: How the actor learns, see ``Actor``
    :param selection_kwargs: How episodes are shared out between sources and learners, see ``Selection``
    :param normalize_returns: Whether to learn in units of the largest return seen, so that the scale of the rewards
        does not matter
    :param safe: Whether to act by what did best in whole episodes of training: a source, the actor or the option
        values, with the latest networks or the best ones. Otherwise option values explore and act, as in the paper
    :param selector_class: Chooses who acts in each episode, a subclass of ``Selector``; None for the one that ``safe``
        stands for
    :param loss_fn: The loss of the option values: Huber's by default, or any function with the parameters of those in
        ``torch.nn.functional``
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    """

    _warned_of_masks = False
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }

    def __init__(
        self,
        policy: str | type[CAPSPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule | None = None,
        buffer_size: int = 1_000_000,  # 1e6
        learning_starts: int = 100,
        batch_size: int | None = None,
        tau: float | None = None,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] | None = None,
        gradient_steps: int = 1,
        replay_buffer_class: type[OptionReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        target_update_interval: int | None = None,
        exploration_fraction: float = 0.1,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.05,
        max_grad_norm: float = 10,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        source_policies: Iterable[Any] | Mapping[str, Any] | None = None,
        termination: float | None = None,
        termination_kwargs: dict[str, Any] | None = None,
        sequence_length: int = 8,
        exploration_schedule: Schedule | None = None,
        exploration: Exploration = "steps",
        actor_kwargs: dict[str, Any] | None = None,
        selection_kwargs: dict[str, Any] | None = None,
        normalize_returns: bool = True,
        safe: bool = True,
        selector_class: type[Selector] | None = None,
        loss_fn: Callable[..., th.Tensor] = F.smooth_l1_loss,
        _init_setup_model: bool = True,
    ) -> None:
        defaults = DQN_DEFAULTS if _has_images(env) else VECTOR_DEFAULTS

        def given(name: str, value: Any) -> Any:
            return defaults[name] if value is None else value

        super().__init__(
            policy,
            env,
            given("learning_rate", learning_rate),
            buffer_size,
            learning_starts,
            given("batch_size", batch_size),
            given("tau", tau),
            gamma,
            given("train_freq", train_freq),
            gradient_steps,
            replay_buffer_class or OptionReplayBuffer,
            replay_buffer_kwargs,
            optimize_memory_usage,
            n_steps,
            given("target_update_interval", target_update_interval),
            exploration_fraction,
            exploration_initial_eps,
            exploration_final_eps,
            max_grad_norm,
            stats_window_size,
            tensorboard_log,
            policy_kwargs,
            verbose,
            seed,
            device,
            source_policies=source_policies,
            exploration_schedule=exploration_schedule,
        )
        self.termination = termination
        self.termination_kwargs = termination_kwargs or {}
        self.sequence_length = sequence_length
        self.exploration = exploration
        self.actor_kwargs = actor_kwargs or {}
        self.selection_kwargs = selection_kwargs or {}
        self.normalize_returns = normalize_returns
        self.safe = safe
        self.selector_class = selector_class
        self.loss_fn = loss_fn

        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        with warnings.catch_warnings():
            if callable(self.tau) or self.tau < 1.0:
                # SB3 warns of target updates that are rarer than steps, which means something for hard ones alone
                warnings.filterwarnings("ignore", "The number of environments used is greater than the target network")
            super()._setup_model()

    def _policy_arguments(self) -> dict[str, Any]:
        if self._actor_arch is None:
            # It can begin as a source of that shape
            networks = (source.network for source in self.options.sources)
            self._actor_arch = next((_arch(each) for each in networks if isinstance(each, ActorCriticPolicy)), None)
        return {
            "options": self.options,
            "termination": self.termination,
            "initial_termination": self._termination.initial,
            "termination_learning_rate": self._termination.learning_rate,
            "margin": self._termination.regularization,
            "gate": self.gate,
            "actor_learning_rate": self._actor.learning_rate,
            "actor_arch": self._actor_arch,
        }

    def _buffer_arguments(self) -> dict[str, Any]:
        return {
            "n_sources": self.options.n_sources,
            "sequence_length": self.sequence_length,
            "prioritized_share": (self.replay_buffer_kwargs or {}).get("prioritized_share", 0.5),
        }

    def _check_arguments(self) -> None:
        check_arguments(self)
        self._termination = Termination(**self.termination_kwargs)
        self._actor = Actor(**self.actor_kwargs)
        self._selection = Selection(**self.selection_kwargs)
        online = self.termination is None and self._termination.learning_rate is not None
        self._online_termination = self._termination.regularization if online else None

    def _scheduled(self) -> dict[str, Any]:
        target = self._termination.target
        return {"target_termination": 1.0 if target is None or isinstance(target, tuple) else target}

    def _create_aliases(self) -> None:
        super()._create_aliases()
        average = self.policy.q_net_average
        # Listed once: to walk through modules takes a tenth of a step
        self._trained_parameters = list(self.q_net.parameters())
        self._target_parameters = list(self.q_net_target.parameters())
        self._average_parameters: list[th.nn.Parameter] = [] if average is None else list(average.parameters())
        self._average_stats: list[th.Tensor] = [] if average is None else get_parameters_by_name(average, ["running_"])

    def _excluded_save_params(self) -> list[str]:
        listed = ["_trained_parameters", "_target_parameters", "_average_parameters", "_average_stats"]
        return [*super()._excluded_save_params(), *listed]

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        # Switch to train mode (this affects batch norm / dropout)
        self.policy.set_training_mode(True)
        # Update learning rate according to schedule
        self._update_learning_rate(self.policy.optimizer)

        losses = []
        for _ in range(gradient_steps):
            replay_data = self._sample(batch_size)
            estimates, targets = self._estimates_and_targets(replay_data)
            loss = self._compute_loss(replay_data, estimates, targets)
            losses.append(loss.item())

            # Optimize the policy
            self.policy.optimizer.zero_grad()
            loss.backward()
            # Clip gradient norm
            th.nn.utils.clip_grad_norm_(self._trained_parameters, self.max_grad_norm)
            self.policy.optimizer.step()

            taken = (replay_data.actions + replay_data.option_actions.shape[1])[..., None]
            errors = (targets - estimates.values.detach()).gather(2, taken)[..., 0].abs()
            self.replay_buffer.update_priorities(replay_data, errors.cpu().numpy())

        # Increase update counter
        self._n_updates += gradient_steps
        self._update_average(gradient_steps)
        if self._actor_steps >= self._actor.interval:
            self._actor_steps = 0
            # As long as nothing was found all advantages are noise, and would carry it away from its sources
            if not self.selector.no_signal:
                self._train_actor()
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))

    def _sample(self, batch_size: int) -> OptionReplayBufferSamples:
        """
        :param batch_size: in steps
        :return: sequences, with rewards in the unit of returns, and without what is disabled
        """
        replay_data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
        replay_data = replay_data._replace(rewards=self._scale.normalize(replay_data.rewards))
        if (disabled := self.policy.disabled()) is not None:
            replay_data = replay_data._replace(learned=replay_data.learned & ~disabled)
        return replay_data

    def _update_average(self, gradient_steps: int) -> None:
        """
        Let the running average follow the network: a plain mean at first, so that the start is soon forgotten.
        """
        if self.policy.averaging is None or gradient_steps == 0:
            return
        share = max(1.0 - (1.0 - self.policy.averaging) ** gradient_steps, gradient_steps / self._n_updates)
        with th.no_grad():
            get_ema_multi_avg_fn(1.0 - share)(self._average_parameters, self._trained_parameters, None)
            # The statistics of batch normalization are averages already, as DQN treats them too
            for stat, own in zip(self._average_stats, self.batch_norm_stats, strict=True):
                stat.copy_(own)

    def _compute_loss(
        self, replay_data: OptionReplayBufferSamples, estimates: OptionEstimates, targets: th.Tensor
    ) -> th.Tensor:
        """
        The loss of option values and terminations. Override it for another one.

        :param replay_data: sequences, with the mask of what is to be learned
        :param estimates: what the network says, of shape (length, sequences, options)
        :param targets: what the values should be, of the same shape
        :return: that of every option that agreed with the action taken, in the mean over the steps, and that of the
            terminations
        """
        loss = option_loss(estimates.values, targets, replay_data.learned, replay_data.mask.sum(), self.loss_fn)
        return loss + self._termination_loss(replay_data, estimates)

    def _termination_loss(
        self, replay_data: OptionReplayBufferSamples, estimates: OptionEstimates
    ) -> th.Tensor | float:
        """
        :param replay_data: sequences
        :param estimates: of shape (length, sequences, options)
        :return: the loss of β, 0 where it is fixed or learned online
        """
        if self.termination is not None or self._online_termination is not None:
            return 0.0
        mask, shape = replay_data.mask, (len(replay_data.mask) + 1, *replay_data.mask.shape[1:], -1)
        sources, action_masks = replay_data.option_actions.reshape(shape)[:-1], replay_data.action_masks
        if action_masks is not None:
            action_masks = action_masks.reshape(shape)[:-1]
        return TERMINATION_WEIGHT * termination_loss(
            estimates.termination_logits, estimates.values, sources, self.policy.disabled(), mask, action_masks
        )

    def _estimates_and_targets(self, replay_data: OptionReplayBufferSamples) -> tuple[OptionEstimates, th.Tensor]:
        """
        What the network says of the options, and what their values should be.

        :param replay_data: sequences
        :return: the estimates and the targets of Q_O(s, ·), all of shape (length, sequences, options)
        """
        length, n_sequences = replay_data.mask.shape
        shape = (length + 1, n_sequences, -1)
        observations, option_actions = replay_data.observations, replay_data.option_actions
        values, logits = (each.reshape(shape) for each in self.policy.evaluate(observations, option_actions))
        # The successor of a step is the next step of its sequence: the first one is none
        allowed = None
        if replay_data.action_masks is not None:
            allowed = th.cat([option_actions >= 0, replay_data.action_masks], dim=1).reshape(shape)[1:]
        with th.no_grad():
            following = part(observations, n_sequences), option_actions[n_sequences:]
            targets = option_targets(
                replay_data,
                self.gamma,
                next_greedy=self.policy.greedy_options(values[1:], allowed),
                next_values=self.policy.evaluate(*following, self.q_net_target).values.reshape(values[1:].shape),
                next_terminations=self._target_terminations(logits[1:]),
                next_allowed=allowed,
            )
        return OptionEstimates(values[:-1], logits[:-1]), targets

    def _target_terminations(self, logits: th.Tensor) -> th.Tensor:
        """
        :param logits: β before the logistic function, of shape (..., options)
        :return: β for the targets: that of options, or what ``termination_kwargs`` says, the same in all states
        """
        target = self._termination.target
        if target is None or self.termination is not None:
            return th.sigmoid(logits)
        both = target if isinstance(target, tuple) else (self._scheduled_value("target_termination"),) * 2
        n_sources, n_actions = self.options.n_sources, self.options.n_actions
        return logits.new_tensor([both[0]] * n_sources + [both[1]] * n_actions).expand(logits.shape)

    def _start_actor(self, source_chances: np.ndarray) -> None:
        """
        Let the actor begin with what is known of the sources: with each as far as it may be the best.

        :param source_chances: how likely each source is the best one, and at last how likely random actions are
        """
        chances = source_chances[:-1]
        unit = self._scale.value if self.normalize_returns and self._scale.value > 0 else 1.0
        self.policy.actor.start_from((1.0 - self._actor.softness) * chances, self._best_layers(source_chances), unit)
        # The values come first, from whole episodes: advantages by an untrained network are noise
        self._train_actor(values_alone=True)
        # At last: Ctrl-C before that, and it begins again
        super()._start_actor(source_chances)

    def _best_layers(self, chances: np.ndarray) -> ActorLayers | None:
        """:return: the layers of the best source, None where it is not an actor-critic that sees what ours sees"""
        best = int(chances.argmax())
        if best >= self.options.n_sources or self._vec_normalize_env is not None:
            return None
        network: Any = self.options.sources[best].network
        layers = layers_of(network) if isinstance(network, ActorCriticPolicy) else None
        if layers is None:
            return None
        own = [layer for layer in layers if not isinstance(layer, th.nn.Flatten)]
        return ActorLayers(own, [*network.mlp_extractor.value_net, network.value_net])

    def _train_actor(self, values_alone: bool = False) -> None:
        """
        One round of updates of the actor, from the latest steps of whoever acted (PPO's objective with V-trace).

        :param values_alone: whether only its values are fitted, to the returns of those steps
        """
        actor, settings, policy = self.policy.actor, self._actor, self.policy
        data = self.replay_buffer.latest(settings.window, self._vec_normalize_env)
        if len(data.rewards) < settings.batch_size:
            return
        rewards = self._scale.normalize(data.rewards) if self.normalize_returns else data.rewards
        with th.no_grad():
            features = policy.features_of(data.observations, len(data.rewards), settings.batch_size)
            ended = policy.features_of(data.ended, int(data.last_steps.sum()), settings.batch_size)
        n_steps = len(features)
        with th.no_grad():
            old_log_probs = actor(features, data.option_actions, data.action_masks)[1]
            old_log_probs = old_log_probs.gather(1, data.actions[:, None])[:, 0]
            weights = (old_log_probs - data.log_probs).exp().clamp(max=1.0)
            values = actor.value_net(features)[:, 0]
            next_values = th.cat([values[1:], values[-1:]])
            next_values[data.last_steps] = actor.value_net(ended)[:, 0]
            targets, advantages = vtrace(
                rewards,
                values,
                next_values,
                data.dones,
                data.last_steps,
                th.ones_like(weights) if values_alone else weights,
                self.gamma,
                1.0 if values_alone else settings.trace,
            )
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        # Each by itself: the loss of the values must not decide how far the policy moves
        moved = [list(network.parameters()) for network in (actor.policy_net, actor.value_net)]
        stays = values_alone
        for _ in range(VALUE_EPOCHS if values_alone else settings.n_epochs):
            order = th.as_tensor(self.rng.permutation(n_steps), device=self.device)
            for rows in order.split(settings.batch_size):
                loss = (actor.value_net(features[rows])[:, 0] - targets[rows]).square().mean()
                if not stays:
                    masks = None if data.action_masks is None else data.action_masks[rows]
                    _, log_probs = actor(features[rows], data.option_actions[rows], masks)
                    log_probs = log_probs.gather(1, data.actions[rows, None])[:, 0]
                    old = old_log_probs[rows]
                    loss = loss + actor_loss(log_probs, old, advantages[rows], weights[rows], settings.clip_range)
                    with th.no_grad():
                        change = log_probs - old
                        stays = bool((weights[rows] * (change.exp() - 1.0 - change)).mean() > settings.target_kl)
                policy.actor_optimizer.zero_grad()
                loss.backward()
                for parameters in moved:
                    th.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)
                policy.actor_optimizer.step()
        self.logger.record("train/actor_value_loss", float((values - targets).square().mean()))

    def distill(self, env: GymEnv, n_steps: int = 20_000, n_eval_episodes: int = 20, **kwargs: Any) -> Student:
        """
        Teach a PPO model of SB3 to do what this model does, without asking any source: it can be deployed by itself.

        :param env: environments of the task to act in, others than those of training
        :param n_steps: how many steps to learn from
        :param n_eval_episodes: how many episodes of both to compare at the end
        :param kwargs: arguments of PPO, for example ``policy_kwargs`` for a smaller network
        :return: the student, with its return beside that of this model
        """
        return teach(self, env, n_steps, n_eval_episodes, **kwargs)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: OptionState | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, OptionState]:
        """
        Act through options, with ε-greedy exploration unless deterministic, as in DQN.

        :param observation: the input observation
        :param state: The active options, as the last call returned them; None to choose anew
        :param episode_start: Which environments start an episode
        :param deterministic: Whether to choose greedily and to terminate where β ≥ 0.5
        :param action_masks: Which actions the environments allow, of shape (environments, actions); None for all
        :return: the actions and the next state
        """
        if action_masks is None and self._has_action_masks and not self._warned_of_masks:
            self._warned_of_masks = True
            warnings.warn(
                "The environments have action masks and predict got none, so it may do what is not allowed: pass "
                "action_masks, or evaluate with_masks(model, env).",
                stacklevel=2,
            )
        epsilon = 0.0 if deterministic else self.exploration_rate
        return self.policy.predict(observation, state, episode_start, deterministic, epsilon, action_masks)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer", "policy.termination_optimizer", "policy.actor_optimizer"], []


def _arch(policy: ActorCriticPolicy) -> dict[str, Any] | None:
    """:return: the hidden layers of an actor-critic, see ``ResidualActor``; None for what is built otherwise"""
    if type(policy.mlp_extractor) is not MlpExtractor or policy.activation_fn not in ELEMENTWISE:
        return None
    networks = {"pi": policy.mlp_extractor.policy_net, "vf": policy.mlp_extractor.value_net}
    units = {
        name: [each.out_features for each in net if isinstance(each, th.nn.Linear)] for name, net in networks.items()
    }
    return {**units, "activation_fn": policy.activation_fn.__name__}


def _has_images(env: GymEnv | str | None) -> bool:
    """Whether something that the environment emits is an image; false where that is not known yet."""
    space = gym.spec(env).make().observation_space if isinstance(env, str) else getattr(env, "observation_space", None)
    parts = space.values() if isinstance(space, spaces.Dict) else [space]
    return any(isinstance(each, spaces.Box) and is_image_space(each, check_channels=False) for each in parts)
