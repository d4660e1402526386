"""What the replay buffer gives."""

from typing import NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.type_aliases import TensorDict


class OptionReplayBufferSamples(NamedTuple):
    """
    Sequences that stay inside an episode. Times come first: of shape (length, sequences, ...).

    :param observations: of length + 1 times, flattened to ((length + 1) * sequences, ...):
        the observation after the last valid step of each sequence is its successor
    :param actions: the action taken
    :param rewards: the reward for it
    :param dones: whether it led to a terminal state; a truncated episode bootstraps
    :param options: the active option
    :param agreements: which options would have taken that action
    :param option_actions: the actions of the sources for the observations, flattened as these are; -1 where a source
        has none that is allowed, or where that is not known
    :param mask: whether this step belongs to the sequence
    :param places: where in the buffer each step is, for ``update_priorities``
    :param learned: which option values are learned from it: those of options that would have taken the action
    :param action_masks: which actions are allowed for the observations, flattened as these are; None for all
    """

    observations: th.Tensor | TensorDict
    actions: th.Tensor
    rewards: th.Tensor
    dones: th.Tensor
    options: th.Tensor
    agreements: th.Tensor
    option_actions: th.Tensor
    mask: th.Tensor
    places: np.ndarray
    learned: th.Tensor
    action_masks: th.Tensor | None = None


class LatestSteps(NamedTuple):
    """
    The latest steps of which it is known how likely they were: in the order of time, one environment after the other.

    :param observations: what was acted on
    :param ended: the observations that followed the ``last_steps``
    :param rewards: the reward of each step
    :param dones: whether it led to a terminal state; a truncated episode bootstraps
    :param last_steps: whether the next step is not its successor
    :param actions: the action taken
    :param option_actions: the actions of the sources, of shape (steps, sources)
    :param log_probs: log μ(a|s) of what acted
    :param action_masks: which actions were allowed, of shape (steps, actions); None for all
    """

    observations: th.Tensor | TensorDict
    ended: th.Tensor | TensorDict
    rewards: th.Tensor
    dones: th.Tensor
    last_steps: th.Tensor
    actions: th.Tensor
    option_actions: th.Tensor
    log_probs: th.Tensor
    action_masks: th.Tensor | None = None
