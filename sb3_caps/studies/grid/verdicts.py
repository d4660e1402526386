"""Words for what an interval says."""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np

from sb3_caps.extras import require
from sb3_caps.studies.shared.statistics import CONFIDENCE, Interval

HELD, UNDECIDED, FAILED = "held", "undecided", "failed"
NO_DIFFERENCE, OPPOSITE = "failed: no difference", "failed: the opposite"


class Difference(NamedTuple):
    """
    A difference of two means with its 95% interval.

    :param mean: the difference
    :param low: the lower end
    :param high: the upper end
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def difference(first: np.ndarray, second: np.ndarray) -> Difference:
    """
    Welch's interval. Runs of two methods are not paired: equal seeds do not give them equal draws.

    :param first: one number for each run of a method
    :param second: the same for another
    :return: the first mean minus the second
    """
    mean = float(np.mean(first) - np.mean(second))
    variances = [np.var(runs, ddof=1) / len(runs) if len(runs) > 1 else 0.0 for runs in (first, second)]
    total = sum(variances)
    if total == 0.0:
        return Difference(mean, mean, mean)
    parts = [
        variance**2 / (len(runs) - 1) for variance, runs in zip(variances, (first, second), strict=True) if variance
    ]
    quantile = require("scipy.stats", "studies").t.ppf((1 + CONFIDENCE) / 2, total**2 / sum(parts))
    half = float(quantile * np.sqrt(total))
    return Difference(mean, mean - half, mean + half)


def better(found: Difference, margin: float) -> str:
    """
    Is the first better?

    :param found: the difference
    :param margin: a smaller one does not matter
    :return: held if the interval is above 0; failed if it excludes a lead that matters; else undecided
    """
    if found.low > 0.0:
        return HELD
    if found.high < 0.0:
        return OPPOSITE
    if found.high < margin:
        return NO_DIFFERENCE if found.low > -margin else FAILED
    return UNDECIDED


def at_least(found: Interval, bar: float) -> str:
    """
    Is it as much as the sentence needs?

    :param found: the mean over runs with its interval
    :param bar: how much it needs
    :return: held if the interval is above, failed if it is below, else undecided
    """
    if found.mean - found.half_width >= bar:
        return HELD
    return FAILED if found.mean + found.half_width < bar else UNDECIDED


@cache
def bars() -> Mapping[str, float]:
    """Return how much each sentence about a level needs, from ``bars.yml``."""
    text = resources.files(__package__).joinpath("bars.yml").read_text()
    return require("yaml", "studies").safe_load(text)
