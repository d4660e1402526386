"""Making pictures smaller."""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt


@lru_cache(maxsize=16)
def area_weights(length: int, size: int) -> npt.NDArray[np.float64]:
    """
    The matrix that brings a line of pixels to another length, each new pixel the mean of what it covers.

    :param length: the number of pixels
    :param size: the number of new pixels
    :return: shape (size, length), rows summing to 1
    """
    edges = np.linspace(0, length, size + 1)
    pixels = np.arange(length)
    covered = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return np.maximum(covered, 0) * size / length


def resize_area(picture: npt.NDArray[Any], height: int, width: int) -> npt.NDArray[np.float64]:
    """
    Resize a picture, each new pixel being the mean of what it covers.

    :param picture: shape (rows, columns) or (rows, columns, channels)
    :param height: rows of the new picture
    :param width: its columns
    :return: the new picture, not rounded
    """
    down, across = area_weights(picture.shape[0], height), area_weights(picture.shape[1], width)
    if picture.ndim == 2:
        return down @ picture @ across.T
    # One product of matrices at a time: a product of stacks would not go through BLAS.
    channels = [down @ picture[:, :, channel].astype(np.float64) @ across.T for channel in range(picture.shape[2])]
    return np.stack(channels, axis=-1)
