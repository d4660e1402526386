"""Policy Reuse in Q-Learning, with a deep Q-network."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_caps.reuse.checks import check_number
from sb3_caps.reuse.episodes import Behaviour
from sb3_caps.reuse.episodic import EpisodicReuseAlgorithm
from sb3_caps.reuse.selectors import LEARNED, EvidenceSelector


@dataclass(eq=False)
class PRQLSelector(EvidenceSelector):
    """Draw the policy of each episode by a softmax over gains, see ``PRQL``."""

    others = (LEARNED,)

    temperature: float
    temperature_growth: float

    @property
    def current_temperature(self) -> float:
        """τ: the larger it is, the more a higher gain counts."""
        return self.temperature + self.temperature_growth * sum(known.n for known in self.evidence.values())

    @property
    def probabilities(self) -> np.ndarray:
        """How likely each behaviour of ``evidence`` is chosen for the next episode."""
        gains = self.gains
        # Gains below the highest, so that no exponential overflows
        weights = np.exp(self.current_temperature * (gains - gains.max()))
        return weights / weights.sum()

    def choose(self) -> Behaviour:
        """Draw a source or the learned policy."""
        return list(self.evidence)[self.rng.choice(len(self.evidence), p=self.probabilities)]

    def statistics(self) -> dict[str, Any]:
        """Return what to log, with the temperature and the probabilities."""
        selection = dict(zip(self.evidence, self.probabilities, strict=True))
        return {**super().statistics(), "temperature": self.current_temperature, "selection": selection}


class PRQL(EpisodicReuseAlgorithm):
    """
    Policy Reuse in Q-Learning (PRQL)

    Before each episode, a policy is drawn from the sources and the policy being learned. The draw is a softmax over
    their gains W (the mean discounted return of their episodes, in units of the largest one seen) with a temperature τ
    that grows with every episode. A source is followed by π-reuse, with probability ψ_h in step h, which decays from
    ``reuse_probability`` by ``reuse_decay``. In the other steps, the learned policy acts greedily with probability
    1 - ψ_h and at random with probability ψ_h. When the learned policy is drawn, it always acts greedily.

    Paper: Fernández and Veloso: Probabilistic Policy Reuse in a Reinforcement Learning Agent, AAMAS 2006, and
    Learning Domain Structure through Probabilistic Policy Reuse, Progress in Artificial Intelligence 2013.
    The new arguments have the paper's values as defaults: ψ = 1, υ = 0.95, τ growing from 0 by 0.05 per episode. The
    paper learns a table, and this class learns with SB3's DQN. The paper's episodes have 100 steps. For longer
    episodes, a larger υ reuses for as long.

    With several environments, the gains are those of all finished episodes, and each of them makes the temperature
    grow.

    :param args: see ``EpisodicReuseAlgorithm``
    :param reuse_probability: ψ, the probability to follow the chosen source in the first step of an episode
    :param reuse_decay: υ, the factor of that probability after each step
    :param temperature: τ in the first episode
    :param temperature_growth: Δτ, added after each episode
    :param exploration_initial_eps: initial value of random action probability. PRQL explores by π-reuse alone, so it
        is 0. With another value, a step of the learned policy is random with probability ε where that is above ψ_h
    :param exploration_final_eps: final value of random action probability
    :param kwargs: see ``EpisodicReuseAlgorithm``
    """

    selector_class = PRQLSelector
    selector: PRQLSelector

    def __init__(
        self,
        *args: Any,
        reuse_probability: float = 1.0,
        reuse_decay: float = 0.95,
        temperature: float = 0.0,
        temperature_growth: float = 0.05,
        exploration_initial_eps: float = 0.0,
        exploration_final_eps: float = 0.0,
        **kwargs: Any,
    ) -> None:
        self.reuse_probability = reuse_probability
        self.reuse_decay = reuse_decay
        self.temperature = temperature
        self.temperature_growth = temperature_growth
        super().__init__(
            *args,
            exploration_initial_eps=exploration_initial_eps,
            exploration_final_eps=exploration_final_eps,
            **kwargs,
        )

    def _check_arguments(self) -> None:
        super()._check_arguments()
        check_number("reuse_probability", self.reuse_probability, at_least=0.0, at_most=1.0)
        check_number("reuse_decay", self.reuse_decay, at_least=0.0, at_most=1.0)
        check_number("temperature", self.temperature, at_least=0.0)
        check_number("temperature_growth", self.temperature_growth, at_least=0.0)

    def _reuse_probabilities(self, steps: np.ndarray) -> np.ndarray:
        return self.reuse_probability * self.reuse_decay**steps

    def _random_probabilities(self, epsilon: float, steps: np.ndarray) -> np.ndarray:
        return np.maximum(
            epsilon, np.where(self._sources < self.options.n_sources, self._reuse_probabilities(steps), 0.0)
        )
