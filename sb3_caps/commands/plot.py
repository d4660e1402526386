"""``sb3-caps plot``: learning curves of any runs, side by side."""

import argparse
import csv
import json
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sb3_caps.studies.shared.plots import TEXT_SIZE, method_colours, new_figure, save
from sb3_caps.studies.shared.statistics import running_mean

COLUMNS = {"reward": "r", "length": "l", "success": "is_success"}
EVALUATIONS = {"reward": "results", "length": "ep_lengths", "success": "successes"}
LABELS = {"steps": "environment steps", "episodes": "episodes", "hours": "hours"}
MEAN_POINTS = 200
# A run that is no longer than the window is averaged over such a part of it
SHORT_RUN_PARTS = 5


class Curve(NamedTuple):
    """
    One learning curve.

    :param label: what it is of
    :param x: steps, episodes or hours
    :param y: the mean of a window of episodes, or of an evaluation
    """

    label: str
    x: np.ndarray
    y: np.ndarray


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    :param parser: the parser of the command
    """
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="run",
        help="the folder of a run (with monitor.csv), or one above: every run in it; "
        "label=folder gives the curve a name",
    )
    parser.add_argument("-x", choices=list(LABELS), default="steps", help="horizontal axis (default: steps)")
    parser.add_argument("-y", choices=list(COLUMNS), default="reward", help="vertical axis (default: reward)")
    parser.add_argument(
        "-w",
        "--window",
        type=int,
        default=50,
        help="episodes to average over (default: 50); fewer for runs that have no more",
    )
    parser.add_argument("--evaluations", action="store_true", help="the evaluations of a run in place of its training")
    parser.add_argument("--mean", action="store_true", help="one curve for all runs of a label, with their spread")
    parser.add_argument("-o", "--output", type=Path, default=Path("curves.png"), help="default: curves.png")


def run(args: argparse.Namespace) -> int:
    """
    :param args: the arguments of the command
    :return: the exit code
    """
    if args.window < 1:
        raise ValueError(f"--window must be at least 1, not {args.window}.")
    if args.evaluations and args.x != "steps":
        raise ValueError("Evaluations are stored by steps: leave -x out.")
    curves = []
    for given in args.runs:
        label, _, folder = given.rpartition("=")
        for found in find_runs(Path(folder), args.evaluations):
            name = label or (_task(found) if args.mean else _run_name(found))
            if args.evaluations:
                curves.append(Curve(name, *read_evaluations(found, args.y)))
            else:
                x, y = read_training(found, args.x, args.y)
                window = args.window if len(y) > args.window else max(1, len(y) // SHORT_RUN_PARTS)
                curves.append(Curve(name, *smoothed(x, y, window)))
    figure = draw_curves(
        curves, LABELS[args.x], f"{'evaluation' if args.evaluations else 'training'} {args.y}", args.mean
    )
    print(f"{len(curves)} runs drawn to {save(figure, args.output)}")
    return 0


def find_runs(folder: Path, evaluations: bool = False) -> list[Path]:
    """
    :param folder: a run, or a folder above runs
    :param evaluations: whether to look for evaluations instead of training episodes
    :return: the folders of its runs
    """
    pattern = "evaluations.npz" if evaluations else "*monitor.csv"
    files = sorted(folder.rglob(pattern))
    if not files:
        raise FileNotFoundError(f"There is no run with a {pattern} in {folder}.")
    # An optimisation or a run that has just begun has a file without an episode: two lines say what it is of
    begun = [path for path in files if evaluations or len(path.read_text().splitlines()) != 2]
    return sorted({path.parent for path in begun or files})


def read_training(run_folder: Path, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """
    :param run_folder: the folder of a run
    :param x: ``"steps"``, ``"episodes"`` or ``"hours"``
    :param y: ``"reward"``, ``"length"`` or ``"success"``
    :return: where each episode ended, and its value
    """
    episodes = [episode for file in sorted(run_folder.glob("*monitor.csv")) for episode in read_monitor(file)]
    if not episodes or COLUMNS[y] not in episodes[0]:
        raise ValueError(f"{run_folder} has no {y} of training episodes.")
    # Several environments have a file each
    episodes.sort(key=lambda episode: episode["t"])
    times = np.array([episode["t"] for episode in episodes])
    lengths = np.array([episode["l"] for episode in episodes])
    axes = {"steps": lengths.cumsum(), "episodes": np.arange(1, len(times) + 1), "hours": (times - times[0]) / 3600}
    return axes[x], np.array([episode[COLUMNS[y]] for episode in episodes])


def read_monitor(file: Path) -> list[dict[str, float]]:
    """
    :param file: what SB3's ``Monitor`` wrote; a last line that is cut is left out
    :return: the columns of each episode, with the time since 1970 as ``"t"``
    """
    first, _, table = file.read_text().partition("\n")
    try:
        start = float(json.loads(first.lstrip("#"))["t_start"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} does not begin as a monitor file does: move it away to draw the others.") from error
    header, *lines = csv.reader(table.splitlines()) if table else [[]]
    if lines and not table.endswith("\n"):
        print(f"{file}: the last line is cut and left out (its run was killed, or still writes).", file=sys.stderr)
        lines.pop()
    episodes = []
    for number, line in enumerate(lines, start=3):
        try:
            values = {key: _number(value) for key, value in zip(header, line, strict=True)}
            episodes.append({**values, "t": values["t"] + start})
        except (ValueError, KeyError) as error:
            raise ValueError(f"{file}, line {number}, is not an episode: remove it, or move the file away.") from error
    return episodes


def _number(text: str) -> float:
    return float(text == "True") if text in ("True", "False") else float(text)


def read_evaluations(run_folder: Path, y: str) -> tuple[np.ndarray, np.ndarray]:
    """
    :param run_folder: the folder of a run
    :param y: ``"reward"``, ``"length"`` or ``"success"``
    :return: the step of each evaluation, and its mean
    """
    file = run_folder / "evaluations.npz"
    try:
        with np.load(file) as stored:
            steps, values = stored["timesteps"], stored.get(EVALUATIONS[y])
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} is damaged ({error}): move it away to draw the others.") from error
    if values is None:
        raise ValueError(f"{run_folder} has no {y} of evaluations.")
    return steps, values.mean(axis=1)


def smoothed(x: np.ndarray, y: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """
    :param x: where each episode ended
    :param y: its value
    :param window: number of episodes, fewer if there are fewer
    :return: running means, and where their windows end
    """
    window = min(window, len(y))
    return x[window - 1 :], running_mean(y, window)


def draw_curves(curves: list[Curve], x_label: str, y_label: str, mean: bool = False) -> Any:
    """
    :param curves: what to draw
    :param x_label: name of the horizontal axis
    :param y_label: name of the vertical axis
    :param mean: whether curves with the same label become one, with a band from the lowest to the highest
    :return: a figure of Matplotlib
    """
    figure, grid = new_figure(8, 5)
    axes = grid[0, 0]
    for label, colour in method_colours(list(dict.fromkeys(curve.label for curve in curves))).items():
        group = [curve for curve in curves if curve.label == label]
        if not mean:
            for number, curve in enumerate(group):
                # A line through one point cannot be seen
                marker, name = "o" if len(curve.x) == 1 else "", "" if number else label
                axes.plot(curve.x, curve.y, label=name, color=colour, linewidth=1.5, marker=marker)
            continue
        x, rows = _on_one_axis(group)
        style = {"label": f"{label} (mean of {len(rows)})", "marker": "o" if x[0] == x[-1] else ""}
        axes.plot(x, rows.mean(axis=0), color=colour, linewidth=1.8, **style)
        axes.fill_between(x, rows.min(axis=0), rows.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=TEXT_SIZE)
    return figure


def _on_one_axis(curves: list[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Where all of them have values, and these values, a row for each curve."""
    start, end = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    if start > end:
        raise ValueError(f"The runs of {curves[0].label} have no part of the axis in common: leave --mean out.")
    x = np.linspace(start, end, MEAN_POINTS)
    return x, np.stack([np.interp(x, curve.x, curve.y) for curve in curves])


def _run_name(run_folder: Path) -> str:
    """As rl_zoo3 lays runs out: the algorithm, then the environment and the number of the run."""
    run_folder = run_folder.resolve()
    return f"{run_folder.parent.name} {run_folder.name}"


def _task(run_folder: Path) -> str:
    """The algorithm and the environment."""
    return _run_name(run_folder).rpartition("_")[0] or _run_name(run_folder)
