"""What the deep baselines share: one policy chosen for each episode, a source among them reused within it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.dqn.policies import DQNPolicy

from sb3_caps.reuse.base import PolicyReuseAlgorithm
from sb3_caps.reuse.options import SourceStates
from sb3_caps.reuse.statistics import NOT_ON_SCREEN

LEARNED = "learned"


@dataclass
class EpisodeState:
    """
    Where each environment stands in its episode.

    :param arms: the arm that was chosen for the episode
    :param reuse: ψ_h, the probability to follow the chosen source in the next step
    :param returns: the discounted return so far
    :param discounts: the discount of the next reward
    :param source_states: what recurrent sources remember
    """

    arms: np.ndarray
    reuse: np.ndarray
    returns: np.ndarray
    discounts: np.ndarray
    source_states: SourceStates


class EpisodicReuseAlgorithm(PolicyReuseAlgorithm):
    """
    Base of the algorithms that choose an arm for each episode: a source policy, or the policy being learned.

    A chosen source is followed with a probability that decays within the episode; in the other steps the learned
    policy acts, with some exploration. The discounted return of an episode is the gain of its arm. A DQN learns from
    all of it, and ``predict`` is DQN's: sources help to explore and are no part of the result. Until
    ``learning_starts`` the learned policy acts at random, and sources are reused already.

    :param policy: The policy model to use (MlpPolicy, CnnPolicy, MultiInputPolicy)
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param source_policies: The policies to reuse: a list of anything that ``as_source`` takes
    :param reuse_probability: ψ, the probability to follow the chosen source in the first step of an episode
    :param reuse_decay: υ, what that probability is multiplied with after each step
    :param exploration_schedule: The exploration rate as a function of the remaining progress,
        in place of the three ``exploration_*`` numbers
    :param _init_setup_model: Whether or not to build the network at the creation of the instance

    All others are the arguments of SB3's DQN, with its order and defaults.
    """

    # Whether the learned policy is an arm too, the last one
    learned_policy_is_arm: bool

    def __init__(
        self,
        policy: str | type[DQNPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 1e-4,
        buffer_size: int = 1_000_000,  # 1e6
        learning_starts: int = 100,
        batch_size: int = 32,
        tau: float = 1.0,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 4,
        gradient_steps: int = 1,
        replay_buffer_class: type[ReplayBuffer] | None = None,
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
        reuse_probability: float = 1.0,
        reuse_decay: float = 0.95,
        exploration_schedule: Schedule | None = None,
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
            replay_buffer_class,
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
        self.reuse_probability = reuse_probability
        self.reuse_decay = reuse_decay
        # What is known of the arms: finished episodes of each, and their mean discounted return
        self.episode_counts: np.ndarray | None = None
        self.mean_returns: np.ndarray | None = None
        self.largest_return = 0.0
        self._episodes: EpisodeState | None = None

        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        super()._setup_model()
        if self.episode_counts is None:
            self.episode_counts = np.zeros(len(self.arm_names), dtype=np.int64)
            self.mean_returns = np.zeros(len(self.arm_names))
        self._steps_driven = np.zeros(self.options.n_sources + 1, dtype=np.int64)

    def _check_arguments(self) -> None:
        for name in ("reuse_probability", "reuse_decay"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {value}.")

    @property
    def arm_names(self) -> list[str]:
        """What is chosen from for each episode: the sources, then the learned policy where it is an arm."""
        return self.source_names + [LEARNED] * self.learned_policy_is_arm

    @property
    def gains(self) -> np.ndarray:
        """The mean return of each arm in units of the largest return seen: it does not matter what the task pays in."""
        assert self.mean_returns is not None
        return self.mean_returns / self.largest_return if self.largest_return > 0 else self.mean_returns

    def _select(self, n_episodes: int, running: np.ndarray) -> np.ndarray:
        """
        Choose the arms of new episodes.

        :param n_episodes: how many episodes start
        :param running: how many episodes of each arm are under way in other environments
        :return: an arm for each
        """
        raise NotImplementedError()

    def _random_probability(self, epsilon: float, episodes: EpisodeState) -> np.ndarray | float:
        """
        :param epsilon: the exploration rate
        :param episodes: where each environment stands in its episode
        :return: how likely a step is random where the learned policy acts
        """
        return epsilon

    def _start_run(self) -> None:
        super()._start_run()
        if self._episodes is None or len(self._episodes.arms) != self.n_envs:
            # Every environment starts an episode now, and these are then set
            arms, zeros = np.zeros(self.n_envs, dtype=np.int64), np.zeros(self.n_envs)
            self._episodes = EpisodeState(arms, zeros, zeros, zeros, self.options.initial_states())

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        Follow the source that was chosen for the episode, or the learned policy.

        :param learning_starts: Number of steps before learning for the warm-up phase.
        :param action_noise: Not for discrete actions
        :param n_envs: Number of environments
        :return: the actions, for the environments and for the replay buffer
        """
        assert self._last_obs is not None
        assert self._last_episode_starts is not None
        episodes = self._episodes
        assert episodes is not None
        starts = self._last_episode_starts
        if starts.any():
            self._start_episodes(episodes, starts)
        option_actions, episodes.source_states = self.options.actions(
            self._emitted_observations(), episodes.source_states, starts, self._action_masks()
        )
        reused = (episodes.arms < self.options.n_sources) & (np.random.random(n_envs) < episodes.reuse)

        actions, _ = self.policy.predict(self._last_obs, deterministic=True)
        epsilon = 1.0 if self.num_timesteps < learning_starts else self.exploration_rate
        explores = np.random.random(n_envs) < self._random_probability(epsilon, episodes)
        actions = np.where(explores, np.random.randint(self.options.n_actions, size=n_envs), actions)
        actions = np.where(reused, option_actions[np.arange(n_envs), episodes.arms], actions)

        episodes.reuse = episodes.reuse * self.reuse_decay
        drivers = np.where(reused, episodes.arms, self.options.n_sources)
        self._steps_driven += np.bincount(drivers, minlength=len(self._steps_driven))
        return actions, actions

    def _start_episodes(self, episodes: EpisodeState, starts: np.ndarray) -> None:
        """
        Choose an arm in the environments whose episode starts.
        """
        n_arms = len(self.arm_names)
        running = np.bincount(episodes.arms[~starts], minlength=max(n_arms, 1))
        # With no arm at all the learned policy acts, as in DQN
        chosen = self._select(int(starts.sum()), running) if n_arms else self.options.n_sources
        episodes.arms[starts] = chosen
        episodes.reuse = np.where(starts, self.reuse_probability, episodes.reuse)
        episodes.returns = np.where(starts, 0.0, episodes.returns)
        episodes.discounts = np.where(starts, 1.0, episodes.discounts)

    def _store_transition(
        self,
        replay_buffer: ReplayBuffer,
        buffer_action: np.ndarray,
        new_obs: np.ndarray | dict[str, np.ndarray],
        reward: np.ndarray,
        dones: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)
        episodes = self._episodes
        assert episodes is not None
        # Gains are in the task's own rewards, whatever the learner's are scaled to
        normalizer = self._vec_normalize_env
        episodes.returns = episodes.returns + episodes.discounts * (
            reward if normalizer is None else normalizer.get_original_reward()
        )
        episodes.discounts = episodes.discounts * self.return_discount
        if dones.any() and self.arm_names:
            self._end_episodes(episodes, dones)

    @property
    def return_discount(self) -> float:
        """The discount of the returns that arms are compared by."""
        return self.gamma

    def _end_episodes(self, episodes: EpisodeState, dones: np.ndarray) -> None:
        """
        Learn from the returns of the episodes that have ended.

        :param episodes: where each environment stands in its episode
        :param dones: which of them has ended
        """
        self._finish_episodes(episodes.arms[dones], episodes.returns[dones])

    def _finish_episodes(self, arms: np.ndarray, returns: np.ndarray) -> None:
        """
        Bring the mean return of each arm up to date, exactly also where an arm occurs twice.
        """
        assert self.episode_counts is not None
        assert self.mean_returns is not None
        self.largest_return = max(self.largest_return, float(np.abs(returns).max()))
        n_arms = len(self.episode_counts)
        totals = self.mean_returns * self.episode_counts + np.bincount(arms, returns, minlength=n_arms)
        self.episode_counts = self.episode_counts + np.bincount(arms, minlength=n_arms)
        self.mean_returns = totals / np.maximum(self.episode_counts, 1)

    def dump_logs(self) -> None:
        """
        Write log data.
        """
        steps = self._steps_driven.sum()
        if steps > 0:
            self.logger.record("options/source_share", self._steps_driven[:-1].sum() / steps)
            names = [*self.source_names, LEARNED]
            self._record_by_name("per_option/share", names, self._steps_driven / steps)
        self._record_by_name("reuse/episodes", self.arm_names, self.episode_counts)
        self._record_by_name("reuse/gain", self.arm_names, self.mean_returns)
        self._steps_driven = np.zeros_like(self._steps_driven)
        super().dump_logs()

    def _record_by_name(self, tag: str, names: list[str], values: Any) -> None:
        for name, value in zip(names, values, strict=True):
            self.logger.record(f"{tag}/{name}", value, exclude=NOT_ON_SCREEN)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_steps_driven"]
