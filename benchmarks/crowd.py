"""
Fifty sources of which three are useful, beside the three alone: ``python -m benchmarks.crowd``.

The pole of three times the length has three PPO models of the usual one, the errand has the ways to three of its four
places. The others are networks with random weights, other ones for each seed, in a random order, or after the useful
ones: the order of a library that knows returns on earlier tasks. It trains the sources, keeps every run in ``--folder``
and goes on where it was.
"""

import argparse
import json
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.report import Result, clock, machine, table
from benchmarks.throughput import rates
from sb3_caps import CAPS
from sb3_caps.reuse.evaluation import discounted_returns
from sb3_caps.sources import SourcePolicy, as_source
from sb3_caps.studies.reuse.runs import NO_ARGUMENTS
from sb3_caps.studies.reuse.sources import random_networks
from sb3_caps.studies.reuse.tasks import Task, get_task
from sb3_caps.studies.reuse.training import arguments
from sb3_caps.studies.reuse.worlds import BatchedVecEnv
from sb3_caps.studies.reuse.worlds.classic import CartPole
from sb3_caps.studies.shared.runs import write_json
from sb3_caps.studies.shared.statistics import Interval
from sb3_caps.studies.shared.tables import markdown

FEW, MANY = 3, 50
# How many, and whether the useful ones come first
SETS = {"3": (FEW, False), "50": (MANY, False), "50, useful ones first": (MANY, True)}
TASKS = ("cartpole-long", "delivery")
# What counts as 0 and 1 on the pole, whose suite has trained a reference
SCALES = {"cartpole-long": (20.0, 500.0)}
EVALUATIONS, SOURCE_STEPS = 16, 10_000


def useful_sources(task: Task, folder: Path) -> list[SourcePolicy]:
    """
    :param task: a task of the reuse suite
    :param folder: where trained models are kept
    :return: three policies that are of use there
    """
    if task.kind != "classic":
        return [as_source(source) for source in task.helpful(folder)[:FEW]]
    found = []
    for seed in range(FEW):
        path = folder / f"ppo_{seed}.zip"
        if not path.is_file():
            env = BatchedVecEnv(CartPole(), 8, seed)
            PPO("MlpPolicy", env, n_steps=256, seed=seed, device="cpu").learn(SOURCE_STEPS).save(path)
        found.append(as_source(path))
    return found


class Curve(BaseCallback):
    """
    Evaluate the model on its way, off the clock.

    :param task: the task
    :param seed: of the environments
    """

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__()
        self.task, self.episodes = task, task.settings["episodes"]
        self.env = task.make_env(self.episodes, 1_000_000 + seed)
        self.returns: list[float] = []
        self.seconds = 0.0

    def _on_step(self) -> bool:
        if self.num_timesteps * EVALUATIONS >= (len(self.returns) + 1) * self.task.steps:
            begin = clock()
            found = discounted_returns(self.model, self.env, self.task.discount, self.episodes)
            self.returns.append(float(found.mean()))
            self.seconds += clock() - begin
        return True


def run(name: str, number: int, first: bool, seed: int, folder: Path) -> dict[str, Any]:
    """
    :param name: of a task of the reuse suite
    :param number: of sources
    :param first: whether the useful ones come first
    :param seed: of the run
    :param folder: where it is kept
    :return: the area under the curve of evaluations, that of the last quarter, and steps a second
    """
    file = folder / f"{name}_{number}{'_first' * first}_{seed}.json"
    if not file.is_file():
        task = get_task(name)
        kind, useful = task.settings, useful_sources(task, folder)
        others = random_networks(task, kind["net_arch"], number - len(useful), seed)
        order = np.arange(number) if first else np.random.default_rng(seed).permutation(number)
        model = CAPS(
            "MlpPolicy",
            task.make_env(kind["n_envs"], seed),
            source_policies=[[*useful, *others][i] for i in order],
            seed=seed,
            device="cpu",
            policy_kwargs={"net_arch": list(kind["net_arch"])},
            **arguments(kind, *NO_ARGUMENTS),
        )
        callback, begin = Curve(task, seed), clock()
        model.learn(task.steps, callback, log_interval=10**9)
        seconds = clock() - begin - callback.seconds
        low, high = SCALES.get(name) or task.scale
        shares = (np.array(callback.returns) - low) / (high - low)
        last = shares[-EVALUATIONS // 4 :].mean()
        write_json(file, {"area": shares.mean(), "last": last, "rate": task.steps / seconds, "shares": shares.tolist()})
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def lean(angle: float, observations: np.ndarray) -> np.ndarray:
    """A rule for the pole: push to where it leans further than this."""
    return (observations[:, 2] > angle).astype(np.int64)


def speed(kind: str) -> Result:
    """
    :param kind: of sources: "networks" or "functions"
    :return: steps a second with fifty sources beside three, in one environment, where asking them weighs most
    """
    env, models = BatchedVecEnv(CartPole(), 1, 0), []
    for number in (FEW, MANY):
        functions = {f"lean_{i}": partial(lean, i / 100) for i in range(number)}
        networks = {f"network_{i}": DQN("MlpPolicy", env, buffer_size=1, seed=i, device="cpu") for i in range(number)}
        given = functions if kind == "functions" else networks
        model = CAPS("MlpPolicy", BatchedVecEnv(CartPole(), 1, 0), source_policies=given, seed=0, learning_starts=500)
        models.append(model.learn(700))
    few, many = rates(models, 300, 3)
    return Result(f"{MANY} {kind} beside {FEW}", many, few, "steps/s", many / few)


def main(argv: Sequence[str] | None = None) -> None:
    """
    Measure what is missing and print.

    :param argv: the arguments of the command
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd", description=__doc__)
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(40, 45)))
    parser.add_argument("--folder", type=Path, default=Path("results/crowd"))
    parser.add_argument("--speed", action="store_true", help="measure steps a second alone, in one environment")
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    th.set_num_threads(1)
    print(f"Measured on {machine()}\n")
    if args.speed:
        print(table([speed("functions"), speed("networks")]))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in args.task:
        by_seed = [{label: run(name, *each, seed, args.folder) for label, each in SETS.items()} for seed in args.seeds]
        alone = [found[str(FEW)] for found in by_seed]
        for label in SETS:
            results = [found[label] for found in by_seed]
            intervals = [str(Interval.of([each[key] for each in results])) for key in ("area", "last")]
            area = np.mean([each["area"] for each in results]) / np.mean([each["area"] for each in alone])
            rate = np.median([each["rate"] / other["rate"] for each, other in zip(results, alone, strict=True)])
            rows.append([name, label, *intervals, f"{area:.2f}", f"{rate:.2f}"])
    print(markdown(["task", "sources", "area", "last quarter", "area beside 3", "steps/s beside 3"], rows))


if __name__ == "__main__":
    main()
