"""Training of the networks that the suite needs beforehand: sources, and policies that show what is possible."""

import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_caps.files.save_util import atomic_write
from sb3_caps.settings import settings
from sb3_caps.studies.reuse.catalogue import FAMILIES
from sb3_caps.studies.reuse.tasks import get_task
from sb3_caps.studies.shared.runs import Run
from sb3_caps.studies.shared.scheduler import run_missing, this_command

MODEL = "model.zip"
# What an entry says of a run and not of its algorithm
RUN_KEYS = ("algorithm", "env", "n_envs", "normalize", "steps", "seed")


def trainings() -> dict[str, dict[str, Any]]:
    """Return all that can be trained, by name."""
    return settings("reuse", "sources") | settings("reuse", "partial") | settings("reuse", "references")


def arguments(entry: dict[str, Any], *without: str) -> dict[str, Any]:
    """
    Read the arguments of an algorithm.

    :param entry: of ``zoo_configs/reuse.yml``
    :param without: what is not an argument of an algorithm
    :return: its arguments; ``{start, end, end_fraction}`` is a ``LinearSchedule``
    """
    return {
        key: LinearSchedule(**value) if isinstance(value, dict) and "start" in value else value
        for key, value in entry.items()
        if key not in without
    }


def make_training_env(name: str, n_envs: int, seed: int) -> VecEnv:
    """
    Make the environments that a source is trained in.

    :param name: a family (original rules), one with a minus before it (negated rewards), or a task
    :param n_envs: number of environments
    :param seed: of their random numbers
    :return: the environments
    """
    if name.startswith("-"):
        return FAMILIES[name[1:]](n_envs=n_envs, seed=seed, sign=-1.0)
    return FAMILIES[name](n_envs=n_envs, seed=seed) if name in FAMILIES else get_task(name).make_env(n_envs, seed)


def train(run: Run) -> None:
    """
    Train one network and keep it.

    :param run: whose config is an entry of ``sources`` or ``references``
    """
    entry = run.config
    seed = entry.get("seed", 0)
    env = make_training_env(entry["env"], entry["n_envs"], seed)
    if entry.get("normalize"):
        env = VecNormalize(env, gamma=entry["gamma"])
    algorithm = pkgutil.resolve_name(entry["algorithm"])
    model = algorithm("MlpPolicy", env, seed=seed, device="cpu", **arguments(entry, *RUN_KEYS))
    model.learn(entry["steps"])
    if isinstance(env, VecNormalize):
        # Where `as_source` looks for it, as rl_zoo3 does
        statistics = run.folder / "model" / "vecnormalize.pkl"
        statistics.parent.mkdir(exist_ok=True)
        env.save(str(statistics))
    with atomic_write(run.folder / MODEL) as file:
        model.save(file)


def train_missing(folder: Path, names: Sequence[str], jobs: int = 2) -> list[str]:
    """
    Train what is not there yet.

    :param folder: of all trained networks
    :param names: of what to train
    :param jobs: how many at a time
    :return: the errors of those that failed
    """
    known = trainings()
    runs = [Run(folder / name, known[name], known[name]["steps"], MODEL) for name in names]
    return run_missing(runs, train, jobs, command=this_command())
