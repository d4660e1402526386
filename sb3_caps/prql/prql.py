"""Policy Reuse in Q-Learning, with a deep Q-network."""

from typing import Any, TypeVar

import numpy as np
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_caps.reuse.episodic import EpisodeState, EpisodicReuseAlgorithm

SelfPRQL = TypeVar("SelfPRQL", bound="PRQL")


class PRQL(EpisodicReuseAlgorithm):
    """
    Policy Reuse in Q-Learning (PRQL)

    Before each episode a policy is drawn from the sources and the one being learned, by a softmax over their gains W
    (the mean discounted return of their episodes, in units of the largest one seen) with a temperature τ that grows
    with every episode. A source is followed by π-reuse: with probability ψ_h in step h, which decays from
    ``reuse_probability`` by ``reuse_decay``; in the other steps the learned policy acts greedily with probability
    1 - ψ_h and at random with probability ψ_h. The learned policy, when it is drawn, acts fully greedily.

    Paper: Fernández and Veloso: Probabilistic Policy Reuse in a Reinforcement Learning Agent, AAMAS 2006, and
    Learning Domain Structure through Probabilistic Policy Reuse, Progress in Artificial Intelligence 2013.
    Defaults of what is new are theirs: ψ = 1, υ = 0.95, τ growing from 0 by 0.05 an episode. There it learns a table;
    here SB3's DQN takes its place. Their episodes have 100 steps: with longer ones a larger υ reuses for as long.

    With several environments the gains are those of all episodes that have ended, in whichever environment, and
    each of them makes the temperature grow.

    :param args: see ``EpisodicReuseAlgorithm``
    :param temperature: τ in the first episode
    :param temperature_growth: Δτ, added after each episode
    :param exploration_initial_eps: initial value of random action probability. PRQL has none beside π-reuse,
        so it is 0; with another, a step of the learned policy is random with probability ε if that is above ψ_h
    :param exploration_final_eps: final value of random action probability
    :param kwargs: see ``EpisodicReuseAlgorithm``
    """

    learned_policy_is_arm = True

    def __init__(
        self,
        *args: Any,
        temperature: float = 0.0,
        temperature_growth: float = 0.05,
        exploration_initial_eps: float = 0.0,
        exploration_final_eps: float = 0.0,
        _init_setup_model: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(  # type: ignore[misc]
            *args,
            exploration_initial_eps=exploration_initial_eps,
            exploration_final_eps=exploration_final_eps,
            _init_setup_model=False,
            **kwargs,
        )
        self.temperature = temperature
        self.temperature_growth = temperature_growth

        if _init_setup_model:
            self._setup_model()

    def _check_arguments(self) -> None:
        super()._check_arguments()
        for name, value in (
            ("temperature", self.temperature),
            ("temperature_growth", self.temperature_growth),
        ):
            if value < 0:
                raise ValueError(f"{name} must not be negative, but is {value}.")

    @property
    def current_temperature(self) -> float:
        """τ: the larger, the more a higher gain counts."""
        assert self.episode_counts is not None
        return self.temperature + self.temperature_growth * float(self.episode_counts.sum())

    @property
    def selection_probabilities(self) -> np.ndarray:
        """How likely each of ``arm_names`` is chosen for the next episode."""
        # Gains below the highest, so that no exponential overflows
        weights = np.exp(self.current_temperature * (self.gains - self.gains.max()))
        return weights / weights.sum()

    def _select(self, n_episodes: int, running: np.ndarray) -> np.ndarray:
        return np.random.choice(len(self.arm_names), size=n_episodes, p=self.selection_probabilities)

    def _random_probability(self, epsilon: float, episodes: EpisodeState) -> np.ndarray:
        reusing = episodes.arms < self.options.n_sources
        return np.maximum(epsilon, np.where(reusing, episodes.reuse, 0.0))

    def dump_logs(self) -> None:
        """
        Write log data.
        """
        self.logger.record("reuse/temperature", self.current_temperature)
        self._record_by_name("reuse/selection", self.arm_names, self.selection_probabilities)
        super().dump_logs()

    def learn(
        self: SelfPRQL,
        total_timesteps: int = 100_000,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "PRQL",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfPRQL:
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
