"""The grouped arguments of CAPS, and what it refuses among all of them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_caps.caps.exploration import BuiltInExploration
from sb3_caps.caps.selection import Selection
from sb3_caps.replay.buffers import OptionReplayBuffer
from sb3_caps.reuse.checks import check_number, check_whole_number
from sb3_caps.reuse.selectors import Selector

if TYPE_CHECKING:
    from sb3_caps.caps.caps import CAPS

# What CAPS learns images with, and SB3's DQN everything: ``CAPS(..., **DQN_DEFAULTS)``
DQN_DEFAULTS: dict[str, Any] = {
    "learning_rate": 1e-4,
    "batch_size": 32,
    "tau": 1.0,
    "train_freq": 4,
    "target_update_interval": 10_000,
}
# Of what has no pixels: more and larger steps, and a soft target, as SB3's SAC has it
VECTOR_DEFAULTS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "batch_size": 64,
    "tau": 0.005,
    "train_freq": 2,
    "target_update_interval": 1,
}
# The paper to the letter: ``CAPS(..., **PAPER)``
PAPER: dict[str, Any] = {
    "sequence_length": 1,
    "termination_kwargs": {"learning_rate": 0.00025, "regularization": 0.005, "initial": 0.5, "target": None},
    "exploration": "terminations",
    "normalize_returns": False,
    "safe": False,
    "replay_buffer_kwargs": {"prioritized_share": 0.0},
    "policy_kwargs": {"execution": "call-and-return", "shared_values": False, "averaging": None},
}


@dataclass(frozen=True)
class Termination:
    """
    ``termination_kwargs``: how β is learned, and where it is used.

    :param learning_rate: None to learn the β of every option in every state from replayed batches, together with the
        values; a number for the paper's online step of the active option, with this fixed rate
    :param regularization: ρ of the online step, and the margin of interrupting execution: a source stops when another
        option is better by more than this, in units of the returns (of the rewards without ``normalize_returns``)
    :param initial: β at the start, one number or one for sources and one for primitives
    :param target: β in the targets of the option values: one for all, one for sources and one for primitives, or a
        function of the remaining progress. With low values, the values of options stay apart and sources are followed
        for long. With 1, a primitive option is one action. None uses the learned β, as in the paper.
    """

    learning_rate: float | None = None
    regularization: float = 0.0
    initial: float | tuple[float, float] = 0.5
    target: float | tuple[float, float] | Schedule | None = (0.1, 1.0)

    def __post_init__(self) -> None:
        if self.learning_rate is not None:
            check_number("termination_kwargs['learning_rate']", self.learning_rate, at_least=0.0)
        check_number("termination_kwargs['regularization']", self.regularization, at_least=0.0)
        for name in ("initial", "target"):
            value: Any = getattr(self, name)
            if isinstance(value, list):  # as a config gives it
                object.__setattr__(self, name, tuple(value))
                value = tuple(value)
            if name == "target" and (value is None or callable(value)):
                continue
            try:
                given = np.array(value, dtype=np.float64)
            except (TypeError, ValueError):
                given = np.array(np.nan)
            # A β that starts at 0 or 1 would never move
            inside = ((given > 0) & (given < 1)) if name == "initial" else ((given >= 0) & (given <= 1))
            if given.shape not in ((), (2,)) or not inside.all():
                raise ValueError(
                    f"termination_kwargs[{name!r}] must be one probability, or a pair of them for sources and "
                    f"primitives, not {value} (see termination for a fixed β)."
                )


@dataclass(frozen=True)
class Actor:
    """
    ``actor_kwargs``: how the actor learns, a policy over actions that starts from the sources and follows advantages.
    Differences between actions are tiny compared with their values. A maximum over learned values therefore chooses by
    noise for a long time, while standardised advantages show the differences from the start.

    :param learning_rate: of the actor and of its state values
    :param softness: how random the actor is at the start: the probability of a random action in place of a source's.
        A policy without randomness cannot learn.
    :param interval: how many of its own steps there are between two rounds of updates
    :param window: how many of the latest steps it learns from, whoever took them
    :param n_epochs: how often each of them is used in a round
    :param batch_size: steps in each gradient step
    :param clip_range: how far a probability may move in a round, as a share
    :param target_kl: a round ends where the policy has moved further than this
    :param trace: λ of the advantages
    :param max_grad_norm: The maximum value for the gradient clipping
    """

    learning_rate: float = 7e-4
    softness: float = 0.5
    interval: int = 512
    window: int = 2048
    n_epochs: int = 4
    batch_size: int = 64
    clip_range: float = 0.2
    target_kl: float = 0.03
    trace: float = 0.95
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        for name in ("learning_rate", "target_kl", "max_grad_norm"):
            check_number(f"actor_kwargs[{name!r}]", getattr(self, name), at_least=0.0)
        for name in ("softness", "clip_range", "trace"):
            check_number(f"actor_kwargs[{name!r}]", getattr(self, name), at_least=0.0, at_most=1.0)
        for name in ("interval", "window", "n_epochs", "batch_size"):
            check_whole_number(f"actor_kwargs[{name!r}]", getattr(self, name), at_least=1)


def check_arguments(model: "CAPS") -> None:
    """
    Refuse what cannot work, before anything is built.

    :param model: with the arguments that it was given
    """
    if issubclass(model.replay_buffer_class or OptionReplayBuffer, HerReplayBuffer):
        raise ValueError("CAPS does not relabel goals: HerReplayBuffer (HER) is not supported.")
    if model.n_steps != 1:
        raise ValueError(f"n_steps must be 1, not {model.n_steps}: CAPS has sequence_length for longer backups.")
    if model.termination is not None and not 0 <= model.termination <= 1:
        raise ValueError(f"termination must be None or a probability from 0 to 1, not {model.termination}.")
    if not isinstance(model.sequence_length, int) or not 1 <= model.sequence_length <= model.batch_size:
        raise ValueError(
            f"sequence_length must be a whole number from 1 to batch_size ({model.batch_size}), which counts the steps "
            f"of all sequences, not {model.sequence_length}."
        )
    for name, group in (
        ("termination_kwargs", Termination),
        ("actor_kwargs", Actor),
        ("selection_kwargs", Selection),
    ):
        given, known = getattr(model, name), list(group.__dataclass_fields__)
        if not isinstance(given, dict) or given.keys() - set(known):
            raise ValueError(f"{name} must be a dict with some of {', '.join(known)}, not {given!r}.")
    if model.exploration not in get_args(BuiltInExploration) and not callable(model.exploration):
        raise ValueError(
            f"exploration must be one of {get_args(BuiltInExploration)} or a function with the parameters of "
            f"epsilon_greedy, not {model.exploration!r}."
        )
    _check_replacements(model)
    if model.termination is not None and model.termination_kwargs.get("target") is not None:
        raise ValueError("Pass termination, which fixes β everywhere, or termination_kwargs['target'], not both.")


def _check_replacements(model: "CAPS") -> None:
    """Code of the user's own in place of ours."""
    given = model.selector_class
    if not (given is None or (isinstance(given, type) and issubclass(given, Selector))):
        raise ValueError(f"selector_class must be None or a subclass of Selector, not {given!r}.")
    if not callable(model.loss_fn):
        raise ValueError(f"loss_fn must be a function such as torch.nn.functional.mse_loss, not {model.loss_fn!r}.")
    if not issubclass(model.replay_buffer_class or OptionReplayBuffer, OptionReplayBuffer):
        raise ValueError(f"replay_buffer_class must be an OptionReplayBuffer, not {model.replay_buffer_class}.")
