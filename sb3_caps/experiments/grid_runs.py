"""Runs the batches of the grid study in worker processes; what is on disk is not run again."""

import json
import multiprocessing
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sb3_caps.common.extras import require
from sb3_caps.experiments.grid_batches import BATCHES, Run, task, with_needed
from sb3_caps.tabular import Experiment
from sb3_caps.tabular.evaluation import call_and_return

CHECKPOINT_SECONDS = 15.0
STEPS_BETWEEN_LOOKS = 1000
EVALUATION_EPISODES = 1000


class Results:
    """
    The results of a study on disk: for each batch a folder with the configuration of every run (``config.json``), the
    command, and when it is finished the raw curves and tables (``result.npz``); until then, a checkpoint.

    :param folder: the folder of all results
    :param n_runs: the number of runs of each variant
    :param episodes: the number of episodes of each run
    """

    def __init__(self, folder: Path, n_runs: int, episodes: int) -> None:
        self.folder, self.n_runs, self.episodes = folder / f"{n_runs}_runs_{episodes}_episodes", n_runs, episodes

    def path(self, batch: str, file: str) -> Path:
        """
        :param batch: the name of a batch
        :param file: one of its files
        :return: where it is
        """
        return self.folder / batch / file

    def is_finished(self, batch: str) -> bool:
        """
        :param batch: the name of a batch
        :return: whether its result is on disk
        """
        return self.path(batch, "result.npz").exists()

    def load(self, batch: str) -> dict[str, np.ndarray]:
        """
        :param batch: the name of a finished batch
        :return: ``returns``, ``greedy_values``, the greedy options and the tables, with one row for each run
        """
        with np.load(self.path(batch, "result.npz")) as file:
            return dict(file)

    def runs(self, batch: str) -> list[Run]:
        """
        :param batch: the name of a batch whose needs are finished
        :return: its runs
        """
        runs, needs, complete = BATCHES[batch].runs(self.n_runs), BATCHES[batch].needs, BATCHES[batch].complete
        return runs if needs is None or complete is None else complete(runs, self.load(needs))


def run_batch(results: Results, batch: str, command: str, progress: Any) -> None:
    """
    Run a batch from its checkpoint, or from the start, to the end.

    :param results: where it is kept
    :param batch: its name
    :param command: what the user called
    :param progress: a mapping in which the number of finished episodes is kept up to date
    """
    runs = results.runs(batch)
    results.path(batch, "").mkdir(parents=True, exist_ok=True)
    results.path(batch, "command.txt").write_text(command + "\n")
    config = json.dumps([run.describe() for run in runs], indent=1, ensure_ascii=False, default=float)
    checkpoint = results.path(batch, "checkpoint.pkl")
    experiment = _restore(checkpoint, results.path(batch, "config.json"), config) or _start(results, batch, runs)
    results.path(batch, "config.json").write_text(config)
    saved = time.monotonic()
    while not experiment.run(steps=STEPS_BETWEEN_LOOKS):
        progress[batch] = experiment.finished
        if time.monotonic() - saved > CHECKPOINT_SECONDS:
            with _replacing(checkpoint) as file:
                pickle.dump(experiment, file)
            saved = time.monotonic()
    progress[batch] = experiment.finished
    _store(results, batch, runs, experiment)
    checkpoint.unlink(missing_ok=True)


def run_all(results: Results, batches: Sequence[str], command: str, jobs: int) -> None:
    """
    Run what is missing of some batches, and of what they need, with a progress bar.

    :param results: where they are kept
    :param batches: their names
    :param command: what the user called
    :param jobs: the number of worker processes
    """
    waiting = [name for name in with_needed(batches) if not results.is_finished(name)]
    if not waiting:
        return
    with multiprocessing.Manager() as manager, ProcessPoolExecutor(jobs) as pool:
        progress = manager.dict()
        running: dict[Future[None], str] = {}
        total = sum(len(BATCHES[name].runs(results.n_runs)) for name in waiting) * results.episodes
        with _bar(total) as bar:
            while waiting or running:
                for name in _ready(results, waiting)[: jobs - len(running)]:
                    running[pool.submit(run_batch, results, name, command, progress)] = name
                    waiting.remove(name)
                done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                bar.set_description(", ".join(running.values()))
                bar.update(sum(progress.values()) - bar.n)
                for future in done:
                    future.result()
                    del running[future]


def _start(results: Results, batch: str, runs: list[Run]) -> Experiment:
    first = task(runs[0].task).map
    learner = BATCHES[batch].learner([run.config for run in runs], first.n_cells)
    snapshots = [max(1, round(share * results.episodes)) for share in BATCHES[batch].snapshots]
    seeds = [run.seed for run in runs]
    return Experiment(learner, [task(run.task) for run in runs], seeds, results.episodes, snapshots)


def _restore(checkpoint: Path, config_path: Path, config: str) -> Experiment | None:
    """The experiment as it was when it was stopped, unless its configuration has changed since."""
    if not checkpoint.exists() or not config_path.exists() or config_path.read_text() != config:
        return None
    with checkpoint.open("rb") as file:
        experiment = pickle.load(file)
    assert isinstance(experiment, Experiment)
    return experiment


def _store(results: Results, batch: str, runs: list[Run], experiment: Experiment) -> None:
    greedy = experiment.learner.greedy()
    arrays: dict[str, Any] = {
        "returns": experiment.returns.astype(np.float32),
        "greedy_values": call_and_return(greedy, [task(run.task) for run in runs], EVALUATION_EPISODES),
        "greedy_options": greedy.options.astype(np.int8),
        "greedy_actions": greedy.flat().astype(np.int8),
        **experiment.learner.tables(),
        **{f"snapshot_{name}": table.astype(np.float32) for name, table in experiment.snapshots.items()},
    }
    with _replacing(results.path(batch, "result.npz")) as file:
        np.savez_compressed(file, **arrays)


@contextmanager
def _replacing(path: Path) -> Iterator[Any]:
    """A file that takes the place of ``path`` only when it is complete."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        yield file
    os.replace(temporary, path)


def _ready(results: Results, batches: Sequence[str]) -> list[str]:
    needs = {name: BATCHES[name].needs for name in batches}
    return [name for name, needed in needs.items() if needed is None or results.is_finished(needed)]


def _bar(total: int) -> Any:
    return require("tqdm", "experiments").tqdm(total=total, unit="episode", unit_scale=True, dynamic_ncols=True)
