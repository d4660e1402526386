"""
How fast the tabular learners are, batched in NumPy and compiled: ``python -m benchmarks.tabular``.

Processor time of the same runs, one way after the other: ten seeds of each of the three tasks, at the settings of the
grid study. Compilation is not counted; it takes one to three seconds for each learner.
"""

import argparse
import time

from benchmarks.report import machine
from sb3_caps.studies.grid.batches import TASKS, Trial, each_seed, nothing_learned, planned_sources, task
from sb3_caps.studies.shared.tables import markdown
from sb3_caps.tabular import (
    OPSTL,
    PRQL,
    CAPSConfig,
    Experiment,
    OPSTLConfig,
    OptionCritic,
    OptionCriticConfig,
    PRQLConfig,
    QConfig,
    QLearning,
    TabularCAPS,
)

SEEDS = 10


def seconds(learner: type, trials: list[Trial], episodes: int, use_compiled: bool) -> float:
    """
    :param learner: the class of the learners
    :param trials: what to run
    :param episodes: of each
    :param use_compiled: in machine code, or batched in NumPy
    :return: processor time
    """
    tasks = [task(trial.task) for trial in trials]
    made = learner([trial.config for trial in trials], tasks[0].map.n_cells)
    experiment = Experiment(made, tasks, [trial.seed for trial in trials], episodes, use_compiled=use_compiled)
    start = time.process_time()
    experiment.run()
    return time.process_time() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tabular", description=__doc__)
    parser.add_argument("--episodes", type=int, default=300, help="episodes of each run; the study has 3000")
    episodes = parser.parse_args().episodes
    sources = planned_sources()
    learners = {
        TabularCAPS: CAPSConfig(sources),
        QLearning: QConfig(),
        PRQL: PRQLConfig(sources=sources),
        OPSTL: OPSTLConfig(sources=sources),
        OptionCritic: OptionCriticConfig([nothing_learned()] * 4),
    }
    rows = []
    for learner, config in learners.items():
        trials = [trial for on in TASKS for trial in each_seed("", on, SEEDS, config)]
        seconds(learner, trials[:1], 1, use_compiled=True)
        slow, fast = (len(trials) * episodes / seconds(learner, trials, episodes, way) for way in (False, True))
        rows.append([learner.__name__, f"{slow:,.0f}", f"{fast:,.0f}", f"{fast / slow:.1f}"])
        print(rows[-1], flush=True)
    print(f"\nMeasured on {machine()}, {episodes} episodes\n")
    print(markdown(["learner", "batched, episodes a second", "compiled", "ratio"], rows))


if __name__ == "__main__":
    main()
