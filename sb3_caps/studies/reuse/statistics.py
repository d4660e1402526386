"""Statistics over tasks, as Agarwal and others (2021) recommend: every task counts the same, whatever its seeds."""

from collections.abc import Callable, Sequence

import numpy as np

from sb3_caps.studies.shared.statistics import CONFIDENCE

N_RESAMPLES = 2000
# One array for each task, with a score for each seed
Scores = Sequence[np.ndarray]


def interquartile_mean(scores: Scores) -> float:
    """
    Compute the mean of the middle half of all runs.

    Tasks with more seeds do not count more: a run has the weight of one over the number of seeds of its task.

    :param scores: by task
    :return: the interquartile mean
    """
    values = np.concatenate(scores)
    weights = np.concatenate([np.full(len(task), 1 / len(task)) for task in scores])
    order = np.argsort(values)
    values, weights = values[order], weights[order] / weights.sum()
    upper = np.cumsum(weights)
    # The part of each weight that lies between the quartiles
    inside = np.clip(upper, 0.25, 0.75) - np.clip(upper - weights, 0.25, 0.75)
    return float(values @ inside / inside.sum())


def probability_of_improvement(better: Scores, worse: Scores) -> float:
    """
    Compute how likely one method is better than another.

    :param better: scores by task
    :param worse: those of another method on the same tasks
    :return: how likely a run of the first has more than one of the second, in the mean over tasks; equal is half
    """
    chances = [
        np.mean((x[:, None] > y[None, :]) + 0.5 * (x[:, None] == y[None, :]))
        for x, y in zip(better, worse, strict=True)
    ]
    return float(np.mean(chances))


def mean_score(scores: Scores) -> float:
    """
    Compute the mean score over tasks.

    :param scores: by task
    :return: the mean over tasks of the means over seeds
    """
    return float(np.mean([task.mean() for task in scores]))


def mean_difference(scores: Scores, others: Scores) -> float:
    """
    Compute the mean difference of two methods.

    :param scores: by task
    :param others: those of another method on the same tasks
    :return: by how much the first are higher, in the mean over tasks
    """
    return mean_score(scores) - mean_score(others)


def ratio_of_means(scores: Scores, others: Scores) -> float:
    """
    Compute the ratio of the means of two methods.

    :param scores: by task
    :param others: those of another method on the same tasks
    :return: how many times the mean over tasks of the others the mean of the first is
    """
    return mean_score(scores) / mean_score(others)


def performance_profile(scores: Scores, thresholds: np.ndarray) -> np.ndarray:
    """
    Compute the share of runs above each threshold.

    :param scores: by task
    :param thresholds: of a score
    :return: the share of runs that have at least as much, in the mean over tasks
    """
    return np.mean([(task[:, None] >= thresholds[None, :]).mean(axis=0) for task in scores], axis=0)


def stratified_interval(
    statistic: Callable[..., float], *scores: Scores, n_resamples: int = N_RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """
    A 95% interval by drawing the seeds of each task again, never the tasks.

    :param statistic: of one or more methods' scores
    :param scores: of each method
    :param n_resamples: how often to draw
    :param seed: of the draws
    :return: the lower and the upper end, by the percentiles of the draws
    """
    generator = np.random.default_rng(seed)
    found = [
        statistic(*([task[generator.integers(len(task), size=len(task))] for task in method] for method in scores))
        for _ in range(n_resamples)
    ]
    low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
