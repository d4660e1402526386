"""What the grid study runs: for each batch, the method, task, seed and configuration of every trial in it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from sb3_caps.envs.grid import GridMap, GridTask, Plan, plan
from sb3_caps.envs.grid.dynamics import NOISE
from sb3_caps.tabular import (
    OPSTL,
    PRQL,
    CAPSConfig,
    Learner,
    OPSTLConfig,
    OptionCritic,
    OptionCriticConfig,
    PRQLConfig,
    QConfig,
    QLearning,
    TabularCAPS,
)

# name in files and figures: (map, goal)
TASKS = {"g": ("rooms", "g"), "g'": ("rooms", "g'"), "changed": ("rooms_changed", "g")}
SOURCE_TASKS = {name: ("rooms", name) for name in ("G1", "G2", "G3", "G4")}
METHODS = ("CAPS", "CAPS, β = 0.5", "Q-learning", "PRQL", "OPS-TL", "Option-Critic")
# Source tasks are learned with the paper's ε, by Q-learning with a learning rate that converges in spite of the noise.
SOURCE_LEARNER = QConfig(learning_rate=0.1)
OC_SOURCE_HALF_LIFE = SOURCE_LEARNER.half_life

# The paper's α_β of 0.2 moves β hardly at all with returns of this size; this one was chosen on runs not reported.
RECOMMENDED = "CAPS, α_β = 20 (ours)"
LEARNED_SOURCES = "sources learned by Q-learning"
N_ACTIONS = 4

Tables = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Trial:
    """
    One learner of a batch.

    :param variant: the method, or the ablation
    :param task: a key of ``TASKS`` or ``SOURCE_TASKS``
    :param seed: its random numbers
    :param config: its learner's configuration
    :param reward: R, the reward at the goal
    """

    variant: str
    task: str
    seed: int
    config: Any
    reward: float = 1.0

    def describe(self) -> dict[str, Any]:
        """Return the trial as plain values; of the sources only the number, since they are tables."""
        values = {item.name: getattr(self.config, item.name) for item in fields(self.config)}
        described = {key: len(value) if key in ("sources", "preferences") else value for key, value in values.items()}
        return {"variant": self.variant, "task": self.task, "seed": self.seed, "reward": self.reward, **described}


@dataclass(frozen=True)
class Batch:
    """
    Trials that step together, as one run of the study.

    :param learner: the class of their learners
    :param trials: from the number of seeds of each variant to the trials
    :param needs: a batch that has to be finished before, if there is one
    :param complete: from the trials and the result of that batch to the trials with what it has learned
    :param snapshots: keep the tables after these shares of all episodes
    :param lengthen: its trials have this many times the episodes of the study
    :param light: keep the means of a hundred blocks of episodes, and nothing else
    :param noise: the largest deviation of a move
    """

    learner: Callable[..., Learner]
    trials: Callable[[int], list[Trial]]
    needs: str | None = None
    complete: Callable[[list[Trial], Tables], list[Trial]] | None = None
    snapshots: tuple[float, ...] = ()
    lengthen: float = 1.0
    light: bool = False
    noise: float = NOISE

    def episodes(self, of_the_study: int) -> int:
        """
        Tell how many episodes the trials of this batch have.

        :param of_the_study: how many episodes most trials have
        :return: how many those of this batch have
        """
        return max(1, round(of_the_study * self.lengthen))


@cache
def task(name: str) -> GridTask:
    """
    Make a task from its name.

    :param name: a key of ``TASKS`` or ``SOURCE_TASKS``, or a map and a cell, as in ``"rooms/123"``
    :return: the task
    """
    if "/" in name:
        map_name, cell = name.split("/")
        return GridTask(_map(map_name), int(cell))
    map_name, goal = {**TASKS, **SOURCE_TASKS}[name]
    return GridTask(_map(map_name), goal)


@cache
def _map(name: str) -> GridMap:
    return GridMap.load(name)


@cache
def optimum(name: str) -> Plan:
    """
    Solve a task.

    :param name: a task, as :func:`task` takes it
    :return: the planner's solution
    """
    return plan(*task(name))


def planned_sources() -> list[np.ndarray]:
    """Return the planner's policies for G1 to G4."""
    return [optimum(name).policy for name in SOURCE_TASKS]


def each_seed(variant: str, task_name: str, n_seeds: int, config: Any, reward: float = 1.0) -> list[Trial]:
    """
    Make a trial for each seed.

    :param variant: the method, or the ablation
    :param task_name: its task
    :param n_seeds: how many seeds, from 0 on
    :param config: of all
    :param reward: R of all
    :return: a trial for each seed
    """
    return [Trial(variant, task_name, seed, config, reward) for seed in range(n_seeds)]


def _on_all_tasks(variants: Mapping[str, Callable[[], Any]]) -> Callable[[int], list[Trial]]:
    def trials(n_seeds: int) -> list[Trial]:
        configs = {variant: make() for variant, make in variants.items()}
        return [
            trial for name, config in configs.items() for on in TASKS for trial in each_seed(name, on, n_seeds, config)
        ]

    return trials


def _q_learning(n_seeds: int) -> list[Trial]:
    caps_epsilon = QConfig(half_life=CAPSConfig().half_life)
    trials = _on_all_tasks({"Q-learning": QConfig, "Q-learning, ε of CAPS": lambda: caps_epsilon})(n_seeds)
    return trials + each_seed("Q-learning, α = 0.1", "g", n_seeds, QConfig(learning_rate=0.1))


def _learned_sources(n_seeds: int) -> list[Trial]:
    return [trial for name in SOURCE_TASKS for trial in each_seed("source", name, n_seeds, SOURCE_LEARNER)]


def _option_critic_sources(n_seeds: int) -> list[Trial]:
    config = OptionCriticConfig([nothing_learned()], half_life=OC_SOURCE_HALF_LIFE)
    return [trial for name in SOURCE_TASKS for trial in each_seed("source", name, n_seeds, config)]


def nothing_learned() -> np.ndarray:
    """Return the preferences of an option of Option-Critic at the start."""
    return np.zeros((_map("rooms").n_cells, N_ACTIONS))


def _start_options(trials: list[Trial], sources: Tables) -> list[Trial]:
    """Each trial of Option-Critic starts from the options that its own seed has learned on the source tasks."""
    learned = sources["preferences"].reshape(len(SOURCE_TASKS), -1, _map("rooms").n_cells, N_ACTIONS)
    return [replace(trial, config=replace(trial.config, preferences=tuple(learned[:, trial.seed]))) for trial in trials]


def _take_learned_sources(trials: list[Trial], sources: Tables) -> list[Trial]:
    """One row of the ablation table has sources that were learned, each trial those of its own seed."""
    learned = sources["values"].argmax(axis=-1).reshape(len(SOURCE_TASKS), -1, _map("rooms").n_cells)
    return [
        replace(trial, config=CAPSConfig(tuple(learned[:, trial.seed]))) if trial.variant == LEARNED_SOURCES else trial
        for trial in trials
    ]


def _ablations(n_seeds: int) -> list[Trial]:
    return [trial for name, config in ablations().items() for trial in each_seed(name, "g", n_seeds, config)]


def ablations() -> dict[str, CAPSConfig]:
    """Return the configuration of each row of the ablation table."""
    sources = planned_sources()
    best = optimum("g").policy
    plain = CAPSConfig(sources)
    random = np.random.default_rng(2019)
    # Up and down, left and right change places.
    opposite = np.array([1, 0, 3, 2])[best]
    return {
        "β = 1": replace(plain, termination=1.0),
        "no concurrent updates": replace(plain, concurrent=False),
        "no primitive options": replace(plain, primitives=False),
        "ρ = 0.005": replace(plain, regularization=0.005),
        "ρ = 0.05": replace(plain, regularization=0.05),
        "α = 0.1": replace(plain, learning_rate=0.1),
        "α = 0.9": replace(plain, learning_rate=0.9),
        "α_β = 0.02": replace(plain, termination_learning_rate=0.02),
        "α_β = 2": replace(plain, termination_learning_rate=2.0),
        "β starts at 0.1": replace(plain, initial_termination=0.1),
        "β starts at 0.9": replace(plain, initial_termination=0.9),
        "β starts at 0.5, of primitives at 0.95": replace(plain, initial_termination=(0.5, 0.95)),
        "ε of Q-learning (K = 800)": replace(plain, half_life=800.0),
        "no sources": replace(plain, sources=[]),
        "1 source (G1)": replace(plain, sources=sources[:1]),
        "2 sources (G1, G2)": replace(plain, sources=sources[:2]),
        "4 useless sources (random tables)": replace(plain, sources=list(random.integers(0, 4, (4, len(best))))),
        "4 harmful sources (opposite of the optimum)": replace(plain, sources=[opposite] * 4),
        "the optimal policy as fifth source": replace(plain, sources=[*sources, best]),
        LEARNED_SOURCES: plain,
    }


def planned(config: Callable[..., Any], **changes: Any) -> Callable[[], Any]:
    """
    Make a configuration with the planner's policies as sources.

    :param config: the class of a configuration
    :param changes: what is not as it is by itself
    :return: what makes it, with the planner's sources
    """
    return lambda: config(sources=planned_sources(), **changes)


BATCHES: dict[str, Batch] = {
    "sources": Batch(QLearning, _learned_sources),
    # The paper trains these for 100,000 episodes; the study's trials have 3000.
    "option_critic_sources": Batch(OptionCritic, _option_critic_sources, lengthen=100 / 3),
    "caps": Batch(
        TabularCAPS,
        _on_all_tasks(
            {
                "CAPS": planned(CAPSConfig),
                "CAPS, β = 0.5": planned(CAPSConfig, termination=0.5),
                RECOMMENDED: planned(CAPSConfig, termination_learning_rate=20.0),
            }
        ),
        snapshots=(0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
    ),
    "ablations": Batch(TabularCAPS, _ablations, needs="sources", complete=_take_learned_sources),
    "option_critic": Batch(
        OptionCritic,
        _on_all_tasks({"Option-Critic": lambda: OptionCriticConfig([nothing_learned()])}),
        needs="option_critic_sources",
        complete=_start_options,
    ),
    "q_learning": Batch(QLearning, _q_learning),
    "prql": Batch(PRQL, _on_all_tasks({"PRQL": planned(PRQLConfig)})),
    "ops_tl": Batch(OPSTL, _on_all_tasks({"OPS-TL": planned(OPSTLConfig)})),
}
