"""One run of the suite: a method learns a task from sources, and is evaluated on its way."""

import pkgutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_caps.reuse.evaluation import discounted_returns
from sb3_caps.settings import settings
from sb3_caps.studies.reuse.references import source_returns
from sb3_caps.studies.reuse.sources import make_sources
from sb3_caps.studies.reuse.tasks import Task, get_task
from sb3_caps.studies.reuse.training import MODEL, arguments, trainings
from sb3_caps.studies.shared.checkpoints import Checkpoints, EpochCallback
from sb3_caps.studies.shared.runs import Run

N_EVALUATIONS = 16
EVALUATION_SEED = 1_000_000
FINAL_SEED = 2_000_000
# Copies of an environment have seeds in a row, which those of other runs must not meet
APART = 1_000
# Between the name of a method and the number of a setting that is tried for it
TRIAL = "-trial-"
# Settings of a kind of task that are no arguments of an algorithm
NO_ARGUMENTS = ("n_envs", "net_arch", "episodes", "final_episodes", "sampled")
# The method that goes on with the training of the best source
FINE_TUNE = "fine-tune"


@dataclass(frozen=True)
class Method:
    """
    A line of the comparison.

    :param label: what tables and figures call it
    :param algorithm: the import string of an SB3 algorithm
    :param sources: whether it takes ``source_policies``
    :param arguments: on top of those that all methods share
    :param tuned: whether it has settings of its own for each kind of task, ``tuned`` in ``zoo_configs/reuse.yml``
    """

    label: str
    algorithm: str
    sources: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)
    tuned: bool = False


def get_method(name: str) -> Method:
    """
    Find a method.

    :param name: an entry of ``methods``, ``ablations`` or ``trials`` (``prql-trial-2``) in ``zoo_configs/reuse.yml``,
        or the import string ``package.module:Class`` of an algorithm with DQN's arguments and ``source_policies``
    :return: the method
    """
    known = settings("reuse", "methods")
    if name in known:
        return Method(**known[name])
    ablations = settings("reuse", "ablations")
    if name in ablations:
        return Method(algorithm=known["caps"]["algorithm"], **ablations[name])
    base, _, number = name.rpartition(TRIAL)
    tried = {str(i): each for i, each in enumerate(settings("reuse", "trials").get(base, ()))}
    if number in tried:
        label = ", ".join([known[base]["label"], *(f"{key}={value}" for key, value in tried[number].items())])
        return Method(**known[base] | {"label": label, "arguments": known[base].get("arguments", {}) | tried[number]})
    if ":" not in name:
        raise ValueError(f"There is no method {name!r}: the methods are {', '.join(known)}, or package.module:Class.")
    pkgutil.resolve_name(name)
    return Method(label=name.partition(":")[2], algorithm=name)


def build(config: dict[str, Any], sources: Path) -> BaseAlgorithm:
    """
    Build the model of a run.

    :param config: of a run
    :param sources: the folder with trained sources
    :return: a model that has not learned anything yet
    """
    task, seed = get_task(config["task"]), config["seed"]
    if config["method"] == FINE_TUNE:
        return best_model(task, sources, seed)
    method = get_method(config["method"])
    kind = task.settings | (settings("reuse", "tuned").get(task.kind, {}) if method.tuned else {})
    keywords = arguments(kind, *NO_ARGUMENTS) | arguments(method.arguments)
    keywords["policy_kwargs"] = {"net_arch": list(kind["net_arch"])} | keywords.get("policy_kwargs", {})
    if method.sources and config["sources"] != "none":
        keywords["source_policies"] = make_sources(task, config["sources"], sources, kind["net_arch"], seed)
    return pkgutil.resolve_name(method.algorithm)(
        "MlpPolicy",
        task.make_env(kind["n_envs"], seed),
        seed=seed,
        device="cpu",
        **keywords,
    )


def best_model(task: Task, sources: Path, seed: int) -> BaseAlgorithm:
    """
    Load the best source of a task, to go on with its training by its own algorithm and settings.

    :param task: the task
    :param sources: the folder with trained sources
    :param seed: of its random numbers from now on
    :return: the model
    """
    worth = source_returns(task, "helpful", sources)
    name = max(worth, key=lambda each: worth[each][0])
    if name not in trainings():
        raise ValueError(f"The best source of {task.name} is {name}, which is no model: {FINE_TUNE} is not for it.")
    entry = trainings()[name]
    algorithm = pkgutil.resolve_name(entry["algorithm"])
    return algorithm.load(sources / name / MODEL, env=task.make_env(entry["n_envs"], seed), seed=seed, device="cpu")


def execute(run: Run) -> dict[str, Any]:
    """
    Learn from the start: a run takes seconds, so one that was killed begins again.

    :param run: what to do
    :return: what to remember of it
    """
    task = get_task(run.config["task"])
    kind, seed = task.settings, run.config["seed"]
    env = task.make_env(kind["episodes"], EVALUATION_SEED + seed)

    # A model that goes on with its training acts as it was trained to; others say themselves whether they draw
    deterministic = not (run.config["method"] == FINE_TUNE and kind.get("sampled", False))

    def measure(model: BaseAlgorithm) -> dict[str, float]:
        found = discounted_returns(model, env, task.discount, kind["episodes"], deterministic)
        return {"return": float(found.mean())}

    callback = EpochCallback(
        run.steps // N_EVALUATIONS, measure, run.curve, Checkpoints(run.folder, ()), seconds_between=float("inf")
    )
    model = build(run.config, Path(run.config["trained"]))
    model.learn(run.steps, callback, log_interval=10**9)
    callback.maybe_evaluate()
    env.seed(FINAL_SEED + APART * seed)
    final = discounted_returns(model, env, task.discount, kind["final_episodes"], deterministic)
    return {"seconds": callback.rows[-1]["seconds"], "final": float(final.mean())}
