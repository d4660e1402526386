"""The figures of the suite: all tasks in one, each task for itself, and every single run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sb3_caps.studies.reuse.statistics import interquartile_mean, performance_profile, stratified_interval
from sb3_caps.studies.shared.plots import INK, draw_mean, method_colours, new_figure, tidy

if TYPE_CHECKING:
    from sb3_caps.studies.reuse.results import Result

COLUMNS = 4
# Far below random actions nothing is worth seeing, and curves that go there hide the rest
LOWEST = -0.5
# Intervals of more methods than this would hide each other
MOST_BANDS = 4
# Shades of one colour are hard to tell apart where curves cross
LINES = {"useless": "--", "harmful": ":", "mixed": "-.", "best": (0, (6, 1, 1, 1, 1, 1))}


def draw_overview(groups: Mapping[str, Sequence[Result]]) -> Any:
    """
    Interquartile means with intervals, and the share of runs above each score.

    :param groups: the results of each label, on the same tasks
    :return: the figure
    """
    colours = method_colours(list(groups))
    figure, axes = new_figure(11, 1.5 + 0.35 * max(len(groups), 6), columns=2)
    means, profiles = axes[0]
    thresholds = np.linspace(0, 1.05, 106)
    for row, (label, group) in enumerate(groups.items()):
        scores = [result.areas for result in group]
        low, high = stratified_interval(interquartile_mean, scores)
        means.plot([low, high], [row, row], color=colours[label], linewidth=5, alpha=0.4, solid_capstyle="butt")
        means.plot(interquartile_mean(scores), row, "|", color=colours[label], markersize=16, markeredgewidth=3)
        shares, line = performance_profile(scores, thresholds), LINES.get(group[0].sources, "-")
        profiles.plot(thresholds, shares, color=colours[label], linestyle=line, label=label)
    means.set_yticks(range(len(groups)), list(groups))
    means.invert_yaxis()
    n_tasks = max((len(group) for group in groups.values()), default=0)
    means.set_xlabel("mean return over the run (0: random actions, 1: reference)")
    means.set_title(f"Interquartile mean over {n_tasks} tasks, 95% interval", fontsize=10)
    profiles.set(xlabel="mean return over the run", ylabel="share of runs with at least as much")
    profiles.set_title("How many runs are how good", fontsize=10)
    profiles.legend(fontsize=8, frameon=False)
    for ax in (means, profiles):
        tidy(ax)
    return figure


def draw_tasks(results: Sequence[Result], labels: Sequence[str]) -> Any:
    """
    Draw the mean curves of all methods on each task.

    :param results: all of them
    :param labels: all methods; those with bad sources are left to the table, unless there is nothing else
    :return: a figure with the mean curve of each method on each task, with intervals where these can be told apart
    """
    shown = [result for result in results if result.sources in ("helpful", "none")] or results
    return _small_multiples(shown, labels, single=False)


def draw_runs(results: Sequence[Result], labels: Sequence[str]) -> Any:
    """
    Draw a line for each run.

    :param results: all of them
    :param labels: all methods
    :return: a figure with a thin line for each run
    """
    return _small_multiples(results, labels, single=True)


def _small_multiples(results: Sequence[Result], labels: Sequence[str], single: bool) -> Any:
    colours = method_colours(labels)
    n_methods = len({result.label for result in results})
    tasks = list(dict.fromkeys(result.task.name for result in results))
    rows = math.ceil(len(tasks) / COLUMNS)
    figure, axes = new_figure(3.2 * COLUMNS, 2.5 * rows + 0.6, COLUMNS, rows)
    by_name = dict(zip(tasks, axes.ravel(), strict=False))
    for ax in axes.ravel()[len(tasks) :]:
        ax.set_visible(False)
    for result in results:
        ax, steps, colour = by_name[result.task.name], result.steps / 1000, colours[result.label]
        if single:
            ax.plot(steps, result.curves.T, color=colour, linewidth=0.5, alpha=0.6)
            ax.plot([], [], color=colour, label=result.label)
        elif n_methods <= MOST_BANDS:
            draw_mean(ax, steps, result.curves, colour, result.label)
        else:
            ax.plot(steps, result.curves.mean(axis=0), color=colour, label=result.label)
    for name, ax in by_name.items():
        low, high = ax.get_ylim()
        # The reference is in sight wherever the curves are
        ax.set_ylim(max(low, LOWEST), min(max(high, 1.05), 1.3))
        ax.axhline(1.0, color=INK, linestyle=":", linewidth=1)
        ax.set_title(name, fontsize=10)
        tidy(ax)
    figure.supxlabel("thousand environment steps")
    figure.supylabel("return (0: random actions, 1: reference)")
    handles = {
        label: line for ax in by_name.values() for line, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=5, fontsize=8, frameon=False)
    return figure
