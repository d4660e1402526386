"""The batches of the grid study as runs that can be killed and resumed, and their results on disk."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sb3_caps.files.save_util import atomic_write, read_pickle, write_pickle
from sb3_caps.studies.grid.batches import Trial, task
from sb3_caps.studies.grid.designs import ALL, with_needed
from sb3_caps.studies.shared.runs import Run, set_aside, write_rows
from sb3_caps.studies.shared.scheduler import run_missing, this_command
from sb3_caps.tabular import Experiment, Greedy
from sb3_caps.tabular.evaluation import call_and_return

CHECKPOINT_SECONDS = 60.0
REPORT_SECONDS = 1.0
STEPS_BETWEEN_LOOKS = 10_000
EVALUATION_EPISODES = 1000
# So many runs are evaluated together, to save memory
EVALUATED_TOGETHER = 100
BLOCKS = 100
CHECKPOINT, RESULT = "checkpoint.pkl", "result.npz"


class Results:
    """
    The results of a study on disk.

    Each batch has a folder with the configuration of every trial (``config.json``) and the command. When it is
    finished, the raw curves and tables are there too (``result.npz``); until then, a checkpoint.

    :param folder: the folder of all results
    :param n_runs: the number of trials of each variant
    :param episodes: the number of episodes of each trial
    """

    def __init__(self, folder: Path, n_runs: int, episodes: int) -> None:
        self.folder, self.n_runs, self.episodes = folder / f"{n_runs}_runs_{episodes}_episodes", n_runs, episodes

    def path(self, batch: str, file: str) -> Path:
        """
        Find a file of a batch.

        :param batch: the name of a batch
        :param file: one of its files
        :return: where it is
        """
        return self.folder / batch / file

    def is_finished(self, batch: str) -> bool:
        """
        Tell whether a batch is finished.

        :param batch: the name of a batch
        :return: whether its result is on disk
        """
        return self.path(batch, RESULT).exists()

    def load(self, batch: str) -> dict[str, np.ndarray]:
        """
        Load the results of a batch.

        :param batch: the name of a finished batch
        :return: ``returns``, ``greedy_values``, the greedy options and the tables, with one row for each trial
        """
        with np.load(self.path(batch, RESULT)) as file:
            return dict(file)

    def trials(self, batch: str) -> list[Trial]:
        """
        Make the trials of a batch.

        :param batch: the name of a batch whose needs are finished
        :return: its trials
        """
        trials, needs, complete = ALL[batch].trials(self.n_runs), ALL[batch].needs, ALL[batch].complete
        return trials if needs is None or complete is None else complete(trials, self.load(needs))

    def run(self, batch: str) -> Run:
        """
        Make a run of the study from a batch.

        :param batch: the name of a batch whose needs are finished
        :return: the batch as a run of the study
        """
        trials = [trial.describe() for trial in self.trials(batch)]
        config = {"batch": batch, "n_runs": self.n_runs, "episodes": self.episodes, "trials": trials}
        steps = len(trials) * ALL[batch].episodes(self.episodes)
        return Run(self.folder / batch, config, steps=steps, result=RESULT)


def run_all(results: Results, batches: Sequence[str], jobs: int) -> list[str]:
    """
    Run what is missing of some batches, and of what they need.

    :param results: where they are kept
    :param batches: their names
    :param jobs: the number of worker processes
    :return: the errors of batches that failed
    """
    wanted = with_needed(batches)
    first = [name for name in wanted if ALL[name].needs is None]
    # What the first ones leave makes the trials of the others
    for stage in (first, [name for name in wanted if name not in first]):
        runs = [results.run(name) for name in stage]
        for run in runs:
            _check_settings(run)
        errors = run_missing(runs, execute, jobs, command=this_command(), unit="episode")
        if errors:
            return errors
    return []


def _check_settings(run: Run) -> None:
    """Results of an older version of the study are not this one's."""
    file = run.folder / "config.json"
    if run.finished and file.is_file():
        stored = json.loads(file.read_text())
        if any(stored.get(key) != value for key, value in json.loads(json.dumps(run.config, default=float)).items()):
            raise ValueError(f"{run.folder} has results of other settings: move it away, or pass another --results")


def execute(run: Run) -> None:
    """
    Run a batch from its checkpoint, or from the start, to the end.

    :param run: what ``Results.run`` made
    """
    reported = 0.0

    def report(finished: int) -> None:
        nonlocal reported
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            write_rows(run.curve, [{"episodes": finished}])

    run_batch(Results(run.folder.parents[1], run.config["n_runs"], run.config["episodes"]), run.config["batch"], report)
    run.curve.unlink(missing_ok=True)


def run_batch(results: Results, batch: str, report: Callable[[int], None]) -> None:
    """
    Run a batch from its checkpoint, or from the start, to the end.

    :param results: where it is kept
    :param batch: its name
    :param report: is called now and then with the number of finished episodes
    """
    trials = results.trials(batch)
    config = results.run(batch).config
    checkpoint = results.path(batch, CHECKPOINT)
    experiment = _restore(checkpoint, config) or _start(results, batch, trials)
    saved = time.monotonic()
    while not experiment.run(steps=STEPS_BETWEEN_LOOKS):
        report(experiment.finished)
        if time.monotonic() - saved > CHECKPOINT_SECONDS:
            write_pickle(checkpoint, (config, experiment))
            saved = time.monotonic()
    report(experiment.finished)
    _store(results, batch, trials, experiment)
    checkpoint.unlink(missing_ok=True)


def _start(results: Results, batch: str, trials: list[Trial]) -> Experiment:
    first = task(trials[0].task).map
    learner = ALL[batch].learner([trial.config for trial in trials], first.n_cells)
    episodes = ALL[batch].episodes(results.episodes)
    return Experiment(
        learner,
        [task(trial.task) for trial in trials],
        [trial.seed for trial in trials],
        episodes,
        snapshot_episodes(batch, results.episodes),
        noise=ALL[batch].noise,
        rewards=[trial.reward for trial in trials],
    )


def snapshot_episodes(batch: str, episodes: int) -> list[int]:
    """
    List the episodes after which tables are kept.

    :param batch: the name of a batch
    :param episodes: how many most trials of the study have
    :return: after how many episodes its tables are kept
    """
    own = ALL[batch].episodes(episodes)
    return [max(1, round(share * own)) for share in ALL[batch].snapshots]


def _restore(checkpoint: Path, config: dict[str, Any]) -> Experiment | None:
    """The experiment as it was when it was stopped, unless its configuration has changed since."""
    if not checkpoint.exists():
        return None
    try:
        stored, experiment = read_pickle(checkpoint)
    except (ValueError, TypeError) as error:
        kept = set_aside(checkpoint)
        print(f"{checkpoint} is damaged ({error}): kept as {kept.name}, the batch starts again.", file=sys.stderr)
        return None
    return experiment if stored == config else None


def _store(results: Results, batch: str, trials: list[Trial], experiment: Experiment) -> None:
    arrays: dict[str, Any] = {"returns": _blocks(experiment.returns)}
    if not ALL[batch].light:
        greedy = experiment.learner.greedy()
        arrays = {
            "returns": experiment.returns.astype(np.float32),
            "greedy_values": evaluate(greedy, trials, ALL[batch].noise),
            "greedy_options": greedy.options.astype(np.int8),
            "greedy_actions": greedy.flat().astype(np.int8),
            **experiment.learner.tables(),
            **{f"snapshot_{name}": table.astype(np.float32) for name, table in experiment.snapshots.items()},
        }
    with atomic_write(results.path(batch, RESULT)) as file:
        np.savez_compressed(file, **arrays)


def _blocks(returns: np.ndarray) -> np.ndarray:
    """The means of equal blocks of episodes, so that their mean is the mean of all."""
    n_blocks = next(count for count in range(min(BLOCKS, returns.shape[1]), 0, -1) if returns.shape[1] % count == 0)
    return returns.reshape(len(returns), n_blocks, -1).mean(axis=2)


def evaluate(greedy: Greedy, trials: Sequence[Trial], noise: float) -> np.ndarray:
    """
    Evaluate what was learned.

    :param greedy: what the trials do when they stop exploring
    :param trials: the trials
    :param noise: the largest deviation of a move
    :return: the mean discounted return of each trial
    """
    values = []
    for first in range(0, len(trials), EVALUATED_TOGETHER):
        some = slice(first, first + EVALUATED_TOGETHER)
        tasks = [task(trial.task) for trial in trials[some]]
        values.append(
            call_and_return(Greedy(*(table[some] for table in greedy)), tasks, EVALUATION_EPISODES, noise=noise)
        )
    return np.concatenate(values)
