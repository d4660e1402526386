"""What the suite learns with: ``zoo_configs/reuse.yml``, and nothing else."""

import contextlib
import importlib.metadata
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from stable_baselines3.common.utils import LinearSchedule

NAME = "reuse.yml"


@lru_cache(maxsize=1)
def settings() -> dict[str, Any]:
    """:return: the file, from the repository or the installed package"""
    candidates = [Path(__file__).parents[3] / "zoo_configs" / NAME]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for installed in importlib.metadata.files("sb3-caps") or []:
            if installed.parts[-2:] == ("zoo_configs", NAME):
                candidates.append(Path(str(installed.locate())).resolve())
    for path in candidates:
        if path.is_file():
            return yaml.safe_load(path.read_text())
    raise FileNotFoundError(f"zoo_configs/{NAME} is missing: it comes with the repository and the package.")


def arguments(entry: dict[str, Any], *without: str) -> dict[str, Any]:
    """
    :param entry: of the file
    :param without: what is no argument of an algorithm
    :return: its arguments; ``lin_x`` is a rate that falls from x to 0, as rl_zoo3 writes it
    """
    return {key: _value(value) for key, value in entry.items() if key not in without}


def _value(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("lin_"):
        return LinearSchedule(float(value.removeprefix("lin_")), 0.0, 1.0)
    return value
