"""
Known robots with changed bodies: ContinuousCAPS beside its best source, SAC, training that goes on, CUP and IBRL.

``python -m benchmarks.continuous pendulum_gravity --methods caps sac --seeds 0 1 2 3 4`` leaves a file for each
run in a folder, goes on where it was interrupted, and prints a table.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_caps.continuous import ContinuousCAPS
from sb3_caps.cup import CUP
from sb3_caps.files.save_util import atomic_write
from sb3_caps.ibrl import IBRL

# Small networks and large steps, the same for all: a run takes a minute
SETTINGS: dict[str, Any] = {"learning_rate": 1e-3, "policy_kwargs": {"net_arch": [64, 64]}, "device": "cpu"}
LEARNERS: dict[str, type[Any]] = {"caps": ContinuousCAPS, "cup": CUP, "ibrl": IBRL}
METHODS = (*LEARNERS, "sac", "going_on", "best_source")
# Evaluations of what is learned so far, of how many episodes, and how many episodes at the end
EVALUATIONS, EPISODES, LAST_EPISODES = 10, 5, 20

Make = Callable[[], gym.Env]


@dataclass(frozen=True)
class BoxTask:
    """
    A robot, and those that the sources were trained with.

    :param make: makes the robot to learn
    :param n_steps: how long to learn
    :param sources: by name, what makes the robot of each source, and how long that was trained
    """

    make: Make
    n_steps: int
    sources: dict[str, tuple[Make, int]]


def pendulum(gravity: float = 10.0, mass: float = 1.0) -> gym.Env:
    """:return: a pendulum"""
    env = gym.make("Pendulum-v1", g=gravity)
    env.unwrapped.m = mass  # type: ignore[attr-defined]
    return env


class ReversedBelow(gym.ActionWrapper):
    """The motor of a pendulum turns the other way in the lower half."""

    def action(self, action: np.ndarray) -> np.ndarray:
        """:return: what the motor does"""
        return -action if np.cos(self.unwrapped.state[0]) < 0 else action  # type: ignore[attr-defined]


def double_pendulum(gravity: float = 1.0) -> gym.Env:
    """:return: a double pendulum on a cart, with another gravity (the extra ``mujoco``)"""
    env = gym.make("InvertedDoublePendulum-v5")
    env.unwrapped.model.opt.gravity[2] *= gravity  # type: ignore[attr-defined]
    return env


class HalfPlane(gym.Wrapper):
    """
    Reacher with targets on one side alone.

    :param env: Reacher
    :param side: 1 or -1
    """

    def __init__(self, env: gym.Env, side: int) -> None:
        super().__init__(env)
        self.side = side

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw targets until one is on the side."""
        observation, info = self.env.reset(seed=seed, options=options)
        while observation[4] * self.side < 0:
            observation, info = self.env.reset()
        return observation, info


def reacher(side: int = 0) -> gym.Env:
    """:return: an arm that reaches for a target, on one side or anywhere (the extra ``mujoco``)"""
    env = gym.make("Reacher-v5")
    return HalfPlane(env, side) if side else env


_PENDULUMS: dict[str, tuple[Make, int]] = {
    "original": (pendulum, 4000),
    "light": (lambda: pendulum(mass=0.7), 4000),
}
TASKS = {
    "pendulum_gravity": BoxTask(lambda: pendulum(gravity=13.0), 3000, _PENDULUMS),
    "pendulum_mass": BoxTask(lambda: pendulum(mass=1.5), 3000, _PENDULUMS),
    "pendulum_reversed": BoxTask(lambda: ReversedBelow(pendulum()), 3000, _PENDULUMS),
    "double_pendulum": BoxTask(
        lambda: double_pendulum(1.5),
        5000,
        {"double_original": (double_pendulum, 6000), "double_light": (lambda: double_pendulum(0.5), 6000)},
    ),
    "reacher": BoxTask(reacher, 8000, {"left": (lambda: reacher(-1), 3000), "right": (lambda: reacher(1), 3000)}),
}


class Evaluations(BaseCallback):
    """
    Evaluates what ``predict`` acts by, a few times in a run.

    :param make: makes the robot
    :param every: after how many steps each
    """

    def __init__(self, make: Make, every: int) -> None:
        super().__init__()
        self.make, self.every = make, every
        self.means: list[float] = []

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            state = th.random.get_rng_state(), np.random.get_state()
            self.means.append(mean_return(self.model, self.make, EPISODES, seed=10_000))
            th.random.set_rng_state(state[0])
            np.random.set_state(state[1])
        return True


def mean_return(model: BaseAlgorithm, make: Make, n_episodes: int, seed: int) -> float:
    """:return: what a model is paid in an episode on average, each in an environment of its own"""
    env = DummyVecEnv([lambda: Monitor(make())] * n_episodes)
    env.seed(seed)
    mean, _ = evaluate_policy(model, env, n_episodes, warn=False)
    return float(np.mean(mean))


def source_files(task: BoxTask, folder: Path) -> list[Path]:
    """:return: the sources of a task, trained where they are not there yet"""
    files = [folder / "sources" / f"{name}.zip" for name in task.sources]
    for file, (make, n_steps) in zip(files, task.sources.values(), strict=True):
        if not file.exists():
            SAC("MlpPolicy", make(), seed=100, **SETTINGS).learn(n_steps).save(file)
    return files


def run(name: str, method: str, seed: int, folder: Path) -> dict[str, Any]:
    """
    :param name: of the task
    :param method: one of ``METHODS``
    :param seed: of the run
    :param folder: where results and sources are
    :return: the means of the evaluations, and of more episodes at the end
    """
    file = folder / f"{name}-{method}-{seed}.json"
    if file.exists():
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    task = TASKS[name]
    files = source_files(task, folder)
    begun, evaluations = time.monotonic(), Evaluations(task.make, task.n_steps // EVALUATIONS)
    model: Any
    if method in ("best_source", "going_on"):
        models = [SAC.load(each, device="cpu") for each in files]
        model = models[int(np.argmax([mean_return(each, task.make, LAST_EPISODES, seed=30_000) for each in models]))]
        model.set_env(DummyVecEnv([lambda: Monitor(task.make())]))
        model.set_random_seed(seed)
    elif method == "sac":
        model = SAC("MlpPolicy", task.make(), seed=seed, **SETTINGS)
    else:
        model = LEARNERS[method]("MlpPolicy", task.make(), seed=seed, source_policies=files, **SETTINGS)
    if method != "best_source":
        model.learn(task.n_steps, callback=evaluations)
    end = mean_return(model, task.make, LAST_EPISODES, seed=20_000)
    found = {"curve": evaluations.means or [end], "end": end, "seconds": time.monotonic() - begun}
    with atomic_write(file) as opened:
        opened.write(json.dumps(found).encode())
    return found


def table(names: list[str], methods: list[str], seeds: list[int], folder: Path) -> str:
    """:return: for each task and method the mean over the run and the end, with standard deviations over seeds"""
    lines = ["| task | method | seeds | mean over the run | end |", "| --- | --- | --- | --- | --- |"]
    for name in names:
        for method in methods:
            runs = [run(name, method, seed, folder) for seed in seeds]
            means, ends = [float(np.mean(each["curve"])) for each in runs], [each["end"] for each in runs]
            cells = [f"{np.mean(values):.0f} ± {np.std(values):.0f}" for values in (means, ends)]
            lines.append(f"| {name} | {method} | {len(seeds)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, seed by seed, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.continuous")
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["caps", "sac", "going_on", "best_source"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--folder", type=Path, default=Path("runs/continuous"))
    given = parser.parse_args(arguments)
    th.set_num_threads(1)
    for seed in given.seeds:
        for name in given.tasks:
            for method in given.methods:
                found = run(name, method, seed, given.folder)
                print(name, method, seed, f"{np.mean(found['curve']):.0f} {found['end']:.0f}", flush=True)
    print(table(given.tasks, given.methods, given.seeds, given.folder))


if __name__ == "__main__":
    main()
