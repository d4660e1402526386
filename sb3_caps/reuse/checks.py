"""What the algorithms refuse: NaN, unknown arguments, and replay buffers that do not fit."""

import difflib
import inspect
import warnings
from collections.abc import Iterable
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_args

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_caps.replay.batches import with_batch_axis
from sb3_caps.sources import Observations
from sb3_caps.sources.act import by_key

# SB3 takes any of these, and learns what makes no sense
RANGES = {
    "gamma": (0.0, 1.0),
    "tau": (0.0, 1.0),
    "exploration_fraction": (0.0, np.inf),
    "exploration_initial_eps": (0.0, 1.0),
    "exploration_final_eps": (0.0, 1.0),
    # A negative one turns gradients round
    "max_grad_norm": (0.0, np.inf),
    "gradient_steps": (-1.0, np.inf),
}


def constructor_arguments(algorithm: type[BaseAlgorithm]) -> dict[str, inspect.Parameter]:
    """
    :param algorithm: a class of algorithms
    :return: what its constructor takes by name, its base classes' included
    """
    arguments: dict[str, inspect.Parameter] = {}
    for cls in algorithm.__mro__:
        if "__init__" in vars(cls) and cls is not object:
            for name, parameter in list(inspect.signature(vars(cls)["__init__"]).parameters.items())[1:]:
                if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                    arguments.setdefault(name, parameter)
    return arguments


def check_names(algorithm: type[BaseAlgorithm], names: Iterable[str]) -> None:
    """
    Refuse arguments that an algorithm does not have.

    :param algorithm: its class
    :param names: the names of what was passed
    """
    known = constructor_arguments(algorithm)
    for name in names:
        if name not in known:
            similar = difflib.get_close_matches(name, known, n=1)
            hint = f": did you mean {similar[0]}?" if similar else "."
            raise TypeError(f"{algorithm.__name__} has no argument {name}{hint}")


def check_numbers(model: OffPolicyAlgorithm) -> None:
    """
    Refuse NaN in any argument, numbers out of range, rounds of no step, and anything but a number, a schedule or a
    flag where such is meant.

    :param model: with the arguments that it was given
    """
    for name, parameter in constructor_arguments(type(model)).items():
        value = getattr(model, name, None)
        if _has_nan(value):
            raise ValueError(f"{name} must be a number, not {value}.")
        parts = set(get_args(parameter.annotation) or [parameter.annotation])
        if parts <= {int, float, NoneType} and value is not None and not isinstance(value, Real):
            raise ValueError(f"{name} must be a number, not {value!r}: it stays the same in a run.")
        if parts == {bool} and name in vars(model) and not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, not {value!r}.")
        lowest, highest = RANGES.get(name, (-np.inf, np.inf))
        if isinstance(value, Real) and not lowest <= float(value) <= highest:
            limit = f"from {lowest:g} to {highest:g}" if highest < np.inf else f"of at least {lowest:g}"
            raise ValueError(f"{name} must be a number {limit}, not {value!r}.")
        if name == "exploration_schedule":
            # `load` puts it there, and the constructor does not
            value = vars(model).get("given_exploration_schedule")
            if value is not None and not callable(value):
                raise ValueError(f"{name} must be None or a function of the remaining progress, not {value!r}.")
    if model.learning_rate == np.inf:
        raise ValueError("learning_rate must be a finite number or a function of the remaining progress, not inf.")
    frequency: Any = model.train_freq
    number = frequency[0] if isinstance(frequency, tuple) and frequency else frequency
    if isinstance(number, Integral) and number < 1:
        # A round would collect nothing, for ever
        raise ValueError(f"train_freq must be of at least 1 step or episode, not {frequency!r}.")


def check_number(name: str, value: Any, at_least: float, at_most: float | None = None) -> None:
    """
    Refuse what is not a number in a range.

    :param name: of the argument
    :param value: what was passed
    :param at_least: the lowest that makes sense
    :param at_most: the highest, None for no limit
    """
    highest = np.finfo(np.float64).max if at_most is None else at_most
    if not isinstance(value, Real) or not (at_least <= float(value) <= highest):
        limit = f"from {at_least:g} to {at_most:g}" if at_most is not None else f"of at least {at_least:g}"
        raise ValueError(f"{name} must be a number {limit}, not {value!r}.")


def check_whole_number(name: str, value: Any, at_least: int) -> None:
    """
    Refuse what is not a whole number in a range.

    :param name: of the argument
    :param value: what was passed
    :param at_least: the lowest that makes sense
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{name} must be a whole number of at least {at_least}, not {value!r}.")


def check_not_ours(name: str, given: dict[str, Any], ours: dict[str, Any]) -> None:
    """
    Refuse keyword arguments of a part that the algorithm passes on itself.

    :param name: of the argument that they came in
    :param given: what the user passed
    :param ours: what the algorithm passes
    """
    for key in given.keys() & ours.keys():
        if given[key] is not ours[key] and given[key] != ours[key]:
            raise ValueError(f"{name} cannot hold {key!r}: the algorithm sets it by its own arguments.")


def _has_nan(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(_has_nan(part) for part in value)
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "f" and bool(np.isnan(value).any())
    return isinstance(value, Real) and bool(np.isnan(float(value)))


def check_buffer_size(buffer_size: int, batch_size: int, n_envs: int) -> None:
    """
    Refuse a replay buffer that has no room for one batch.

    :param buffer_size: transitions of all environments
    :param batch_size: transitions of a batch
    :param n_envs: number of environments
    """
    needed = max(batch_size, n_envs)
    if buffer_size < needed:
        raise ValueError(
            f"buffer_size must be at least {needed}, to hold a batch of {batch_size} transitions and one of each of "
            f"{n_envs} environments, not {buffer_size}."
        )


def check_replay_buffer(
    found: Any, model: OffPolicyAlgorithm, option_names: list[str], arguments: dict[str, Any], path: str
) -> None:
    """
    Refuse a replay buffer that a model cannot learn from.

    :param found: what was loaded
    :param model: the model
    :param option_names: the options of the model
    :param arguments: what the model makes its buffers with
    :param path: where the buffer was found
    """
    if type(found) is not model.replay_buffer_class:
        expected = getattr(model.replay_buffer_class, "__name__", None)
        raise ValueError(f"{path} holds a {type(found).__name__}, where this model needs a {expected}.")
    of_model = ("n_envs", "observation_space", "action_space", "n_steps", "gamma")
    # Another number of sources is told below, by their names
    needed = {name: getattr(model, name) for name in of_model} | arguments
    differences = [
        f"{name} {getattr(found, name)}, not {value}"
        for name, value in needed.items()
        if name != "n_sources" and hasattr(found, name) and getattr(found, name) != value
    ]
    names: Any = getattr(found, "option_names", None)
    n_options = getattr(found, "n_options", len(option_names))
    moved = [name for name in names or () if name in option_names and names.index(name) != option_names.index(name)]
    if n_options != len(option_names) or moved:
        differences.append(f"the options {names or n_options}, not {option_names}")
    if differences:
        raise ValueError(
            f"{path} is the replay buffer of another model, with {'; '.join(differences)}: make this model with the "
            "same, or start with an empty buffer."
        )
    if names is not None and names != option_names:
        # As after a source was fixed, and has another name now
        warnings.warn(
            f"{path} has the agreements of the options {names}, which the options {option_names} take over: they learn "
            "from what those would have done.",
            stacklevel=3,
        )


def check_step(
    observations: Observations, rewards: np.ndarray, dones: np.ndarray, infos: list[dict[str, Any]], step: int
) -> None:
    """
    Refuse a step with numbers that are NaN or infinite.

    :param observations: one for each environment
    :param rewards: one for each environment
    :param dones: which episodes have ended
    :param infos: where their last observations are
    :param step: the steps of all environments so far
    """
    check_finite("reward", rewards, step)
    # Before the last observations of episodes, which a VecNormalize has divided by what it learned from these
    check_finite("observation", observations, step)
    for i in np.flatnonzero(dones).tolist():
        last = infos[i].get("terminal_observation")
        if last is not None:
            check_finite("last observation", with_batch_axis(last), step, first=i)


def check_finite(what: str, values: Observations, step: int, first: int = 0) -> None:
    """
    Refuse numbers that are NaN or infinite.

    :param what: what the values are, for the message
    :param values: a batch of them
    :param step: the steps of all environments so far
    :param first: the environment that the first of them comes from
    """
    for key, each in by_key(values).items():
        if each.dtype.kind != "f" or np.isfinite(each).all():
            continue
        flat = each.reshape(len(each), -1)
        i, number = np.argwhere(~np.isfinite(flat))[0]
        raise ValueError(
            f"The {what if key is None else f'{what} {key!r}'} of environment {first + i} is {flat[i, number]} in step "
            f"{step}, where it has to be finite: fix the environment. Nothing of this step was stored, and the model "
            "can be saved as it is."
        )


def check_n_envs(what: str, n_given: int, n_envs: int) -> None:
    """
    Refuse what belongs to another number of environments than the observations.

    :param what: what was given
    :param n_given: how many environments it is for
    :param n_envs: how many observations there are
    """
    if n_given != n_envs:
        raise ValueError(
            f"{what} is that of {n_given} environments, but there are observations of {n_envs}: pass what belongs to "
            "these environments, or None."
        )
