"""What jump-start and QDagger share: the source that is best on the task is found first, and then guides."""

from collections import deque
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import ActionNoise

from sb3_caps.reuse.episodic import EpisodeState, EpisodicReuseAlgorithm

RANDOM = "random"


class GuidedReuseAlgorithm(EpisodicReuseAlgorithm):
    """
    Base of the algorithms in which one source policy, the guide, acts first and the learned policy afterwards.

    At first every source acts alone for a few episodes, those that were tried least first, and so does a random
    policy. The source with the highest mean return (not discounted, in the task's own rewards) is the guide from then
    on, and the difference to the random policy's return is the unit in which returns are compared, whatever the size
    of rewards. In each later episode the guide acts for the first ``horizon`` steps, and the learned policy,
    ε-greedily, in the rest; a guide that is no better than the random policy does not act. A DQN learns from all of
    it, and ``predict`` is DQN's. Without sources it is SB3's DQN.

    With several environments an episode that is under way counts as a try, and one that ends after the guide was
    chosen changes no choice.

    :param args: The arguments of SB3's DQN, in its order, then ``source_policies``
    :param trial_episodes: How many episodes each source is tried for
    :param average_episodes: How many of the latest episodes the learned policy is judged by
    :param kwargs: The same by name, and ``exploration_schedule``: see ``EpisodicReuseAlgorithm``
    """

    learned_policy_is_arm = False

    def __init__(
        self,
        *args: Any,
        trial_episodes: int = 3,
        average_episodes: int = 3,
        _init_setup_model: bool = True,
        **kwargs: Any,
    ) -> None:
        # A source is followed in every step that it has or in none, so these two are no arguments here
        super().__init__(  # type: ignore[misc]
            *args, reuse_probability=1.0, reuse_decay=1.0, _init_setup_model=False, **kwargs
        )
        self.trial_episodes = trial_episodes
        self.average_episodes = average_episodes
        # The source that is best on the task, once every one was tried
        self.guide: int | None = None
        self._recent_returns: deque[float] = deque()
        self._mean_lengths: np.ndarray | None = None
        # Of each environment's episode: whether an arm is tried in it, how many steps the guide has, its steps so far
        self._trials = np.zeros(0, dtype=bool)
        self._guide_steps, self._lengths = np.zeros(0), np.zeros(0)

        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        super()._setup_model()
        self._recent_returns = deque(self._recent_returns, maxlen=self.average_episodes)
        if self._mean_lengths is None:
            self._mean_lengths = np.zeros(len(self.arm_names))

    def _check_arguments(self) -> None:
        super()._check_arguments()
        for name in ("trial_episodes", "average_episodes"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name} must be a whole number from 1, not {value!r}.")

    @property
    def arm_names(self) -> list[str]:
        """What is tried at first: the sources, and a random policy to compare them with."""
        return [*self.source_names, RANDOM] if self.source_names else []

    @property
    def advantage(self) -> float:
        """How much higher the guide's return is than the random policy's, 0 while that is unknown."""
        if self.guide is None:
            return 0.0
        assert self.mean_returns is not None
        return max(float(self.mean_returns[self.guide] - self.mean_returns[-1]), 0.0)

    @property
    def horizon(self) -> float:
        """How many steps the guide acts for in an episode that starts now."""
        raise NotImplementedError()

    @property
    def recent_return(self) -> float | None:
        """The mean return of the latest episodes of the learned policy, None until there are enough."""
        return float(np.mean(self._recent_returns)) if len(self._recent_returns) == self.average_episodes else None

    @property
    def return_discount(self) -> float:
        """Returns are what the task pays, as those that SB3 logs."""
        return 1.0

    def _guide_chosen(self, length: float) -> None:
        """
        Get ready for the episodes with the guide.

        :param length: the mean length of the guide's episodes
        """

    def _learner_finished(self) -> None:
        """
        Take the return of another episode of the learned policy into account, the last of the recent ones.
        """

    def _start_run(self) -> None:
        super()._start_run()
        if len(self._trials) != self.n_envs:
            self._trials = np.zeros(self.n_envs, dtype=bool)
            self._guide_steps, self._lengths = np.zeros(self.n_envs), np.zeros(self.n_envs)

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        if self.source_names:
            return super()._sample_action(learning_starts, action_noise, n_envs)
        # The very random numbers of SB3's DQN
        return super(EpisodicReuseAlgorithm, self)._sample_action(learning_starts, action_noise, n_envs)

    def _select(self, n_episodes: int, running: np.ndarray) -> np.ndarray:
        if self.guide is not None:
            return np.full(n_episodes, self.guide)
        assert self.episode_counts is not None
        tries = self.episode_counts + running
        chosen = np.empty(n_episodes, dtype=np.int64)
        for i in range(n_episodes):
            chosen[i] = tries.argmin()
            tries[chosen[i]] += 1
        return chosen

    def _start_episodes(self, episodes: EpisodeState, starts: np.ndarray) -> None:
        super()._start_episodes(episodes, starts)
        trial = self.guide is None
        self._trials = np.where(starts, trial, self._trials)
        self._guide_steps = np.where(starts, np.inf if trial else self.horizon, self._guide_steps)
        self._lengths = np.where(starts, 0, self._lengths)
        episodes.reuse = self._guidance()

    def _guidance(self) -> np.ndarray:
        """:return: for each environment, how likely its source takes the next step"""
        return (self._lengths < self._guide_steps).astype(np.float64)

    def _random_probability(self, epsilon: float, episodes: EpisodeState) -> np.ndarray:
        return np.where(self._trials, 1.0, epsilon)

    def _store_transition(
        self,
        replay_buffer: ReplayBuffer,
        buffer_action: np.ndarray,
        new_obs: np.ndarray | dict[str, np.ndarray],
        reward: np.ndarray,
        dones: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        self._lengths = self._lengths + 1
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)
        assert self._episodes is not None
        self._episodes.reuse = self._guidance()

    def _end_episodes(self, episodes: EpisodeState, dones: np.ndarray) -> None:
        for i in np.flatnonzero(dones):
            if self._trials[i]:
                self._finish_trial(int(episodes.arms[i]), float(episodes.returns[i]), float(self._lengths[i]))
            # An episode that started under another horizon says little about this one
            elif np.isfinite(self._guide_steps[i]) and self._guide_steps[i] == self.horizon:
                self._recent_returns.append(float(episodes.returns[i]))
                self._learner_finished()

    def _finish_trial(self, arm: int, gain: float, length: float) -> None:
        """
        Count an episode in which an arm was tried, and choose the guide when every one was tried enough.
        """
        self._finish_episodes(np.array([arm]), np.array([gain]))
        assert self.episode_counts is not None
        assert self.mean_returns is not None
        assert self._mean_lengths is not None
        self._mean_lengths[arm] += (length - self._mean_lengths[arm]) / self.episode_counts[arm]
        if self.guide is None and self.episode_counts.min() >= self.trial_episodes:
            self.guide = int(self.mean_returns[: self.options.n_sources].argmax())
            self._guide_chosen(float(self._mean_lengths[self.guide]))

    def dump_logs(self) -> None:
        """
        Write log data.
        """
        if self.guide is not None:
            self.logger.record("reuse/guide", self.source_names[self.guide])
        if self.recent_return is not None:
            self.logger.record("reuse/recent_return", self.recent_return)
        super().dump_logs()
