"""What reuse adds: CAPS less the best of what anybody could do without it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sb3_caps.studies.reuse.results import Result
from sb3_caps.studies.reuse.runs import FINE_TUNE, get_method
from sb3_caps.studies.reuse.statistics import Scores, stratified_interval
from sb3_caps.studies.reuse.tasks import PARTIAL
from sb3_caps.studies.shared.tables import markdown

OURS, DQN, CONTROL = "caps", "dqn-tuned", "caps-none"
RIVALS = (FINE_TUNE, DQN, CONTROL)
NONE = np.array([-np.inf])


def synergy_table(results: Sequence[Result], score: Callable[[Result], np.ndarray]) -> str | None:
    """
    Compare CAPS with the best source alone, with going on with its training, with DQN and with itself without sources.

    :param results: of any tasks and methods
    :param score: of a result, one for each seed
    :return: a table with a row for each task whose sources know a part, None where CAPS learned none of them
    """
    found = {(result.task.name, result.method): result for result in results if result.task.group == PARTIAL}
    ours = [result for (_, method), result in found.items() if method == OURS]
    if not ours:
        return None
    best = np.array([_best_source(result) for result in ours])
    rivals = [[_scores(found.get((result.task.name, method)), score) for result in ours] for method in RIVALS]
    rows = []
    for i, result in enumerate(ours):
        name = f"`{result.task.name}`" + (" (held back)" if result.task.held_back else "")
        means = [f"{rival[i].mean():.2f}" if np.isfinite(rival[i]).all() else "–" for rival in rivals]
        portfolio = found.get((result.task.name, DQN))
        means.append("–" if portfolio is None else f"{score(_portfolio(portfolio, best[i])).mean():.2f}")
        own = [_scores(result, score)], *([rival[i]] for rival in rivals)
        rows.append(
            [name, f"{best[i]:.2f}", *means, f"**{own[0][0].mean():.2f}**", _with_interval(best[i : i + 1], *own)]
        )
    scores = [score(result) for result in ours]
    mean = f"**{np.mean([each.mean() for each in scores]):.2f}**"
    rows.append(["mean", f"{best.mean():.2f}", "", "", "", "", mean, _with_interval(best, scores, *rivals)])
    labels = [get_method(method).label for method in (*RIVALS, OURS)]
    heads = ["task", "best source", *labels[:-1], "portfolio", labels[-1], "synergy (95% interval)"]
    return markdown(heads, rows)


def synergy(best: np.ndarray) -> Callable[..., float]:
    """
    :param best: what the best source of each task is worth
    :return: the statistic: by how much our scores are above the best of these and the rivals, in the mean over tasks
    """

    def statistic(ours: Scores, *rivals: Scores) -> float:
        others = np.array([[task.mean() for task in rival] for rival in rivals])
        return float(np.mean([task.mean() for task in ours] - np.maximum(best, others.max(axis=0))))

    return statistic


def _with_interval(best: np.ndarray, *scores: Scores) -> str:
    low, high = stratified_interval(synergy(best), *scores)
    return f"{synergy(best)(*scores):+.2f} ({low:+.2f} to {high:+.2f})"


def _best_source(result: Result) -> float:
    low, high = result.task.scale
    return -np.inf if result.best_source is None else (result.best_source[0] - low) / (high - low)


def _scores(result: Result | None, score: Callable[[Result], np.ndarray]) -> np.ndarray:
    return NONE if result is None else score(result)


def _portfolio(result: Result, best_source: float) -> Result:
    """What acts by the best source as long as the learner is not better, and knows that without trying."""
    return replace(result, curves=np.maximum(result.curves, best_source))
