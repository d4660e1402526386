"""The Monster Kong study: Figures 8 to 11 of the paper, and how much faster it goes with the recommended settings."""

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.dqn import DQN

from sb3_caps import SourceFeatures, SourcePolicy, VecSourceFeatures
from sb3_caps.envs.monster_kong.observations import OBSERVATIONS
from sb3_caps.envs.monster_kong.vec_env import MonsterKongVecEnv
from sb3_caps.files.lock import one_at_a_time
from sb3_caps.files.save_util import atomic_write
from sb3_caps.studies.monster_kong.evaluation import ExactEvaluation, PlayedEvaluation, paper_average
from sb3_caps.studies.monster_kong.methods import (
    ALGORITHMS,
    ALL_METHODS,
    METHODS,
    PRESETS,
    REPORTED,
    TASKS,
    TRIALS,
    arguments_of,
    entry_of,
    horizon_of,
)
from sb3_caps.studies.monster_kong.sources import (
    make_sources,
    pictures_of_starts,
    source_goals,
    standardize,
    train_networks,
)
from sb3_caps.studies.shared.arguments import check_at_least
from sb3_caps.studies.shared.checkpoints import Checkpoints, EpochCallback
from sb3_caps.studies.shared.runs import Run
from sb3_caps.studies.shared.scheduler import finished_runs, run_missing, this_command

# What makes up the state of a batch of games, beside what its arguments say
GAMES_STATE = ("states", "previous", "steps", "_generators")
QUICK_STEPS = 20_000
# Of runs that settings are chosen by
TRIAL_SEEDS = [100, 101]
# A run is evaluated so many times at least
N_EVALUATIONS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the arguments of ``sb3-caps reproduce monster-kong``.

    :param parser: of ``sb3-caps reproduce monster-kong``
    """
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(REPORTED), help="the paper's target tasks")
    parser.add_argument("--observation", nargs="+", choices=OBSERVATIONS, default=["features"])
    parser.add_argument("--preset", nargs="+", choices=PRESETS, default=["recommended"])
    parser.add_argument(
        "--method", nargs="+", choices=ALL_METHODS, metavar="METHOD", default=list(METHODS), help=", ".join(ALL_METHODS)
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--steps", type=int, help="environment steps of each run, instead of the preset's")
    parser.add_argument("--sources", choices=("planner", "networks"), help="planner for features, networks for pixels")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--backend", choices=("loky", "dask", "ray"), default="loky", help="where joblib runs them")
    parser.add_argument("--address", help="of a Dask or Ray cluster; none starts one here")
    parser.add_argument("--results", type=Path, default=Path("results/monster_kong"))
    parser.add_argument("--quick", action="store_true", help="one seed, two methods, a few minutes: to see it work")
    parser.add_argument(
        "--trials",
        action="store_true",
        help="settings of the other methods, on the map of tuning: in place of --task, --method and --seeds",
    )
    parser.add_argument("--draw", action="store_true", help="run nothing: draw what is finished")
    parser.add_argument(
        "--published", nargs="+", type=Path, default=[], help="runs.json of other studies: draw their runs beside"
    )


def run(args: argparse.Namespace) -> int:
    """
    Run what is missing, then draw.

    :param args: what ``add_arguments`` asked for
    :return: the exit code
    """
    check_at_least(1, jobs=args.jobs)
    check_at_least(N_EVALUATIONS, steps=args.steps)
    if args.quick:
        args.seeds, args.steps = args.seeds[:1], args.steps or QUICK_STEPS
        args.method = [method for method in args.method if method in ("caps", "dqn")]
    if args.trials:
        args.task, args.method, args.seeds = ["tuning"], list(TRIALS), TRIAL_SEEDS
    runs = plan_runs(args)
    errors = False
    if args.draw:
        runs = finished_runs(runs, args.results, required=not args.published)
    else:
        with one_at_a_time(args.results, wait=False):
            errors = run_all(runs, args)

    # Matplotlib is slow to import, and workers do without it
    from sb3_caps.studies.monster_kong.figures import draw_study

    for line in draw_study([run for run in runs if run.finished], args.results, args.published):
        print(line)
    return 1 if errors else 0


def run_all(runs: list[Run], args: argparse.Namespace) -> bool:
    """
    Run what is missing, after the networks of its sources.

    :param runs: what to run
    :param args: what ``add_arguments`` asked for
    :return: whether anything failed
    """
    for observation in args.observation:
        if source_kind(args, observation) == "networks":
            for setting, goal in (TASKS[task] for task in args.task):
                train_networks(setting, source_goals(setting, goal), observation, args.results)
    return bool(run_missing(runs, execute, args.jobs, args.backend, args.address, this_command()))


def source_kind(args: argparse.Namespace, observation: str) -> str:
    """Return where the sources of a task come from."""
    return args.sources or ("networks" if observation == "pixels" else "planner")


def plan_runs(args: argparse.Namespace) -> list[Run]:
    """
    Plan the runs of the study.

    :param args: what ``add_arguments`` asked for
    :return: all runs, finished or not
    """
    runs = []
    for observation, task, preset, method in itertools.product(args.observation, args.task, args.preset, args.method):
        asked = {"task": task, "observation": observation, "preset": preset, "method": method}
        if ALL_METHODS[method].source_features and observation != "pixels":
            raise ValueError(f"--method {method} learns from pixels: pass --observation pixels.")
        steps = args.steps or int(entry_of(asked)["n_timesteps"])
        sources = ALL_METHODS[method].sources
        config: dict[str, Any] = {
            **asked,
            "steps": steps,
            "sources": source_kind(args, observation) if sources == "task" else sources,
            "results": str(args.results),
        }
        # For the record: what a run learns with is in `zoo_configs`
        config["arguments"] = {name: str(value) for name, value in arguments_of(config).items()}
        folder = args.results / observation / task / preset / f"{steps}_steps" / method
        runs += [Run(folder / f"seed_{seed}", {**config, "seed": seed}, steps) for seed in args.seeds]
    return runs


def build(config: dict[str, Any], env: VecEnv) -> DQN:
    """
    Build the model of a run.

    :param config: of a run
    :param env: to learn in
    :return: a model that has not learned anything yet
    """
    method = ALL_METHODS[config["method"]]
    setting, goal = TASKS[config["task"]]
    arguments = arguments_of(config)
    if method.algorithm != "dqn":
        if isinstance(env, VecSourceFeatures):
            arguments["source_policies"] = env.features.policies
        else:
            arguments["source_policies"] = sources_of(config)
    from_pixels = len(env.observation_space.shape or ()) == 3
    policy = "CnnPolicy" if from_pixels else "MlpPolicy"
    model = ALGORITHMS[method.algorithm](policy, env, seed=config["seed"], **arguments)
    if from_pixels and PRESETS[config["preset"]].standardized:
        standardize(model, pictures_of_starts(setting, goal))
    return model


def sources_of(config: dict[str, Any]) -> list[SourcePolicy]:
    """
    Make the source policies of a run.

    :param config: of a run
    :return: its source policies
    """
    return make_sources(*TASKS[config["task"]], config["observation"], config["sources"], Path(config["results"]))


def execute(run: Run) -> dict[str, Any]:
    """
    Learn, from the start or from the last checkpoint.

    :param run: what to do
    :return: what to remember of it
    """
    config = run.config
    setting, goal = TASKS[config["task"]]
    n_envs = entry_of(config).get("n_envs", 1)
    env: VecEnv = MonsterKongVecEnv(n_envs, setting, goal, config["observation"], horizon_of(config))
    evaluate: ExactEvaluation | PlayedEvaluation
    if config["observation"] == "features":
        evaluate = ExactEvaluation(setting, goal)
    else:
        evaluate = PlayedEvaluation(setting, goal, "pixels")
        if ALL_METHODS[config["method"]].source_features:
            features = SourceFeatures(sources_of(config), pictures_of_starts(setting, goal).numpy())
            env, evaluate.env = VecSourceFeatures(env, features), VecSourceFeatures(evaluate.env, features)

    def measure(model: BaseAlgorithm) -> dict[str, float]:
        outcome = evaluate(model)
        value = float(outcome.returns.mean())
        exact = isinstance(evaluate, ExactEvaluation)
        return {
            "evaluated": paper_average(outcome, seed=model.num_timesteps) if exact else value,
            "value": value,
            "share": value / evaluate.optimum,
            "successes": outcome.successes,
        }

    started = time.monotonic()
    checkpoints = Checkpoints(run.folder, GAMES_STATE)
    found = checkpoints.load(ALGORITHMS[ALL_METHODS[config["method"]].algorithm], env)
    model, rows = (build(config, env), []) if found is None else found
    epoch = min(PRESETS[config["preset"]].epoch, run.steps // N_EVALUATIONS)
    callback = EpochCallback(epoch, measure, run.curve, checkpoints, rows=rows)
    remaining = run.steps - model.num_timesteps
    model.learn(remaining, callback, log_interval=10**9, reset_num_timesteps=found is None)
    callback.maybe_evaluate()
    with atomic_write(run.folder / "model.zip") as file:
        model.save(file)
    checkpoints.clear()
    return {"seconds": callback.rows[-1]["seconds"], "seconds_since_resumed": round(time.monotonic() - started, 1)}
