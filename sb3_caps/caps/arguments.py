"""The grouped arguments of CAPS, and what it refuses among all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from stable_baselines3.common.type_aliases import Schedule

from sb3_caps.caps.exploration import DrawnDurations, OptionExploration
from sb3_caps.replay.buffers import OptionReplayBuffer
from sb3_caps.reuse.checks import check_number
from sb3_caps.reuse.options import OptionSet

if TYPE_CHECKING:
    from sb3_caps.caps.caps import CAPS

Durations = Literal["drawn", "termination"]
# The paper to the letter: ``CAPS(..., **PAPER)``
PAPER: dict[str, Any] = {
    "sequence_length": 1,
    "termination_kwargs": {"learning_rate": 0.00025, "regularization": 0.005, "initial": 0.5, "target": None},
    "exploration_kwargs": {"durations": "termination"},
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
    :param regularization: ρ of the online step, and the margin of interrupting execution: a source is left where
        another option is better by more than this, in units of the returns (of the rewards without
        ``normalize_returns``)
    :param initial: β at the start, one number or one for sources and one for primitives
    :param target: β in the targets of the option values: one for all, one for sources and one for primitives, or a
        function of the remaining progress. Low values keep the values of options apart and follow a source for long;
        1 makes a primitive option one action. None for the β that options end by, the paper's.
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
            given = np.array(np.nan if callable(value) else value, dtype=np.float64)
            # A β that starts at 0 or 1 would never move
            inside = ((given > 0) & (given < 1)) if name == "initial" else ((given >= 0) & (given <= 1))
            if given.shape not in ((), (2,)) or not inside.all():
                raise ValueError(
                    f"termination_kwargs[{name!r}] must be one probability, or a pair of them for sources and "
                    f"primitives, not {value} (see termination for a fixed β)."
                )


@dataclass(frozen=True)
class Exploration:
    """
    ``exploration_kwargs``: how options are chosen while learning.

    :param durations: ``"drawn"``: random actions, and stretches of sources with random lengths, see
        ``DrawnDurations``; ``"termination"``, the paper's: options run until they terminate, see ``OptionExploration``
    :param share: Share of the episodes that have stretches of sources, at ε = 1: None for a quarter. With ``safe`` it
        is up to twice as much where such episodes do better than others, and less where they do worse. For drawn
        durations.
    :param weights: How likely each option is in a random choice, in the order of ``options.names``; one number for a
        source relative to a primitive; None for all alike. This and all that follows is for durations by termination.
    :param temperature: Options whose values differ by less than this are chosen greedily about as often as each other
        (a softmax), a number or a function of the remaining progress
    :param bonus: Added to the reward of a step to an observation that was seen n times, divided by n, when learning
        from it. A number, or a function of the remaining progress. For environments whose observations come back.
    :param episodes: Share of the episodes in which every choice is random, however low the exploration rate
    :param novelty: Exponent x of the count weight (1 + n)^-x of an option in a random choice, where n is how often its
        action was taken in this observation. For environments whose observations come back.
    """

    durations: Durations = "drawn"
    share: float | None = None
    weights: float | Sequence[float] | None = None
    temperature: float | Schedule = 0.0
    bonus: float | Schedule = 0.0
    episodes: float = 0.0
    novelty: float = 0.0

    def __post_init__(self) -> None:
        if self.durations not in get_args(Durations):
            raise ValueError(f"exploration_kwargs['durations'] must be one of {get_args(Durations)}.")
        if self.durations == "termination" and self.share is not None:
            raise ValueError("share in exploration_kwargs is for drawn durations: leave it out.")
        for name, value in (("share", 0.25 if self.share is None else self.share), ("episodes", self.episodes)):
            check_number(f"exploration_kwargs[{name!r}]", value, at_least=0.0, at_most=1.0)
        for name in ("temperature", "bonus", "novelty"):
            value = getattr(self, name)
            if name == "novelty" or not callable(value):
                check_number(f"exploration_kwargs[{name!r}]", value, at_least=0.0)
        given = [name for name in ("temperature", "bonus", "episodes", "novelty") if getattr(self, name) != 0.0]
        if self.weights is not None:
            given = ["weights", *given]
        if self.durations == "drawn" and given:
            raise ValueError(f"{', '.join(given)} in exploration_kwargs needs 'durations': 'termination' beside it.")

    def make(self, options: OptionSet) -> DrawnDurations | OptionExploration:
        """
        :param options: all options of a run
        :return: what chooses among them
        """
        if self.durations == "drawn":
            share = 0.25 if self.share is None else self.share
            return DrawnDurations(options.n_sources, options.n_actions, share)
        return OptionExploration(options.normalized(self.weights), self.episodes, self.novelty)


def check_arguments(model: "CAPS") -> None:
    """
    Refuse what cannot work, before anything is built.

    :param model: with the arguments that it was given
    """
    if model.n_steps != 1:
        raise ValueError(f"n_steps must be 1, not {model.n_steps}: CAPS has sequence_length for longer backups.")
    if model.termination is not None and not 0 <= model.termination <= 1:
        raise ValueError(f"termination must be None or a probability from 0 to 1, not {model.termination}.")
    if not 1 <= model.sequence_length <= model.batch_size:
        raise ValueError(
            f"sequence_length must be from 1 to batch_size ({model.batch_size}), which counts the steps of all "
            f"sequences, not {model.sequence_length}."
        )
    if not issubclass(model.replay_buffer_class or OptionReplayBuffer, OptionReplayBuffer):
        raise ValueError(f"replay_buffer_class must be an OptionReplayBuffer, not {model.replay_buffer_class}.")
    for name, group in (("termination_kwargs", Termination), ("exploration_kwargs", Exploration)):
        given, known = getattr(model, name), list(group.__dataclass_fields__)
        if not isinstance(given, dict) or given.keys() - set(known):
            raise ValueError(f"{name} must be a dict with some of {', '.join(known)}, not {given!r}.")
    if model.termination is not None and model.termination_kwargs.get("target") is not None:
        raise ValueError("Pass termination, which fixes β everywhere, or termination_kwargs['target'], not both.")
