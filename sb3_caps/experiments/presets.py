"""What each method of the Monster Kong study learns with: the paper's settings, and the ones that we recommend."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.dqn import DQN

from sb3_caps import CAPS, OPSTL, PRQL
from sb3_caps.envs.monster_kong import TARGETS
from sb3_caps.envs.monster_kong.env import HORIZON

ALGORITHMS: dict[str, type[DQN]] = {"CAPS": CAPS, "DQN": DQN, "PRQL": PRQL, "OPSTL": OPSTL}
# The paper's target tasks: setting and goal
REPORTED = {"g1": TARGETS["MonsterKongG1"], "g2": TARGETS["MonsterKongG2"]}
# What is recommended was found on a map of its own, with seeds from 100
TASKS = REPORTED | {"tuning": (str(Path(__file__).with_name("tuning.txt")), "princess")}
# The paper counts training steps, of which there is one for every four transitions.
TRAIN_FREQ = 4


@dataclass(frozen=True)
class Settings:
    """
    A preset.

    :param n_envs: number of environments
    :param epoch: environment steps from one evaluation to the next
    :param steps: environment steps of a run, for features and for pixels
    :param common: arguments of every method
    :param only: arguments of one algorithm alone, by its name
    :param network: the hidden layers for features
    :param horizon: after how many steps an episode of learning is truncated (those of evaluation always have 1200)
    :param pixels: arguments of every method for pixels, in place of those in ``common``
    :param standardized: whether the layers of networks for pixels are scaled first, see ``standardize``
    """

    n_envs: int
    epoch: int
    steps: dict[str, int]
    common: dict[str, Any]
    only: dict[str, dict[str, Any]] = field(default_factory=dict)
    network: tuple[int, ...] = (128, 128)
    horizon: int = HORIZON
    pixels: dict[str, Any] = field(default_factory=dict)
    standardized: bool = False


@dataclass(frozen=True)
class Method:
    """
    One line of the comparison.

    :param algorithm: a name in ``ALGORITHMS``
    :param label: what figures call it
    :param sources: ``"task"`` for the sources of the task, ``"none"`` or ``"useless"``
    :param arguments: on top of the preset's
    :param without: arguments that go back to the paper's
    :param source_features: whether it observes the features of the sources in place of pixels
    """

    algorithm: str
    label: str
    sources: str = "task"
    arguments: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    source_features: bool = False


# Section 5.2. One epoch is 12,500 training steps; schedules are given in training steps too.
PAPER = Settings(
    n_envs=1,
    epoch=12_500 * TRAIN_FREQ,
    steps={"features": 125 * 12_500 * TRAIN_FREQ, "pixels": 125 * 12_500 * TRAIN_FREQ},
    common={
        "learning_rate": ((0, 1e-4), (2_500_000 * TRAIN_FREQ, 5e-5)),
        "buffer_size": 1_000_000,
        "learning_starts": 50_000,
        "batch_size": 32,
        "gamma": 0.99,
        "train_freq": TRAIN_FREQ,
        "exploration_schedule": ((0, 1.0), (4_375_000 * TRAIN_FREQ, 0.05)),
    },
    # π-reuse explores, and nothing else
    only={"PRQL": {"exploration_schedule": ((0, 0.0), (1, 0.0))}},
)

RECOMMENDED = Settings(
    n_envs=16,
    # More episodes start in more places: what lies between has to be seen once, not walked in one go
    horizon=100,
    epoch=12_500,
    steps={"features": 400_000, "pixels": 200_000},
    common={
        "learning_rate": LinearSchedule(5e-4, 5e-5, 1.0),
        "buffer_size": 500_000,
        "learning_starts": 2_000,
        "batch_size": 256,
        "tau": 0.03,
        "target_update_interval": 16,
        "gamma": 0.99,
        "train_freq": 1,
        "gradient_steps": 4,
        "exploration_fraction": 0.2,
        "exploration_final_eps": 0.05,
    },
    only={
        "CAPS": {
            "initial_termination": 0.12,
            "target_termination": LinearSchedule(0.12, 0.2, 0.8),
            "sequence_length": 16,
            "option_weights": 1 / 3,
            "greedy_temperature": LinearSchedule(0.02, 0.001, 0.3),
            "execution": "interrupting",
            "interruption_margin": 0.01,
            "averaging": 0.003,
            "exploration_bonus": LinearSchedule(0.01, 0.0, 0.4),
            "exploration_episodes": 0.25,
            "exploration_novelty": 3.0,
        },
        # By π-reuse alone nothing is found here: it explores as the others do, too
        "PRQL": {"exploration_initial_eps": 1.0},
    },
    # As much as a processor does in an hour
    pixels={"batch_size": 64, "gradient_steps": 2, "buffer_size": 200_000},
    standardized=True,
)
SETTINGS: dict[str, Settings] = {"paper": PAPER, "recommended": RECOMMENDED}

METHODS: dict[str, Method] = {
    "caps": Method("CAPS", "CAPS"),
    "caps-0.5": Method("CAPS", "CAPS, β = 0.5", arguments={"termination": 0.5}, without=("target_termination",)),
    "caps-1": Method("CAPS", "CAPS, β = 1", arguments={"termination": 1.0}, without=("target_termination",)),
    "double-dqn": Method("CAPS", "double DQN", sources="none"),
    "dqn": Method("DQN", "DQN"),
    "prql": Method("PRQL", "PRQL"),
    "ops-tl": Method("OPSTL", "OPS-TL"),
    "caps-useless": Method("CAPS", "CAPS, useless sources", sources="useless"),
}
# With what the networks of the sources see in place of pixels, and the settings for features
PIXEL_METHODS: dict[str, Method] = {
    "caps-source-features": Method("CAPS", "CAPS, source features", source_features=True),
    "dqn-source-features": Method("DQN", "DQN, source features", source_features=True),
}
# An argument that says nothing without another one
BELONGS_TO = {"execution": ("interruption_margin",)}
# One thing less each time, from what is recommended
ABLATIONS: dict[str, Method] = {
    f"caps-without-{name.replace('_', '-')}": Method(
        "CAPS", f"CAPS without {name}", without=(name, *BELONGS_TO.get(name, ()))
    )
    for name in RECOMMENDED.only["CAPS"]
}
ALL_METHODS = METHODS | PIXEL_METHODS | ABLATIONS
