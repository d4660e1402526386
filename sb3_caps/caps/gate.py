"""What a model acts by, and which of its sources are disabled."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sb3_caps.reuse.episodes import Behaviour

# Without exploration: by the values of options, by the most likely action of the actor, or by a draw of it
OPTIONS, ACTOR, SAMPLED_ACTOR = Behaviour("options"), Behaviour("actor"), Behaviour("sampled actor")
# While learning: the actor samples; by the values of options, with random actions; the same with stretches of sources;
# random actions alone
EXPLORING, MIXING, RANDOM = Behaviour("exploring"), Behaviour("mixing"), Behaviour("random")
LEARNERS = (OPTIONS, ACTOR, SAMPLED_ACTOR)
# By the values of options, as they were when they did best
BEST = Behaviour("best options")
# The sampling actor when it was worth most: where it falls below that it goes back to it
PEAK = Behaviour("peak actor")
BUILT_IN = (*LEARNERS, BEST, PEAK, EXPLORING, MIXING, RANDOM)


@dataclass
class Gate:
    """
    What ``predict`` acts by, and which sources are disabled. It is saved with the model, beside its networks.

    :param controller: what ``predict`` acts by
    :param disabled: the names of the sources that are disabled
    """

    controller: Behaviour = OPTIONS
    disabled: set[str] = field(default_factory=set)

    def mask(self, names: Sequence[str]) -> np.ndarray:
        """
        :param names: of some options, in their order
        :return: which of them are disabled
        """
        return np.array([name in self.disabled for name in names], dtype=bool)
