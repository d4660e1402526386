"""One run of the suite: a method learns a task from sources, and is evaluated on its way."""

import pkgutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_caps.reuse.evaluation import discounted_returns
from sb3_caps.settings import settings
from sb3_caps.studies.reuse.sources import make_sources
from sb3_caps.studies.reuse.tasks import get_task
from sb3_caps.studies.reuse.training import arguments
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
NO_ARGUMENTS = ("n_envs", "net_arch", "episodes", "final_episodes")


@dataclass(frozen=True)
class Method:
    """
    A line of the comparison.

    :param label: what tables and figures call it
    :param algorithm: the import string of an SB3 algorithm
    :param sources: whether it takes ``source_policies``
    :param arguments: on top of those that all methods share
    """

    label: str
    algorithm: str
    sources: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)


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


def build(config: dict[str, Any], sources: Path) -> OffPolicyAlgorithm:
    """
    Build the model of a run.

    :param config: of a run
    :param sources: the folder with trained sources
    :return: a model that has not learned anything yet
    """
    task, method, seed = get_task(config["task"]), get_method(config["method"]), config["seed"]
    kind = task.settings
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


def execute(run: Run) -> dict[str, Any]:
    """
    Learn from the start: a run takes seconds, so one that was killed begins again.

    :param run: what to do
    :return: what to remember of it
    """
    task = get_task(run.config["task"])
    kind, seed = task.settings, run.config["seed"]
    env = task.make_env(kind["episodes"], EVALUATION_SEED + seed)

    def measure(model: OffPolicyAlgorithm) -> dict[str, float]:
        return {"return": float(discounted_returns(model, env, task.discount, kind["episodes"]).mean())}

    callback = EpochCallback(
        run.steps // N_EVALUATIONS, measure, run.curve, Checkpoints(run.folder, ()), seconds_between=float("inf")
    )
    model = build(run.config, Path(run.config["trained"]))
    model.learn(run.steps, callback, log_interval=10**9)
    callback.maybe_evaluate()
    env.seed(FINAL_SEED + APART * seed)
    final = discounted_returns(model, env, task.discount, kind["final_episodes"])
    return {"seconds": callback.rows[-1]["seconds"], "final": float(final.mean())}
