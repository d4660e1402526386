"""Ten goals of the grid, one after another: what the policies of the tasks before are worth for the next one."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sb3_caps.envs.grid import GridMap, GridTask, plan
from sb3_caps.envs.grid.dynamics import HORIZON
from sb3_caps.envs.grid.planner import evaluator
from sb3_caps.files.lock import one_at_a_time
from sb3_caps.studies.shared.arguments import check_at_least
from sb3_caps.studies.shared.runs import Run, write_json, write_text
from sb3_caps.studies.shared.scheduler import run_missing, this_command
from sb3_caps.studies.shared.statistics import Interval, first_reached, running_mean
from sb3_caps.tabular import PRQL, CAPSConfig, Experiment, Learner, PRQLConfig, QConfig, QLearning, TabularCAPS
from sb3_caps.tabular.base import GAMMA

MAP = "rooms"
# The named goals of the paper and four more cells, of which each run has an order of its own
GOALS: tuple[Any, ...] = ("G1", "G2", "G3", "G4", "g", "g'", (1, 10), (10, 2), (12, 18), (19, 10))
LABELS = {
    "growing": "growing library",
    "pruned": "pruned library",
    "latest": "latest policy alone",
    "plpr": "PLPR",
    "finetuning": "fine-tuning",
    "scratch": "from scratch",
}
# Of Equation 2, as the grid study has it
TERMINATION_RATE = 20.0
# Episodes of the running mean that has to reach 90% of the optimum
WINDOW, LEVEL = 50, 0.9


class Learned(NamedTuple):
    """
    What came of one task.

    :param learner: with its tables
    :param returns: the discounted return of each episode
    """

    learner: Learner
    returns: np.ndarray


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the arguments of ``sb3-caps reproduce sequences``.

    :param parser: of ``sb3-caps reproduce sequences``
    """
    parser.add_argument("--method", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--tasks", type=int, default=len(GOALS), help="how many tasks a sequence has")
    parser.add_argument("--episodes", type=int, default=1000, help="of each task")
    parser.add_argument("--threshold", type=float, default=0.9, help="δ of PLPR's rule, by which libraries are pruned")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--results", type=Path, default=Path("results/sequences"))


def run(args: argparse.Namespace) -> int:
    """
    Run what is missing, then draw.

    :param args: what ``add_arguments`` asked for
    :return: the exit code
    """
    check_at_least(WINDOW, episodes=args.episodes)
    check_at_least(1, jobs=args.jobs, tasks=args.tasks)
    if args.tasks > len(GOALS):
        raise ValueError(f"--tasks must be at most {len(GOALS)}, not {args.tasks}.")
    if not 0.0 <= args.threshold <= 1.0:
        raise ValueError(f"--threshold must be a share from 0 to 1, not {args.threshold}.")
    runs = [
        Run(
            args.results / f"{args.tasks}_tasks_{args.episodes}_episodes" / method / f"seed_{seed}",
            {"method": method, "seed": seed, "tasks": args.tasks, "episodes": args.episodes}
            | ({"threshold": args.threshold} if method in ("pruned", "plpr") else {}),
            args.tasks * args.episodes,
        )
        for method in args.method
        for seed in args.seeds
    ]
    with one_at_a_time(args.results, wait=False):
        errors = run_missing(runs, execute, args.jobs, command=this_command(), unit="episode")
    found = {
        method: [
            json.loads((run.folder / run.result).read_text())
            for run in runs
            if run.config["method"] == method and run.finished
        ]
        for method in args.method
    }
    found = {method: results for method, results in found.items() if results}
    if found:
        text = report(found)
        write_text(args.results / "report.md", text)
        print(text)
        print(draw(found, args.results / "figures" / "sequences.png"))
    return 1 if errors else 0


def execute(run: Run) -> dict[str, Any]:
    """
    Learn one task after another.

    :param run: what to do
    :return: measures of each task
    """
    config = run.config
    grid_map, seed = GridMap.load(MAP), config["seed"]
    # The same order for all methods
    order = np.random.default_rng(seed).permutation(len(GOALS))[: config["tasks"]]
    optima = [optimal_return(run.folder.parents[2], goal) for goal in order.tolist()]
    library: list[np.ndarray] = []
    before: Learner | None = None
    found: dict[str, list[float]] = {key: [] for key in ("goal", "area", "steps", "final", "size")}
    policies: list[np.ndarray] = []
    for place, goal in enumerate(order.tolist()):
        optimum, cell = optima[place], GOALS[goal]
        learned = learn(config["method"], grid_map, cell, library, before, 1000 * seed + place, config["episodes"])
        policy, before = learned.learner.greedy().flat()[0], learned.learner
        policies.append(policy)
        found["goal"].append(goal)
        found["area"].append(float(learned.returns.mean() / optimum))
        found["steps"].append(steps_to(learned.returns, LEVEL * optimum))
        task = evaluator(MAP, cell, GAMMA)
        worth = float(task.start @ task.policy_values(policy))
        found["final"].append(worth / optimum)
        if is_new(config, library, learned, worth, task):
            library = [policy] if config["method"] == "latest" else [*library, policy]
        found["size"].append(len(library))
    # What the first tasks are worth by what is kept for them: fine-tuning keeps one policy
    kept = [policies[-1]] * len(policies) if config["method"] == "finetuning" else policies
    tasks = [evaluator(MAP, GOALS[goal], GAMMA) for goal in order.tolist()]
    at_end = [float(task.start @ task.policy_values(policy)) for task, policy in zip(tasks, kept, strict=True)]
    shares = np.array(at_end) / np.array(optima)
    return {**found, "forgetting": float(np.mean(np.array(found["final"]) - shares))}


def learn(
    method: str,
    grid_map: GridMap,
    goal: Any,
    library: Sequence[np.ndarray],
    before: Learner | None,
    seed: int,
    episodes: int,
) -> Learned:
    """
    Learn one task.

    :param method: a key of ``LABELS``
    :param grid_map: the map
    :param goal: the goal
    :param library: the policies that there are
    :param before: what learned the task before, None for the first one
    :param seed: the random numbers
    :param episodes: how many
    :return: what came of it
    """
    learner: Any
    if method == "plpr":
        learner = QLearning([QConfig()], grid_map.n_cells)
        if library:
            learner = PRQL([PRQLConfig(sources=library)], grid_map.n_cells)
    else:
        learner = TabularCAPS([CAPSConfig(library, termination_learning_rate=TERMINATION_RATE)], grid_map.n_cells)
        if method == "finetuning" and isinstance(before, TabularCAPS):
            learner.values[:], learner.theta[:] = before.values, before.theta
    experiment = Experiment(learner, [GridTask(grid_map, goal)], [seed], episodes)
    experiment.run()
    return Learned(learner, experiment.returns[0])


def is_new(config: dict[str, Any], library: Sequence[np.ndarray], learned: Learned, worth: float, task: Any) -> bool:
    """
    Tell whether a policy comes to the library.

    :param config: of the run
    :param library: the policies that there are
    :param learned: what came of the task
    :param worth: of its policy
    :param task: what evaluates policies on it
    :return: whether it does: always, never, or by PLPR's rule
    """
    if config["method"] in ("scratch", "finetuning"):
        return False
    if config["method"] in ("growing", "latest") or not library:
        return True
    if isinstance(learned.learner, PRQL):
        # As its paper has it, by the gains while learning
        *past, own = learned.learner.gains[0].tolist()
        return bool(max(past) < config["threshold"] * own)
    best = max(float(task.start @ task.policy_values(policy)) for policy in library)
    return best < config["threshold"] * worth


def steps_to(returns: np.ndarray, level: float) -> float:
    """
    :param returns: the discounted return of each episode
    :param level: of their running mean
    :return: after how many environment steps it is reached; all steps where it never is
    """
    lengths = np.where(returns > 0, 1 + np.log(np.maximum(returns, 1e-9)) / np.log(GAMMA), HORIZON)
    steps = lengths.cumsum()
    means = running_mean(returns, WINDOW)
    reached = first_reached(steps[len(steps) - len(means) :], means[None], level)[0]
    return float(min(reached, steps[-1]))


def optimal_return(folder: Path, goal: int) -> float:
    """
    :param folder: of the study, where it is kept: to plan takes longer than to learn
    :param goal: its number
    :return: what the best policy known gets for it
    """
    file = folder / "optima" / f"{goal}.json"
    with one_at_a_time(file.parent):
        if not file.is_file():
            write_json(file, plan(MAP, GOALS[goal], GAMMA).value)
    return float(json.loads(file.read_text()))


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
        draw_mean(left, places, table["steps"], colours[LABELS[method]], LABELS[method], bounds=(0.0, np.inf))
        reference = tables.get("scratch")
        if reference is not None and method != "scratch" and len(reference["area"]) == len(table["area"]):
            gains = forward_transfer(table["area"], reference["area"])
            draw_mean(right, places, gains, colours[LABELS[method]], LABELS[method])
    left.set(xlabel="task", ylabel="steps to 90% of the optimum", yscale="log")
    right.set(xlabel="task", ylabel="forward transfer")
    right.axhline(0.0, color="0.6", linewidth=0.8)
    left.legend(fontsize=8)
    tidy(left)
    tidy(right)
    return save(figure, path)
