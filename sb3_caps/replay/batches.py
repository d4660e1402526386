"""Batches of observations, arrays or Dicts of them."""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.type_aliases import PyTorchObs


def part(observations: PyTorchObs, start: int, stop: int | None = None) -> PyTorchObs:
    """
    Slice a batch of observations.

    :param observations: a batch of them
    :param start: the first one to return
    :param stop: the first one not to return, None for all
    :return: part of the batch
    """
    if isinstance(observations, dict):
        return {key: value[start:stop] for key, value in observations.items()}
    return observations[start:stop]


def rows_of(observations: Any, rows: np.ndarray) -> Any:
    """
    Select rows of a batch of observations.

    :param observations: a batch of them, an array or a Dict of arrays
    :param rows: which ones, in their order
    :return: these; the batch itself, not copied, where that is all
    """
    if isinstance(observations, dict):
        return {key: rows_of(value, rows) for key, value in observations.items()}
    return observations if len(rows) == len(observations) else observations[rows]


def with_batch_axis(observation: np.ndarray | dict[str, np.ndarray]) -> np.ndarray | dict[str, np.ndarray]:
    """
    Add a batch axis to a single observation.

    :param observation: a single one
    :return: a batch of it
    """
    if isinstance(observation, dict):
        return {key: np.asarray(value)[None] for key, value in observation.items()}
    return np.asarray(observation)[None]


def distinct_rows(observations: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """
    Find the distinct observations of a batch.

    :param observations: a batch of observations, on the CPU
    :return: each distinct observation once, in the order in which they first occur, and for each of the batch which of
        these it is
    """
    numbers: dict[bytes, int] = {}
    firsts: list[int] = []
    places: list[int] = []
    # Row by row, and still it takes a hundredth of the time of a convolutional network
    for i, row in enumerate(observations.numpy()):
        number = numbers.setdefault(row.tobytes(), len(firsts))
        if number == len(firsts):
            firsts.append(i)
        places.append(number)
    distinct = observations if len(firsts) == len(observations) else observations[firsts]
    return distinct, th.as_tensor(places)


def moved(places: np.ndarray, n_before: int) -> np.ndarray:
    """
    :param places: for each new option the old one, -1 for one that was not there
    :param n_before: how many options there were
    :return: for each old option the new one, -1 for one that is gone
    """
    found = np.full(n_before, -1, dtype=np.int64)
    found[places[places >= 0]] = np.flatnonzero(places >= 0)
    return found
