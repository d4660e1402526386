"""Runs what is missing of a study, in parallel processes or on a cluster, with one bar for all."""

import multiprocessing
import os
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeAlias

from sb3_caps.extras import require
from sb3_caps.studies.shared.runs import Run, set_aside, write_json, write_text

Backend: TypeAlias = Literal["loky", "dask", "ray"]
Execute: TypeAlias = Callable[[Run], dict[str, Any] | None]
# The packages whose versions matter to a result
RECORDED = ("sb3-caps", "stable-baselines3", "torch", "numpy", "gymnasium")


def run_missing(
    runs: Sequence[Run],
    execute: Execute,
    jobs: int = 2,
    backend: Backend = "loky",
    address: str | None = None,
    command: Sequence[str] = (),
    unit: str = "step",
) -> list[str]:
    """
    Execute the runs that are not finished yet, and those whose results are damaged.

    :param runs: all runs of the study
    :param execute: what a run does, a function of a module; returns what to remember of it, or None if it has written
        the run's result itself
    :param jobs: how many at a time
    :param backend: joblib's backend: ``"loky"`` (processes on this machine), ``"dask"`` or ``"ray"``
    :param address: of a running cluster, for Dask or Ray; None starts one on this machine. Its machines need
        the folder of the results under the same path
    :param command: the command that asked for these runs, kept beside each
    :param unit: what ``Run.steps`` counts
    :return: the errors of runs that failed
    """
    joblib = require("joblib", "studies")
    for run in runs:
        discard_damaged(run)
    missing = [run for run in runs if not run.finished]
    if not missing:
        return []
    for run in missing:
        _write_record(run, command)
    errors: list[str] = []
    with _progress(runs, unit), _cluster(joblib, backend, jobs, address):
        # Ray's backend hands over nothing before all is there
        return_as = "list" if backend == "ray" else "generator_unordered"
        parallel = joblib.Parallel(n_jobs=jobs, return_as=return_as, batch_size=1)
        for error in parallel(joblib.delayed(_guarded)(execute, run, os.getpid()) for run in missing):
            if error is not None:
                errors.append(error)
                print(f"\n{error}", file=sys.stderr)
    return errors


def this_command() -> list[str]:
    """Return the command that the user called, for the record of each run."""
    return ["sb3-caps", *map(shlex.quote, sys.argv[1:])]


def discard_damaged(run: Run) -> None:
    """
    Set aside the files of a finished run that cannot be read; the run is then no longer finished.

    :param run: any run
    """
    if not run.finished:
        return
    for file, error in run.damaged().items():
        kept = set_aside(file)
        (run.folder / run.result).unlink(missing_ok=True)
        print(f"{file} is damaged ({error}): kept as {kept.name}, the run is done again.", file=sys.stderr)


def finished_runs(runs: Sequence[Run], folder: Path, required: bool = True) -> list[Run]:
    """
    What there is to draw.

    :param runs: all runs of a study
    :param folder: of the study
    :param required: False where there is something else to draw
    :return: those that are finished; an error if none is and one is required, or if one is damaged
    """
    finished = [run for run in runs if run.finished]
    if required and not finished:
        raise FileNotFoundError(f"There is no finished run of these in {folder}: leave --draw out to run them.")
    for run in finished:
        for file in run.damaged():
            raise ValueError(f"{file} is damaged: leave --draw out, then its run is done again.")
    return finished


def _write_record(run: Run, command: Sequence[str]) -> None:
    """Before anything happens: what this run is, with which versions, and how to ask for it again."""
    versions = {name: metadata.version(name) for name in RECORDED}
    write_json(run.folder / "config.json", {**run.config, "versions": versions})
    write_text(run.folder / "command.txt", " ".join(command) + "\n")


@cache
def _leave_with(study: int) -> None:
    """A process whose study was killed must not go on beside the study that resumes the run."""
    if not multiprocessing.current_process().name.startswith("Loky"):
        return

    def watch() -> None:
        while os.getppid() == study:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _guarded(execute: Execute, run: Run, study: int) -> str | None:
    """One run that fails must not stop the others."""
    _leave_with(study)
    if "torch" in sys.modules:
        # Runs are many and networks small: one thread for each, whatever torch would take
        sys.modules["torch"].set_num_threads(1)
    try:
        remember = execute(run)
        if remember is not None:
            write_json(run.folder / run.result, remember)
    except Exception as error:
        write_text(run.folder / "error.txt", traceback.format_exc())
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
def _progress(runs: Sequence[Run], unit: str) -> Iterator[None]:
    """One bar for all runs, wherever they run: it reads the curves that they write."""
    tqdm = require("tqdm", "studies").tqdm
    stop = threading.Event()

    def show() -> None:
        running = True
        while running:
            running = not stop.wait(1.0)
            done = [run.steps_done() for run in runs]
            bar.set_postfix_str(f"{sum(run.finished for run in runs)}/{len(runs)} runs", refresh=False)
            bar.update(sum(done) - bar.n)

    with tqdm(total=sum(run.steps for run in runs), unit=unit, unit_scale=True, smoothing=0.05) as bar:
        thread = threading.Thread(target=show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
