"""What the options of a model would do in many states at once."""

from typing import Any, NamedTuple

import numpy as np

from sb3_caps.caps import CAPS


class OptionTable(NamedTuple):
    """
    Each of shape (states, options).

    :param values: Q_O
    :param terminations: β
    :param actions: what each option does at the start of an episode
    """

    values: np.ndarray
    terminations: np.ndarray
    actions: np.ndarray


def option_table(model: CAPS, observations: Any) -> OptionTable:
    """
    :param model: whose options
    :param observations: one for each state
    :return: what the model knows of its options there
    """
    values, terminations = model.policy.values_and_terminations(model.policy.obs_to_tensor(observations)[0])
    starts = np.ones(len(observations), dtype=bool)
    actions, _ = model.options.actions(observations, model.options.initial_states(), starts)
    return OptionTable(np.asarray(values), np.asarray(terminations), actions)
