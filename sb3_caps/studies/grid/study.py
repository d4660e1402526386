"""``sb3-caps reproduce grid``: the paper's study of grid navigation, Figures 1 to 7."""

import argparse
from pathlib import Path

from sb3_caps.files.lock import one_at_a_time
from sb3_caps.studies.grid import reports, surface
from sb3_caps.studies.grid.batches import METHODS, RECOMMENDED, SOURCE_TASKS, ablations, optimum
from sb3_caps.studies.grid.claims import claims
from sb3_caps.studies.grid.figures import CURVE_FIGURES, draw_figure
from sb3_caps.studies.grid.metrics import Study
from sb3_caps.studies.grid.parts import PARTS
from sb3_caps.studies.grid.results import Results, run_all
from sb3_caps.studies.shared.arguments import check_at_least
from sb3_caps.studies.shared.runs import write_text
from sb3_caps.studies.shared.statistics import Interval
from sb3_caps.studies.shared.tables import markdown

EPISODES = 3000
QUICK_RUNS, QUICK_EPISODES = 3, 300
# What the figures are drawn from. Figures 1 and 6 show maps alone.
FIGURE_BATCHES = {1: [], 3: ["caps"], 4: ["caps"], 6: []}
METHOD_BATCHES = ["caps", "option_critic", "q_learning", "prql", "ops_tl"]
REPORTS = {
    "surface": surface.report,
    "tuning": reports.tuning,
    "targets": reports.random_targets,
    "theorems": reports.theorems,
}
CURVE_HEADER = ["method", "episodes until 90% of the optimum", "area under the curve", "final greedy value"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the arguments of ``sb3-caps reproduce grid``.

    :param parser: of ``sb3-caps reproduce grid``
    """
    parts = "; ".join(f"{name}: {part.help} ({part.runs} runs)" for name, part in PARTS.items())
    parser.add_argument("--part", choices=PARTS, default="figures", help=parts)
    parser.add_argument(
        "--figure", type=int, choices=range(1, 8), help="only this figure; all of them and the tables if none is given"
    )
    parser.add_argument("--runs", type=int, help="runs of each method, as many as the part has if nothing is said")
    parser.add_argument("--episodes", type=int, help=f"episodes of each run, {EPISODES} if nothing is said")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_RUNS} runs of {QUICK_EPISODES} episodes, to see that it works"
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=0.05,
        help="differences of the area below this share of the optimum do not matter",
    )
    parser.add_argument("--draw", action="store_true", help="of the surface, draw what is finished and run nothing")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--results", type=Path, default=Path("results/grid"), help="where raw results are kept")
    parser.add_argument("--output", type=Path, help="where figures and tables go; into the results if nothing is said")


def run(args: argparse.Namespace) -> int:
    """
    Run what is missing, then draw figures and write tables.

    :param args: what :func:`add_arguments` asked for
    :return: the exit code
    """
    part = PARTS[args.part]
    n_runs = args.runs if args.runs is not None else (QUICK_RUNS if args.quick else part.runs)
    episodes = args.episodes if args.episodes is not None else (QUICK_EPISODES if args.quick else EPISODES)
    check_at_least(1, runs=n_runs, episodes=episodes, jobs=args.jobs)
    if args.figure and args.part != "figures":
        raise ValueError(f"--figure is one of the paper's: leave --part {args.part} out")
    results = Results(args.results, n_runs, episodes)
    output = args.output or results.folder
    figures = [args.figure] if args.figure else sorted({*FIGURE_BATCHES, *CURVE_FIGURES.values()})
    needed = [batch for figure in figures for batch in FIGURE_BATCHES.get(figure, METHOD_BATCHES)]
    if args.draw and args.part != "surface":
        raise ValueError(f"--draw is for --part surface: the tables of {args.part} need all of its runs")
    with one_at_a_time(args.results, wait=False):
        if not args.draw and run_all(results, needed if args.figure else part.batches, args.jobs):
            return 1

    study = Study(results, part.batches)
    text: str | None
    if args.part != "figures":
        drawn, text = REPORTS[args.part](study, output, args.margin)
    else:
        drawn = [path for figure in figures for path in draw_figure(study, figure, output)]
        text = None if args.figure else tables(study, args.margin)
    for path in drawn:
        print(f"drawn: {path}")
    if text is not None:
        file = output / ("tables.md" if args.part == "figures" else f"{args.part}.md")
        write_text(file, text)
        print(f"written: {file}")
    return 0


def tables(study: Study, margin: float) -> str:
    """
    Write the tables of the paper's figures.

    :param study: the finished results
    :param margin: a smaller difference of areas does not matter
    :return: all tables as Markdown
    """
    parts = [f"# Tables of the grid study: {study.results.n_runs} runs of {study.results.episodes} episodes"]
    for name, figure in CURVE_FIGURES.items():
        rows = [study.row(variant, name) for variant in (*METHODS, "Q-learning, ε of CAPS", RECOMMENDED)]
        plan = optimum(name)
        parts += [
            f"## Task {name} (Figure {figure})",
            f"Optimum {plan.value:.4f}; an agent that sees its position could have at most {plan.upper_bound:.4f}.",
            markdown(CURVE_HEADER, rows),
        ]
    parts += ["## Ablations on g", markdown(["variant", *CURVE_HEADER[1:]], ablation_rows(study))]
    parts += ["## Source tasks", markdown(["source task", "Q-learning", "Option-Critic"], source_rows(study))]
    parts += [
        "## Claims",
        f"A difference of areas below {margin:g} does not matter; {study.results.n_runs} runs, Welch's 95% intervals.",
        markdown(["figure", "claim", "needed", "measured", "verdict"], [list(row) for row in claims(study, margin)]),
    ]
    return "\n\n".join(parts) + "\n"


def ablation_rows(study: Study) -> list[list[str]]:
    """
    Make the rows of the ablations.

    :param study: the finished results
    :return: a row for CAPS and for each change of it, on task g
    """
    variants = [
        "CAPS",
        "CAPS, β = 0.5",
        *ablations(),
        RECOMMENDED,
        "Q-learning",
        "Q-learning, ε of CAPS",
        "Q-learning, α = 0.1",
    ]
    return [study.row(variant, "g") for variant in variants]


def source_rows(study: Study) -> list[list[str]]:
    """
    Make the rows of the source tasks.

    :param study: the finished results
    :return: how good the learned source policies are, as a share of the optimum of their tasks
    """
    batches = ("sources", "option_critic_sources")
    return [[name, *(str(Interval.of(study.final(batch, name))) for batch in batches)] for name in SOURCE_TASKS]
