"""Goals of the grid, one after another, with the tabular learners of the paper."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sb3_caps.envs.grid import GridMap, GridTask, plan
from sb3_caps.envs.grid.dynamics import HORIZON
from sb3_caps.envs.grid.planner import evaluator
from sb3_caps.files.lock import one_at_a_time
from sb3_caps.studies.shared.runs import Run, write_json
from sb3_caps.studies.shared.statistics import first_reached, running_mean
from sb3_caps.tabular import PRQL, CAPSConfig, Experiment, Learner, PRQLConfig, QConfig, QLearning, TabularCAPS
from sb3_caps.tabular.base import GAMMA

METHODS = ("growing", "pruned", "latest", "plpr", "finetuning", "scratch")
MAP = "rooms"
# The named goals of the paper and four more cells, of which each run has an order of its own
GOALS: tuple[Any, ...] = ("G1", "G2", "G3", "G4", "g", "g'", (1, 10), (10, 2), (12, 18), (19, 10))
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

    :param method: one of ``METHODS``
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
