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
    :param option_actions: the actions of the sources for the observations, flattened as these are
    :param mask: whether this step belongs to the sequence
    :param places: where in the buffer each step is, for ``update_priorities``
    :param visits: how often the observation after it was seen so far, where that is counted
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
    visits: th.Tensor | None = None
