"""
Fifty sources of which three are useful, beside the three alone: ``python -m benchmarks.crowd``.

The pole of three times the length has three PPO models of the usual one, the errand has the ways to three of its four
places. The others are networks with random weights, other ones for each seed, in a random order. It trains the sources,
keeps every run in ``--folder`` and goes on where it was.
"""

import argparse
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.report import clock, machine
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


def run(name: str, number: int, seed: int, folder: Path) -> dict[str, Any]:
    """
    :param name: of a task of the reuse suite
    :param number: of sources
    :param seed: of the run
    :param folder: where it is kept
    :return: the area under the curve of evaluations, that of the last quarter, and steps a second
    """
    file = folder / f"{name}_{number}_{seed}.json"
    if not file.is_file():
        task = get_task(name)
        kind, useful = task.settings, useful_sources(task, folder)
        others = random_networks(task, kind["net_arch"], number - len(useful), seed)
        order = np.random.default_rng(seed).permutation(number)
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


def main(argv: Sequence[str] | None = None) -> None:
    """
    Measure what is missing and print.

    :param argv: the arguments of the command
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd", description=__doc__)
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(40, 45)))
    parser.add_argument("--folder", type=Path, default=Path("results/crowd"))
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    th.set_num_threads(1)
    args.folder.mkdir(parents=True, exist_ok=True)
    print(f"Measured on {machine()}\n")
    rows = []
    for name in args.task:
        found = [[run(name, number, seed, args.folder) for number in (FEW, MANY)] for seed in args.seeds]
        columns = {key: np.array([[each[key] for each in pair] for pair in found]) for key in ("area", "last", "rate")}
        ratio = columns["area"][:, 1].mean() / columns["area"][:, 0].mean()
        speed = np.median(columns["rate"][:, 1] / columns["rate"][:, 0])
        for i, number in enumerate((FEW, MANY)):
            cells = [str(Interval.of(columns[key][:, i])) for key in ("area", "last")]
            rows.append([name, str(number), *cells, f"{ratio:.2f}" if i else "1", f"{speed:.2f}" if i else "1"])
    print(markdown(["task", "sources", "area", "last quarter", "area beside 3", "steps/s beside 3"], rows))


if __name__ == "__main__":
    main()
