"""``sb3-caps sources``: what a source policy is, and whether it fits an environment."""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np

import sb3_caps.envs  # noqa: F401 registers our environments
from sb3_caps.common.options import OptionSet
from sb3_caps.common.sources import IMPORT_STRING, SourcePolicy, as_source

LINE = "  {:<13} {}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    :param parser: the parser of the command
    """
    parser.epilog = (
        "Loading a saved model or an import string runs code: name only those that you trust, or pass --no-trust, "
        "which reads exports alone (see export_source). "
        "The exit code is 1 if a source does not fit the environment, 2 if one cannot be used at all."
    )
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="source",
        help="the path of a saved model, of an export or of its folder, an import string package.module:function, "
        "or a run <algo>:<env>, which means the latest one in the log folder",
    )
    parser.add_argument("--env", help="an environment to try the sources in")
    parser.add_argument("--no-trust", action="store_true", help="refuse whatever may run code when it is loaded")
    parser.add_argument("-f", "--log-folder", default="logs", help="where runs are (default: logs)")


def run(args: argparse.Namespace) -> int:
    """
    :param args: the arguments of the command
    :return: 1 if a source does not fit the environment
    """
    env = None if args.env is None else _make_env(args.env)
    all_fit = True
    for given in args.sources:
        source = _source(given, args.log_folder, trust=not args.no_trust)
        print(source.name)
        for key, value in describe(source).items():
            print(LINE.format(key, value))
        if env is not None:
            misfit = find_misfit(source, env)
            all_fit = all_fit and misfit is None
            print(LINE.format("environment", f"fits {args.env}" if misfit is None else f"does not fit: {misfit}"))
    return 0 if all_fit else 1


def describe(source: SourcePolicy) -> dict[str, Any]:
    """
    :param source: a source policy
    :return: what is known of it
    """
    policy = source.policy
    kind = "function" if policy is None else f"{type(policy).__name__} ({type(policy).__module__})"
    unknown = "unknown"
    return {
        "kind": kind,
        "observations": source.observation_space or unknown,
        "actions": source.action_space or unknown,
    }


def find_misfit(source: SourcePolicy, env: gym.Env) -> str | None:
    """
    Compare the spaces, and let the source act on a first observation.

    :param source: a source policy
    :param env: an environment
    :return: why the source cannot act in it, None if it can
    """
    try:
        if not isinstance(env.action_space, gym.spaces.Discrete):
            raise ValueError(f"the environment takes {env.action_space}, and policy reuse needs discrete actions.")
        options = OptionSet([source], env.observation_space, env.action_space)
        observation, _ = env.reset(seed=0)
        batch: Any = (
            {key: np.asarray(value)[None] for key, value in observation.items()}
            if isinstance(observation, dict)
            else np.asarray(observation)[None]
        )
        options.actions(batch, options.initial_states(), np.ones(1, dtype=bool))
    except (ValueError, RuntimeError) as error:
        return str(error)
    return None


def _make_env(env_id: str) -> gym.Env:
    try:
        return gym.make(env_id)
    except gym.error.Error as error:
        raise ValueError(str(error)) from error


def _source(given: str, log_folder: str, trust: bool) -> SourcePolicy:
    if ":" in given and IMPORT_STRING.fullmatch(given) is None:
        # Only runs need rl_zoo3
        from sb3_caps.zoo import find_source, make_source, register

        register()
        return make_source(given, log_folder) if trust else as_source(find_source(given, log_folder), trust=False)
    return as_source(given, trust=trust)
