"""What the Monster Kong study compares: tasks, presets and methods. What they learn with is in ``zoo_configs``."""

import inspect
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stable_baselines3.dqn import DQN

from sb3_caps import CAPS, OPSTL, PAPER, PRQL
from sb3_caps.envs.monster_kong import TARGETS
from sb3_caps.envs.monster_kong.env import HORIZON
from sb3_caps.settings import algorithm_arguments, settings

# By the names of their files in ``zoo_configs``
ALGORITHMS: dict[str, type[DQN]] = {"caps": CAPS, "dqn": DQN, "prql": PRQL, "ops_tl": OPSTL}
# The paper's target tasks: setting and goal
REPORTED = {"g1": TARGETS["MonsterKongG1"], "g2": TARGETS["MonsterKongG2"]}
# What is recommended was found on a map of its own, with seeds from 100; nothing was ever chosen on the third map
TASKS = REPORTED | {
    "tuning": (str(Path(__file__).with_name("tuning.txt")), "princess"),
    "third": (str(Path(__file__).parents[1] / "reuse" / "maps" / "kong_third.txt"), "princess"),
}
ENTRY = "sb3_caps/MonsterKong-v0"


@dataclass(frozen=True)
class Preset:
    """
    A set of settings.

    :param variants: which entry of ``zoo_configs`` to learn with, for features and for pixels
    :param epoch: environment steps from one evaluation to the next
    :param standardized: whether the layers of networks for pixels are scaled first, see ``standardize``
    """

    variants: dict[str, str]
    epoch: int
    standardized: bool = False

    def entry(self, algorithm: str, observation: str) -> dict[str, Any]:
        """
        Read the settings of an algorithm.

        :param algorithm: a name in ``ALGORITHMS``
        :param observation: what it learns from
        :return: its settings
        """
        return settings(algorithm, f"{ENTRY}@{self.variants[observation]}")


PRESETS: dict[str, Preset] = {
    # Section 5.2: an epoch is 12,500 training steps, of which there is one for every four transitions
    "paper": Preset({"features": "paper", "pixels": "paper"}, epoch=12_500 * 4),
    "recommended": Preset({"features": "cpu", "pixels": "pixels"}, epoch=12_500, standardized=True),
}


@dataclass(frozen=True)
class Method:
    """
    One line of the comparison.

    :param algorithm: a name in ``ALGORITHMS``
    :param label: what figures call it
    :param sources: ``"task"`` for the sources of the task, ``"none"`` or ``"useless"``
    :param settings: in place of those of the preset
    :param arguments: on top of the preset's
    :param without: arguments that go back to the paper's, with a dot between a group and what is in it
    :param source_features: whether it observes the features of the sources in place of pixels
    :param defaults: whether it has no more of the preset than what DQN has
    """

    algorithm: str
    label: str
    sources: str = "task"
    settings: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    source_features: bool = False
    defaults: bool = False

    def learns_from(self, observation: str) -> str:
        """
        Tell which settings fit an observation.

        :param observation: what the environment shows
        :return: which settings fit: those for features also where it observes the features of the sources
        """
        return "features" if self.source_features else observation


METHODS: dict[str, Method] = {
    "caps": Method("caps", "CAPS"),
    "caps-0.5": Method("caps", "CAPS, β = 0.5", arguments={"termination": 0.5}, without=("termination_kwargs.target",)),
    "caps-1": Method("caps", "CAPS, β = 1", arguments={"termination": 1.0}, without=("termination_kwargs.target",)),
    "caps-beta": Method("caps", "CAPS, β with the values", settings=settings("monster_kong", "caps-beta")),
    "caps-defaults": Method("caps", "CAPS, defaults", defaults=True),
    "caps-none": Method("caps", "CAPS, no sources", sources="none"),
    "dqn": Method("dqn", "DQN"),
    "prql": Method("prql", "PRQL"),
    "ops-tl": Method("ops_tl", "OPS-TL"),
    "caps-useless": Method("caps", "CAPS, useless sources", sources="useless"),
}
# With what the networks of the sources see in place of pixels, and the settings for features
PIXEL_METHODS: dict[str, Method] = {
    "caps-source-features": Method("caps", "CAPS, source features", source_features=True),
    "dqn-source-features": Method("dqn", "DQN, source features", source_features=True),
}


# One thing less each time, from what is recommended
ABLATIONS: dict[str, Method] = {
    f"caps-without-{name.rpartition('.')[2].replace('_', '-')}": Method(
        "caps", f"CAPS without {name.rpartition('.')[2]}", without=(name,)
    )
    for name in ("sequence_length", "termination_kwargs.target")
}
# Settings of baselines to choose from, on the map of tuning
TRIALS: dict[str, Method] = {
    f"{name}-trial-{i}": replace(
        METHODS[name],
        label=", ".join([METHODS[name].label, *(f"{key}={value}" for key, value in arguments.items())]),
        arguments=arguments,
    )
    for name, tried in settings("monster_kong", "trials").items()
    for i, arguments in enumerate(tried)
}
ALL_METHODS = METHODS | PIXEL_METHODS | ABLATIONS | TRIALS
LABELS = {name: method.label for name, method in ALL_METHODS.items()}


def entry_of(config: dict[str, Any]) -> dict[str, Any]:
    """
    Read the settings of a run.

    :param config: of a run
    :return: its settings in ``zoo_configs``
    """
    method = ALL_METHODS[config["method"]]
    return PRESETS[config["preset"]].entry(method.algorithm, method.learns_from(config["observation"]))


def horizon_of(config: dict[str, Any]) -> int:
    """
    Read the length of the episodes that a run learns in.

    :param config: of a run
    :return: after how many steps an episode of learning is truncated; those of evaluation always have ``HORIZON``
    """
    return int(entry_of(config).get("env_kwargs", {}).get("horizon", HORIZON))


def arguments_of(config: dict[str, Any]) -> dict[str, Any]:
    """
    The arguments of the algorithm of a run.

    :param config: of the run
    :return: arguments as plain values, but for schedules
    """
    method = ALL_METHODS[config["method"]]
    arguments = algorithm_arguments(entry_of(config) | method.settings, config["steps"]) | method.arguments
    if method.defaults:
        of_dqn = set(inspect.signature(DQN).parameters) - {"policy_kwargs", "replay_buffer_kwargs"}
        arguments = {name: value for name, value in arguments.items() if name in of_dqn}
    for name in method.without:
        group, _, part = name.rpartition(".")
        of_run, of_paper = (arguments[group], PAPER[group]) if group else (arguments, PAPER)
        of_run.pop(part, None)
        if part in of_paper:
            of_run[part] = of_paper[part]
    # No larger than it can get: it is part of every checkpoint
    arguments["buffer_size"] = min(arguments["buffer_size"], config["steps"])
    if method.learns_from(config["observation"]) == "features":
        # The paper has pixels only
        net_arch = PRESETS["recommended"].entry(method.algorithm, "features")["policy_kwargs"]["net_arch"]
        arguments["policy_kwargs"] = {**arguments.get("policy_kwargs", {}), "net_arch": net_arch}
    exploration = arguments.pop("exploration_schedule", None)
    if exploration is not None:
        # Said in SB3's terms, which DQN knows too
        (_, first), (end, last) = exploration.points
        fraction = end / config["steps"]
        arguments |= {"exploration_fraction": fraction, "exploration_initial_eps": first, "exploration_final_eps": last}
    return arguments
