"""Tasks one after another: what the policies of the tasks before are worth for the next one."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from sb3_caps.files.lock import one_at_a_time
from sb3_caps.studies.sequences import grid, poles
from sb3_caps.studies.shared.arguments import check_at_least
from sb3_caps.studies.shared.runs import Run, write_text
from sb3_caps.studies.shared.scheduler import run_missing, this_command
from sb3_caps.studies.shared.statistics import Interval

LABELS = {
    "growing": "growing library",
    "pruned": "pruned library",
    "latest": "latest policy alone",
    "plpr": "PLPR",
    "finetuning": "fine-tuning",
    "scratch": "from scratch",
}
N_TASKS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the arguments of ``sb3-caps reproduce sequences``.

    :param parser: of ``sb3-caps reproduce sequences``
    """
    parser.add_argument(
        "--world", choices=["grid", "poles"], default="grid", help="goals of the grid, or CartPole with any physics"
    )
    parser.add_argument("--method", nargs="+", choices=LABELS, help="all that the world has by default")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--tasks", type=int, default=N_TASKS, help="how many tasks a sequence has")
    parser.add_argument("--episodes", type=int, default=1000, help="of each task of the grid")
    parser.add_argument("--steps", type=int, default=8192, help="of each task with a pole")
    parser.add_argument("--threshold", type=float, default=0.9, help="δ of PLPR's rule, by which libraries are pruned")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--results", type=Path, default=Path("results/sequences"))


def run(args: argparse.Namespace) -> int:
    """
    Run what is missing, then draw.

    :param args: what ``add_arguments`` asked for
    :return: the exit code
    """
    check_at_least(grid.WINDOW, episodes=args.episodes)
    check_at_least(poles.EVALUATIONS * poles.N_ENVS, steps=args.steps)
    check_at_least(1, jobs=args.jobs, tasks=args.tasks)
    if args.world == "grid" and args.tasks > len(grid.GOALS):
        raise ValueError(f"--tasks must be at most {len(grid.GOALS)}, not {args.tasks}.")
    if not 0.0 <= args.threshold <= 1.0:
        raise ValueError(f"--threshold must be a share from 0 to 1, not {args.threshold}.")
    world = grid if args.world == "grid" else poles
    methods = args.method or world.METHODS
    if unknown := set(methods) - set(world.METHODS):
        raise ValueError(f"--world {args.world} has no {', '.join(unknown)}, only {', '.join(world.METHODS)}.")
    unit, length = ("episode", args.episodes) if world is grid else ("step", args.steps)
    runs = [
        Run(
            args.results / f"{args.world}_{args.tasks}_tasks_{length}_{unit}s" / method / f"seed_{seed}",
            {"method": method, "seed": seed, "tasks": args.tasks, f"{unit}s": length}
            | ({"threshold": args.threshold} if method in ("pruned", "plpr") else {}),
            args.tasks * length,
        )
        for seed in args.seeds
        for method in methods
    ]
    with one_at_a_time(args.results, wait=False):
        errors = run_missing(runs, world.execute, args.jobs, command=this_command(), unit=unit)
    found = {
        method: [
            json.loads((run.folder / run.result).read_text())
            for run in runs
            if run.config["method"] == method and run.finished
        ]
        for method in methods
    }
    found = {method: results for method, results in found.items() if results}
    if found:
        text = report(found)
        write_text(args.results / f"{args.world}.md", text)
        print(text)
        print(draw(found, args.results / "figures" / f"{args.world}.png"))
    return 1 if errors else 0


def forward_transfer(area: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """
    (AUC − AUC_ref) / (1 − AUC_ref), as Continual World and CompoNet have it.

    :param area: the area under the curve of each task, as a share of the optimum
    :param reference: that of learning from scratch
    :return: 0 for nothing gained, 1 for an optimum from the start
    """
    return (area - reference) / (1.0 - reference)


def measures(found: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, np.ndarray]]:
    """
    :param found: the results of each method
    :return: for each method arrays of shape (runs, tasks)
    """
    names = ("area", "steps", "final", "size")
    return {
        method: {name: np.array([each[name] for each in results]) for name in names}
        for method, results in found.items()
    }


def report(found: dict[str, list[dict[str, Any]]]) -> str:
    """
    :param found: the results of each method
    :return: tables as Markdown
    """
    from sb3_caps.studies.shared.tables import markdown

    tables = measures(found)
    reference = tables.get("scratch")
    rows = []
    for method, table in tables.items():
        transfer = "–"
        if reference is not None and method != "scratch" and len(reference["area"]) == len(table["area"]):
            # Of the tasks after the first one, where there is something to reuse
            gains = forward_transfer(table["area"], reference["area"])[:, 1:]
            transfer = str(Interval.of(gains.mean(axis=1))) if gains.size else "–"
        forgotten = Interval.of([each["forgetting"] for each in found[method]])
        first, last = np.median(table["steps"][:, 0]), np.median(table["steps"][:, -1])
        rows.append(
            [
                LABELS[method],
                transfer,
                str(Interval.of(table["final"].mean(axis=1))),
                str(forgotten),
                f"{first:,.0f}",
                f"{last:,.0f}",
                f"{table['size'][:, -1].mean():.1f}",
            ]
        )
    header = ["", "forward transfer", "final", "forgetting", "steps to 90%: first task", "last task", "policies"]
    n_runs = max(len(results) for results in found.values())
    return f"Means over {n_runs} sequences with 95% intervals, medians of steps.\n\n{markdown(header, rows)}\n"


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> Path:
    """
    :param found: the results of each method
    :param path: where to
    :return: the path
    """
    # Matplotlib is slow to import, and workers do without it
    from sb3_caps.studies.shared.plots import draw_mean, method_colours, new_figure, save, tidy

    tables = measures(found)
    colours = method_colours([LABELS[method] for method in LABELS])
    figure, ((left, right),) = new_figure(10, 3.6, columns=2)
    for method, table in tables.items():
        places = np.arange(1, table["steps"].shape[1] + 1)
        # Where nothing is pruned it is the growing library
        colour, label, style = colours[LABELS[method]], LABELS[method], "--" if method == "pruned" else "-"
        draw_mean(left, places, table["steps"], colour, label, style, bounds=(0.0, np.inf))
        reference = tables.get("scratch")
        if reference is not None and method != "scratch" and len(reference["area"]) == len(table["area"]):
            gains = forward_transfer(table["area"], reference["area"])
            draw_mean(right, places, gains, colour, label, style)
    left.set(xlabel="task", ylabel="steps to 90% of the optimum", yscale="log")
    right.set(xlabel="task", ylabel="forward transfer")
    right.axhline(0.0, color="0.6", linewidth=0.8)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(tables), fontsize=8)
    tidy(left)
    tidy(right)
    return save(figure, path)
