"""Folders of runs, as rl_zoo3 leaves them: which of them have a model, and the environment of a run."""

import itertools
from pathlib import Path
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.extras import require

zoo_utils = require("rl_zoo3.utils", "zoo")
yaml = require("yaml", "zoo")

_ZOO_CREATE_TEST_ENV = zoo_utils.create_test_env


def latest_run_id(log_path: str | Path, env_name: str) -> int:
    """
    Find the latest run, as rl_zoo3 does, among those that have a model: an optimisation has none.

    :param log_path: the folder of an algorithm
    :param env_name: the environment, as folders are named after it
    :return: its number, 0 if there is none
    """
    numbers = [run.name[len(env_name) + 1 :] for run in Path(log_path).glob(f"{env_name}_*") if model_of(run, env_name)]
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def make_run_folder(path: str | Path) -> Path:
    """
    Make the folder of a new run, which no other run has: of several that start at once rl_zoo3 gives all the same
    number.

    :param path: ``<environment>_<number>``, the first to try; one without a number is made as it is
    :return: the folder, with this number or a higher one
    """
    path = Path(path)
    name, _, number = path.name.rpartition("_")
    numbered = (path.with_name(f"{name}_{i}") for i in itertools.count(int(number))) if number.isdigit() else [path]
    for folder in numbered:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{path} is there already.")


def model_of(run: Path, env_name: str) -> Path | None:
    """
    :param run: the folder of a run
    :param env_name: the environment, as folders are named after it
    :return: its best model; the last one where none was evaluated, the latest checkpoint where it did not end; None
        where it has none
    """
    checkpoints = sorted(run.glob("rl_model_*_steps.zip"), key=lambda file: int(file.stem.split("_")[-2]), reverse=True)
    return next(filter(Path.is_file, (run / "best_model.zip", run / f"{env_name}.zip", *checkpoints)), None)


def latest_model(algo: str, env_id: str, log_folder: str) -> Path:
    """
    :param algo: the name of an algorithm
    :param env_id: the environment
    :param log_folder: where runs are
    :return: the model of its latest run
    """
    env_name = str(zoo_utils.EnvironmentName(env_id))
    number = latest_run_id(Path(log_folder, algo), env_name)
    found = model_of(Path(log_folder, algo, f"{env_name}_{number}"), env_name)
    if found is None:
        raise FileNotFoundError(
            f"There is no trained {algo} for {env_id} in {log_folder}: "
            f"sb3-caps train --algo {algo} --env {env_id} -f {log_folder} makes one."
        )
    return found


def create_test_env(*args: Any, hyperparams: dict[str, Any], env_kwargs: dict[str, Any], **others: Any) -> VecEnv:
    """
    As rl_zoo3's, with the arguments of the environment that are in the config: its recording forgets them.

    :param args: see rl_zoo3
    :param hyperparams: of the saved config
    :param env_kwargs: arguments of the environment in place of those in the config
    :param others: see rl_zoo3
    :return: the environment of a run
    """
    env_kwargs = {**hyperparams.pop("env_kwargs", {}), **env_kwargs}
    return _ZOO_CREATE_TEST_ENV(*args, hyperparams=hyperparams, env_kwargs=env_kwargs, **others)


def run_environment(params: Path, env_id: str | None = None, frames: bool = False) -> tuple[str, VecEnv]:
    """
    Make the environment of a run, with the wrappers, arguments and statistics that it was trained with.

    :param params: the folder of its ``config.yml``
    :param env_id: another environment, None for its own
    :param frames: whether to draw pictures, where the environment can
    :return: its id, and one environment
    """
    hyperparams, stats_path = zoo_utils.get_saved_hyperparams(str(params), test_mode=True)
    arguments = yaml.unsafe_load((params / "args.yml").read_text())
    env_id = env_id or str(arguments["env"])
    env_kwargs = dict(arguments["env_kwargs"] or {})
    try:
        if frames and "rgb_array" in _render_modes(env_id, {**hyperparams.get("env_kwargs", {}), **env_kwargs}):
            env_kwargs["render_mode"] = "rgb_array"
        given = {"hyperparams": hyperparams, "env_kwargs": env_kwargs}
        return env_id, create_test_env(env_id, stats_path=stats_path, should_render=False, **given)
    except gym.error.Error as error:
        raise ValueError(str(error)) from error


def _render_modes(env_id: str, env_kwargs: dict[str, Any]) -> list[str]:
    env = gym.make(env_id, **env_kwargs)
    env.close()
    return env.metadata.get("render_modes") or []
