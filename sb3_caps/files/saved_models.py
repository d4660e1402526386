"""What a file of a saved model says of itself, read without running anything that it holds."""

import io
import json
import pathlib
import pkgutil
import re
import zipfile
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import open_path

ModelPath = str | pathlib.Path | io.BufferedIOBase

# SB3's files name no algorithm: these share their policies, and are told apart by what they keep
ACTOR_CRITICS = {"clip_range": "PPO", "cg_max_steps": "TRPO"}
ACTOR_CRITIC_MODULE = "stable_baselines3.common.policies"
POLICY_MODULE = re.compile(r"(?:stable_baselines3|sb3_contrib)\.(\w+)\.policies")


def check_saved_model(path: ModelPath, algorithm: type[BaseAlgorithm]) -> None:
    """
    Refuse a file that is damaged, or that another algorithm saved.

    :param path: the file, with or without ``.zip``, or an open file
    :param algorithm: the class that is about to load it
    """
    data = saved_attributes(path)
    if "algorithm_class" in data:
        saved, fits = data["algorithm_class"].rpartition(":")[2], _is_related(data["algorithm_class"], algorithm)
    else:
        # Models of ours say so unless they are old
        saved, fits = _name_of_theirs(data), "source_names" in data
    if not fits:
        raise ValueError(
            f"{path} is no {algorithm.__name__} model, this is a {saved} model: load it with {saved}.load(...), "
            "or pass it in source_policies to reuse it."
        )


def saved_attributes(path: ModelPath) -> dict[str, Any]:
    """
    :param path: the file of a saved model, with or without ``.zip``, or an open file
    :return: the attributes of the model as they are in the file, those that are pickled still so
    """
    file = open_path(path, "r", verbose=0, suffix="zip")
    start = file.tell()
    try:
        with zipfile.ZipFile(file) as archive:
            check_format(archive)
            damaged = archive.testzip()
            if damaged is not None:
                raise ValueError(f"{damaged} in it is damaged")
            return json.loads(archive.read("data"))
    except Exception as error:  # there is nothing that a zip file with other bits in it may not raise
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is damaged, or no saved model ({reason}).") from error
    finally:
        if isinstance(path, (str, pathlib.Path)):
            file.close()
        else:
            file.seek(start)


def check_format(archive: zipfile.ZipFile) -> None:
    """
    Refuse what is not a saved model before anything of it is read: other files may be of any size, and compressed.

    :param archive: a file
    """
    missing = {"data", "policy.pth"} - set(archive.namelist())
    if missing:
        raise ValueError(f"there is no {' and no '.join(sorted(missing))} in it")
    with archive.open("data") as data:
        if data.read(1) != b"{":
            raise ValueError("its data is not JSON")


def _is_related(name: str, algorithm: type[BaseAlgorithm]) -> bool:
    """
    :param name: the class that saved a model, as ``module:class``
    :param algorithm: the class that is about to load it
    :return: whether one is the other or derived from it; true for one that cannot be imported
    """
    if name in [f"{base.__module__}:{base.__qualname__}" for base in algorithm.__mro__]:
        return True
    try:
        return issubclass(pkgutil.resolve_name(name), algorithm)
    except (ImportError, AttributeError, ValueError, TypeError):
        # A class of a script or of a function
        return True


def _name_of_theirs(data: dict[str, Any]) -> str:
    """
    :param data: the attributes of a model that is not ours
    :return: its algorithm, as far as its policy tells
    """
    policy = data.get("policy_class")
    module = policy.get("__module__", "") if isinstance(policy, dict) else ""
    if module == ACTOR_CRITIC_MODULE:
        return next((name for key, name in ACTOR_CRITICS.items() if key in data), "A2C")
    match = POLICY_MODULE.fullmatch(module)
    return "SB3" if match is None else match[1].upper()
