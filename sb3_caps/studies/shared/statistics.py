"""Statistics over runs: means with intervals, running means, and when a level was first reached."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_caps.extras import require

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """
    A mean over runs with its 95% interval.

    :param mean: the mean
    :param half_width: half the width of the interval
    """

    mean: float
    half_width: float

    @classmethod
    def of(cls, samples: Any) -> "Interval":
        """
        Compute a mean and its interval.

        :param samples: one number for each run
        :return: their mean with the interval of Student's t
        """
        return cls(float(np.mean(samples)), float(half_width(np.asarray(samples))))

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.half_width:.3f}"


def half_width(samples: np.ndarray) -> np.ndarray:
    """
    Compute half the width of the interval of a mean.

    :param samples: of shape (runs, ...)
    :return: half the width of the 95% interval of the mean over runs, by Student's t; 0 where there is only one run
    """
    n_runs = len(samples)
    if n_runs < 2:
        return np.zeros(samples.shape[1:])
    quantile = require("scipy.stats", "studies").t.ppf((1 + CONFIDENCE) / 2, n_runs - 1)
    return quantile * samples.std(axis=0, ddof=1) / np.sqrt(n_runs)


def bootstrap_interval(
    samples: np.ndarray, statistic: Callable[..., Any] = np.mean, n_resamples: int = 9999, seed: int = 0
) -> tuple[float, float]:
    """
    A 95% interval that assumes nothing of the distribution: for medians, and for shares that end at 1.

    :param samples: one number for each run
    :param statistic: of which the interval is; takes ``axis``
    :param n_resamples: how often to draw the runs again
    :param seed: of the draws
    :return: the lower and the upper end, by the percentiles of the draws
    """
    if len(samples) < 2:
        only = float(statistic(samples, axis=0))
        return only, only
    found = require("scipy.stats", "studies").bootstrap(
        (np.asarray(samples),),
        statistic,
        confidence_level=CONFIDENCE,
        method="percentile",
        n_resamples=n_resamples,
        rng=np.random.default_rng(seed),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """
    Compute a running mean.

    :param values: of shape (..., points)
    :param window: how many points to average over; all of them where there are fewer
    :return: the mean of the last ``window`` points, from the first point on that has so many
    """
    window = min(window, values.shape[-1])
    sums = np.cumsum(values, axis=-1, dtype=float)
    sums = np.concatenate([np.zeros((*values.shape[:-1], 1)), sums], axis=-1)
    return (sums[..., window:] - sums[..., :-window]) / window


def first_reached(x: np.ndarray, values: np.ndarray, level: float) -> np.ndarray:
    """
    Find where curves first reach a level.

    :param x: where the points are, of shape (points,)
    :param values: of shape (..., points)
    :param level: a value
    :return: where it was first reached, infinite where it never was
    """
    above = values >= level
    return np.where(above.any(axis=-1), np.asarray(x, dtype=float)[above.argmax(axis=-1)], np.inf)


def median_reached(reached: np.ndarray) -> str:
    """
    Write the median of where a level was reached.

    :param reached: what ``first_reached`` found, one number for each run
    :return: the median over runs and how many got there, for a table
    """
    median = np.median(reached)
    count = f"{int(np.isfinite(reached).sum())}/{len(reached)}"
    return f"{median:,.0f} ({count})" if np.isfinite(median) else f"– ({count})"


def interquartile_mean(samples: np.ndarray, axis: int = 0) -> Any:
    """
    Compute the interquartile mean.

    :param samples: one number for each run
    :param axis: along which the runs are
    :return: the mean without the lowest and the highest quarter of the runs, rounded down: of five the middle three
    """
    return require("scipy.stats", "studies").trim_mean(samples, 0.25, axis=axis)


def roc_area(positives: np.ndarray, negatives: np.ndarray) -> float:
    """
    Compute the area under the ROC curve.

    :param positives: scores of what should have high ones
    :param negatives: scores of the others
    :return: the area under the ROC curve: how likely one of the first is above one of the second; equal is half
    """
    statistic = require("scipy.stats", "studies").mannwhitneyu(positives, negatives).statistic
    return float(statistic / (len(positives) * len(negatives)))
