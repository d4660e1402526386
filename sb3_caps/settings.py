"""The training settings of ``zoo_configs``, read without rl_zoo3."""

import contextlib
import copy
import importlib.metadata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sb3_caps.extras import require

SCHEDULES = ("learning_rate", "exploration_schedule")
# Groups of arguments, and what may be a schedule in them
GROUPS = {"termination_kwargs": ("target",)}
# What an entry says of a run and not of its algorithm
RUN_KEYS = frozenset(
    ("n_timesteps", "n_envs", "env_kwargs", "eval_env_kwargs", "env_wrapper", "frame_stack", "callback", "normalize")
)


def config_file(algo: str, folders: Sequence[Path] = ()) -> Path | None:
    """
    :param algo: the name of an algorithm
    :param folders: where to look first
    :return: our settings for it: in those folders, in ``zoo_configs`` of the repository or of the installed package
    """
    candidates = [folder / f"{algo}.yml" for folder in (*folders, Path(__file__).parents[1] / "zoo_configs")]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for installed in importlib.metadata.files("sb3-caps") or []:
            if installed.parts[-2:] == ("zoo_configs", f"{algo}.yml"):
                candidates.append(Path(str(installed.locate())).resolve())
    return next((path for path in candidates if path.is_file()), None)


def entries(file: Path) -> dict[str, Any]:
    """
    :param file: a config
    :return: its settings for each environment
    """
    yaml = require("yaml", "studies")
    try:
        found = yaml.safe_load(file.read_text()) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not valid YAML, fix it: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} needs an entry for each environment, not a {type(found).__name__}.")
    return found


@cache
def _own_entries(algo: str) -> dict[str, Any]:
    file = config_file(algo)
    if file is None:
        raise FileNotFoundError(f"The settings zoo_configs/{algo}.yml are missing: install the package again.")
    return entries(file)


def settings(algo: str, entry: str) -> dict[str, Any]:
    """
    The settings of this package, as they are in its ``zoo_configs``.

    :param algo: the name of an algorithm
    :param entry: an environment, or ``<environment>@<variant>``
    :return: its settings, as plain values
    """
    return copy.deepcopy(_own_entries(algo)[entry])


def algorithm_arguments(entry: dict[str, Any], total_timesteps: int) -> dict[str, Any]:
    """
    :param entry: the settings of a run
    :param total_timesteps: how long the run is
    :return: what is an argument of its algorithm, without ``policy``, ``env`` and ``source_policies``
    """
    arguments = {key: value for key, value in entry.items() if key not in {*RUN_KEYS, "policy", "source_policies"}}
    return arguments | make_schedules(arguments, total_timesteps)


def make_schedules(arguments: dict[str, Any], total_timesteps: int) -> dict[str, Any]:
    """
    :param arguments: as a config gives them. A schedule is either points ``[[step, value], ...]`` or a mapping of the
        arguments of SB3's ``LinearSchedule``: ``{start: 1.0, end: 0.1, end_fraction: 0.5}``
    :param total_timesteps: how long the run is
    :return: those that are schedules, made
    """
    made = _made(arguments, SCHEDULES, total_timesteps)
    for group, names in GROUPS.items():
        if group in arguments:
            made[group] = arguments[group] | _made(arguments[group], names, total_timesteps)
    return made


def _made(arguments: dict[str, Any], names: Sequence[str], total_timesteps: int) -> dict[str, Any]:
    # Settings can be read without torch
    from stable_baselines3.common.utils import LinearSchedule

    from sb3_caps.reuse.schedules import PiecewiseLinear

    made: dict[str, Any] = {}
    for key in names:
        value = arguments.get(key)
        # YAML reads 1e-4 as text. Two plain numbers are a pair, no points.
        if isinstance(value, (list, tuple)) and isinstance(value[0], (list, tuple)):
            made[key] = PiecewiseLinear([(float(step), float(at)) for step, at in value], total_timesteps)
        elif isinstance(value, dict):
            try:
                made[key] = LinearSchedule(**{name: float(number) for name, number in value.items()})
            except TypeError as error:
                raise ValueError(f"{key} needs start, end and end_fraction, not {value}.") from error
    return made
