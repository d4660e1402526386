"""What the grid study runs beside the paper's figures: the surface, tuning, random targets and long runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from sb3_caps.studies.grid.batches import BATCHES as FIGURES
from sb3_caps.studies.grid.batches import (
    SOURCE_TASKS,
    TASKS,
    Batch,
    Tables,
    Trial,
    each_seed,
    nothing_learned,
    optimum,
    planned_sources,
    task,
)
from sb3_caps.tabular import (
    OPSTL,
    PRQL,
    CAPSConfig,
    OPSTLConfig,
    OptionCritic,
    OptionCriticConfig,
    PRQLConfig,
    QConfig,
    QLearning,
    TabularCAPS,
)

REWARDS = (1.0, 3.0, 10.0, 30.0, 100.0)
HALF_LIVES = (25.0, 100.0, 800.0)
N_TARGETS = 30
# Of the surface, the cells in which random targets are learned
TARGET_REWARDS, TARGET_HALF_LIVES = (1.0, 10.0), (25.0, 800.0)
MAPS = ("rooms", "rooms_changed")
# Sources of Option-Critic for each reward: they take 100,000 episodes each, so the seeds of a target share these.
CRITIC_SOURCES = 5
# Settings are chosen on seeds that no result is reported for.
TUNING_SEEDS = range(1000, 1005)


# The surface: reward by exploration


def at(method: str, reward: float | None = None, half_life: float | None = None) -> str:
    """
    Name a cell of the surface.

    :param method: a method
    :param reward: R, where it plays a role
    :param half_life: K of ε, where it plays a role
    :return: the name of a cell of the surface
    """
    parts = [method, *([f"R = {reward:g}"] if reward else []), *([f"K = {half_life:g}"] if half_life else [])]
    return ", ".join(parts)


def _everywhere(
    cells: Sequence[tuple[str, Any, float]], n_seeds: int, tasks: Sequence[str] = tuple(TASKS)
) -> list[Trial]:
    return [
        trial
        for (name, config, reward), on in product(cells, tasks)
        for trial in each_seed(name, on, n_seeds, config, reward)
    ]


def _surface_caps(reward: float, n_seeds: int) -> list[Trial]:
    plain = CAPSConfig(planned_sources())
    return _everywhere([(at("CAPS", reward, k), replace(plain, half_life=k), reward) for k in HALF_LIVES], n_seeds)


def _surface_fixed(n_seeds: int) -> list[Trial]:
    # With a fixed β the reward has no role: all values are multiplied by it.
    plain = CAPSConfig(planned_sources(), termination=0.5)
    return _everywhere([(at("CAPS, β = 0.5", None, k), replace(plain, half_life=k), 1.0) for k in HALF_LIVES], n_seeds)


def _surface_q_learning(n_seeds: int) -> list[Trial]:
    return _everywhere([(at("Q-learning", None, k), QConfig(half_life=k), 1.0) for k in HALF_LIVES], n_seeds)


def _surface_prql(n_seeds: int) -> list[Trial]:
    return _everywhere([(at("PRQL", r), PRQLConfig(sources=planned_sources()), r) for r in REWARDS], n_seeds)


def _surface_ops_tl(reward: float, n_seeds: int) -> list[Trial]:
    plain = OPSTLConfig(sources=planned_sources())
    readings = {"OPS-TL": plain, "OPS-TL, within the episode": replace(plain, reuse_half_life=np.inf)}
    cells = product(readings.items(), HALF_LIVES)
    return _everywhere(
        [(at(name, reward, k), replace(config, half_life=k), reward) for (name, config), k in cells], n_seeds
    )


def _surface_critic_sources(n_seeds: int) -> list[Trial]:
    config = OptionCriticConfig([nothing_learned()], half_life=QConfig().half_life)
    cells = [(at("source", r), config, r) for r in REWARDS]
    return _everywhere(cells, min(n_seeds, CRITIC_SOURCES), tuple(SOURCE_TASKS))


def _surface_critic(n_seeds: int) -> list[Trial]:
    return _everywhere([(at("Option-Critic", r), OptionCriticConfig([nothing_learned()]), r) for r in REWARDS], n_seeds)


def _start_critic(trials: list[Trial], sources: Tables) -> list[Trial]:
    learned = sources["preferences"].reshape(len(REWARDS), len(SOURCE_TASKS), -1, *nothing_learned().shape)

    def start(trial: Trial) -> Trial:
        own = learned[REWARDS.index(trial.reward), :, trial.seed % learned.shape[2]]
        return replace(trial, config=replace(trial.config, preferences=tuple(own)))

    return [start(trial) for trial in trials]


SURFACE = {
    **{f"surface_caps_{r:g}": Batch(TabularCAPS, partial(_surface_caps, r), light=True) for r in REWARDS},
    "surface_fixed": Batch(TabularCAPS, _surface_fixed, light=True),
    "surface_q_learning": Batch(QLearning, _surface_q_learning, light=True),
    "surface_prql": Batch(PRQL, _surface_prql, light=True),
    **{f"surface_ops_tl_{r:g}": Batch(OPSTL, partial(_surface_ops_tl, r), light=True) for r in REWARDS},
    "surface_critic_sources": Batch(OptionCritic, _surface_critic_sources, lengthen=100 / 3),
    "surface_critic": Batch(
        OptionCritic, _surface_critic, needs="surface_critic_sources", complete=_start_critic, light=True
    ),
}


# Tuning: as many settings for every method, chosen on the source tasks, each learned from the other three


@dataclass(frozen=True)
class Choice:
    """
    A method, one reading of its rules, and the settings to choose from.

    :param learner: the name of the batches of its learner
    :param base: what all settings share
    :param settings: what differs, always ``SETTINGS`` of them
    """

    learner: str
    base: Any
    settings: list[dict[str, Any]]


def _grid(**values: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(zip(values, combination, strict=True)) for combination in product(*values.values())]


SETTINGS = 12
_EXPLORE = [{"bonus": 0.1, "half_life": 25.0}, {"bonus": 1.0, "half_life": 25.0}, {"bonus": 0.1, "half_life": 100.0}]
_RATES = (0.1, 0.5)


def choices() -> dict[str, Choice]:
    """Return all that is tuned: four methods, two readings of the reuse rule, and two ways to break ties."""
    readings = {
        "CAPS": Choice(
            "caps",
            CAPSConfig(),
            _grid(learning_rate=_RATES, half_life=(10.0, 25.0, 100.0), termination_learning_rate=(0.2, 20.0)),
        ),
        "Q-learning": Choice(
            "q_learning",
            QConfig(),
            _grid(learning_rate=_RATES, half_life=(10.0, 25.0, 50.0, 100.0, 200.0, 800.0)),
        ),
        "PRQL, within the episode": Choice(
            "prql",
            PRQLConfig(),
            _grid(learning_rate=_RATES, temperature_step=(0.005, 0.05, 0.5), reuse_decay=(0.9, 0.95)),
        ),
        "PRQL, over episodes": Choice(
            "prql",
            PRQLConfig(),
            _grid(learning_rate=_RATES, temperature_step=(0.05, 0.5), reuse_half_life=(25.0, 100.0, 400.0)),
        ),
        "OPS-TL, within the episode": Choice(
            "ops_tl",
            OPSTLConfig(reuse_half_life=np.inf),
            [{**a, **b} for a in _grid(learning_rate=_RATES, reuse_decay=(0.8, 0.95)) for b in _EXPLORE],
        ),
        "OPS-TL, over episodes": Choice(
            "ops_tl",
            OPSTLConfig(),
            [{**a, **b} for a in _grid(learning_rate=_RATES, reuse_half_life=(25.0, 100.0)) for b in _EXPLORE],
        ),
    }
    return {
        name if random else f"{name}, first of equals": replace(choice, base=replace(choice.base, random_ties=random))
        for name, choice in readings.items()
        for random in (True, False)
    }


def _config(choice: Choice, setting: dict[str, Any], sources: list[np.ndarray]) -> Any:
    given = {} if choice.learner == "q_learning" else {"sources": sources}
    return replace(choice.base, **setting, **given)


def _tuning(learner: str) -> Any:
    def trials(n_seeds: int) -> list[Trial]:
        return [
            Trial(
                f"{name} {number}",
                on,
                seed,
                _config(choice, setting, [optimum(s).policy for s in SOURCE_TASKS if s != on]),
            )
            for name, choice in choices().items()
            if choice.learner == learner
            for number, setting in enumerate(choice.settings)
            for on in SOURCE_TASKS
            for seed in TUNING_SEEDS[:n_seeds]
        ]

    return trials


def _tuned(learner: str) -> Any:
    def trials(n_seeds: int) -> list[Trial]:
        cells = [
            (f"{name}, tuned", _config(choice, {}, planned_sources()), 1.0)
            for name, choice in choices().items()
            if choice.learner == learner
        ]
        return _everywhere(cells, n_seeds)

    return trials


def chosen(learner: str, tuning: Tables) -> dict[str, int]:
    """
    Choose the best settings of a learner.

    :param learner: the name of the batches of a learner
    :param tuning: the result of its tuning
    :return: for each of its choices the setting with the largest mean area, as shares of the optima of the source tasks
    """
    names = [name for name, choice in choices().items() if choice.learner == learner]
    areas = tuning["returns"].mean(axis=1).reshape(len(names), SETTINGS, len(SOURCE_TASKS), -1).mean(axis=3)
    shares = (areas / [optimum(on).value for on in SOURCE_TASKS]).mean(axis=2)
    return dict(zip(names, shares.argmax(axis=1).tolist(), strict=True))


def _take_chosen(learner: str) -> Any:
    def complete(trials: list[Trial], tuning: Tables) -> list[Trial]:
        best = chosen(learner, tuning)

        def tuned(trial: Trial) -> Trial:
            name = trial.variant.removesuffix(", tuned")
            setting = choices()[name].settings[best[name]]
            return replace(trial, config=replace(trial.config, **setting))

        return [tuned(trial) for trial in trials]

    return complete


LEARNERS = {"caps": TabularCAPS, "q_learning": QLearning, "prql": PRQL, "ops_tl": OPSTL}
TUNING = {
    **{f"tuning_{name}": Batch(make, _tuning(name), lengthen=2 / 3, light=True) for name, make in LEARNERS.items()},
    **{
        f"tuned_{name}": Batch(make, _tuned(name), needs=f"tuning_{name}", complete=_take_chosen(name), light=True)
        for name, make in LEARNERS.items()
    },
}


# Random targets: is a result one of the map or of the method?


def targets(map_name: str) -> list[str]:
    """
    Draw random targets on a map.

    :param map_name: a map
    :return: goals drawn from its free cells that are no goal of the paper, as tasks
    """
    on = task("changed" if map_name == "rooms_changed" else "g").map
    free = np.setdiff1d(on.free_cells, list(on.goals.values()))
    cells = np.random.default_rng(2019).choice(free, N_TARGETS, replace=False)
    return [f"{map_name}/{cell}" for cell in sorted(cells.tolist())]


def _targets(learner: str, map_name: str) -> Any:
    def trials(n_seeds: int) -> list[Trial]:
        sources = planned_sources()
        ops_tl = OPSTLConfig(sources=sources)
        within = replace(ops_tl, reuse_half_life=np.inf)
        explored = product(TARGET_REWARDS, TARGET_HALF_LIVES)
        cells: dict[str, list[tuple[str, Any, float]]] = {
            "caps": [(at("CAPS", r, k), CAPSConfig(sources, half_life=k), r) for r, k in explored],
            "q_learning": [(at("Q-learning", None, k), QConfig(half_life=k), 1.0) for k in TARGET_HALF_LIVES],
            "prql": [(at("PRQL", r), PRQLConfig(sources=sources), r) for r in TARGET_REWARDS],
            "ops_tl": [
                (at(name, r, config.half_life), config, r)
                for name, config in (("OPS-TL", ops_tl), ("OPS-TL, within the episode", within))
                for r in TARGET_REWARDS
            ],
        }
        return _everywhere(cells[learner], n_seeds, targets(map_name))

    return trials


TARGETS = {
    f"targets_{name}_{on}": Batch(make, _targets(name, on), light=True)
    for on, (name, make) in product(MAPS, LEARNERS.items())
}


# Long runs: what the theorems promise in the end

PAPER_RUN, LONG_RUN, LONG_FAST_RUN = "the paper's settings", "α falls, R = 1", "α falls, R = 100"
# Every pair of a state and an option has to be visited for ever: here ε is one half after the last episode.
LONG_HALF_LIFE, RATE_HALF_LIFE = 100_000.0, 2_000.0


def _long(n_seeds: int) -> list[Trial]:
    sources = planned_sources()
    falling = CAPSConfig(sources, half_life=LONG_HALF_LIFE, learning_rate_half_life=RATE_HALF_LIFE)
    cells = [
        (PAPER_RUN, CAPSConfig(sources, half_life=800.0), 1.0),
        (LONG_RUN, falling, 1.0),
        (LONG_FAST_RUN, falling, 100.0),
    ]
    return _everywhere(cells, n_seeds, ["g"])


_SNAPSHOTS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
THEOREMS = {
    "theorems": Batch(TabularCAPS, _long, snapshots=_SNAPSHOTS, lengthen=100 / 3),
    # Without noise the cell tells all: the Markov decision process that the theorems speak of.
    "theorems_no_noise": Batch(TabularCAPS, _long, snapshots=_SNAPSHOTS, lengthen=100 / 3, noise=0.0),
}


ALL: dict[str, Batch] = {**FIGURES, **SURFACE, **TUNING, **TARGETS, **THEOREMS}


def with_needed(names: Sequence[str]) -> list[str]:
    """
    Add the batches that others need.

    :param names: some batches
    :return: these and all that they need, in an order in which they can be run
    """
    wanted = {*names, *(ALL[name].needs for name in names)}
    return [name for name in ALL if name in wanted]
