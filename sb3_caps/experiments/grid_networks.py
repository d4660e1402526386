"""Grid navigation with small networks: CAPS with the paper's arguments and with the recommended ones, and SB3's DQN."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.utils import LinearSchedule

from sb3_caps.caps import CAPS
from sb3_caps.common.sources import as_source
from sb3_caps.envs.grid import PAPER_TASKS, GridEnv, optimal_policy, plan
from sb3_caps.envs.grid.planner import evaluator
from sb3_caps.experiments.checkpoints import Checkpoints, EpochCallback
from sb3_caps.experiments.demo import GAMMA, N_ENVS, SOURCES, TRAINING
from sb3_caps.experiments.runner import Run, run_missing

TASKS = ("Target", "TargetPrime", "Changed")
LABELS = {"caps": "CAPS, recommended", "caps-paper": "CAPS, paper", "dqn": "DQN"}
N_EVALUATIONS = 15
# What is CAPS's own, found on the tasks of the sources with seeds from 100. A source that leads away from the goal is
# as good as any while values are noise: the temperature keeps it from being followed all the time.
RECOMMENDED: dict[str, Any] = {
    "sequence_length": 8,
    "execution": "interrupting",
    "option_weights": 1 / 3,
    "greedy_temperature": LinearSchedule(0.02, 0.001, 0.5),
    "exploration_bonus": LinearSchedule(0.05, 0.0, 0.5),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    :param parser: of ``sb3-caps reproduce grid-networks``
    """
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS), help="g, g′, and g on the changed map")
    parser.add_argument("--method", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--steps", type=int, default=30_000, help="environment steps of each run")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--results", type=Path, default=Path("results/grid_networks"))


def run(args: argparse.Namespace) -> int:
    """
    Run what is missing, then draw.

    :param args: what ``add_arguments`` asked for
    :return: the exit code
    """
    if args.steps < N_EVALUATIONS * N_ENVS:
        raise ValueError(f"--steps must be at least {N_EVALUATIONS * N_ENVS}, not {args.steps}")
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
    for map_name, goal in (PAPER_TASKS[task] for task in (*args.task, *SOURCES)):
        plan(map_name, goal, GAMMA)  # once, for all processes
    command = ["sb3-caps", *map(shlex.quote, sys.argv[1:])]
    errors = run_missing(runs, execute, args.jobs, command=command)

    # Matplotlib is slow to import, and workers do without it
    from sb3_caps.experiments.grid_figures import save
    from sb3_caps.experiments.monster_kong_figures import columns_of, draw_curves, steps_table

    for task in args.task:
        finished = {
            method: [
                run for run in runs if run.finished and (run.config["task"], run.config["method"]) == (task, method)
            ]
            for method in args.method
        }
        curves = {method: columns_of(found) for method, found in finished.items() if found}
        if curves:
            map_name, goal = PAPER_TASKS[task]
            title = f"Task {goal} on map {map_name}"
            figure = draw_curves(curves, LABELS, plan(map_name, goal, GAMMA).value, title)
            print(save(figure, args.results / "figures" / f"{task}.png"))
            print("", f"{title}:", *steps_table(curves, LABELS), "", sep="\n")
    return 1 if errors else 0


def build(config: dict[str, Any]) -> OffPolicyAlgorithm:
    """
    :param config: of a run
    :return: a model that has not learned anything yet
    """
    map_name, goal = PAPER_TASKS[config["task"]]
    env = make_vec_env(GridEnv, N_ENVS, seed=config["seed"], env_kwargs={"map": map_name, "goal": goal})
    if config["method"] == "dqn":
        return DQN("MlpPolicy", env, seed=config["seed"], **TRAINING)
    sources = [as_source(optimal_policy("rooms", source, GAMMA), name=source) for source in SOURCES]
    own = RECOMMENDED if config["method"] == "caps" else {}
    return CAPS("MlpPolicy", env, seed=config["seed"], source_policies=sources, **TRAINING, **own)


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

    def measure(model: OffPolicyAlgorithm) -> dict[str, float]:
        # Without a state an option is chosen anew in every cell, so that all methods are measured by their values alone
        actions, _ = model.predict(cells, deterministic=True)
        value = float(task.start @ task.policy_values(actions))
        return {"evaluated": value, "share": value / optimum}

    no_checkpoints = Checkpoints(run.folder, ())
    callback = EpochCallback(run.steps // N_EVALUATIONS, measure, run.curve, no_checkpoints, float("inf"))
    model = build(run.config)
    model.learn(run.steps, callback, log_interval=10**9)
    callback.maybe_evaluate()
    model.save(run.folder / "model.zip")
    return {"seconds": callback.rows[-1]["seconds"]}
