"""
Is β right? As a classifier of "the action of this source is not the best one here", against the planner, and as what
ends options: call-and-return beside interruption. On the grid, with networks (CAPS's defaults) and with tables (the
paper's rule): ``python -m benchmarks.terminations --seeds 20 21 22``. With ``--monster-kong`` on Monster Kong from
features instead, with the preset of its study but β learned as by default, 7 minutes a run. Beside β: how well the
option values tell the same, which is what β can learn from them.
"""

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import torch as th

from benchmarks.report import machine
from sb3_caps import CAPS
from sb3_caps.common.evaluation import discounted_returns
from sb3_caps.common.execution import Execution
from sb3_caps.envs.grid import GridMap, plan
from sb3_caps.envs.grid.batched import GridTask
from sb3_caps.envs.monster_kong.vec_env import MonsterKongVecEnv
from sb3_caps.studies.monster_kong.analysis import lost_by_sources
from sb3_caps.studies.monster_kong.evaluation import ExactEvaluation
from sb3_caps.studies.monster_kong.methods import TASKS as KONG_TASKS
from sb3_caps.studies.monster_kong.methods import arguments_of, entry_of, horizon_of
from sb3_caps.studies.monster_kong.sources import make_sources
from sb3_caps.studies.reuse.runs import build
from sb3_caps.studies.reuse.tasks import get_task
from sb3_caps.studies.shared.statistics import roc_area
from sb3_caps.studies.shared.tables import markdown
from sb3_caps.tabular import CAPSConfig, Experiment, TabularCAPS

TASKS = {"grid-g": ("rooms", "g"), "grid-g-prime": ("rooms", "g'"), "grid-changed": ("rooms_changed", "g")}
SOURCES = ("G1", "G2", "G3", "G4")
EPISODES = 500
# Actions whose values differ by less than this share of the reward are as good as each other
ALIKE = 1e-3


def area(terminations: np.ndarray, worse: np.ndarray, reachable: np.ndarray) -> float:
    """
    :param terminations: β of each source in each state
    :param worse: whether the action of each source is not the best one there
    :param reachable: from which states the goal can be reached
    :return: the area under the ROC curve, over all sources and all such states
    """
    return roc_area(terminations[reachable][worse[reachable]], terminations[reachable][~worse[reachable]])


def area_on_grid(terminations: np.ndarray, actions: np.ndarray, map_name: str, goal: str) -> float:
    """
    :param terminations: β of each source in each cell
    :param actions: the action of each source in each cell
    :param map_name: the map
    :param goal: the goal
    :return: see ``area``
    """
    values = plan(map_name, goal).action_values
    worse = values.max(axis=1, keepdims=True) - np.take_along_axis(values, actions, axis=1) > ALIKE
    return area(terminations, worse, values.max(axis=1) > 0)


def with_networks(name: str, seed: int) -> list[str]:
    """
    :param name: a task of the reuse suite
    :param seed: of the run
    :return: a row of the table
    """
    task = get_task(name)
    config = {"task": name, "method": "caps", "sources": "helpful", "seed": seed}
    model = build(config, Path()).learn(task.steps, log_interval=10**9)
    assert isinstance(model, CAPS)
    cells = np.arange(GridMap.load(TASKS[name][0]).n_cells)
    values, beta = model.policy.values_and_terminations(cells)
    starts = np.ones(len(cells), dtype=bool)
    actions, _ = model.options.actions(cells, model.options.initial_states(), starts)
    returns = []
    for mode in get_args(Execution):
        model.policy.execution_mode = mode
        env = task.make_env(100, seed)
        returns.append(discounted_returns(model, env, task.discount, EPISODES).mean() / task.scale[1])
    sources = actions[:, : len(SOURCES)]
    scores = (beta[:, : len(SOURCES)], lost_by_sources(values, actions, sources))
    found = [area_on_grid(each, sources, *TASKS[name]) for each in scores]
    return [name, "networks", str(seed), *(f"{each:.2f}" for each in (*found, *returns))]


def with_tables(name: str, seeds: list[int], reward: float) -> Iterator[list[str]]:
    """
    :param name: a task of the reuse suite
    :param seeds: of the runs
    :param reward: at the goal
    :return: rows of the table
    """
    map_name, goal = TASKS[name]
    grid, policies = GridMap.load(map_name), [plan("rooms", source).policy for source in SOURCES]
    learner = TabularCAPS([CAPSConfig(policies)] * len(seeds), grid.n_cells)
    experiment = Experiment(
        learner, [GridTask(grid, goal)] * len(seeds), seeds=seeds, episodes=3000, rewards=[reward] * len(seeds)
    )
    experiment.run()
    greedy, sources = learner.greedy(), np.stack(policies, axis=1)
    for run, seed in enumerate(seeds):
        lost = lost_by_sources(learner.tables()["values"][run], greedy.actions[run], sources)
        found = [
            area_on_grid(scores, sources, map_name, goal)
            for scores in (greedy.termination[run][:, : len(SOURCES)], lost)
        ]
        yield [name, f"tables, reward {reward:g}", str(seed), *(f"{each:.2f}" for each in found), "", ""]


def with_monster_kong(name: str, seed: int, steps: int) -> list[str]:
    """
    :param name: a task of the Monster Kong study
    :param seed: of the run
    :param steps: of the run
    :return: a row of the table
    """
    setting, goal = KONG_TASKS[name]
    config = {"task": name, "method": "caps", "preset": "recommended", "observation": "features", "steps": steps}
    arguments = arguments_of(config)
    arguments["termination_kwargs"] |= {"learning_rate": None}
    sources = make_sources(setting, goal, "features", "planner", Path())
    env = MonsterKongVecEnv(entry_of(config)["n_envs"], setting, goal, "features", horizon_of(config))
    model = CAPS("MlpPolicy", env, source_policies=sources, seed=seed, **arguments).learn(steps, log_interval=10**9)
    evaluate = ExactEvaluation(setting, goal)
    observations, optimal = evaluate.observations, evaluate.plan.optimal
    values, beta = model.policy.values_and_terminations(observations)
    starts = np.ones(len(observations), dtype=bool)
    actions, _ = model.options.actions(observations, model.options.initial_states(), starts)
    of_sources, reachable = actions[:, : len(sources)], optimal.any(axis=1) & (evaluate.plan.steps > 0)
    scores = (beta[:, : len(sources)], lost_by_sources(values, actions, of_sources))
    found = [area(each, ~np.take_along_axis(optimal, of_sources, axis=1), reachable) for each in scores]
    returns = []
    for mode in get_args(Execution):
        model.policy.execution_mode = mode
        returns.append(evaluate(model).returns.mean() / evaluate.optimum)
    return [name, "networks", str(seed), *(f"{each:.2f}" for each in (*found, *returns))]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.terminations", description=__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[20, 21, 22])
    parser.add_argument("--monster-kong", action="store_true", help="in place of the grid")
    parser.add_argument("--steps", type=int, default=400_000, help="of a run on Monster Kong")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    th.set_num_threads(1)
    rows = []
    if args.monster_kong:
        rows = [with_monster_kong(name, seed, args.steps) for name in ("g1", "g2") for seed in args.seeds]
    else:
        for name in TASKS:
            rows += [row for reward in (1.0, 10.0) for row in with_tables(name, args.seeds, reward)]
            rows += [with_networks(name, seed) for seed in args.seeds]
    print(f"Measured on {machine()}\n")
    print(
        markdown(["task", "learner", "seed", "area under the ROC curve", "of the values", *get_args(Execution)], rows)
    )


if __name__ == "__main__":
    main()
