"""Optimal Policy Selection for transfer learning, with a deep Q-network."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_caps.reuse.checks import check_number
from sb3_caps.reuse.episodes import Behaviour
from sb3_caps.reuse.episodic import EpisodicReuseAlgorithm
from sb3_caps.reuse.selectors import EvidenceSelector


@dataclass(eq=False)
class OPSTLSelector(EvidenceSelector):
    """Choose sources by UCB1, see ``OPSTL``."""

    bandit_exploration: float

    @property
    def upper_bounds(self) -> np.ndarray:
        """The upper confidence bound of each source, infinite where it was never chosen."""
        tries = self.tries
        widths = np.sqrt(2 * np.log(max(tries.sum(), 1)) / np.maximum(tries, 1))
        return np.where(tries > 0, self.gains + self.bandit_exploration * widths, np.inf)

    def choose(self) -> Behaviour:
        """Choose the source with the highest bound."""
        return self.sources[int(self.upper_bounds.argmax())]

    def statistics(self) -> dict[str, Any]:
        """Return what to log, with the bounds."""
        return {**super().statistics(), "upper_bound": dict(zip(self.sources, self.upper_bounds, strict=True))}


class OPSTL(EpisodicReuseAlgorithm):
    """
    Online selection of source policies as a multi-armed bandit (OPS-TL)

    The sources are the arms of a UCB1 bandit whose reward is the discounted return of an episode. The chosen source is
    followed with a probability that decays from ``reuse_probability`` by ``reuse_decay`` in each step. In the other
    steps, the learned policy acts ε-greedily. A DQN learns from all steps.

    Paper: Li and Zhang: An Optimal Online Method of Selecting Source Policies for Reinforcement Learning, AAAI 2018.
    Where the paper leaves a choice, this class makes these:

    - The learned policy is not an arm. The decay of reuse leaves it the rest of every episode.
    - Reuse decays as in π-reuse of Fernández and Veloso, with their ψ = 1 and υ = 0.95.
    - The bound is that of UCB1 for rewards from 0 to 1, mean + ``bandit_exploration`` √(2 ln n / n_i), with returns in
      units of the largest one seen.

    With several environments, running episodes count as tries of their source, so that environments that start
    together try different sources.

    :param args: see ``EpisodicReuseAlgorithm``
    :param reuse_probability: ψ, the probability to follow the chosen source in the first step of an episode
    :param reuse_decay: υ, the factor of that probability after each step
    :param bandit_exploration: weight of the width of the confidence bound; UCB1 has 1
    :param kwargs: see ``EpisodicReuseAlgorithm``
    """

    selector_class = OPSTLSelector
    selector: OPSTLSelector

    def __init__(
        self,
        *args: Any,
        reuse_probability: float = 1.0,
        reuse_decay: float = 0.95,
        bandit_exploration: float = 1.0,
        **kwargs: Any,
    ) -> None:
        self.reuse_probability = reuse_probability
        self.reuse_decay = reuse_decay
        self.bandit_exploration = bandit_exploration
        super().__init__(*args, **kwargs)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        check_number("reuse_probability", self.reuse_probability, at_least=0.0, at_most=1.0)
        check_number("reuse_decay", self.reuse_decay, at_least=0.0, at_most=1.0)
        check_number("bandit_exploration", self.bandit_exploration, at_least=0.0)

    def _reuse_probabilities(self, steps: np.ndarray) -> np.ndarray:
        return self.reuse_probability * self.reuse_decay**steps
