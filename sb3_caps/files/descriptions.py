"""Spaces, normalisations, schedules and what a model remembers, as plain descriptions and arrays."""

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import TrainFreq
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

from sb3_caps.reuse.schedules import PiecewiseLinear
from sb3_caps.reuse.statistics import OptionUse
from sb3_caps.sources.act import ObservationNormalizer

SCHEDULES = (PiecewiseLinear, LinearSchedule, ConstantSchedule)


def as_plain(value: Any) -> Any:
    """
    :param value: an argument of an algorithm
    :return: the same in plain values, as far as it can be told in them
    """
    if isinstance(value, dict):
        return {key: as_plain(part) for key, part in value.items()}
    if isinstance(value, TrainFreq):
        return [value.frequency, value.unit.value]
    if isinstance(value, (list, tuple)):
        return [as_plain(part) for part in value]
    if isinstance(value, FloatSchedule):
        return as_plain(value.value_schedule)
    if type(value) in SCHEDULES:
        return {"schedule": type(value).__name__, **as_plain(vars(value))}
    return value.item() if isinstance(value, np.generic) else value


def describe_use(use: OptionUse) -> dict[str, Any]:
    """
    :param use: how much options were used
    :return: the same in plain values
    """
    return {"steps": use.steps.tolist(), "choices": use.choices.tolist(), "agreeing": use.agreeing}


def build_use(description: dict[str, Any], n_options: int) -> OptionUse:
    """
    :param description: what ``describe_use`` returned
    :param n_options: number of options
    :return: how much they were used
    """
    use = OptionUse(n_options)
    for name in ("steps", "choices"):
        if len(description[name]) != n_options:
            raise ValueError(f"use/{name} must have {n_options} numbers, one for each option")
        getattr(use, name)[:] = description[name]
    use.agreeing = description["agreeing"]
    # The next row of a log tells what came after the file
    vars(use)["_logged"] = (use.steps.copy(), int(use.choices.sum()), use.agreeing)
    return use


def describe_space(space: spaces.Space, arrays: dict[str, np.ndarray], prefix: str, name: str) -> dict[str, Any]:
    """
    :param space: of observations or actions
    :param arrays: where its bounds go
    :param prefix: what their names begin with
    :param name: of the source or model, for messages
    :return: all else that tells it apart from others
    """
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return {"n": int(space.n)}
    if type(space) is not spaces.Box:
        raise ValueError(f"'{name}' is for {space}, and cannot be exported: save it.")
    arrays |= {f"{prefix}/low": space.low, f"{prefix}/high": space.high}
    return {}


def build_space(description: dict[str, Any], arrays: dict[str, np.ndarray], prefix: str) -> Any:
    """
    :param description: what ``describe_space`` returned
    :param arrays: its bounds
    :param prefix: what their names begin with
    :return: the space
    """
    if "n" in description:
        # What a network tells apart it has parameters for, and a number in a file may be any
        if description["n"] > (most := largest(arrays)):
            raise ValueError(f"{prefix}/n must be at most {most}, not {description['n']}: no array has as many numbers")
        return spaces.Discrete(description["n"])
    low, high = arrays[f"{prefix}/low"], arrays[f"{prefix}/high"]
    if (low.shape, low.dtype) != (high.shape, high.dtype):
        raise ValueError(f"{prefix}/low and {prefix}/high must be of the same shape and type")
    return spaces.Box(low, high, low.shape, low.dtype.type)


def largest(arrays: dict[str, np.ndarray]) -> int:
    """
    :param arrays: those of a file
    :return: how many numbers the largest of them has
    """
    return max((array.size for array in arrays.values()), default=0)


def describe_normalizer(
    normalizer: ObservationNormalizer | None, arrays: dict[str, np.ndarray], prefix: str, name: str
) -> list[dict[str, float]]:
    """
    :param normalizer: of a source or of the learner, None without one
    :param arrays: where its statistics go
    :param prefix: what their names begin with
    :param name: of the source or model, for messages
    :return: the other numbers of each of its layers, the outermost first
    """
    layers = [] if normalizer is None else [normalizer.statistics, *normalizer.inner]
    descriptions: list[dict[str, float]] = []
    for layer in layers:
        if not layer.norm_obs:
            continue
        if type(layer) is not VecNormalize or not isinstance(layer.obs_rms, RunningMeanStd):
            raise ValueError(f"The normalisation of '{name}' is a {type(layer).__name__} and cannot be exported.")
        own = f"{prefix}/normalizer/{len(descriptions)}"
        arrays |= {f"{own}/mean": layer.obs_rms.mean, f"{own}/var": layer.obs_rms.var}
        descriptions.append({"epsilon": float(layer.epsilon), "clip_obs": float(layer.clip_obs)})
    return descriptions


def build_normalizer(
    descriptions: list[dict[str, float]], arrays: dict[str, np.ndarray], prefix: str, space: spaces.Space
) -> ObservationNormalizer | None:
    """
    :param descriptions: what ``describe_normalizer`` returned
    :param arrays: its statistics
    :param prefix: what their names begin with
    :param space: of the observations
    :return: the normalisation
    """
    states: list[dict[str, Any]] = []
    for i, description in enumerate(descriptions):
        moments, own = RunningMeanStd(), f"{prefix}/normalizer/{i}"
        moments.mean, moments.var = arrays[f"{own}/mean"], arrays[f"{own}/var"]
        if not moments.mean.shape == moments.var.shape == space.shape:
            raise ValueError(f"{own}/mean and {own}/var must be of shape {space.shape}")
        states.append({"obs_rms": moments, "norm_obs": True, "norm_obs_keys": None, "training": False, **description})
    if not states:
        return None
    normalizer = ObservationNormalizer.__new__(ObservationNormalizer)
    normalizer.__setstate__({**states[0], "inner": states[1:]})
    return normalizer
