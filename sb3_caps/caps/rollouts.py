"""The collection of experience by acting through options."""

from collections.abc import Callable
from functools import cache, partial
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
from sb3_caps.caps.exploration import DrawnDurations, OptionExploration
from sb3_caps.caps.networks import OptionQNetwork
from sb3_caps.caps.policies import CAPSPolicy
from sb3_caps.caps.summary import ReuseSummary, UseOfOptions, summarize
from sb3_caps.caps.trials import CHECKING, KEPT, LEARNING, Trials, greedy_share
from sb3_caps.replay.buffers import OptionReplayBuffer
from sb3_caps.reuse.base import PolicyReuseAlgorithm
from sb3_caps.reuse.execution import OptionExecution
from sb3_caps.reuse.options import SourceStates
from sb3_caps.reuse.scale import ReturnScale
from sb3_caps.reuse.statistics import NOT_ON_SCREEN

CALL_AND_RETURN = OptionExecution("call-and-return")


class OptionCollector(PolicyReuseAlgorithm):
    """
    The half of CAPS that acts: in each step of the environments it ends options, chooses new ones, and stores what was
    done with the active options and with what each source would have done.

    :param args: see ``PolicyReuseAlgorithm``
    :param kwargs: see ``PolicyReuseAlgorithm``
    """

    policy: CAPSPolicy
    q_net: OptionQNetwork
    q_net_target: OptionQNetwork
    replay_buffer: OptionReplayBuffer
    _exploration: DrawnDurations | OptionExploration
    normalize_returns: bool
    safe: bool
    # ρ of β's online step, None where β is learned from replayed batches or fixed
    _online_termination: float | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The active option of each environment, what all options do in the last observations, and the sources' states
        self._last_options: np.ndarray | None = None
        self._last_option_actions: np.ndarray | None = None
        self._last_source_states: SourceStates = ()
        self._trials: Trials | None = None
        self._scale: ReturnScale | None = None
        self._nothing_found = False
        self._use = UseOfOptions(0, 0)

    def _setup_options(self) -> None:
        before = vars(self).get("source_names")
        super()._setup_options()
        if before not in (None, self.source_names):
            # What other sources were worth says nothing of these
            self._trials = None

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
        assert self._last_episode_starts is not None
        trials = Trials(self.options.n_sources, self.gamma)
        if self._trials is None:
            self._use = UseOfOptions(self.options.n_sources, len(self.options))
        if self._trials is None or self._trials.gamma != trials.gamma:
            # Returns that are discounted otherwise cannot be compared
            self._trials, self._nothing_found = trials, False
            if self.safe:
                # Until it is known
                self.policy.standings.fill_(0)
        if self._scale is None:
            self._scale = ReturnScale(self.gamma, self.n_envs)
        self._scale.gamma = self.gamma
        if self._last_options is None or len(self._last_options) != self.n_envs or self._last_episode_starts.all():
            self._last_options = np.zeros(self.n_envs, dtype=np.int64)
            self._last_source_states = self.options.initial_states()
            self._last_option_actions = self._ask_sources(self._emitted_observations(), self._last_episode_starts)
        if len(self._scale.sums) != self.n_envs:
            self._scale.sums = np.zeros(self.n_envs)

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
        # Made where it is needed
        kept = cache(partial(ActingNetwork, self.policy, self.policy.q_net_kept))
        while should_collect_more_steps(train_freq, n_steps, n_episodes):
            warm_up = self.num_timesteps < learning_starts
            if self._online_termination is not None and not warm_up:
                self._learn_terminations()
            actions, options = self._choose_actions(network, kept, warm_up)
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
            option_actions = self._last_option_actions
            assert option_actions is not None
            self._store_transition(replay_buffer, actions, new_obs, rewards, dones, infos)
            next_option_actions = self._arrive(dones, infos)
            n_sources = self.options.n_sources
            self.replay_buffer.add_options(options, option_actions[:, :n_sources], next_option_actions[:, :n_sources])
            self._count_rewards(rewards, dones)

            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            self._on_step()
            for _ in range(np.count_nonzero(dones)):
                n_episodes += 1
                self._episode_num += 1
                if log_interval is not None and self._episode_num % log_interval == 0:
                    self.dump_logs()
        callback.on_rollout_end()
        return RolloutReturn(n_steps * env.num_envs, n_episodes, continue_training=True)

    def _choose_actions(
        self, network: ActingNetwork, kept: Callable[[], ActingNetwork], warm_up: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        End options, choose new ones, and act by them.

        :param network: gives option values and terminations
        :param kept: gives the network that was kept
        :param warm_up: whether learning has not begun, so that all choices are random
        :return: the actions, and the options that took them
        """
        active, starts, option_actions = self._last_options, self._last_episode_starts, self._last_option_actions
        assert active is not None
        assert starts is not None
        assert option_actions is not None
        assert self._last_obs is not None
        values, beta = network(self._last_obs, option_actions[:, : self.options.n_sources])
        # As long as nothing was found there is nothing to exploit
        epsilon = 1.0 if warm_up or (self.safe and self._nothing_found) else self.exploration_rate
        if starts.any():
            self._start_episodes(starts, epsilon, warm_up)
        drawn = isinstance(self._exploration, DrawnDurations)
        # Not needed where options end by β and nothing is tried, as in the paper
        greedy = self._greedy_options(values, beta, kept) if drawn or self.safe else active
        if isinstance(self._exploration, DrawnDurations):
            observations = list(_by_key(self._original_observations()).values())
            options = self._exploration.choose(greedy, self._raised(epsilon), observations)
        else:
            options = self._options_until_they_end(self._exploration, values, beta, epsilon)
        if self.safe:
            assert self._trials is not None
            roles = self._trials.roles
            options = np.where(roles == LEARNING, options, np.where(roles >= 0, roles, greedy))

        environments = np.arange(len(options))
        actions = option_actions[environments, options]
        chosen = starts | (options != active)
        self._statistics.add_step(options, int(np.count_nonzero(chosen)), option_actions == actions[:, None], beta)
        self._use.add_step(options, chosen)
        self._last_options = options
        return actions, options

    def _raised(self, epsilon: float) -> float | np.ndarray:
        """:return: the exploration rate for episodes that explore, so that it is ε over all episodes"""
        if not self.safe:
            return epsilon
        assert self._trials is not None
        return np.where(self._trials.random, 1.0, min(epsilon / (1.0 - greedy_share(epsilon)), 1.0))

    def _start_episodes(self, starts: np.ndarray, epsilon: float, warm_up: bool) -> None:
        """Draw which of the episodes that start now try something, and which have stretches of sources."""
        assert self._trials is not None
        if self.safe:
            steps = self._total_timesteps - self._num_timesteps_at_start
            remaining = self._total_timesteps - self.num_timesteps
            self._trials.start_episodes(starts, epsilon, warm_up, remaining, steps)
            if isinstance(self._exploration, DrawnDurations):
                self._exploration.adapt(self._trials.gain_of_mixing(), self._trials.standings >= 0)
        self._exploration.start_episodes(starts)

    def _greedy_options(self, values: np.ndarray, beta: np.ndarray, kept: Callable[[], ActingNetwork]) -> np.ndarray:
        """
        :param values: what the network says of the last observations
        :param beta: the same
        :param kept: gives the network that was kept
        :return: the option to go on with in each environment without exploring: by the network that was kept where it
            is tried, and where episodes explore as long as it is known to be better
        """
        assert self._last_obs is not None
        assert self._last_options is not None
        assert self._last_option_actions is not None
        assert self._last_episode_starts is not None
        if self.safe:
            assert self._trials is not None
            roles = self._trials.roles
            by_kept = (roles == CHECKING) | ((roles == LEARNING) & (int(self.policy.acts_by) == KEPT))
            if by_kept.any():
                others = kept()(self._last_obs, self._last_option_actions[:, : self.options.n_sources])
                values = np.where(by_kept[:, None], others[0], values)
                beta = np.where(by_kept[:, None], others[1], beta)
        execution = self.policy.execution
        return execution.next_options(
            self._last_options,
            self._last_episode_starts,
            execution.ends(values, beta),
            execution.greedy_options(values),
        )

    def _options_until_they_end(
        self, exploration: OptionExploration, values: np.ndarray, beta: np.ndarray, epsilon: float
    ) -> np.ndarray:
        """:return: the active option until it ends with probability β, then another one (call-and-return)"""
        assert self._last_options is not None
        assert self._last_episode_starts is not None
        assert self._last_option_actions is not None
        active, starts = self._last_options, self._last_episode_starts
        ends = CALL_AND_RETURN.ends(values, beta, draws=np.random.random(len(values)))
        if not (starts | ends[np.arange(len(active)), active]).any():
            return active
        visits = None
        if exploration.novelty > 0:
            visits = self.replay_buffer.action_visits(self._original_observations(), self._last_option_actions)
        chosen = exploration.choose(values, epsilon, self._now("exploration_temperature"), visits)
        return CALL_AND_RETURN.next_options(active, starts, ends, chosen)

    def _ask_sources(self, emitted: Any, starts: np.ndarray) -> np.ndarray:
        """:return: what each option does in the observations that the environments have just emitted"""
        option_actions, self._last_source_states = self.options.actions(
            emitted, self._last_source_states, starts, self._action_masks()
        )
        return option_actions

    def _arrive(self, dones: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
        """
        Ask the sources about the observations that followed a step.

        :param dones: which episodes ended with it
        :param infos: with the observations that they ended in
        :return: what each option does where the step led to. After a terminal state nothing follows, so that only
            truncated episodes are asked about.
        """
        truncated = [i for i in np.flatnonzero(dones).tolist() if infos[i].get("TimeLimit.truncated", False)]
        ended = None
        if truncated and self.options.n_sources:
            ended = self._actions_after_truncation(truncated, infos)
        self._last_option_actions = self._ask_sources(self._emitted_observations(), dones)
        if ended is None:
            return self._last_option_actions
        arrived = self._last_option_actions.copy()
        arrived[truncated] = ended[truncated]
        return arrived

    def _actions_after_truncation(self, truncated: list[int], infos: list[dict[str, Any]]) -> np.ndarray:
        """:return: what each option does in the observations that episodes were truncated in; others do not count"""
        original = self._original_observations()
        observations = {key: value.copy() for key, value in _by_key(original).items()}
        for i in truncated:
            terminal = infos[i]["terminal_observation"]
            if self._vec_normalize_env is not None:
                terminal = self._vec_normalize_env.unnormalize_obs(terminal)
            for key, value in _by_key(terminal).items():
                observations[key][i] = value
        emitted = self.options.as_emitted(observations if isinstance(original, dict) else observations[None])
        masks = None if self._action_masks() is None else np.ones((self.n_envs, self.options.n_actions), dtype=bool)
        actions, _ = self.options.actions(emitted, self._last_source_states, np.zeros(self.n_envs, dtype=bool), masks)
        return actions

    def _count_rewards(self, rewards: np.ndarray, dones: np.ndarray) -> None:
        """
        Take the rewards of a step into account: for the unit of returns, and for what sources and learner are worth.
        """
        assert self._scale is not None
        assert self._trials is not None
        if self.normalize_returns:
            factor = self._scale.update(rewards, dones)
            if factor != 1.0:
                for network in self.policy.networks():
                    network.rescale(factor)
        if self.safe:
            if self._vec_normalize_env is not None:
                # Compared by what the task pays, whatever the learner's rewards are scaled to
                rewards = self._vec_normalize_env.get_original_reward()
            mixed = self._exploration.mixed if isinstance(self._exploration, DrawnDurations) else None
            if self._trials.add_step(rewards, dones, mixed):
                self.policy.q_net_kept.load_state_dict(self.policy.acting_net.state_dict())
            if dones.any() or len(self._trials.overdue()):
                self.policy.acts_by.fill_(self._trials.acts_by())
                self.policy.standings.copy_(th.as_tensor(self._trials.standings))
                self._nothing_found = self._trials.nothing_found()

    def _learn_terminations(self) -> None:
        """
        The paper's online step of β for the transitions that just arrived (Equation 2): β_o(s') goes down along its
        gradient times the advantage Q_O(s', o) - max Q_O(s', ·) + ρ of the option o that arrived.
        A terminal state has no continuation, so there is none in the first state of an episode.
        """
        assert self._last_obs is not None
        assert self._last_options is not None
        assert self._last_option_actions is not None
        assert self._last_episode_starts is not None
        assert self._online_termination is not None
        arrived = th.as_tensor(~self._last_episode_starts, device=self.device)
        if not arrived.any():
            return
        sources = th.as_tensor(self._last_option_actions[:, : self.options.n_sources], device=self.device)
        estimates = self.policy.complete(self.q_net(obs_as_tensor(self._last_obs, self.device)), sources)
        options = th.as_tensor(self._last_options, device=self.device)[:, None]
        values = estimates.values.detach()
        advantages = values.gather(1, options)[:, 0] - values.max(dim=1).values + self._online_termination
        loss = (estimates.terminations.gather(1, options)[:, 0] * advantages * arrived).sum()
        self.policy.termination_optimizer.zero_grad()
        loss.backward()
        self.policy.termination_optimizer.step()
        self._statistics.add_termination_loss(loss.item() / int(arrived.sum()))

    def reuse_summary(self) -> ReuseSummary:
        """
        :return: what sources and learner did in training and what they are worth, as far as ``safe`` tried them
        """
        if self._trials is None:
            raise ValueError("Nothing was reused yet: call learn first.")
        return summarize(self.options, self._trials, self._use, int(self.policy.acts_by))

    def dump_logs(self) -> None:
        """
        Write log data.
        """
        if self.safe and self._trials is not None:
            for policy in self.reuse_summary().policies:
                if policy.mean_reward is not None:
                    self.logger.record(f"reuse/mean_reward/{policy.name}", policy.mean_reward, exclude=NOT_ON_SCREEN)
            best = self._trials.best_source
            if best is not None:
                self.logger.record("reuse/best_source_reward", np.mean(self._trials.source_rewards[best]))
            if self._trials.learner_rewards:
                self.logger.record("reuse/learner_reward", np.mean(self._trials.learner_rewards))
        super().dump_logs()


def _by_key(observations: Any) -> dict[Any, Any]:
    return observations if isinstance(observations, dict) else {None: observations}
