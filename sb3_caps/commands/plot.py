"""``sb3-caps plot``: learning curves of any runs, side by side."""

import argparse
import csv
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sb3_caps.caps.gate import EXPLORING, MIXING
from sb3_caps.colours import SOURCE_COLOURS
from sb3_caps.reuse.episode_log import EPISODES
from sb3_caps.studies.shared.plots import INK, TEXT_SIZE, method_colours, new_figure, save
from sb3_caps.studies.shared.statistics import running_mean

COLUMNS = {"reward": "r", "length": "l", "success": "is_success"}
EVALUATIONS = {"reward": "results", "length": "ep_lengths", "success": "successes"}
LABELS = {"steps": "environment steps", "episodes": "episodes", "hours": "hours"}
MEAN_POINTS = 200
# A window is at most such a part of a run
SHORT_RUN_PARTS = 5
# For the second run of a method and those after it; when all are used, they come again as dashes
LINE_COLOURS = ("#0072b2", "#009e73", "#e69f00", "#9c6ade", "#56b4e9", "#8c6d31", "#cc79a7")
STYLES = ("-", "--", ":", "-.")
# Who acted, of so many runs at most: beyond, nobody could tell them apart
MOST_ROWS = 8
LEARNER, EXPLORES, RANDOM = "learner", "learner exploring", "random"
ACTED_COLOURS = {LEARNER: "#9aa0b3", EXPLORES: "#dcdee6", RANDOM: INK}


class Episodes(NamedTuple):
    """
    The episodes of training, as they ended.

    :param x: steps, episodes or hours
    :param y: what was paid, or the length, or whether it was a success
    :param acted: the name of the source that acted, ``"learner"``, ``"learner exploring"`` or ``"random"``; empty for a
        run without that file
    """

    x: np.ndarray
    y: np.ndarray
    acted: list[str]

    def of(self, *names: str) -> np.ndarray:
        """
        :param names: of those that act
        :return: which episodes are theirs
        """
        return np.array([each in names for each in self.acted], dtype=bool)

    @property
    def best_source(self) -> str | None:
        """The name of the source with the highest mean, None where no source acted alone."""
        names = dict.fromkeys(name for name in self.acted if name not in ACTED_COLOURS)
        return max(names, key=lambda name: float(self.y[self.of(name)].mean()), default=None)


class Curve(NamedTuple):
    """
    One learning curve.

    :param label: what it is of
    :param x: steps, episodes or hours
    :param y: the mean of a window of episodes, or of an evaluation
    :param episodes: all episodes, of a run that says who acted in each
    """

    label: str
    x: np.ndarray
    y: np.ndarray
    episodes: Episodes | None = None


class NothingToDraw(ValueError):
    """A run does not have what was asked for. The others can still be drawn."""


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
        help="episodes to average over (default: 50), fewer in short runs",
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
    curves, without = [], []
    for given in args.runs:
        label, _, folder = given.rpartition("=")
        for parts in joined(find_runs(Path(folder), args.evaluations)):
            name = label or (_task(parts[0]) if args.mean else _run_name(parts[0]) + ", resumed" * (len(parts) > 1))
            try:
                curves.append(_read_curve(parts, name, args))
            except NothingToDraw as error:
                without.append(str(error))
    if not curves:
        raise NothingToDraw("; ".join(without))
    for each in without:
        print(f"{each}: it is left out.", file=sys.stderr)
    figure = draw_curves(
        curves, LABELS[args.x], f"{'evaluation' if args.evaluations else 'training'} {args.y}", args.mean
    )
    print(f"{len(curves)} runs drawn to {save(figure, args.output)}")
    return 0


def _read_curve(parts: Sequence[Path], name: str, args: argparse.Namespace) -> Curve:
    if args.evaluations:
        x, y = _in_a_row([read_evaluations(part, args.y) for part in parts])
        return Curve(name, x, y)
    return training_curve(name, read_training(parts, args.x, args.y), args.window)


def training_curve(label: str, episodes: Episodes, window: int) -> Curve:
    """
    :param label: what it is of
    :param episodes: of training
    :param window: how many to average over
    :return: the curve of the learner without exploration, or of all its episodes where it always explores, or of all
        episodes where it is not known who acted
    """
    shown = episodes.of(LEARNER)
    for others in (episodes.of(LEARNER, EXPLORES), np.ones(len(episodes.y), dtype=bool)):
        if not shown.any():
            shown = others
    x, y = episodes.x[shown], episodes.y[shown]
    window = min(window, max(1, len(y) // SHORT_RUN_PARTS))
    return Curve(label, *smoothed(x, y, window), episodes if episodes.acted else None)


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
    return sorted({path.parent for path in files})


def joined(runs: Sequence[Path]) -> list[list[Path]]:
    """
    Join each run to the one that it continued (``sb3-caps train -i``).

    :param runs: the folders of runs
    :return: the folders of each run, the first part first
    """
    by_path = {run.resolve(): run for run in runs}
    before = {run: by_path[earlier] for run in runs if (earlier := _continued(run)) in by_path}
    # Two may have gone on with the same run: each is a run of its own then
    chains = []
    for run in runs:
        if run not in before.values():
            chain = [run]
            while chain[0] in before and before[chain[0]] not in chain:
                chain.insert(0, before[chain[0]])
            chains.append(chain)
    return chains


def _continued(run: Path) -> Path | None:
    """:return: the folder of the run whose model this one started from"""
    for file in run.glob("*/args.yml"):
        # Read as text: it is YAML that holds objects of Python
        found = re.search(r"- trained_agent\n\s*- (.+)\n", file.read_text())
        agent = Path(found[1].strip("'\"")) if found else Path()
        if agent.suffix == ".zip":
            here = run.parent / agent.parent.name
            return (agent.parent if agent.parent.is_dir() else here).resolve()
    return None


def _in_a_row(parts: Iterable[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """:return: the same arrays one behind the other; the first of each part goes on from where the last part ended"""
    found: list[tuple[np.ndarray, ...]] = []
    for x, *others in parts:
        found.append((x + (found[-1][0][-1] if found else 0), *others))
    return tuple(np.concatenate(column) for column in zip(*found, strict=True))


def read_training(parts: Sequence[Path], x: str, y: str) -> Episodes:
    """
    :param parts: the folders of a run: one, and those of the runs that went on with it
    :param x: ``"steps"``, ``"episodes"`` or ``"hours"``
    :param y: ``"reward"``, ``"length"`` or ``"success"``
    :return: where each episode ended, its value, and who acted
    """
    read = [_read_part(part, x, y) for part in parts]
    acted = [name for part in read for name in part.acted]
    ends, values = _in_a_row([(part.x, part.y) for part in read])
    return Episodes(ends, values, acted if len(acted) == len(values) else [])


def _read_part(run_folder: Path, x: str, y: str) -> Episodes:
    file = run_folder / EPISODES
    files = [file] if file.is_file() else sorted(run_folder.glob("*monitor.csv"))
    episodes = [episode for file in files for episode in read_monitor(file)]
    if not episodes or COLUMNS[y] not in episodes[0]:
        raise NothingToDraw(f"{run_folder} has no {y} of training episodes")
    # Several environments have a file each
    episodes.sort(key=lambda episode: episode["t"])
    times = np.array([episode["t"] for episode in episodes])
    lengths = np.array([episode["l"] for episode in episodes])
    axes = {"steps": lengths.cumsum(), "episodes": np.arange(1, len(times) + 1), "hours": (times - times[0]) / 3600}
    acted = [episode["acted"] for episode in episodes if "acted" in episode]
    return Episodes(axes[x], np.array([episode[COLUMNS[y]] for episode in episodes]), acted)


def read_monitor(file: Path) -> list[dict[str, Any]]:
    """
    :param file: what SB3's ``Monitor`` or our ``EpisodeLog`` wrote; a last line that is cut is left out
    :return: the columns of each episode, with the time since 1970 as ``"t"``; none of an empty file
    """
    table, start = file.read_text(), 0.0
    if not table:
        # Its run had no time, or no disk, for more
        return []
    if file.name != EPISODES:
        first, _, table = table.partition("\n")
        try:
            start = float(json.loads(first.lstrip("#"))["t_start"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} does not begin as a monitor file does: move it away to draw the others."
            ) from error
    header, *lines = csv.reader(table.splitlines()) if table else [[]]
    if lines and not table.endswith("\n"):
        print(f"{file}: the last line is cut and left out (its run was killed, or still writes).", file=sys.stderr)
        lines.pop()
    episodes: list[dict[str, Any]] = []
    before = -np.inf
    for number, line in enumerate(lines, start=3 if file.name != EPISODES else 2):
        try:
            values: dict[str, Any] = dict(zip(header, line, strict=True))
            acted = _who(values) if "acted" in values else None
            # Not every task tells of successes
            known = {
                key: value for key, value in values.items() if key != "acted" and (key, value) != ("is_success", "")
            }
            values = {key: _number(value) for key, value in known.items()}
            if values["t"] < before:
                # The run was resumed, and its clock began anew
                start += before
            before = values["t"]
            episodes.append({**values, "t": values["t"] + start} | ({} if acted is None else {"acted": acted}))
        except (ValueError, KeyError) as error:
            raise ValueError(f"{file}, line {number}, is not an episode: remove it, or move the file away.") from error
    return episodes


def _who(values: dict[str, str]) -> str:
    """:return: the name of the source that acted, or which of all others"""
    if values["is_source"] == "1":
        return values["acted"]
    return {RANDOM: RANDOM, EXPLORING.name: EXPLORES, MIXING.name: EXPLORES}.get(values["acted"], LEARNER)


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
        raise NothingToDraw(f"{run_folder} has no {y} of evaluations")
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
    told = [curve for curve in curves if curve.episodes is not None]
    has_rows = 0 < len(told) <= MOST_ROWS
    figure, grid = new_figure(8, 5 + (0.4 + 0.2 * len(told) if has_rows else 0), rows=2 if has_rows else 1)
    axes = grid[0, 0]
    acted = colours_of_acted(told) if has_rows else {}
    labels = list(dict.fromkeys(curve.label for curve in curves))
    for label, (colour, style) in line_styles(labels, list(acted.values())).items():
        group = [curve for curve in curves if curve.label == label]
        if not mean:
            for number, curve in enumerate(group):
                # A line through one point cannot be seen
                marker, name = "o" if len(curve.x) == 1 else "", "" if number else label
                axes.plot(curve.x, curve.y, style, label=name, color=colour, linewidth=1.5, marker=marker)
            continue
        x, rows = _on_one_axis(group)
        marks = {"label": f"{label} (mean of {len(rows)})", "marker": "o" if x[0] == x[-1] else ""}
        axes.plot(x, rows.mean(axis=0), style, color=colour, linewidth=1.8, **marks)
        axes.fill_between(x, rows.min(axis=0), rows.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    for name, value in best_sources(curves).items():
        axes.axhline(value, color=INK, linestyle=(0, (6, 3)), linewidth=1.2, label=f"best source: {name} ({value:.4g})")
    axes.set(xlabel=x_label, ylabel=y_label if not told else f"{y_label} of the learner")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=TEXT_SIZE)
    if has_rows:
        grid[0, 0].get_gridspec().set_height_ratios([5, 0.4 + 0.2 * len(told)])
        _draw_who_acted(grid[1, 0], axes, told, acted)
    return figure


def line_styles(labels: Sequence[str], taken: Sequence[str] = ()) -> dict[str, tuple[str, str]]:
    """
    :param labels: of all curves, as ``caps CartPole-v1_1``
    :param taken: colours that mean something else in the figure
    :return: the colour and the style of each: that of its method for the first of a method, others far from it
    """
    own = method_colours(labels)
    found: dict[str, tuple[str, str]] = {}
    methods = set()
    for label in labels:
        method = re.split("[ ,]", label.lower())[0]
        if method not in methods:
            methods.add(method)
            found[label] = own[label], STYLES[0]
    colours = [colour for colour in LINE_COLOURS if colour not in taken] or LINE_COLOURS
    rest = [(colour, style) for style in STYLES for colour in colours]
    free = [each for each in rest if each not in found.values()]
    for number, label in enumerate(label for label in labels if label not in found):
        found[label] = free[number % len(free)]
    return {label: found[label] for label in labels}


def best_sources(curves: Sequence[Curve]) -> dict[str, float]:
    """
    :param curves: of training
    :return: the mean of the best source of each run, over the runs in which it is the same one
    """
    values: dict[str, list[np.ndarray]] = {}
    for curve in curves:
        if curve.episodes is not None and curve.episodes.best_source is not None:
            name = curve.episodes.best_source
            values.setdefault(name, []).append(curve.episodes.y[curve.episodes.of(name)])
    return {name: float(np.concatenate(found).mean()) for name, found in values.items()}


def colours_of_acted(curves: Sequence[Curve]) -> dict[str, str]:
    """
    :param curves: of runs that say who acted
    :return: a colour for everyone who acted, sources first
    """
    names = {name for curve in curves if curve.episodes for name in curve.episodes.acted}
    sources = sorted(names - ACTED_COLOURS.keys())
    found = {name: SOURCE_COLOURS[number % len(SOURCE_COLOURS)] for number, name in enumerate(sources)}
    return found | {name: colour for name, colour in ACTED_COLOURS.items() if name in names}


def _draw_who_acted(axes: Any, above: Any, curves: list[Curve], colours: dict[str, str]) -> None:
    """A row for each run: who acted in each episode."""
    for row, curve in enumerate(curves):
        assert curve.episodes is not None
        ends, starts = curve.episodes.x, np.concatenate([[0], curve.episodes.x[:-1]])
        for name, colour in colours.items():
            theirs = curve.episodes.of(name)
            bars = list(zip(starts[theirs], (ends - starts)[theirs], strict=True))
            # Each name once, also where it did not act in the first run
            axes.broken_barh(bars, (row - 0.4, 0.8), color=colour, linewidth=0, label=name if row == 0 else "")
    axes.set_yticks(range(len(curves)), [curve.label for curve in curves], fontsize=TEXT_SIZE - 2)
    axes.set_ylim(len(curves) - 0.5, -0.5)
    axes.sharex(above)
    axes.set_xlim(left=0)
    axes.set_xlabel("who acted")
    axes.legend(
        fontsize=TEXT_SIZE - 1,
        frameon=False,
        ncols=6,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.6 / len(curves) - 0.2),
    )
    axes.tick_params(labelbottom=False)


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
