"""
Known robots with changed bodies: ContinuousCAPS beside its best source, SAC, training that goes on, and its relatives.

``python -m benchmarks.continuous pendulum_gravity --methods caps sac --seeds 0 1 2 3 4`` leaves a file for each
run in a folder, goes on where it was interrupted, and prints a table. ``--shown`` runs nothing, and ``--json`` writes
what the table is of to one file. ``--speed 1000`` measures steps a second beside SAC's instead.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from sb3_caps.jump_start import ContinuousJumpStart
from sb3_caps.studies.shared.statistics import Interval

# Small networks and large steps, the same for all: a run takes a minute
SETTINGS: dict[str, Any] = {"learning_rate": 1e-3, "policy_kwargs": {"net_arch": [64, 64]}, "device": "cpu"}
LEARNERS: dict[str, type[Any]] = {"caps": ContinuousCAPS, "cup": CUP, "ibrl": IBRL, "jump_start": ContinuousJumpStart}
# The last one is the better of the two before it, known without a step: no portfolio of them does better
METHODS = (*LEARNERS, "going_on", "sac", "best_source", "portfolio")
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


def pendulum(gravity: float = 10.0, mass: float = 1.0, length: float = 1.0) -> gym.Env:
    """:return: a pendulum"""
    env = gym.make("Pendulum-v1", g=gravity)
    env.unwrapped.m, env.unwrapped.l = mass, length  # type: ignore[attr-defined]
    return env


class ReversedBelow(gym.ActionWrapper):
    """The motor of a pendulum turns the other way in the lower half."""

    def action(self, action: np.ndarray) -> np.ndarray:
        """:return: what the motor does"""
        return -action if np.cos(self.unwrapped.state[0]) < 0 else action  # type: ignore[attr-defined]


def lander(wind: float = 0.0) -> gym.Env:
    """:return: a lander with two engines, in wind of some strength (the extra ``box2d`` of Gymnasium)"""
    return gym.make("LunarLanderContinuous-v3", enable_wind=wind > 0, wind_power=wind)


def body(name: str, gravity: float = 1.0, torso: float = 1.0, gears: float = 1.0, friction: float = 1.0) -> gym.Env:
    """
    A robot of MuJoCo with a changed body (the extra ``robots``).

    :param name: its id
    :param gravity: by what to multiply gravity
    :param torso: the mass of its first part
    :param gears: what its motors can do
    :param friction: how it holds to what it touches
    :return: the robot
    """
    env = gym.make(name)
    model: Any = env.unwrapped.model  # type: ignore[attr-defined]
    model.opt.gravity[2] *= gravity
    model.body_mass[1] *= torso
    model.actuator_gear[:, 0] *= gears
    model.geom_friction[:, 0] *= friction
    return env


class Half(gym.Wrapper):
    """
    A task that starts on one side alone.

    :param env: the task
    :param place: of the observed coordinate that tells the side
    :param middle: its value between the sides
    :param side: 1 or -1
    """

    def __init__(self, env: gym.Env, place: int, middle: float, side: int) -> None:
        super().__init__(env)
        self.place, self.middle, self.side = place, middle, side

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw until it is on the side."""
        observation, info = self.env.reset(seed=seed, options=options)
        while (observation[self.place] - self.middle) * self.side < 0:
            observation, info = self.env.reset()
        return observation, info


def _reacher(side: int) -> Make:
    """By the first coordinate of the target."""
    return lambda: Half(body("Reacher-v5"), 4, 0.0, side)


def _pusher(side: int) -> Make:
    """By the first coordinate of what is to be pushed."""
    return lambda: Half(body("Pusher-v5"), 17, 0.45, side)


_PENDULUMS: dict[str, tuple[Make, int]] = {
    "original": (pendulum, 4000),
    "light": (lambda: pendulum(mass=0.7), 4000),
}
_DOUBLE_PENDULUMS: dict[str, tuple[Make, int]] = {
    "double_original": (lambda: body("InvertedDoublePendulum-v5"), 6000),
    "double_light": (lambda: body("InvertedDoublePendulum-v5", gravity=0.5), 6000),
}
# Each knows one half
_REACHERS: dict[str, tuple[Make, int]] = {"left": (_reacher(-1), 3000), "right": (_reacher(1), 3000)}


def _bodies(name: str, n_steps: int) -> dict[str, tuple[Make, int]]:
    short = name.partition("-")[0].lower()
    return {
        f"{short}_original": (lambda: body(name), n_steps),
        f"{short}_slippery": (lambda: body(name, friction=0.6), n_steps),
    }


TASKS = {
    "pendulum_gravity": BoxTask(lambda: pendulum(gravity=13.0), 3000, _PENDULUMS),
    "pendulum_mass": BoxTask(lambda: pendulum(mass=1.5), 3000, _PENDULUMS),
    "pendulum_length": BoxTask(lambda: pendulum(length=1.3), 3000, _PENDULUMS),
    "pendulum_reversed": BoxTask(lambda: ReversedBelow(pendulum()), 3000, _PENDULUMS),
    "double_pendulum": BoxTask(lambda: body("InvertedDoublePendulum-v5", gravity=1.5), 5000, _DOUBLE_PENDULUMS),
    "double_pendulum_cart": BoxTask(
        lambda: body("InvertedDoublePendulum-v5", torso=2.0, gears=0.7), 3000, _DOUBLE_PENDULUMS
    ),
    "reacher": BoxTask(lambda: body("Reacher-v5"), 5000, _REACHERS),
    "reacher_weak": BoxTask(lambda: body("Reacher-v5", gears=0.6), 3000, _REACHERS),
    "pusher": BoxTask(lambda: body("Pusher-v5"), 10_000, {"near": (_pusher(-1), 6000), "far": (_pusher(1), 6000)}),
    "hopper": BoxTask(lambda: body("Hopper-v5", torso=1.5), 10_000, _bodies("Hopper-v5", 10_000)),
    "half_cheetah": BoxTask(
        lambda: body("HalfCheetah-v5", torso=1.5, gears=0.8), 10_000, _bodies("HalfCheetah-v5", 10_000)
    ),
    "lander": BoxTask(
        lambda: lander(15.0),
        10_000,
        {"calm": (lander, 10_000), "breeze": (lambda: lander(5.0), 10_000)},
    ),
}
# The same with sources that were never trained
TASKS |= {
    f"{name}_useless": replace(task, sources={f"{name}_random_{i}": (task.make, 0) for i in (1, 2)})
    for name, task in TASKS.items()
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
    for i, (file, (make, n_steps)) in enumerate(zip(files, task.sources.values(), strict=True)):
        if not file.exists():
            # Those that were never trained are not to be alike
            SAC("MlpPolicy", make(), seed=100 if n_steps else 100 + i, **SETTINGS).learn(n_steps).save(file)
    return files


def run(name: str, method: str, seed: int, folder: Path) -> dict[str, Any]:
    """
    :param name: of the task
    :param method: one of ``METHODS``
    :param seed: of the run
    :param folder: where results and sources are
    :return: the means of the evaluations, and of more episodes at the end
    """
    if method == "portfolio":
        return _better(run(name, "sac", seed, folder), run(name, "best_source", seed, folder))
    found = _known(name, method, seed, folder)
    if found is not None:
        return found
    file, task = folder / f"{name}-{method}-{seed}.json", TASKS[name]
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


def _known(name: str, method: str, seed: int, folder: Path) -> dict[str, Any] | None:
    """:return: what came of a run, None where it was not made yet"""
    if method == "portfolio":
        parts = [_known(name, part, seed, folder) for part in ("sac", "best_source")]
        return None if parts[0] is None or parts[1] is None else _better(parts[0], parts[1])
    file = folder / f"{name}-{method}-{seed}.json"
    return json.loads(file.read_text()) if file.exists() else None


def _better(learned: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    return {
        "curve": np.maximum(learned["curve"], np.mean(source["curve"])).tolist(),
        "end": max(learned["end"], source["end"]),
        "seconds": learned["seconds"] + source["seconds"],
    }


Runs = dict[str, dict[str, dict[int, dict[str, Any]]]]


def known_runs(names: list[str], methods: list[str], seeds: list[int], folder: Path) -> Runs:
    """:return: by task, method and seed what came of the runs that were made"""
    found: Runs = {}
    for name in names:
        for method in methods:
            runs = {seed: known for seed in seeds if (known := _known(name, method, seed, folder)) is not None}
            if runs:
                found.setdefault(name, {})[method] = runs
    return found


def table(runs: Runs) -> str:
    """
    :param runs: by task, method and seed
    :return: for each task and method the mean over the run and the end, with 95% intervals over seeds
    """
    lines = ["| task | method | seeds | mean over the run | end |", "| --- | --- | --- | --- | --- |"]
    for name, methods in runs.items():
        for method, by_seed in methods.items():
            means = [float(np.mean(each["curve"])) for each in by_seed.values()]
            cells = [Interval.of(values) for values in (means, [each["end"] for each in by_seed.values()])]
            told = [
                f"{each.mean:.0f} ± {each.half_width:.0f}" if len(by_seed) > 1 else f"{each.mean:.0f}" for each in cells
            ]
            lines.append(f"| {name} | {method} | {len(by_seed)} | {' | '.join(told)} |")
    return "\n".join(lines)


def speeds(n_steps: int) -> dict[int, float]:
    """
    :param n_steps: how many steps to measure, in two turns of each
    :return: by number of sources, the steps of ContinuousCAPS in a second of processor time, divided by SAC's
    """
    models: dict[int | None, Any] = {None: SAC("MlpPolicy", pendulum(), seed=0, **SETTINGS)}
    for n in (0, 1, 4, 16):
        sources = {f"source_{i}": SAC("MlpPolicy", pendulum(), seed=i, **SETTINGS) for i in range(n)}
        # No more than one episode without gradient steps
        arguments: dict[str, Any] = {"source_policies": sources, "selection_kwargs": {"survey_share": 0.0}}
        models[n] = ContinuousCAPS("MlpPolicy", pendulum(), seed=0, **arguments, **SETTINGS)
    for model in models.values():
        model.learn(400)
    spent = dict.fromkeys(models, 0.0)
    for _ in range(2):
        for name, model in models.items():
            begun = time.process_time()
            model.learn(n_steps // 2, reset_num_timesteps=False)
            spent[name] += time.process_time() - begun
    return {name: spent[None] / seconds for name, seconds in spent.items() if name is not None}


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, seed by seed, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.continuous")
    parser.add_argument("tasks", nargs="*", metavar="task", help=f"one of {', '.join(TASKS)}")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["caps", "sac", "going_on", "best_source"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--folder", type=Path, default=Path("runs/continuous"))
    parser.add_argument("--shown", action="store_true", help="run nothing, and print what is there")
    parser.add_argument("--speed", type=int, metavar="STEPS", help="measure speed beside SAC in so many steps")
    parser.add_argument("--json", type=Path, help="where to write what came of all runs of the table")
    given = parser.parse_args(arguments)
    unknown = set(given.tasks) - TASKS.keys()
    if unknown or not (given.tasks or given.speed):
        parser.error(f"pass tasks out of {', '.join(TASKS)}, not {sorted(unknown)}, or --speed")
    th.set_num_threads(1)
    if given.speed:
        for n_sources, ratio in speeds(given.speed).items():
            print(f"{n_sources} sources: {ratio:.2f} of SAC's steps a second")
        return
    if not given.shown:
        for seed in given.seeds:
            for name in given.tasks:
                for method in given.methods:
                    found = run(name, method, seed, given.folder)
                    print(name, method, seed, f"{np.mean(found['curve']):.0f} {found['end']:.0f}", flush=True)
    runs = known_runs(given.tasks, given.methods, given.seeds, given.folder)
    if given.json is not None:
        with atomic_write(given.json) as opened:
            opened.write(json.dumps(runs).encode())
    print(table(runs))


if __name__ == "__main__":
    main()
