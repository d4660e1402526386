"""The collection of experience by acting through options."""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.type_aliases import MaybeCallback, RolloutReturn, TrainFreq
from stable_baselines3.common.utils import obs_as_tensor, should_collect_more_steps
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.caps.acting import ActingNetwork
from sb3_caps.caps.exploration import OptionExploration
from sb3_caps.caps.policies import CAPSPolicy, OptionQNetwork, OptionState
from sb3_caps.common.base import PolicyReuseAlgorithm
from sb3_caps.common.buffers import OptionReplayBuffer
from sb3_caps.common.execution import OptionExecution

# While learning, options always run until they terminate
CALL_AND_RETURN = OptionExecution("call-and-return")


class OptionCollector(PolicyReuseAlgorithm):
    """
    The half of CAPS that acts: in each step of the environments it learns β from the transition that arrived, ends the
    options that terminate, chooses new ones, and stores what was done with the active options and all agreements.

    :param args: see ``PolicyReuseAlgorithm``
    :param kwargs: see ``PolicyReuseAlgorithm``
    """

    policy: CAPSPolicy
    q_net: OptionQNetwork
    q_net_target: OptionQNetwork
    replay_buffer: OptionReplayBuffer
    _exploration: OptionExploration
    termination: float | None
    termination_regularization: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Active options and the states of recurrent sources, as `predict` takes them
        self._last_options: OptionState | None = None

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        # Our buffer keeps what followed the last step, so SB3 need not cut the last trajectory off
        optimize_memory_usage = self.optimize_memory_usage
        self.optimize_memory_usage = False
        try:
            return super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        finally:
            self.optimize_memory_usage = optimize_memory_usage

    def _start_run(self) -> None:
        super()._start_run()
        if self._last_options is None or len(self._last_options[0]) != self.n_envs:
            self._last_options = (np.zeros(self.n_envs, dtype=np.int64), self.options.initial_states())

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        train_freq: TrainFreq,
        replay_buffer: ReplayBuffer,
        action_noise: ActionNoise | None = None,
        learning_starts: int = 0,
        log_interval: int | None = None,
    ) -> RolloutReturn:
        """
        Act through options and store what they did.

        :param env: The training environment
        :param callback: Callback that will be called at each step (and at the beginning and end of the rollout)
        :param train_freq: How much experience to collect
        :param replay_buffer: Where to store it
        :param action_noise: Not for discrete actions
        :param learning_starts: Number of steps before learning for the warm-up phase.
        :param log_interval: Log data every ``log_interval`` episodes
        :return: how much was collected, and whether to go on
        """
        # Switch to eval mode (this affects batch norm / dropout)
        self.policy.set_training_mode(False)
        n_steps, n_episodes = 0, 0
        callback.on_rollout_start()
        network = ActingNetwork(self.policy)
        while should_collect_more_steps(train_freq, n_steps, n_episodes):
            warm_up = self.num_timesteps < learning_starts
            if self.termination is None and not warm_up:
                self._learn_terminations()
            actions, options, agreements = self._choose_actions(network, warm_up)
            new_obs, rewards, dones, infos = env.step(actions)
            assert not isinstance(new_obs, tuple)

            self.num_timesteps += env.num_envs
            n_steps += 1
            # Give access to local variables
            callback.update_locals(locals())
            # Only stop training if return value is False, not when it is None.
            if not callback.on_step():
                return RolloutReturn(n_steps * env.num_envs, n_episodes, continue_training=False)
            # Retrieve reward and episode length if using Monitor wrapper
            self._update_info_buffer(infos, dones)
            self._store_transition(replay_buffer, actions, new_obs, rewards, dones, infos)
            self.replay_buffer.add_options(options, agreements)

            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            self._on_step()
            for _ in range(np.count_nonzero(dones)):
                n_episodes += 1
                self._episode_num += 1
                if log_interval is not None and self._episode_num % log_interval == 0:
                    self.dump_logs()
        callback.on_rollout_end()
        return RolloutReturn(n_steps * env.num_envs, n_episodes, continue_training=True)

    def _choose_actions(self, network: ActingNetwork, warm_up: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """
        End the options that terminate, choose new ones, and act by them.

        :param network: gives option values and terminations
        :param warm_up: whether all choices are random
        :return: for each environment the action, the active option, and which options agree with the action
        """
        assert self._last_obs is not None
        assert self._last_options is not None
        assert self._last_episode_starts is not None
        starts, (active, source_states) = self._last_episode_starts, self._last_options
        values, beta = network(self._last_obs)
        # One evaluation of each source serves acting and agreement
        option_actions, source_states = self.options.actions(
            self._emitted_observations(), source_states, starts, self._action_masks()
        )
        self._exploration.start_episodes(starts)
        ends = CALL_AND_RETURN.ends(values, beta, draws=np.random.random(len(values)))
        n_ends = int(np.count_nonzero(starts | ends[np.arange(len(active)), active]))
        if n_ends:
            visits = None
            if self._exploration.novelty > 0:
                visits = self.replay_buffer.action_visits(self._original_observations(), option_actions)
            epsilon = 1.0 if warm_up else self.exploration_rate
            chosen = self._exploration.choose(values, epsilon, self._now("greedy_temperature"), visits)
            active = CALL_AND_RETURN.next_options(active, starts, ends, chosen)

        actions = option_actions[np.arange(len(active)), active]
        agreements = option_actions == actions[:, None]
        self._last_options = (active, source_states)
        self._statistics.add_step(active, n_ends, agreements, beta)
        return actions, active, agreements

    def _learn_terminations(self) -> None:
        """
        The online step of β for the transitions that just arrived (Equation 2): β_o(s') goes down along its gradient
        times the advantage Q_O(s', o) - max Q_O(s', ·) + ρ of the option o that arrived.
        A terminal state has no continuation, so there is none in the first state of an episode.
        """
        assert self._last_obs is not None
        assert self._last_options is not None
        assert self._last_episode_starts is not None
        arrived = th.as_tensor(~self._last_episode_starts, device=self.device)
        if not arrived.any():
            return
        values, beta = self.q_net(obs_as_tensor(self._last_obs, self.device))
        options = th.as_tensor(self._last_options[0], device=self.device)[:, None]
        advantages = values.gather(1, options)[:, 0] - values.max(dim=1).values + self.termination_regularization
        losses = beta.gather(1, options)[:, 0] * advantages.detach() * arrived
        loss = losses.sum()
        self.policy.termination_optimizer.zero_grad()
        loss.backward()
        self.policy.termination_optimizer.step()
        self._statistics.add_termination_loss(loss.item() / int(arrived.sum()))
