"""rl_zoo3's commands as subcommands of ``sb3-caps``: its arguments, its folders, and our algorithms."""

import argparse
import functools
import runpy
import sys
from collections.abc import Callable, Sequence
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.extras import require
from sb3_caps.sources import with_masks
from sb3_caps.zoo import ALGORITHMS, register
from sb3_caps.zoo.manager import JUDGES, PolicyReuseManager
from sb3_caps.zoo.patching import replaced
from sb3_caps.zoo.runs import create_test_env, latest_run_id

zoo_train = require("rl_zoo3.train", "zoo")
zoo_utils = require("rl_zoo3.utils", "zoo")

TRAINING_HELP = """\
Settings come from the entry of the environment in zoo_configs/<algo>.yml, unless -conf names another file.
Source policies are part of them; -params gives others:

  -params source_policies:"['runs/a.zip', 'dqn:sb3_caps/GridG1-v0', 'package.module:function']"
                        paths, latest runs in the log folder, import strings
  --variant VARIANT     take the entry <env>@VARIANT: 'cpu' or 'paper' for the environments of this package
"""
TUNING_HELP = """\
  --judge {learner,model}
                        what the trials of CAPS are compared by: the learner alone (default), or the model, which may
                        act by a source whatever the hyperparameters are
"""


class _StoreDict(zoo_utils.StoreDict):  # type: ignore[name-defined]
    """rl_zoo3's ``key:value`` arguments, refused in one line when a value is not Python."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        try:
            super().__call__(parser, namespace, values, option)
        except (SyntaxError, NameError) as error:
            raise ValueError(
                f"{option} takes key:value with values in Python, not {' '.join(values)}: {error}"
            ) from error


class _ToWatch:
    """
    Loads a model with room for one transition, as rl_zoo3 does to enjoy the algorithms that it knows.

    :param algorithm: its class
    :param envs: the last ones are where it acts, by their action masks
    """

    def __init__(self, algorithm: type[BaseAlgorithm], envs: list[VecEnv]) -> None:
        self.algorithm, self.envs = algorithm, envs

    def load(self, *args: Any, **kwargs: Any) -> Any:
        return with_masks(self.algorithm.load(*args, **{"buffer_size": 1, **kwargs}), self.envs[-1])


def run_zoo(command: Callable[[], Any], name: str, argv: Sequence[str], help_text: str = "") -> int:
    """
    Run a command of rl_zoo3, which reads the arguments of the process.

    :param command: the command
    :param name: as the user calls it
    :param argv: its arguments
    :param help_text: what to say before rl_zoo3's own help
    :return: the exit code
    """
    if {"-h", "--help"} & set(argv):
        added = ", ".join(ALGORITHMS)
        print(f"sb3-caps {name}: rl_zoo3's command, with the algorithms {added} besides its own (caps by default).")
        print(f"{help_text}\nrl_zoo3's arguments:\n")
    with replaced(sys, argv=[f"sb3-caps {name}", *argv]):
        try:
            command()
        except AssertionError as error:
            # rl_zoo3 asserts what users pass
            if not error.args:
                raise
            raise ValueError(str(error)) from error
    return 0


def train(argv: Sequence[str], name: str = "train") -> int:
    """
    Train an agent with rl_zoo3.

    :param argv: the arguments of its command, and ``--variant``
    :param name: the command as the user calls it
    :return: the exit code
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--variant")
    parser.add_argument("-n", "--n-timesteps", type=int)
    parser.add_argument("--judge", choices=JUDGES)
    args, others = parser.parse_known_args(argv)
    if args.n_timesteps is not None:
        if args.n_timesteps < 1:
            raise ValueError(f"-n must be at least 1, not {args.n_timesteps}: leave it out for those of the config.")
        others += ["-n", str(args.n_timesteps)]
    if "--track" in others:
        require("wandb", "track")
    register()
    if args.judge is not None and not {"-optimize", "--optimize-hyperparameters"} & set(others):
        raise ValueError("--judge is for trials: sb3-caps optimize takes it.")
    manager = functools.partial(PolicyReuseManager, variant=args.variant, judge=args.judge or JUDGES[0])
    with replaced(zoo_train, ExperimentManager=manager, StoreDict=_StoreDict):
        return run_zoo(zoo_train.train, name, ["--algo", "caps", *others], TRAINING_HELP + TUNING_HELP)


def optimize(argv: Sequence[str]) -> int:
    """
    Optimise hyperparameters with rl_zoo3.

    :param argv: the arguments of its command for training, and ``--variant``
    :return: the exit code
    """
    return train(["--optimize-hyperparameters", *argv], name="optimize")


def _to_watch(create: Callable[..., VecEnv]) -> dict[str, Any]:
    """
    :param create: makes environments
    :return: by name, what makes them for rl_zoo3, and what it loads saved models with
    """
    register()
    envs: list[VecEnv] = []

    def create_and_remember(*args: Any, **kwargs: Any) -> VecEnv:
        envs.append(create(*args, **kwargs))
        return envs[-1]

    ours = {name: _ToWatch(algorithm, envs) for name, algorithm in ALGORITHMS.items()}
    return {"ALGOS": zoo_utils.ALGOS | ours, "create_test_env": create_and_remember}


def enjoy(argv: Sequence[str]) -> int:
    """
    Watch a trained agent with rl_zoo3.

    :param argv: the arguments of its command; runs are looked for in ``logs`` by default
    :return: the exit code
    """
    zoo_enjoy = require("rl_zoo3.enjoy", "zoo")
    with (
        replaced(zoo_enjoy, StoreDict=_StoreDict, **_to_watch(zoo_enjoy.create_test_env)),
        replaced(zoo_utils, get_latest_run_id=latest_run_id),
    ):
        return run_zoo(zoo_enjoy.enjoy, "enjoy", ["--algo", "caps", "--folder", "logs", *argv])


def record_video(argv: Sequence[str]) -> int:
    """
    Record a video of a trained agent with rl_zoo3.

    :param argv: the arguments of its command; runs are looked for in ``logs`` by default
    :return: the exit code
    """
    require("moviepy", "zoo")
    # A script without a function to call
    script = require("rl_zoo3.record_video", "zoo").__file__
    command = functools.partial(runpy.run_path, script, run_name="__main__")
    with replaced(zoo_utils, StoreDict=_StoreDict, get_latest_run_id=latest_run_id, **_to_watch(create_test_env)):
        return run_zoo(command, "record_video", ["--algo", "caps", "--folder", "logs", *argv])
