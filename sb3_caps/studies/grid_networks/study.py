"""Grid navigation with small networks: CAPS with the paper's arguments and with the recommended ones, and SB3's DQN."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_caps.caps import CAPS
from sb3_caps.envs.grid import PAPER_TASKS, GridEnv, optimal_policy, plan
from sb3_caps.envs.grid.planner import evaluator
from sb3_caps.files.lock import one_at_a_time
from sb3_caps.files.save_util import atomic_write
from sb3_caps.settings import algorithm_arguments, settings
from sb3_caps.sources import SourcePolicy, as_source
from sb3_caps.studies.shared.arguments import check_at_least
from sb3_caps.studies.shared.checkpoints import Checkpoints, EpochCallback
from sb3_caps.studies.shared.runs import Run
from sb3_caps.studies.shared.scheduler import run_missing, this_command

TASKS = ("Target", "TargetPrime", "Changed")
SOURCES = ("G1", "G2", "G3", "G4")
LABELS = {"caps": "CAPS, recommended", "caps-paper": "CAPS, paper", "dqn": "DQN"}
# What each learns with, in ``zoo_configs``
ENTRIES = {
    "caps": settings("caps", "sb3_caps/Grid-v0@networks"),
    "caps-paper": settings("caps", "sb3_caps/Grid-v0@networks_paper"),
    "dqn": settings("dqn", "sb3_caps/Grid-v0@networks"),
}
GAMMA, N_ENVS, STEPS = (ENTRIES["dqn"][key] for key in ("gamma", "n_envs", "n_timesteps"))
N_EVALUATIONS = 15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the arguments of ``sb3-caps reproduce grid-networks``.

    :param parser: of ``sb3-caps reproduce grid-networks``
    """
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS), help="g, g′, and g on the changed map")
    parser.add_argument("--method", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps of each run")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--results", type=Path, default=Path("results/grid_networks"))


def run(args: argparse.Namespace) -> int:
    """
    Run what is missing, then draw.

    :param args: what ``add_arguments`` asked for
    :return: the exit code
    """
    check_at_least(N_EVALUATIONS * N_ENVS, steps=args.steps)
    check_at_least(1, jobs=args.jobs)
    runs = [
        Run(
            args.results / task / f"{args.steps}_steps" / method / f"seed_{seed}",
            {"task": task, "method": method, "steps": args.steps, "seed": seed},
            args.steps,
        )
        for task in args.task
        for method in args.method
        for seed in args.seeds
    ]
    with one_at_a_time(args.results, wait=False):
        for map_name, goal in (PAPER_TASKS[task] for task in (*args.task, *SOURCES)):
            plan(map_name, goal, GAMMA)  # once, for all processes
        errors = run_missing(runs, execute, args.jobs, command=this_command())

    # Matplotlib is slow to import, and workers do without it
    from sb3_caps.studies.shared.plots import draw_curves, save
    from sb3_caps.studies.shared.records import record_of
    from sb3_caps.studies.shared.tables import columns_of, steps_table

    for task in args.task:
        finished = {
            method: [
                run for run in runs if run.finished and (run.config["task"], run.config["method"]) == (task, method)
            ]
            for method in args.method
        }
        curves = {
            method: columns_of(record_of(run, ()) for run in found) for method, found in finished.items() if found
        }
        if curves:
            map_name, goal = PAPER_TASKS[task]
            title = f"Task {goal} on map {map_name}"
            figure = draw_curves(curves, LABELS, plan(map_name, goal, GAMMA).value, title)
            print(save(figure, args.results / "figures" / f"{task}.png"))
            print("", f"{title}:", steps_table(curves, LABELS), "", sep="\n")
    return 1 if errors else 0


def build(config: dict[str, Any]) -> OffPolicyAlgorithm:
    """
    Build the model of a run.

    :param config: of a run
    :return: a model that has not learned anything yet
    """
    map_name, goal = PAPER_TASKS[config["task"]]
    env = make_vec_env(GridEnv, N_ENVS, seed=config["seed"], env_kwargs={"map": map_name, "goal": goal})
    arguments = algorithm_arguments(ENTRIES[config["method"]], config["steps"])
    if config["method"] == "dqn":
        return DQN("MlpPolicy", env, seed=config["seed"], **arguments)
    return CAPS("MlpPolicy", env, seed=config["seed"], source_policies=grid_sources(), **arguments)


def grid_sources() -> list[SourcePolicy]:
    """Return the planner's policies for the source tasks."""
    return [as_source(optimal_policy("rooms", source, GAMMA), name=source) for source in SOURCES]


def execute(run: Run) -> dict[str, Any]:
    """
    Learn from the start: a run takes seconds.

    :param run: what to do
    :return: what to remember of it
    """
    map_name, goal = PAPER_TASKS[run.config["task"]]
    optimum = plan(map_name, goal, GAMMA).value
    task = evaluator(map_name, goal, GAMMA)
    cells = np.arange(task.model.map.n_cells)

    def measure(model: BaseAlgorithm) -> dict[str, float]:
        # Without a state an option is chosen anew in every cell, so that all methods are measured by their values alone
        actions, _ = model.predict(cells, deterministic=True)
        value = float(task.start @ task.policy_values(actions))
        return {"evaluated": value, "share": value / optimum}

    no_checkpoints = Checkpoints(run.folder, ())
    callback = EpochCallback(run.steps // N_EVALUATIONS, measure, run.curve, no_checkpoints, float("inf"))
    model = build(run.config)
    model.learn(run.steps, callback, log_interval=10**9)
    callback.maybe_evaluate()
    with atomic_write(run.folder / "model.zip") as file:
        model.save(file)
    return {"seconds": callback.rows[-1]["seconds"]}
