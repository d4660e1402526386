"""Training of the networks that the suite needs beforehand: sources, and policies that show what is possible."""

import pkgutil
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_caps.common.evaluation import discounted_returns
from sb3_caps.studies.reuse.catalogue import FAMILIES
from sb3_caps.studies.reuse.settings import arguments, settings
from sb3_caps.studies.reuse.tasks import get_task

EVALUATION_SEED = 10_000
EVALUATION_ENVS = 20
NO_ARGUMENTS = ("algorithm", "env", "n_envs", "normalize", "steps", "seed")


def make_training_env(name: str, n_envs: int, seed: int) -> VecEnv:
    """
    :param name: a family (original rules), one with a minus before it (negated rewards), or a task
    :param n_envs: number of environments
    :param seed: of their random numbers
    :return: the environments
    """
    if name.startswith("-"):
        return FAMILIES[name[1:]](n_envs=n_envs, seed=seed, sign=-1.0)
    return FAMILIES[name](n_envs=n_envs, seed=seed) if name in FAMILIES else get_task(name).make_env(n_envs, seed)


def train(name: str, folder: Path) -> dict[str, Any]:
    """
    Train one network and keep it.

    :param name: of an entry of ``sources`` or ``references``
    :param folder: of all trained networks
    :return: what to remember of it
    """
    entry = (settings()["sources"] | settings()["references"])[name]
    seed = entry.get("seed", 0)
    env = make_training_env(entry["env"], entry["n_envs"], seed)
    if entry.get("normalize"):
        env = VecNormalize(env, gamma=entry["gamma"])
    algorithm = pkgutil.resolve_name(entry["algorithm"])
    model = algorithm("MlpPolicy", env, seed=seed, device="cpu", **arguments(entry, *NO_ARGUMENTS))
    model.learn(entry["steps"])
    (folder / name).mkdir(parents=True, exist_ok=True)
    if isinstance(env, VecNormalize):
        env.save(str(folder / name / "vecnormalize.pkl"))
    model.save(folder / name / "model.zip", exclude=["replay_buffer"])
    return {"name": name, "steps": entry["steps"], "seed": seed}


if __name__ == "__main__":
    import sys, time
    th.set_num_threads(1)
    folder = Path(sys.argv[1])
    names = sys.argv[2:] or list(settings()["sources"]) + list(settings()["references"])
    for name in names:
        if (folder / name / "model.zip").is_file(): continue
        t = time.time()
        train(name, folder)
        print(name, round(time.time() - t), "s", flush=True)
