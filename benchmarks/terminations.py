"""
Is β right? As a classifier of "the action of this source is not the best one here", against the planner, and as what
ends options: call-and-return beside interruption. With networks (CAPS's defaults) on the grid and on errands, and with
tables (the paper's rule) on the grid: ``python -m benchmarks.terminations --seeds 20 21 22``. Beside β: how well the
option values tell the same, which is what β can learn from them. Monster Kong's study has a table of its own.
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
from sb3_caps.caps.gate import OPTIONS
from sb3_caps.envs.grid import GridMap, plan
from sb3_caps.envs.grid.batched import GridTask
from sb3_caps.reuse.evaluation import discounted_returns
from sb3_caps.reuse.execution import Execution
from sb3_caps.studies.monster_kong.analysis import lost_by_sources
from sb3_caps.studies.reuse.catalogue import delivery, key_and_door
from sb3_caps.studies.reuse.runs import build
from sb3_caps.studies.reuse.tasks import get_task
from sb3_caps.studies.shared.statistics import roc_area
from sb3_caps.studies.shared.tables import markdown
from sb3_caps.tabular import CAPSConfig, Experiment, TabularCAPS

ERRANDS = {"key-door": key_and_door, "delivery": delivery}
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
    return area(terminations, is_worse(actions, values), values.max(axis=1) > 0)


def is_worse(actions: np.ndarray, values: np.ndarray, reward: float = 1.0) -> np.ndarray:
    """
    :param actions: the action of each source in each state
    :param values: that of each action in each state
    :param reward: at the goal
    :return: whether the action of each source is not the best one
    """
    return values.max(axis=1, keepdims=True) - np.take_along_axis(values, actions, axis=1) > ALIKE * reward


def truth(name: str, gamma: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """
    :param name: a task of the reuse suite
    :param gamma: the discount factor of the learner
    :return: the observation of each state, the planner's value of each action there, in which states there is something
        to do, and the reward at the goal
    """
    if name in TASKS:
        values = plan(*TASKS[name]).action_values
        return np.arange(len(values)), values, values.max(axis=1) > 0, 1.0
    world = ERRANDS[name]()
    every = world.action_values(gamma)
    errands, visited, cells = np.indices(every.shape[:3]).reshape(3, -1)
    # Where the place to go to is reached, another part of the errand begins, or nothing
    going = cells != world.cells_of_places[world.errands[errands, visited]]
    states = np.stack([cells, errands, visited], axis=1)
    return world.observe(states), every.reshape(len(states), -1), going, world.reward


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
    # Whoever the model acts by: this is about its options
    model.gate.controller = OPTIONS
    observations, exact, reachable, reward = truth(name, model.gamma)
    values, beta = model.policy.values_and_terminations(observations)
    starts = np.ones(len(observations), dtype=bool)
    actions, _ = model.options.actions(observations, model.options.initial_states(), starts)
    returns = []
    for mode in get_args(Execution):
        model.policy.execution_mode = mode
        env, (low, high) = task.make_env(100, seed), task.scale
        returns.append((discounted_returns(model, env, task.discount, EPISODES).mean() - low) / (high - low))
    sources = actions[:, : model.options.n_sources]
    scores = (beta[:, : model.options.n_sources], lost_by_sources(values, actions, sources))
    found = [area(each, is_worse(sources, exact, reward), reachable) for each in scores]
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.terminations", description=__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[20, 21, 22])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    th.set_num_threads(1)
    rows = [row for name in TASKS for reward in (1.0, 10.0) for row in with_tables(name, args.seeds, reward)]
    rows += [with_networks(name, seed) for name in (*TASKS, *ERRANDS) for seed in args.seeds]
    print(f"Measured on {machine()}\n")
    print(
        markdown(["task", "learner", "seed", "area under the ROC curve", "of the values", *get_args(Execution)], rows)
    )


if __name__ == "__main__":
    main()
