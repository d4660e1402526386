"""What the options of a model would do in many states at once."""

from typing import Any, NamedTuple

import numpy as np

from sb3_caps.caps import CAPS


class OptionTable(NamedTuple):
    """
    Each of shape (states, options) but ``taken``.

    :param values: Q_O
    :param terminations: β
    :param actions: what each option does at the start of an episode
    :param taken: what the model does there, of shape (states,)
    """

    values: np.ndarray
    terminations: np.ndarray
    actions: np.ndarray
    taken: np.ndarray


def option_table(model: CAPS, observations: Any) -> OptionTable:
    """
    Ask a model about its options in many states.

    :param model: whose options
    :param observations: one for each state
    :return: what the model knows of its options there
    """
    values, terminations = model.policy.values_and_terminations(observations)
    starts = np.ones(len(observations), dtype=bool)
    actions, _ = model.options.actions(observations, model.options.initial_states(), starts)
    taken, _ = model.predict(observations, deterministic=True)
    return OptionTable(values, terminations, actions, taken)


def simplest_options(taken: np.ndarray, actions: np.ndarray, n_sources: int) -> np.ndarray:
    """
    Describe a policy by as few options as possible.

    Many options often take the same action, and then any of them may be ahead by a hair. Of those that do what the
    model does, this chooses the one that does so in most states.

    :param taken: what the model does, of shape (states,)
    :param actions: what each option does, of shape (states, options)
    :param n_sources: how many options are sources, the first ones
    :return: for each state a source that does what the model does, or the primitive option where none does
    """
    agrees = actions[:, :n_sources] == taken[:, None]
    options, open_states = n_sources + taken, np.ones(len(taken), dtype=bool)
    for _ in range(n_sources):
        source = int(agrees[open_states].sum(axis=0).argmax())
        options[open_states & agrees[:, source]] = source
        open_states &= ~agrees[:, source]
    return options
