"""What a task of the reuse suite is, and the list of all of them."""

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.settings import settings

# The number of environments and a seed, to a vectorised environment
EnvMaker: TypeAlias = Callable[[int, int], VecEnv]
# The folder with trained sources, to a list of anything that `as_source` takes
SourceMaker: TypeAlias = Callable[[Path], list[Any]]
# Groups of tasks
REPORTED, TUNING, UNSET, PARTIAL = "reported", "tuning", "unset", "partial"


@dataclass(frozen=True)
class Task:
    """
    A task that is learned with the help of source policies.

    :param name: its name on the command line, in tables and in figures
    :param kind: the entry of ``zoo_configs/reuse.yml`` with what all methods learn it with
    :param make_env: makes the environments, from their number and a seed
    :param steps: environment steps of a run
    :param helpful: policies for other tasks that may be of use here
    :param harmful: policies that do badly here on purpose, None for a task without such
    :param best: policies one of which is as good as the reference, likewise
    :param optimum: gives the largest mean return, where a planner knows it
    :param discount: returns are discounted by this factor, where only the time to a goal tells policies apart
    :param reference: the return that counts as 1; by default the optimum or what ``references.json`` says
    :param random: the return that counts as 0, that of random actions; by default what ``references.json`` says
    :param held_back: whether nothing may be chosen on this task
    :param group: ``REPORTED``; ``TUNING`` for a task that settings of methods are chosen on; ``UNSET`` for one whose
        runs have no argument set; ``PARTIAL`` for one whose best source is worth a sixth to two thirds, likewise
    :param fine_tunes: whether its sources are models that can go on with their training
    :param arguments: settings in place of those of its kind
    """

    name: str
    kind: str
    make_env: EnvMaker
    steps: int
    helpful: SourceMaker
    harmful: SourceMaker | None = None
    best: SourceMaker | None = None
    optimum: Callable[[], float] | None = None
    discount: float = 1.0
    reference: float | None = None
    random: float | None = None
    held_back: bool = False
    group: str = REPORTED
    fine_tunes: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """What all methods learn it with."""
        return settings("reuse", "kinds")[self.kind] | self.arguments

    @property
    def scale(self) -> tuple[float, float]:
        """The returns that count as 0 and as 1: that of random actions, and the reference."""
        found = references().get(self.name, {})
        low = found.get("random") if self.random is None else self.random
        high = found.get("reference") if self.reference is None else self.reference
        if low is None or high is None:
            raise ValueError(
                f"Task {self.name!r} has no reference: give it `random` and `reference`, or let "
                "`sb3-caps reproduce reuse --references` find them."
            )
        return low, high


TASKS: dict[str, Task] = {}
REFERENCES = Path(__file__).with_name("references.json")


def references() -> dict[str, dict[str, Any]]:
    """Return what ``sb3-caps reproduce reuse --references`` found, by task."""
    return json.loads(REFERENCES.read_text())


def register_task(task: Task) -> Task:
    """
    Add a task to the suite.

    :param task: with a name that no other one has
    :return: the same
    """
    if task.name in TASKS:
        raise ValueError(f"There is a task {task.name!r} already: give this one another name.")
    TASKS[task.name] = task
    return task


def get_task(name: str) -> Task:
    """
    Find a task.

    :param name: of a registered task, or the import string ``package.module:TASK`` of one elsewhere
    :return: the task
    """
    for registered in ("catalogue", "unset", "partial"):
        importlib.import_module(f"sb3_caps.studies.reuse.{registered}")
    if name in TASKS:
        return TASKS[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"There is no task {name!r}: the tasks are {', '.join(TASKS)}, or package.module:TASK.")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, Task):
        raise ValueError(f"{name!r} is not a Task but {found!r}.")
    return found
