"""Where settings and source policies are, and what the strings of a config stand for."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sb3_caps.extras import import_string, require
from sb3_caps.settings import config_file, entries, settings
from sb3_caps.sources import SourcePolicy, as_source
from sb3_caps.zoo.runs import latest_model

zoo_utils = require("rl_zoo3.utils", "zoo")

# Peers that are compared have the same settings
SAME_AS = dict.fromkeys(("cup", "ibrl", "continuous_jump_start"), "continuous_caps")
# What a source policy may say in a config when it is more than a string.
SOURCE_KEYS = ("source", "kwargs", "name", "observation_map", "action_map")


def find_config(algo: str, env_id: str) -> str | None:
    """
    :param algo: the name of an algorithm
    :param env_id: the environment
    :return: our settings for that algorithm: in ``zoo_configs`` of the working directory, of the repository or of the
        installed package; None to use those of rl_zoo3, for its own algorithms on environments that only it knows
    """
    found = config_file(SAME_AS.get(algo, algo), [Path("zoo_configs")])
    if found is None:
        return None
    theirs = Path(zoo_utils.__file__).parent / "hyperparams" / f"{algo}.yml"
    if theirs.is_file() and env_id in entries(theirs) and env_id not in entries(found):
        return None
    return str(found)


def find_source(source: str, log_folder: str, folders: Sequence[Path] = ()) -> str:
    """
    Say where a source policy of a config or a command line is.

    :param source: a path, a run ``<algo>:<env>``, or an import string
    :param log_folder: where runs are
    :param folders: where relative paths may start, besides the working directory
    :return: the path of a saved model or folder, or the import string as it was
    """
    algo, _, env_id = source.partition(":")
    if env_id and algo in zoo_utils.ALGOS:
        return str(latest_model(algo, env_id, log_folder))
    if env_id and not source.endswith(".zip"):
        return source
    starts = list(dict.fromkeys([Path.cwd(), *(folder.resolve() for folder in folders)]))
    for start in starts:
        for candidate in (start / source, start / f"{source}.zip"):
            if candidate.exists():
                return str(candidate)
    name = Path(source).name
    trains = f" `sb3-caps sources --train {name}` trains it." if name in settings("reuse", "sources") else ""
    raise FileNotFoundError(f"There is no source policy {source} in {' or '.join(map(str, starts))}.{trains}")


def make_source(entry: Any, log_folder: str, folders: Sequence[Path] = ()) -> SourcePolicy:
    """
    Make a source policy of what a config says.

    :param entry: a string as in ``find_source``; or a mapping with such a string as ``source`` and any of ``kwargs``
        (call the import string with them: it makes the source), ``name``, ``observation_map`` and ``action_map``
        (import strings); or anything that ``as_source`` takes. Import strings are code: they run their module.
    :param log_folder: where runs are
    :param folders: where relative paths may start, besides the working directory
    :return: the source policy
    """
    if not isinstance(entry, dict):
        entry = {"source": entry}
    if "source" not in entry or set(entry) - set(SOURCE_KEYS):
        raise ValueError(f"A source policy in a config has a source and any of {SOURCE_KEYS[1:]}, not {entry}.")
    source, name = entry["source"], entry.get("name")
    maps = {key: imported(entry[key]) for key in ("observation_map", "action_map") if key in entry}
    if not isinstance(source, str):
        return as_source(source, name, **maps)
    if "kwargs" in entry:
        return as_source(_made(source, entry["kwargs"]), name, **maps)
    found = find_source(source, log_folder, folders)
    made = as_source(found, name, **maps)
    if source.partition(":")[0] in zoo_utils.ALGOS and name is None:
        # The task says more than `best_model`; two runs on one task still get different names
        made.name = source.rpartition("/")[2].rpartition(":")[2]
    return made


def _made(name: str, kwargs: dict[str, Any]) -> Any:
    """
    Call what makes a source policy. Nothing of Python's own library does: ``os:system`` is not called to find that out.

    :param name: the import string of a function or class
    :param kwargs: what to call it with
    :return: what it made
    """
    maker = imported(name)
    module = getattr(maker, "__module__", None) or type(maker).__module__
    if not callable(maker) or module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(
            f"'{name}' does not make a source policy: with kwargs, pass a function or class that returns one."
        )
    return maker(**kwargs)


def imported(name: Any) -> Any:
    """
    :param name: an import string, or anything else
    :return: what the import string stands for, anything else as it was
    """
    return import_string(name) if isinstance(name, str) else name
