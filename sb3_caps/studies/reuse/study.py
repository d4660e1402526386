"""``sb3-caps reproduce reuse``: methods of policy reuse on tasks of many kinds, with good and with bad sources."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from sb3_caps.files.lock import one_at_a_time
from sb3_caps.settings import settings
from sb3_caps.studies.reuse.references import find_references, source_returns
from sb3_caps.studies.reuse.runs import FINE_TUNE, N_EVALUATIONS, TRIAL, execute, get_method
from sb3_caps.studies.reuse.sources import CONDITIONS
from sb3_caps.studies.reuse.tasks import PARTIAL, REPORTED, TASKS, TUNING, UNSET, get_task
from sb3_caps.studies.reuse.training import train_missing, trainings
from sb3_caps.studies.shared.arguments import check_at_least
from sb3_caps.studies.shared.records import with_published
from sb3_caps.studies.shared.runs import Run
from sb3_caps.studies.shared.scheduler import finished_runs, run_missing, this_command

# More seeds for what everything is compared with, fewer for what only CAPS is tried with: those that are published
SEEDS, MANY_SEEDS, FEW_SEEDS = range(40, 45), range(40, 50), range(44, 47)
# Of runs that settings are chosen by
ABLATION_SEEDS, TRIAL_SEEDS = range(5), range(100, 103)
COMPARED_WITH = ("dqn", "caps", "caps-none")
OTHER_CONDITIONS = ("useless", "harmful", "mixed", "best")
# Kinds of tasks that take more steps than all others together: the comparison alone, with one seed
LONG_KINDS, LONG_SEEDS = ("kong",), FEW_SEEDS[:1]
# Tasks that need no training beforehand
QUICK_TASKS = ("grid-g-prime", "grid-changed", "key-door")
QUICK_METHODS = ("dqn", "caps", "caps-none", "jump-start", "qdagger")
# What anybody would do without us, beside what we do
PARTIAL_METHODS = ("caps", FINE_TUNE, "dqn-tuned", "caps-none")
# Tasks of different kinds: balance, a far goal, ways that lead past the goal or into walls, parts of a task
ABLATION_TASKS = ("cartpole-weak", "mountaincar-steep", "grid-g-prime", "grid-changed", "key-door")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the arguments of ``sb3-caps reproduce reuse``.

    :param parser: of ``sb3-caps reproduce reuse``
    """
    get_task(QUICK_TASKS[0])  # registers them all
    parser.add_argument("--task", nargs="+", help=f"{', '.join(TASKS)}, or package.module:TASK; all by default")
    parser.add_argument(
        "--sources", nargs="+", choices=CONDITIONS, help="by default helpful ones, and the others for CAPS alone"
    )
    parser.add_argument(
        "--method", nargs="+", help=f"{', '.join(settings('reuse', 'methods'))}, or package.module:Algorithm"
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, help="5 by default, 10 for CAPS, DQN and the control, 3 for other sources"
    )
    parser.add_argument("--steps", type=int, help="environment steps of each run, by default the task's own")
    parser.add_argument("--quick", action="store_true", help="three tasks, five methods, three seeds")
    parser.add_argument("--ablations", action="store_true", help="CAPS with one thing taken away, five tasks and seeds")
    parser.add_argument("--trials", action="store_true", help="settings of methods, on tasks that are not reported")
    parser.add_argument("--unset", action="store_true", help="six other tasks, with no argument of an algorithm set")
    parser.add_argument("--partial", action="store_true", help="ten tasks whose sources know a part, no argument set")
    parser.add_argument("--train", action="store_true", help="train sources and references that are missing, and stop")
    parser.add_argument("--references", action="store_true", help="find the references of the tasks, and stop")
    parser.add_argument("--draw", action="store_true", help="run nothing: report on the runs that are there")
    parser.add_argument(
        "--published", nargs="+", type=Path, default=[], help="runs.json of other suites: report on their runs beside"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--backend", choices=["loky", "dask", "ray"], default="loky")
    parser.add_argument("--address", help="of a running cluster, for Dask or Ray")
    parser.add_argument("--results", type=Path, default=Path("results/reuse"))
    parser.add_argument("--trained", type=Path, help="folder of trained sources, by default in the one of the results")


def run(args: argparse.Namespace) -> int:
    """
    Run what is missing, then report.

    :param args: what ``add_arguments`` asked for
    :return: the exit code
    """
    check_at_least(1, jobs=args.jobs)
    check_at_least(N_EVALUATIONS, steps=args.steps)
    trained = args.trained or args.results / "sources"
    tasks = args.task or usual_tasks(args)
    errors: list[str] = []
    with one_at_a_time(args.results, wait=False):
        if args.train:
            return 1 if train_missing(trained, list(trainings()), args.jobs) else 0
        if args.references:
            find_references(map(get_task, tasks), trained)
            return 0
        for task in tasks:
            _ = get_task(task).scale  # a task without a reference is refused before anything runs
        runs = list(planned(args, tasks, trained))
        if not args.draw:
            for task, condition in dict.fromkeys((run.config["task"], run.config["sources"]) for run in runs):
                source_returns(get_task(task), condition, trained)
            errors = run_missing(runs, execute, args.jobs, args.backend, args.address, this_command())

    # Matplotlib is slow to import, and workers do without it
    from sb3_caps.studies.reuse.report import NAMES, records, write_report

    found = records(finished_runs(runs, args.results, required=not args.published), trained)
    print(write_report(with_published(found, args.published, NAMES), args.results))
    return 1 if errors else 0


def planned(args: argparse.Namespace, tasks: list[str], trained: Path) -> Iterator[Run]:
    """
    Plan the runs of the suite.

    :param args: what the user asked for
    :param tasks: their names or import strings
    :param trained: the folder of trained sources
    :return: all runs of the suite
    """
    methods = args.method or usual_methods(args)
    seeds = args.seeds or (ABLATION_SEEDS if args.ablations else TRIAL_SEEDS if args.trials else None)
    for task in tasks:
        long = get_task(task).kind in LONG_KINDS
        for method in methods:
            if method == FINE_TUNE and not get_task(task).fine_tunes:
                continue
            if long and args.method is None and method not in COMPARED_WITH:
                continue
            conditions = args.sources or ["helpful"]
            if args.sources is None and method == "caps" and not (args.quick or args.ablations or args.partial or long):
                conditions = ["helpful", *OTHER_CONDITIONS]
            if not get_method(method).sources:
                conditions = ["none"]
            for condition in conditions:
                for seed in seeds or (LONG_SEEDS if long else default_seeds(method, condition, args.quick)):
                    yield make_run(args.results, task, method, condition, seed, trained, args.steps)


def usual_tasks(args: argparse.Namespace) -> list[str]:
    """Return the names of the default tasks."""
    if args.ablations or args.quick:
        return list(ABLATION_TASKS if args.ablations else QUICK_TASKS)
    group = TUNING if args.trials else UNSET if args.unset else PARTIAL if args.partial else REPORTED
    return [name for name, task in TASKS.items() if task.group == group]


def usual_methods(args: argparse.Namespace) -> list[str]:
    """Return the names of the default methods."""
    if args.ablations:
        return ["caps", *settings("reuse", "ablations")]
    if args.trials:
        return [f"{name}{TRIAL}{i}" for name, tried in settings("reuse", "trials").items() for i in range(len(tried))]
    if args.partial:
        return list(PARTIAL_METHODS)
    if args.quick:
        return list(QUICK_METHODS)
    return [name for name in settings("reuse", "methods") if name not in ("dqn-tuned", FINE_TUNE)]


def default_seeds(method: str, condition: str, quick: bool) -> range:
    """
    Choose the seeds of a method.

    :param method: its name
    :param condition: the sources
    :param quick: whether few have to do
    :return: the seeds
    """
    if quick or condition in OTHER_CONDITIONS:
        return FEW_SEEDS
    return MANY_SEEDS if method in COMPARED_WITH else SEEDS


def make_run(
    results: Path, task: str, method: str, condition: str, seed: int, trained: Path, steps: int | None = None
) -> Run:
    """
    Describe one run.

    :param results: the folder of the suite
    :param task: its name or import string
    :param method: the same
    :param condition: the sources
    :param seed: of the run
    :param trained: the folder of trained sources
    :param steps: how long, by default as long as the task says
    :return: the run
    """
    steps = steps or get_task(task).steps
    config = {
        "task": task,
        "method": method,
        "sources": condition,
        "seed": seed,
        "steps": steps,
        "trained": str(trained.resolve()),
    }
    parts = [name.replace(":", "_") for name in (task, f"{steps}_steps", condition, method)]
    return Run(results.joinpath(*parts, f"seed_{seed}"), config, steps)
