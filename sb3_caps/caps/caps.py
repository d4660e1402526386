"""Context-Aware Policy Reuse."""

import pathlib
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import get_parameters_by_name, polyak_update
from torch.nn import functional as F

from sb3_caps.caps.arguments import Exploration, Termination, check_arguments
from sb3_caps.caps.networks import OptionEstimates
from sb3_caps.caps.policies import CAPSPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy, OptionState
from sb3_caps.caps.rollouts import OptionCollector
from sb3_caps.caps.targets import option_targets, with_bonus
from sb3_caps.files.export import export_model
from sb3_caps.replay.batches import part
from sb3_caps.replay.buffers import OptionReplayBuffer
from sb3_caps.replay.type_aliases import OptionReplayBufferSamples

SelfCAPS = TypeVar("SelfCAPS", bound="CAPS")
# Beside the loss of the values: β must not decide how far a step of all goes when its gradient is clipped
TERMINATION_WEIGHT = 0.1


class CAPS(OptionCollector):
    """
    Context-Aware Policy Reuse (CAPS)

    Learns when to reuse which source policy for a new task, and when to stop: option values over source policies
    and one primitive option for each action, with learned terminations.

    Paper: Li, Gu, Zhu and Zhang: Context-Aware Policy Reuse, AAMAS 2019, https://arxiv.org/abs/1806.03793
    It builds on SB3's DQN, an off-policy algorithm, and shares with it what the two have in common, defaults included.
    The defaults of what is new are ours: ``CAPS(policy, env, source_policies=[...])`` is what we recommend for any
    task. ``CAPS(policy, env, source_policies=[...], **PAPER)`` is the paper.

    :param policy: The policy model to use (MlpPolicy, CnnPolicy, MultiInputPolicy)
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: The learning rate of the option values, or a function of the remaining progress (1 to 0)
    :param buffer_size: size of the replay buffer
    :param learning_starts: how many steps of the model to collect transitions for before learning starts:
        until then actions are random
    :param batch_size: Minibatch size for each gradient update, in steps
    :param tau: the soft update coefficient ("Polyak update", between 0 and 1) default 1 for hard update
    :param gamma: the discount factor
    :param train_freq: Update the model every so many steps, or a tuple like ``(5, "step")`` or ``(2, "episode")``
    :param gradient_steps: How many gradient steps to do after each rollout (see ``train_freq``);
        ``-1`` for as many as steps were done in the environment
    :param replay_buffer_class: Replay buffer class to use, a subclass of ``OptionReplayBuffer``
    :param replay_buffer_kwargs: Keyword arguments to pass to the replay buffer on creation. Half of the sequences are
        drawn by their errors; ``{"prioritized_share": 0}`` draws all of them alike.
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
    :param source_policies: The policies to reuse: a list of anything that ``as_source`` takes
    :param termination: A fixed β for all options (the paper's ablation; 1 chooses anew in every state),
        None to learn it
    :param termination_kwargs: How β is learned and where it is used, see ``Termination``
    :param sequence_length: Length of the sequences to learn from; 1 is the paper. Longer ones back values up
        along a sequence for as long as an option agrees with the actions taken.
    :param exploration_schedule: The exploration rate as a function of the remaining progress,
        in place of the three ``exploration_*`` numbers
    :param exploration_kwargs: How options are chosen while learning, see ``Exploration``
    :param normalize_returns: Whether to learn in units of the largest return seen, so that nothing depends on the
        scale of the rewards
    :param safe: Whether to try the sources and the learner in whole episodes of training, and to act by whatever was
        best: the learner, the learner as it was at its best, or a source
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }

    def __init__(
        self,
        policy: str | type[CAPSPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 1e-4,
        buffer_size: int = 1_000_000,  # 1e6
        learning_starts: int = 100,
        batch_size: int = 32,
        tau: float = 1.0,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 4,
        gradient_steps: int = 1,
        replay_buffer_class: type[OptionReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        target_update_interval: int = 10000,
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
        source_policies: Sequence[Any] | None = None,
        termination: float | None = None,
        termination_kwargs: dict[str, Any] | None = None,
        sequence_length: int = 8,
        exploration_schedule: Schedule | None = None,
        exploration_kwargs: dict[str, Any] | None = None,
        normalize_returns: bool = True,
        safe: bool = True,
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(
            policy,
            env,
            learning_rate,
            buffer_size,
            learning_starts,
            batch_size,
            tau,
            gamma,
            train_freq,
            gradient_steps,
            replay_buffer_class or OptionReplayBuffer,
            replay_buffer_kwargs,
            optimize_memory_usage,
            n_steps,
            target_update_interval,
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
        self.exploration_kwargs = exploration_kwargs or {}
        self.normalize_returns = normalize_returns
        self.safe = safe

        if _init_setup_model:
            self._setup_model()

    def _policy_arguments(self) -> dict[str, Any]:
        return {
            "options": self.options,
            "termination": self.termination,
            "initial_termination": self._termination.initial,
            "termination_learning_rate": self._termination.learning_rate,
            "margin": self._termination.regularization,
        }

    def _buffer_arguments(self) -> dict[str, Any]:
        return {
            "n_sources": self.options.n_sources,
            "sequence_length": self.sequence_length,
            "prioritized_share": (self.replay_buffer_kwargs or {}).get("prioritized_share", 0.5),
            "count_visits": self._exploration_settings.bonus != 0,
            "count_actions": self._exploration_settings.novelty != 0,
        }

    def _check_arguments(self) -> None:
        check_arguments(self)
        self._termination = Termination(**self.termination_kwargs)
        self._exploration_settings = Exploration(**self.exploration_kwargs)
        online = self.termination is None and self._termination.learning_rate is not None
        self._online_termination = self._termination.regularization if online else None

    def _scheduled(self) -> dict[str, Any]:
        target = self._termination.target
        return {
            "target_termination": 1.0 if target is None or isinstance(target, tuple) else target,
            "exploration_temperature": self._exploration_settings.temperature,
            "exploration_bonus": self._exploration_settings.bonus,
        }

    def _setup_model(self) -> None:
        super()._setup_model()
        exploration = self._exploration_settings.make(self.options)
        before = vars(self).get("_exploration")
        if type(before) is type(exploration):
            exploration.resume(before)
        self._exploration = exploration

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        # Switch to train mode (this affects batch norm / dropout)
        self.policy.set_training_mode(True)
        # Update learning rate according to schedule
        self._update_learning_rate(self.policy.optimizer)

        losses, parameters = [], list(self.q_net.parameters())
        for _ in range(gradient_steps):
            replay_data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            loss = self._compute_loss(replay_data)
            losses.append(loss.item())

            # Optimize the policy
            self.policy.optimizer.zero_grad()
            loss.backward()
            # Clip gradient norm
            th.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
            self.policy.optimizer.step()

        # Increase update counter
        self._n_updates += gradient_steps
        self._update_average(gradient_steps)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))

    def _update_average(self, gradient_steps: int) -> None:
        """
        Let the running average follow the network: a plain mean at first, so that the start is soon forgotten. While it
        is checked whether to act by it in the end, it stays as it is.
        """
        average = self.policy.q_net_average
        if average is None or gradient_steps == 0 or (self._trials is not None and self._trials.checking):
            return
        assert self.policy.averaging is not None
        share = max(1.0 - (1.0 - self.policy.averaging) ** gradient_steps, gradient_steps / self._n_updates)
        polyak_update(self.q_net.parameters(), average.parameters(), share)
        # The statistics of batch normalization are averages already, as DQN treats them too
        polyak_update(self.batch_norm_stats, get_parameters_by_name(average, ["running_"]), 1.0)

    def _compute_loss(self, replay_data: OptionReplayBufferSamples) -> th.Tensor:
        """
        The loss of option values and terminations. Override it for another one.

        :param replay_data: sequences
        :return: Huber's loss (less sensitive to outliers) of every option that agreed with the action taken, in the
            mean over the steps, and that of the terminations
        """
        estimates, targets = self._estimates_and_targets(replay_data)
        losses = F.smooth_l1_loss(estimates.values, targets, reduction="none")
        learned = replay_data.agreements & replay_data.mask[..., None] & ~self.policy.given_up()
        loss = (losses * learned).sum() / replay_data.mask.sum()
        return loss + self._termination_loss(estimates, replay_data)

    def _termination_loss(
        self, estimates: OptionEstimates, replay_data: OptionReplayBufferSamples
    ) -> th.Tensor | float:
        """
        β of every option in every state: the probability that the action it takes there is not the best one.
        It is the sign of the advantage of Equation 2, for one action: whether going on for longer would be worth it is
        left to the option values, and whether to explore by the option to ``exploration_kwargs``.

        :param estimates: of shape (length, sequences, options)
        :param replay_data: sequences
        :return: the cross-entropy in the mean over the steps, 0 where β is fixed or learned online
        """
        if self.termination is not None or self._online_termination is not None:
            return 0.0
        mask, n_sources = replay_data.mask, self.options.n_sources
        sources = replay_data.option_actions[: mask.numel()].reshape(*mask.shape, n_sources)
        primitives = th.arange(self.options.n_actions, device=mask.device).expand(*mask.shape, -1)
        actions = th.cat([sources.clamp(min=0), primitives], dim=2)
        # That of an action is the value of the best option that takes it
        values = estimates.values.detach().masked_fill(self.policy.given_up(), -th.inf)
        values[..., :n_sources].masked_fill_(sources < 0, -th.inf)
        best = th.full_like(values[..., n_sources:], -th.inf).scatter_reduce(2, actions, values, "amax")
        worse = (best < best.max(dim=-1, keepdim=True).values).gather(2, actions)
        logits = estimates.termination_logits
        losses = F.binary_cross_entropy_with_logits(logits, worse.to(logits.dtype), reduction="none")
        return TERMINATION_WEIGHT * (losses * mask[..., None]).sum() / mask.sum()

    def _estimates_and_targets(self, replay_data: OptionReplayBufferSamples) -> tuple[OptionEstimates, th.Tensor]:
        """
        What the network says of the options, and what their values should be; the replay buffer is told the difference.

        :param replay_data: sequences
        :return: the estimates and the targets of Q_O(s, ·), all of shape (length, sequences, options)
        """
        if self.normalize_returns and self._scale is not None:
            replay_data = replay_data._replace(rewards=self._scale.normalize(replay_data.rewards))
        replay_data = with_bonus(replay_data, self._now("exploration_bonus"))
        length, n_sequences = replay_data.mask.shape
        shape = (length, n_sequences, len(self.options))
        observations, option_actions = replay_data.observations, replay_data.option_actions
        # The successor of a step is the next step of its sequence: only that of the last one is seen here
        steps = length * n_sequences
        values, logits = self.policy.evaluate(part(observations, 0, steps), option_actions[:steps])
        with th.no_grad():
            last = self.policy.evaluate(part(observations, steps), option_actions[steps:])
            next_values = th.cat([values[n_sequences:], last.values])
            next_beta = self._target_terminations(th.cat([logits[n_sequences:], last.termination_logits]))
            target_values = self.policy.evaluate(
                part(observations, n_sequences), option_actions[n_sequences:], self.q_net_target
            ).values
            targets = option_targets(
                replay_data,
                self.gamma,
                next_greedy=self.policy.greedy_options(next_values).reshape(shape[:2]),
                next_values=target_values.reshape(shape),
                next_terminations=next_beta.reshape(shape),
            )
            taken = (replay_data.actions + self.options.n_sources)[..., None]
            errors = (targets - values[:steps].reshape(shape)).gather(2, taken)[..., 0].abs()
            self.replay_buffer.update_priorities(replay_data, errors.cpu().numpy())
        return OptionEstimates(values[:steps].reshape(shape), logits[:steps].reshape(shape)), targets

    def _target_terminations(self, logits: th.Tensor) -> th.Tensor:
        """
        :param logits: β before the logistic function, of shape (states, options)
        :return: β for the targets: that of options, or what ``termination_kwargs`` says
        """
        target = self._termination.target
        if target is None or self.termination is not None:
            return th.sigmoid(logits)
        sources, primitives = target if isinstance(target, tuple) else (self._now("target_termination"),) * 2
        found = th.full_like(logits, primitives)
        found[:, : self.options.n_sources] = sources
        return found

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
        :param action_masks: Which actions the environments allow, for source policies of MaskablePPO
        :return: the actions and the next state
        """
        epsilon = 0.0 if deterministic else self.exploration_rate
        return self.policy.predict(observation, state, episode_start, deterministic, epsilon, action_masks)

    def learn(
        self: SelfCAPS,
        total_timesteps: int = 100_000,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "CAPS",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfCAPS:
        if self.verbose >= 1:
            sources = [f"{source.name} ({source.kind})" for source in self.options.sources]
            print(f"Options: {', '.join(sources) or 'no sources'}, {self.options.n_actions} actions")
        super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
        if self.safe:
            assert self._trials is not None
            self.policy.acts_by.fill_(self._trials.acts_by(finished=True))
            self._tell_what_was_reused()
        return self

    def _tell_what_was_reused(self) -> None:
        summary = self.reuse_summary()
        if self.verbose >= 1:
            print(summary)
        if summary.learner_is_below:
            warnings.warn(
                f"The learner is not known to be better than source policy '{summary.acts_by}', so that predict acts "
                "by the source: learn for longer, or see model.reuse_summary().",
                stacklevel=3,
            )

    def export(self, path: str | pathlib.Path) -> None:
        """
        Write the model as arrays and a plain description, which ``load`` and ``as_source`` read without running
        anything, also with ``trust=False``. It acts as the model does, and learns on with a fresh optimizer. Sources
        that are code, and networks other than standard ones, are refused.

        :param path: the file; ``.npz`` is added to a path without a suffix
        """
        export_model(self, path)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer", "policy.termination_optimizer"], []
