"""The report of the suite: tables in Markdown, and the numbers behind its figures."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from sb3_caps.settings import settings
from sb3_caps.studies.reuse import figures
from sb3_caps.studies.reuse.references import source_returns
from sb3_caps.studies.reuse.results import Result
from sb3_caps.studies.reuse.runs import get_method
from sb3_caps.studies.reuse.statistics import (
    Scores,
    interquartile_mean,
    mean_difference,
    mean_score,
    probability_of_improvement,
    ratio_of_means,
    stratified_interval,
)
from sb3_caps.studies.reuse.synergy import synergy_table
from sb3_caps.studies.reuse.tasks import get_task
from sb3_caps.studies.shared.plots import save
from sb3_caps.studies.shared.records import Record, write_records
from sb3_caps.studies.shared.runs import Run, read_rows, write_text
from sb3_caps.studies.shared.statistics import bootstrap_interval, median_reached
from sb3_caps.studies.shared.tables import markdown

# What tells runs apart
NAMES = ("task", "sources", "method", "seed")


def records(runs: Sequence[Run], trained: Path) -> list[Record]:
    """
    Read the results of runs.

    :param runs: finished runs
    :param trained: the folder of trained sources
    :return: of each run: its names and its curve, its final return, and what the best source gets alone
    """
    found = []
    for run in runs:
        rows = read_rows(run.curve)
        alone = source_returns(get_task(run.config["task"]), run.config["sources"], trained)
        found.append(
            {name: run.config[name] for name in NAMES}
            | {"steps": [int(row["steps"]) for row in rows], "returns": [row["return"] for row in rows]}
            | {"final": json.loads((run.folder / run.result).read_text())["final"]}
            | {"best_source": max(alone.values()) if alone else None, "seconds": rows[-1]["seconds"]}
        )
    return found


def collect(found: Sequence[Record]) -> list[Result]:
    """
    Group results by task, sources and method.

    :param found: what ``records`` remembered
    :return: them by task, sources and method
    """
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in found:
        groups.setdefault((record["task"], record["sources"], record["method"]), []).append(record)
    results = []
    for (name, sources, method), members in groups.items():
        task = get_task(name)
        low, high = task.scale
        length = min(len(record["steps"]) for record in members)
        curves = (np.array([record["returns"][:length] for record in members]) - low) / (high - low)
        finals = np.array([record["final"] for record in members])
        best = members[0]["best_source"]
        steps = np.array(members[0]["steps"][:length])
        results.append(Result(task, method, sources, steps, curves, finals, None if best is None else tuple(best)))
    return results


def by_label(results: Sequence[Result]) -> dict[str, list[Result]]:
    """
    Group results by label, on the tasks that all labels have.

    :param results: of any tasks and methods
    :return: those of each label, on the tasks that all labels have: means over different tasks cannot be compared
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.label, []).append(result)
    common = set.intersection(*({result.task.name for result in group} for group in groups.values()))
    return {
        label: sorted((result for result in group if result.task.name in common), key=lambda result: result.task.name)
        for label, group in groups.items()
        if common
    }


def write_report(found: Sequence[Record], folder: Path) -> str:
    """
    Write tables and figures, and all that they rest on in one file.

    :param found: what ``records`` remembered
    :param folder: where to
    :return: the tables
    """
    write_records(folder, found)
    results = collect(found)
    parts = []
    for title, score in (("area", lambda result: result.areas), ("last fifth", lambda result: result.ends)):
        table = synergy_table(results, score)
        parts += [] if table is None else [f"## What reuse adds: {title}", table]
    parts += ["## Over the tasks that all methods ran on", overall_table(by_label(results))]
    for title, held_back in (("Those that were held back", True), ("Those that were not held back", False)):
        chosen = [result for result in results if result.task.held_back == held_back]
        if chosen and len(chosen) < len(results):
            parts += [f"## {title}", overall_table(by_label(chosen))]
    parts += ["## Area on each task", wide_table(results, lambda result: f"{result.areas.mean():.2f}")]
    parts += ["## Steps to 90% on each task", wide_table(results, lambda result: median_reached(result.reached))]
    ablations = ablation_table(by_label(results))
    if ablations is not None:
        parts += ["## CAPS with one thing taken away", ablations]
    parts += ["## Each task", task_table(results), how_long(found)]
    text = "\n\n".join(parts) + "\n"
    write_text(folder / "report.md", text)
    labels = list(dict.fromkeys(result.label for result in results))
    save(figures.draw_overview(by_label(results)), folder / "figures" / "overview.png")
    save(figures.draw_tasks(results, labels), folder / "figures" / "tasks.png")
    save(figures.draw_runs(results, labels), folder / "figures" / "runs.png")
    return text


def how_long(found: Sequence[Record]) -> str:
    """
    Tell how long the runs took.

    :param found: what ``records`` remembered
    :return: how much there was to do
    """
    steps, seconds = sum(record["steps"][-1] for record in found), sum(record["seconds"] for record in found)
    return f"{len(found)} runs of {steps:,} steps in all; one after another they took {seconds / 3600:.1f} hours."


def overall_table(groups: Mapping[str, Sequence[Result]]) -> str:
    """
    Write the table of means over tasks.

    :param groups: the results of each label, on the same tasks in the same order
    :return: a table in Markdown
    """
    methods = settings("reuse", "methods")
    rivals = {name: groups.get(methods[name]["label"]) for name in ("dqn", "caps-none")}
    control = rivals["caps-none"]
    rows = []
    for label, group in groups.items():
        areas, ends = [result.areas for result in group], [result.ends for result in group]
        compared = [
            "–" if rival is None or rival is group else improvement(areas, [result.areas for result in rival])
            for rival in rivals.values()
        ]
        known = [result for result in group if result.best_source is not None]
        below = sum(is_below(result) for result in known)
        rows.append(
            [
                label,
                str(min(len(task) for task in areas)),
                with_interval(areas, mean_score),
                with_interval(areas, interquartile_mean),
                with_interval(ends, interquartile_mean),
                "–" if control is None or control is group else share_of(areas, [result.areas for result in control]),
                *compared,
                f"{below} of {len(known)}" if known else "–",
            ]
        )
    header = ["method", "seeds", "mean area", "area", "last fifth", "mean area over that without sources"]
    return markdown([*header, "better than DQN", "better than no sources", "ends below source"], rows)


def wide_table(results: Sequence[Result], cell: Callable[[Result], str]) -> str:
    """
    Write a table with a row for each task and a column for each label.

    :param results: all of them
    :param cell: what to tell of each
    :return: a table in Markdown, a row for each task and a column for each label
    """
    labels = list(dict.fromkeys(result.label for result in results))
    cells = {(result.task.name, result.label): cell(result) for result in results}
    tasks = sorted({result.task.name for result in results})
    return markdown(["task", *labels], [[task, *(cells.get((task, label), "") for label in labels)] for task in tasks])


def ablation_table(groups: Mapping[str, Sequence[Result]]) -> str | None:
    """
    Write the table of ablations.

    :param groups: as of ``overall_table``
    :return: a table in Markdown of what each ablation costs, None where there is none
    """
    whole = groups.get(get_method("caps").label)
    labels = [get_method(name).label for name in settings("reuse", "ablations")]
    rows = []
    for label in labels:
        if label not in groups or whole is None:
            continue
        pairs = list(zip(groups[label], whole, strict=True))
        areas = difference([result.areas for result in groups[label]], [result.areas for result in whole])
        ends = difference([result.ends for result in groups[label]], [result.ends for result in whole])
        lost, task = min((without.areas.mean() - caps.areas.mean(), caps.task.name) for without, caps in pairs)
        rows.append([label, areas, ends, f"{task}, {lost:+.2f}"])
    return markdown(["CAPS with", "area", "last fifth", "most on"], rows) if rows else None


def difference(scores: Scores, others: Scores) -> str:
    """
    Compute the mean difference of two methods.

    :param scores: by task
    :param others: those of another method
    :return: by how much the first are higher in the mean over tasks, with its interval
    """
    low, high = stratified_interval(mean_difference, scores, others)
    return f"{mean_difference(scores, others):+.2f} ({low:+.2f} to {high:+.2f})"


def share_of(scores: Scores, others: Scores) -> str:
    """
    Compute the ratio of the means of two methods.

    :param scores: by task
    :param others: those of another method
    :return: how many times the mean of the others the mean over tasks is, with its interval
    """
    low, high = stratified_interval(ratio_of_means, scores, others)
    return f"{ratio_of_means(scores, others):.2f} ({low:.2f} to {high:.2f})"


def with_interval(scores: Scores, statistic: Callable[[Scores], float]) -> str:
    """
    Compute a statistic and its interval.

    :param scores: by task
    :param statistic: of all tasks
    :return: it with its interval
    """
    low, high = stratified_interval(statistic, scores)
    return f"{statistic(scores):.2f} ({low:.2f} to {high:.2f})"


def improvement(better: Scores, worse: Scores) -> str:
    """
    Compute the probability of improvement.

    :param better: scores by task
    :param worse: those of another method
    :return: the probability of improvement with its interval
    """
    low, high = stratified_interval(probability_of_improvement, better, worse)
    return f"{probability_of_improvement(better, worse):.0%} ({low:.0%} to {high:.0%})"


def is_below(result: Result) -> bool:
    """
    Tell whether runs end below their best source.

    :param result: with a best source
    :return: whether the runs end below it, by more than the 95% intervals of both
    """
    assert result.best_source is not None
    mean, error = result.best_source
    return bootstrap_interval(result.finals)[1] < mean - 1.96 * error


def task_table(results: Sequence[Result]) -> str:
    """
    Write the table of single tasks.

    :param results: all of them
    :return: a table in Markdown, a row for each task, method and kind of sources
    """
    rows = []
    for result in sorted(results, key=lambda result: result.task.name):
        low, high = bootstrap_interval(result.finals)
        best = result.best_source
        verdict = "–" if best is None else f"{best[0]:.3g}{', ends below' if is_below(result) else ''}"
        rows.append(
            [
                result.task.name,
                result.label,
                str(len(result.finals)),
                f"{result.areas.mean():.2f}",
                median_reached(result.reached),
                f"{result.ends.mean():.2f}",
                f"{result.finals.mean():.3g} ({low:.3g} to {high:.3g})",
                verdict,
                f"{result.task.scale[1]:.3g}",
            ]
        )
    header = [
        "task",
        "method",
        "seeds",
        "area",
        "steps to 90%",
        "last fifth",
        "final return",
        "best source",
        "reference",
    ]
    return markdown(header, rows)
