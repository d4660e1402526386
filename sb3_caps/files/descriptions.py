"""Spaces, normalisations and what a model remembers of its episodes, as plain descriptions and arrays."""

from collections import deque
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

from sb3_caps.sources.act import ObservationNormalizer


def is_plain(value: Any) -> bool:
    """
    :param value: anything
    :return: whether JSON can hold it
    """
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(part) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def describe_record(record: Any) -> dict[str, Any] | None:
    """
    :param record: whose attributes are numbers and lists, queues or arrays of them
    :return: its attributes, None if there is no record
    """
    if record is None:
        return None
    return {
        key: value.tolist() if isinstance(value, np.ndarray) else list(value) if isinstance(value, deque) else value
        for key, value in vars(record).items()
    }


def build_record(record: Any, description: dict[str, Any]) -> Any:
    """
    :param record: a new one
    :param description: what ``describe_record`` returned
    :return: the one that was described
    """
    for key, value in vars(record).items():
        found = description[key]
        if isinstance(value, np.ndarray):
            found = np.array(found, value.dtype)
        else:
            found = deque(found, value.maxlen) if isinstance(value, deque) else type(value)(found)
        setattr(record, key, found)
    return record


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
        return spaces.Discrete(int(description["n"]))
    low, high = arrays[f"{prefix}/low"], arrays[f"{prefix}/high"]
    return spaces.Box(low, high, low.shape, low.dtype.type)


def describe_normalizer(
    normalizer: ObservationNormalizer | None, arrays: dict[str, np.ndarray], prefix: str, name: str
) -> dict[str, float] | None:
    """
    :param normalizer: of a source or of the learner, None without one
    :param arrays: where its statistics go
    :param prefix: what their names begin with
    :param name: of the source or model, for messages
    :return: its other numbers, None for no normalisation
    """
    if normalizer is None or not normalizer.statistics.norm_obs:
        return None
    statistics = normalizer.statistics
    if type(statistics) is not VecNormalize or not isinstance(statistics.obs_rms, RunningMeanStd):
        raise ValueError(f"The normalisation of '{name}' is a {type(statistics).__name__} and cannot be exported.")
    arrays |= {f"{prefix}/mean": statistics.obs_rms.mean, f"{prefix}/var": statistics.obs_rms.var}
    return {"epsilon": float(statistics.epsilon), "clip_obs": float(statistics.clip_obs)}


def build_normalizer(
    description: dict[str, float] | None, arrays: dict[str, np.ndarray], prefix: str
) -> ObservationNormalizer | None:
    """
    :param description: what ``describe_normalizer`` returned
    :param arrays: its statistics
    :param prefix: what their names begin with
    :return: the normalisation
    """
    if description is None:
        return None
    moments = RunningMeanStd()
    moments.mean, moments.var = arrays[f"{prefix}/mean"], arrays[f"{prefix}/var"]
    numbers = {key: float(description[key]) for key in ("epsilon", "clip_obs")}
    normalizer = ObservationNormalizer.__new__(ObservationNormalizer)
    normalizer.__setstate__({"obs_rms": moments, "norm_obs": True, "norm_obs_keys": None, "training": False, **numbers})
    return normalizer
