"""Optimal Policy Selection for transfer learning, with a deep Q-network."""

from typing import Any, TypeVar

import numpy as np
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_caps.reuse.episodic import EpisodicReuseAlgorithm

SelfOPSTL = TypeVar("SelfOPSTL", bound="OPSTL")


class OPSTL(EpisodicReuseAlgorithm):
    """
    Online selection of source policies as a multi-armed bandit (OPS-TL)

    The sources are the arms of a UCB1 bandit whose reward is the discounted return of an episode. The source that is
    chosen for an episode is followed with a probability that decays from ``reuse_probability`` by ``reuse_decay`` in
    each step; in the other steps the learned policy acts, ε-greedily as in DQN, which learns from all of it.

    Paper: Li and Zhang: An Optimal Online Method of Selecting Source Policies for Reinforcement Learning, AAAI 2018.
    What was chosen here: the learned policy is no arm (the bandit is over sources, and the decay leaves the learned
    policy the rest of every episode); reuse decays as in π-reuse of Fernández and Veloso, with their ψ = 1 and
    υ = 0.95; the bound is that of UCB1 for rewards from 0 to 1, mean + ``bandit_exploration`` √(2 ln n / n_i), with
    returns in units of the largest one seen.

    With several environments, episodes that are still running count as tries of their source, with nothing known yet
    of their return, so that environments that start together try different sources.

    :param args: see ``EpisodicReuseAlgorithm``
    :param bandit_exploration: weight of the width of the confidence bound; UCB1 has 1
    :param kwargs: see ``EpisodicReuseAlgorithm``
    """

    learned_policy_is_arm = False

    def __init__(
        self, *args: Any, bandit_exploration: float = 1.0, _init_setup_model: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(*args, _init_setup_model=False, **kwargs)  # type: ignore[misc]
        self.bandit_exploration = bandit_exploration

        if _init_setup_model:
            self._setup_model()

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.bandit_exploration < 0:
            raise ValueError(f"bandit_exploration must not be negative, but is {self.bandit_exploration}.")

    def upper_bounds(self, tries: np.ndarray) -> np.ndarray:
        """
        :param tries: how often each source was chosen
        :return: the upper confidence bound of each source, infinite where it was never chosen
        """
        widths = np.sqrt(2 * np.log(max(tries.sum(), 1)) / np.maximum(tries, 1))
        return np.where(tries > 0, self.gains + self.bandit_exploration * widths, np.inf)

    def _select(self, n_episodes: int, running: np.ndarray) -> np.ndarray:
        assert self.episode_counts is not None
        tries = self.episode_counts + running
        chosen = np.empty(n_episodes, dtype=np.int64)
        # Each choice changes the bounds of the next; this runs once an episode, not in every step
        for i in range(n_episodes):
            chosen[i] = self.upper_bounds(tries).argmax()
            tries[chosen[i]] += 1
        return chosen

    def dump_logs(self) -> None:
        """
        Write log data.
        """
        assert self.episode_counts is not None
        self._record_by_name("reuse/upper_bound", self.arm_names, self.upper_bounds(self.episode_counts))
        super().dump_logs()

    def learn(
        self: SelfOPSTL,
        total_timesteps: int = 100_000,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "OPSTL",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfOPSTL:
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
