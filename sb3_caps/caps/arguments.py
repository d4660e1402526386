"""What CAPS refuses among its arguments."""

from typing import TYPE_CHECKING, get_args

import numpy as np

from sb3_caps.common.buffers import OptionReplayBuffer
from sb3_caps.common.execution import Execution

if TYPE_CHECKING:
    from sb3_caps.caps.caps import CAPS


def check_arguments(model: "CAPS") -> None:
    """
    Refuse what cannot work, before anything is built.

    :param model: with the arguments that it was given
    """
    if model.n_steps != 1:
        raise ValueError(f"n_steps must be 1, not {model.n_steps}: CAPS has sequence_length for longer backups.")
    if model.termination is not None and not 0 <= model.termination <= 1:
        raise ValueError(f"termination must be None or a probability from 0 to 1, not {model.termination}.")
    starts = np.array(model.initial_termination)
    if starts.size not in (1, 2) or starts.min() <= 0 or starts.max() >= 1:
        raise ValueError(
            "initial_termination must be one probability between 0 and 1, or a pair of them for sources and "
            f"primitives, not {model.initial_termination} (see termination for a fixed one)."
        )
    if not 1 <= model.sequence_length <= model.batch_size:
        raise ValueError(
            f"sequence_length must be from 1 to batch_size ({model.batch_size}), which counts the steps of all "
            f"sequences, not {model.sequence_length}."
        )
    if not 0 <= model.exploration_episodes <= 1:
        raise ValueError(f"exploration_episodes must be a share from 0 to 1, not {model.exploration_episodes}.")
    for name in ("greedy_temperature", "exploration_bonus", "exploration_novelty"):
        value = getattr(model, name)
        if isinstance(value, (int, float)) and value < 0:
            raise ValueError(f"{name} must not be negative, but is {value}.")
    if model.execution not in get_args(Execution):
        raise ValueError(f"execution must be one of {get_args(Execution)}, not {model.execution!r}.")
    if not issubclass(model.replay_buffer_class or OptionReplayBuffer, OptionReplayBuffer):
        raise ValueError(f"replay_buffer_class must be an OptionReplayBuffer, not {model.replay_buffer_class}.")
    _check_uses_of_beta(model)


def _check_uses_of_beta(model: "CAPS") -> None:
    if isinstance(model.target_termination, (int, float)) and not 0 <= model.target_termination <= 1:
        raise ValueError(f"target_termination must be a probability from 0 to 1, not {model.target_termination}.")
    if None not in (model.target_termination, model.termination):
        raise ValueError("Pass termination, which fixes β everywhere, or target_termination, not both.")
    if model.averaging is not None and not 0 < model.averaging <= 1:
        raise ValueError(f"averaging must be None or a share above 0 and up to 1, not {model.averaging}.")
    if not 0 <= model.interruption_margin < 1:
        raise ValueError(f"interruption_margin must be a share from 0 to below 1, not {model.interruption_margin}.")
    if model.interruption_margin > 0 and model.execution != "interrupting":
        raise ValueError('interruption_margin needs execution="interrupting".')
