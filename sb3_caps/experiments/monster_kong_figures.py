"""Figures and tables of the Monster Kong study, from what its runs left on disk."""

import itertools
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sb3_caps import CAPS
from sb3_caps.common.colours import PRIMITIVE_COLOUR, SOURCE_COLOURS
from sb3_caps.envs.monster_kong.planner import plan
from sb3_caps.experiments.checkpoints import read_rows
from sb3_caps.experiments.grid_figures import new_figure, save
from sb3_caps.experiments.monster_kong_evaluation import ExactEvaluation
from sb3_caps.experiments.monster_kong_pictures import draw_pictures
from sb3_caps.experiments.presets import ALL_METHODS, TASKS
from sb3_caps.experiments.runner import Run

# The columns of each method, of shape (seeds, evaluations)
Curves: TypeAlias = dict[str, dict[str, np.ndarray]]
SHARES = (0.5, 0.9, 0.95)
# Half the width of a 95% interval in standard errors, by degrees of freedom (Student's t)
T_VALUES = (np.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
# Other ways to execute what was learned
EXECUTIONS: dict[str, dict[str, Any]] = {
    "as learned": {},
    "`interruption_margin` 0": {"interruption_margin": 0.0},
    "`interruption_margin` 3%": {"interruption_margin": 0.03},
    "without `averaging`": {"averaging": None},
    "`execution` call-and-return": {"execution": "call-and-return"},
}
LABELS = {name: method.label for name, method in ALL_METHODS.items()}


def draw_study(runs: Sequence[Run], folder: Path) -> Iterator[str]:
    """
    Draw everything that finished runs allow.

    :param runs: finished runs
    :param folder: of the study; pictures and tables go to ``figures`` in it
    :return: lines to print: tables, and the names of the files
    """
    groups: dict[tuple[str, str, str], dict[str, list[Run]]] = {}
    for run in runs:
        config = run.config
        group = groups.setdefault((config["observation"], config["task"], config["preset"]), {})
        group.setdefault(config["method"], []).append(run)
    for (observation, task, preset), methods in groups.items():
        name = f"{task}_{observation}_{preset}"
        curves = {method: columns_of(found) for method, found in methods.items()}
        title = f"Target task {task}, preset {preset}"
        figure = draw_curves(curves, LABELS, plan(*TASKS[task]).optimum(), title)
        yield str(save(figure, folder / "figures" / f"figure10_{name}.png"))
        table = steps_table(curves, LABELS)
        (folder / "figures" / f"table_{name}.md").write_text("\n".join([*table, ""]))
        yield from ("", f"Task {task}, {observation}, preset {preset}:", *table, "")
        if "caps" in methods and observation == "features":
            yield from (*executions_table(methods["caps"]), "")
        if "caps" in methods:
            yield from draw_pictures(_best(methods["caps"]), folder / "figures", name)


def executions_table(runs: Sequence[Run]) -> list[str]:
    """
    What execution is worth, apart from learning: finished models, executed as they are and otherwise.

    :param runs: of CAPS from features, all of one task
    :return: the lines of a table: the mean share of the optimum, and the lowest
    """
    evaluate = ExactEvaluation(*TASKS[runs[0].config["task"]])
    shares: dict[str, list[float]] = {}
    for run in runs:
        model = CAPS.load(run.folder / "model.zip", device="cpu")
        for label, change in EXECUTIONS.items():
            found = copy(model)
            for name, value in change.items():
                setattr(found, name, value)
            if found.averaging is None:
                found.policy = copy(model.policy)
                found.policy.q_net_average = None
            shares.setdefault(label, []).append(float(evaluate(found).returns.mean() / evaluate.optimum))
    lines = ["| execution of the finished models | mean share | lowest |", "| --- " * 3 + "|"]
    return lines + [f"| {label} | {np.mean(each):.1%} | {min(each):.1%} |" for label, each in shares.items()]


def _best(runs: Sequence[Run]) -> Run:
    """The run to show: the one with the best end."""
    return max(runs, key=lambda run: read_rows(run.curve)[-1]["share"])


def columns_of(runs: Sequence[Run]) -> dict[str, np.ndarray]:
    """
    :param runs: of several seeds
    :return: the columns of their curves, each of shape (seeds, evaluations)
    """
    tables = [read_rows(run.curve) for run in runs]
    length = min(len(table) for table in tables)
    return {name: np.array([[row[name] for row in table[:length]] for table in tables]) for name in tables[0][0]}


def draw_curves(curves: Curves, labels: dict[str, str], optimum: float, title: str) -> Any:
    """
    Figure 10: the mean discounted reward of each method, with 95% intervals over seeds, and each run as a thin line.

    :param curves: the columns of each method
    :param labels: what to call the methods; each has its colour, whichever of them are drawn
    :param optimum: the exact one
    :param title: of the figure
    :return: the figure
    """
    colours = dict(zip(labels, itertools.cycle((*SOURCE_COLOURS, PRIMITIVE_COLOUR)), strict=False))
    figure, axes = new_figure(7.5, 4.5)
    ax = axes[0, 0]
    for method, columns in curves.items():
        # The exact mean over all starts, where it is known: the paper's few episodes are a noisy sample of it
        steps, values = columns["steps"][0] / 1000, columns.get("value", columns["evaluated"])
        mean, half = values.mean(axis=0), interval(values)
        ax.plot(steps, mean, label=labels[method], color=colours[method], linewidth=1.6)
        ax.fill_between(steps, mean - half, mean + half, color=colours[method], alpha=0.15, linewidth=0)
        if len(values) > 1:
            # A run finds the way or it does not: a mean does not tell
            ax.plot(steps, values.T, color=colours[method], linewidth=0.6, alpha=0.6)
    ax.axhline(optimum, color="black", linestyle=":", linewidth=1, label="exact optimum")
    ax.set_xlabel("thousand environment steps")
    ax.set_ylabel("mean discounted reward of an episode")
    ax.set_title(title, fontsize=10)
    # The interval of two or three seeds reaches far beyond what is possible
    ax.set_ylim(0, 1.25 * optimum)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=8, frameon=False)
    return figure


def interval(values: np.ndarray) -> np.ndarray:
    """
    :param values: of shape (seeds, evaluations)
    :return: half the width of the 95% interval of the mean, 0 where there is only one seed
    """
    seeds = len(values)
    if seeds < 2:
        return np.zeros(values.shape[1])
    t = T_VALUES[seeds - 1] if seeds <= len(T_VALUES) else 1.96
    return t * values.std(axis=0, ddof=1) / np.sqrt(seeds)


def steps_to(steps: np.ndarray, shares: np.ndarray, wanted: float) -> float:
    """
    :param steps: of the evaluations of one run
    :param shares: of the optimum
    :param wanted: a share
    :return: the step of the first evaluation that reached it, infinite if none did
    """
    return float(steps[np.argmax(shares >= wanted)]) if (shares >= wanted).any() else np.inf


def steps_table(curves: Curves, labels: dict[str, str]) -> list[str]:
    """
    Medians over seeds; how many seeds got there; what is left of it in the last fifth of a run.

    :param curves: the columns of each method
    :param labels: what to call the methods
    :return: the lines of a table
    """
    header = [*(f"steps to {share:.0%}" for share in SHARES), "end (mean of last fifth)", "lowest of it", "minutes"]
    lines = [f"| method | seeds | {' | '.join(header)} |", "| --- " * (len(header) + 2) + "|"]
    for method, columns in curves.items():
        shares, steps = columns["share"], columns["steps"][0]
        cells = []
        for wanted in SHARES:
            reached = np.array([steps_to(steps, run, wanted) for run in shares])
            median = np.median(reached)
            text = f"{median:,.0f}" if np.isfinite(median) else "–"
            cells.append(f"{text} ({np.isfinite(reached).sum()}/{len(reached)})")
        last = shares[:, -max(shares.shape[1] // 5, 1) :]
        minutes = columns["seconds"][:, -1].mean() / 60
        cells += [f"{last.mean():.1%}", f"{last.min():.1%}", f"{minutes:.1f}"]
        lines.append(f"| {labels[method]} | {len(shares)} | {' | '.join(cells)} |")
    return lines
