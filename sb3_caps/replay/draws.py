"""Draws of SB3's own replay buffers."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def drawing_from(rng: np.random.Generator) -> Iterator[None]:
    """
    Let whatever draws from NumPy's global numbers in here draw from a generator: SB3's replay buffers take no other
    ones, and whoever else draws from the global ones must neither change a run nor be changed by it.

    :param rng: the generator
    """
    before = np.random.get_state()
    np.random.seed(int(rng.integers(2**32)))
    try:
        yield
    finally:
        np.random.set_state(before)
