"""Context-Aware Policy Reuse."""

import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import get_parameters_by_name, polyak_update
from torch.nn import functional as F

from sb3_caps.caps.arguments import check_arguments
from sb3_caps.caps.exploration import OptionExploration
from sb3_caps.caps.policies import CAPSPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy, OptionState
from sb3_caps.caps.rollouts import OptionCollector
from sb3_caps.caps.targets import option_targets, with_bonus
from sb3_caps.common.batches import part
from sb3_caps.common.buffers import OptionReplayBuffer, OptionReplayBufferSamples
from sb3_caps.common.execution import Execution
from sb3_caps.common.export import export_model

SelfCAPS = TypeVar("SelfCAPS", bound="CAPS")


class CAPS(OptionCollector):
    """
    Context-Aware Policy Reuse (CAPS)

    Learns when to reuse which source policy for a new task, and when to stop: option values over source policies
    and one primitive option for each action, with learned terminations and call-and-return execution.

    Paper: Li, Gu, Zhu and Zhang: Context-Aware Policy Reuse, AAMAS 2019, https://arxiv.org/abs/1806.03793
    It builds on SB3's DQN, an off-policy algorithm, and shares with it what the two have in common.
    Defaults are the paper's for Monster Kong, but where that is a schedule in absolute steps over millions of them:
    learning rate and exploration then have DQN's defaults, which follow the length of the run, and so have
    ``learning_starts`` (the paper: 50,000) and ``target_update_interval`` (which the paper does not give).
    ``PiecewiseLinear`` writes the paper's schedules.

    :param policy: The policy model to use (MlpPolicy, CnnPolicy, MultiInputPolicy)
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: The learning rate of the option values, or a function of the remaining progress (1 to 0)
    :param buffer_size: size of the replay buffer
    :param learning_starts: how many steps of the model to collect transitions for before learning starts:
        until then options are drawn at random and β stays as it is
    :param batch_size: Minibatch size for each gradient update
    :param tau: the soft update coefficient ("Polyak update", between 0 and 1) default 1 for hard update
    :param gamma: the discount factor
    :param train_freq: Update the model every so many steps, or a tuple like ``(5, "step")`` or ``(2, "episode")``
    :param gradient_steps: How many gradient steps to do after each rollout (see ``train_freq``);
        ``-1`` for as many as steps were done in the environment
    :param replay_buffer_class: Replay buffer class to use, a subclass of ``OptionReplayBuffer``
    :param replay_buffer_kwargs: Keyword arguments to pass to the replay buffer on creation.
    :param optimize_memory_usage: Enable a memory efficient variant of the replay buffer
    :param n_steps: Must be 1: see ``sequence_length`` for longer backups
    :param target_update_interval: update the target network every ``target_update_interval`` environment steps
    :param exploration_fraction: fraction of entire training period over which the exploration rate is reduced
    :param exploration_initial_eps: initial value of random option probability
    :param exploration_final_eps: final value of random option probability
    :param max_grad_norm: The maximum value for the gradient clipping
    :param stats_window_size: Number of episodes to average success rate, length and reward over when logging
    :param tensorboard_log: the log location for tensorboard (if None, no logging)
    :param policy_kwargs: additional arguments to be passed to the policy on creation
    :param verbose: Verbosity level: 0 for no output, 1 for info messages (such as device), 2 for debug messages
    :param seed: Seed for the pseudo random generators
    :param device: Device (cpu, cuda, ...) on which the code should be run; auto for the GPU if possible
    :param source_policies: The policies to reuse: a list of anything that ``as_source`` takes
    :param termination: A fixed β for all options (the paper's ablation; 1 chooses anew in every state),
        None to learn it
    :param termination_learning_rate: The fixed learning rate of β
    :param termination_regularization: ρ, added to the advantage in β's update so that options rather go on
    :param initial_termination: β at the start, one number or one for sources and one for primitives
    :param sequence_length: Length of the sequences to learn from; 1 is the paper. Longer ones back values up
        along a sequence for as long as an option agrees with the actions taken.
    :param option_weights: How likely each option is when exploring, relative to the others, in the order of
        ``options.names``; one number for a source relative to a primitive; None for all alike
    :param execution: How ``predict`` executes options: ``"call-and-return"``, the paper's, or ``"interrupting"``,
        which also ends an option where another has a higher value
    :param interruption_margin: How much higher, as a share of it: networks are not as exact as neighbouring actions
        are alike, and would change their mind in every state
    :param exploration_schedule: The exploration rate as a function of the remaining progress,
        in place of the three ``exploration_*`` numbers
    :param greedy_temperature: While learning, options whose values differ by less than this are chosen greedily about
        as often as each other (a softmax), a number or a function of the remaining progress; 0 is the paper. Where
        nothing is known yet values differ by noise, and one and the same option, chosen again and again, would keep
        exploration in one place.
    :param target_termination: β in the targets alone, a number or a function of the remaining progress; None for the
        β that options end by. Low values keep the values of options apart, high ones make them exact.
    :param averaging: How far a running average of the network follows it in each step of the environments, for
        ``predict`` to act by: it is steadier than the network; None to act by the network itself
    :param exploration_bonus: Added to the reward of a step to an observation that was seen n times, divided by n,
        when learning from it: rarely seen places are worth going to. A number, or a function of the remaining progress
        which had better end at 0. For environments whose observations come back; 0 is the paper.
    :param exploration_episodes: Share of the episodes in which every choice is random, however low the exploration
        rate: what no way leads to yet can still be found late in a run. 0 is the paper.
    :param exploration_novelty: How much rather a random choice falls on what is new: the weight of an option whose
        action was taken n times in the observation is divided by (1 + n) to this power. 0 is the paper.
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    scheduled_arguments: ClassVar[tuple[str, ...]] = ("greedy_temperature", "target_termination", "exploration_bonus")

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
        termination_learning_rate: float = 0.00025,
        termination_regularization: float = 0.005,
        initial_termination: float | tuple[float, float] = 0.5,
        sequence_length: int = 1,
        option_weights: float | Sequence[float] | None = None,
        execution: Execution = "call-and-return",
        exploration_schedule: Schedule | None = None,
        greedy_temperature: float | Schedule = 0.0,
        target_termination: float | Schedule | None = None,
        interruption_margin: float = 0.0,
        averaging: float | None = None,
        exploration_bonus: float | Schedule = 0.0,
        exploration_episodes: float = 0.0,
        exploration_novelty: float = 0.0,
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
        self.termination_learning_rate = termination_learning_rate
        self.termination_regularization = termination_regularization
        self.initial_termination = initial_termination
        self.sequence_length = sequence_length
        self.option_weights = option_weights
        self.execution = execution
        self.greedy_temperature = greedy_temperature
        self.target_termination = target_termination
        self.interruption_margin = interruption_margin
        self.averaging = averaging
        self.exploration_bonus = exploration_bonus
        self.exploration_episodes = exploration_episodes
        self.exploration_novelty = exploration_novelty

        if _init_setup_model:
            self._setup_model()

    def _policy_arguments(self) -> dict[str, Any]:
        return {
            "options": self.options,
            "termination": self.termination,
            "initial_termination": self.initial_termination,
            "termination_learning_rate": self.termination_learning_rate,
            "execution": self.execution,
            "interruption_margin": self.interruption_margin,
            "averaged": self.averaging is not None,
        }

    def _buffer_arguments(self) -> dict[str, Any]:
        return {
            "n_options": len(self.options),
            "sequence_length": self.sequence_length,
            "count_visits": self.exploration_bonus != 0,
            "count_actions": self.exploration_novelty != 0,
        }

    def _check_arguments(self) -> None:
        check_arguments(self)

    def _setup_model(self) -> None:
        super()._setup_model()
        weights = self.options.normalized(self.option_weights)
        exploration = OptionExploration(weights, self.exploration_episodes, self.exploration_novelty)
        if "_exploration" in vars(self):  # a loaded model goes on with the episodes that it was in
            exploration.random_episodes = self._exploration.random_episodes
        self._exploration = exploration

    def _on_step(self) -> None:
        super()._on_step()
        if self.averaging is not None:
            assert self.policy.q_net_average is not None
            polyak_update(self.q_net.parameters(), self.policy.q_net_average.parameters(), self.averaging)
            # The statistics of batch normalization are averages already, as DQN treats them too
            average_stats = get_parameters_by_name(self.policy.q_net_average, ["running_"])
            polyak_update(self.batch_norm_stats, average_stats, 1.0)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        # Switch to train mode (this affects batch norm / dropout)
        self.policy.set_training_mode(True)
        # Update learning rate according to schedule
        self._update_learning_rate(self.policy.optimizer)

        losses = []
        for _ in range(gradient_steps):
            replay_data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            loss = self._compute_loss(replay_data)
            losses.append(loss.item())

            # Optimize the policy
            self.policy.optimizer.zero_grad()
            loss.backward()
            # Clip gradient norm
            th.nn.utils.clip_grad_norm_(self.q_net.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()

        # Increase update counter
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))

    def _compute_loss(self, replay_data: OptionReplayBufferSamples) -> th.Tensor:
        """
        The loss of the option values. Override it for another one.

        :param replay_data: sequences
        :return: Huber's loss (less sensitive to outliers) of every option that agreed with the action taken, in the
            mean over the steps
        """
        values, targets = self._values_and_targets(replay_data)
        losses = F.smooth_l1_loss(values, targets, reduction="none")
        return losses[replay_data.agreements & replay_data.mask[..., None]].sum() / replay_data.mask.sum()

    def _values_and_targets(self, replay_data: OptionReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        :param replay_data: sequences
        :return: Q_O(s, ·) and its targets, both of shape (length, sequences, options)
        """
        replay_data = with_bonus(replay_data, self._now("exploration_bonus"))
        length, n_sequences = replay_data.mask.shape
        shape = (length, n_sequences, len(self.options))
        observations = replay_data.observations
        # The successor of a step is the next step of its sequence: only that of the last one is seen here
        values, beta = self.policy.evaluate(part(observations, 0, length * n_sequences))
        with th.no_grad():
            last_values, last_beta = self.policy.evaluate(part(observations, length * n_sequences))
            next_values = th.cat([values[n_sequences:], last_values])
            next_beta = th.cat([beta[n_sequences:], last_beta])
            if self.target_termination is not None:
                next_beta = th.full_like(next_beta, self._now("target_termination"))
            target_values, _ = self.policy.evaluate(part(observations, n_sequences), self.q_net_target)
            targets = option_targets(
                replay_data,
                self.gamma,
                next_greedy=next_values.argmax(dim=1).reshape(shape[:2]),
                next_values=target_values.reshape(shape),
                next_terminations=next_beta.reshape(shape),
            )
        return values.reshape(shape), targets

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
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)

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
