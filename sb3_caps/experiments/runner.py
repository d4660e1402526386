"""Runs of a study: what is missing is run, in parallel processes or on a cluster, and every run leaves its record."""

import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeAlias

from sb3_caps.common.extras import require
from sb3_caps.common.save_util import written_whole

Backend: TypeAlias = Literal["loky", "dask", "ray"]
# The packages whose versions matter to a result
RECORDED = ("sb3-caps", "stable-baselines3", "torch", "numpy", "gymnasium")


@dataclass(frozen=True)
class Run:
    """
    One run of a study: a folder, and everything that determines what happens in it.

    :param folder: where its config, curve and model go
    :param config: all that tells it apart from the others, as plain values
    :param steps: how long it takes, for the progress display
    """

    folder: Path
    config: dict[str, Any]
    steps: int

    @property
    def curve(self) -> Path:
        """The learning curve so far."""
        return self.folder / "curve.csv"

    @property
    def finished(self) -> bool:
        """Whether the run is complete. A finished run is never repeated."""
        return (self.folder / "finished.json").is_file()

    def finish(self, result: dict[str, Any]) -> None:
        """
        Mark the run as complete, once everything else has been written.

        :param result: what to remember of it
        """
        write_json(self.folder / "finished.json", result)

    def steps_done(self) -> int:
        """How far the run has come, by its curve."""
        if self.finished:
            return self.steps
        try:
            return min(int(float(self.curve.read_text().splitlines()[-1].split(",")[0])), self.steps)
        except (OSError, ValueError, IndexError):
            return 0


def write_json(file: Path, content: Any) -> None:
    """
    :param file: where to, whole or not at all
    :param content: plain values
    """
    with written_whole(file) as opened:
        opened.write((json.dumps(content, indent=2) + "\n").encode())


def run_missing(
    runs: Sequence[Run],
    execute: Callable[[Run], dict[str, Any]],
    jobs: int = 2,
    backend: Backend = "loky",
    address: str | None = None,
    command: Sequence[str] = (),
) -> list[str]:
    """
    Execute the runs that are not finished yet.

    :param runs: all runs of the study
    :param execute: what a run does, a function of a module; returns what to remember of it
    :param jobs: how many at a time
    :param backend: joblib's backend: ``"loky"`` (processes on this machine), ``"dask"`` or ``"ray"``
    :param address: of a running cluster, for Dask or Ray; None starts one on this machine. Its machines need
        the folder of the results under the same path
    :param command: the command that asked for these runs, kept beside each
    :return: the errors of runs that failed
    """
    joblib = require("joblib", "experiments")
    missing = [run for run in runs if not run.finished]
    for run in missing:
        _write_record(run, command)
    errors: list[str] = []
    with _progress(runs), _cluster(joblib, backend, jobs, address):
        # Ray's backend hands over nothing before all is there
        return_as = "list" if backend == "ray" else "generator_unordered"
        parallel = joblib.Parallel(n_jobs=jobs, return_as=return_as, batch_size=1)
        for error in parallel(joblib.delayed(_guarded)(execute, run) for run in missing):
            if error is not None:
                errors.append(error)
                print(f"\n{error}", file=sys.stderr)
    return errors


def _write_record(run: Run, command: Sequence[str]) -> None:
    """Before anything happens: what this run is, with which versions, and how to ask for it again."""
    versions = {name: metadata.version(name) for name in RECORDED}
    write_json(run.folder / "config.json", {**run.config, "versions": versions})
    with written_whole(run.folder / "command.txt") as file:
        file.write((" ".join(command) + "\n").encode())


@cache
def _leave_with_the_study() -> None:
    """A process whose study was killed must not go on beside the study that resumes the run."""
    if not multiprocessing.current_process().name.startswith("Loky"):
        return
    study = os.getppid()

    def watch() -> None:
        while os.getppid() == study:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _guarded(execute: Callable[[Run], dict[str, Any]], run: Run) -> str | None:
    """One run that fails must not stop the others."""
    _leave_with_the_study()
    # Runs are many and networks small: one thread for each, whatever torch would take
    require("torch", "experiments").set_num_threads(1)
    try:
        run.finish(execute(run))
    except Exception as error:
        (run.folder / "error.txt").write_text(traceback.format_exc())
        return f"{run.folder} failed, see error.txt there: {type(error).__name__}: {error}"
    (run.folder / "error.txt").unlink(missing_ok=True)
    return None


@contextmanager
def _cluster(joblib: Any, backend: Backend, jobs: int, address: str | None) -> Iterator[None]:
    """Where joblib sends runs to while this is open."""
    if backend == "loky":
        if address is not None:
            raise ValueError(f"The backend 'loky' runs on this machine and has no address (got {address!r}).")
        with joblib.parallel_config("loky"):
            yield
    elif backend == "dask":
        distributed = require("dask.distributed", "cluster")
        local = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
        with (
            distributed.Client(address) if address else distributed.Client(**local),
            joblib.parallel_config("dask"),
        ):
            yield
    elif backend == "ray":
        ray = require("ray", "cluster")
        register_ray = require("ray.util.joblib", "cluster").register_ray
        ray.init(address=address, num_cpus=None if address else jobs)
        register_ray()
        try:
            with joblib.parallel_config("ray"):
                yield
        finally:
            ray.shutdown()
    else:
        raise ValueError(f"Unknown backend {backend!r}: pass 'loky', 'dask' or 'ray'.")


@contextmanager
def _progress(runs: Sequence[Run]) -> Iterator[None]:
    """One bar for all runs, wherever they run: it reads the curves that they write."""
    tqdm = require("tqdm", "experiments").tqdm
    stop = threading.Event()

    def show() -> None:
        running = True
        while running:
            running = not stop.wait(1.0)
            done = [run.steps_done() for run in runs]
            bar.set_postfix_str(f"{sum(run.finished for run in runs)}/{len(runs)} runs", refresh=False)
            bar.update(sum(done) - bar.n)

    with tqdm(total=sum(run.steps for run in runs), unit="step", unit_scale=True, smoothing=0.05) as bar:
        thread = threading.Thread(target=show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
