"""What studies share: runs that survive being killed, damaged files, locks, statistics and tables."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sb3_caps.studies.shared.checkpoints import Checkpoints
from sb3_caps.studies.shared.runs import Run, read_rows, write_rows
from sb3_caps.studies.shared.scheduler import run_missing
from sb3_caps.studies.shared.statistics import Interval, first_reached, half_width


def test_half_a_checkpoint_does_not_count(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, ())
    (tmp_path / "partial_checkpoint").mkdir()
    assert checkpoints.newest() is None
    for steps in (900, 1200):
        (tmp_path / f"checkpoint_{steps}").mkdir()
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.name == "checkpoint_1200"


def _write_process_id_and_wait(run: Run) -> dict[str, Any]:
    (run.folder / "process").write_text(str(os.getpid()))
    time.sleep(120)
    return {}


def _alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_processes_end_with_a_study_that_is_killed(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from sb3_caps.studies.shared.runs import Run;"
        "from sb3_caps.studies.shared.scheduler import run_missing;"
        "from tests.test_study_runs import _write_process_id_and_wait as wait;"
        f"run_missing([Run(Path({str(tmp_path)!r}) / name, {{}}, 1) for name in 'ab'], wait, jobs=2)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    files = [tmp_path / name / "process" for name in "ab"]
    deadline = time.monotonic() + 120
    while not all(file.is_file() and file.read_text() for file in files) and time.monotonic() < deadline:
        time.sleep(0.1)
    workers = [int(file.read_text()) for file in files]
    # The study alone, not its group
    process.kill()
    process.wait()
    while any(map(_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(_alive, workers))


def fails_for_odd_seeds(run: Run) -> dict[str, Any]:
    if run.config["seed"] % 2:
        raise ValueError("odd")
    return {"done": True}


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    runs = [Run(tmp_path / str(seed), {"seed": seed}, steps=10) for seed in range(3)]
    errors = run_missing(runs, fails_for_odd_seeds, jobs=1, command=["sb3-caps", "reproduce"])
    assert [run.finished for run in runs] == [True, False, True]
    assert len(errors) == 1
    assert "ValueError: odd" in errors[0]
    assert "odd" in (runs[1].folder / "error.txt").read_text()
    assert (runs[0].folder / "command.txt").read_text() == "sb3-caps reproduce\n"
    assert [run.steps_done() for run in runs] == [10, 0, 10]


def test_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, {"seed": 0}, steps=1)
    with pytest.raises(ValueError, match="Unknown backend"):
        run_missing([run], fails_for_odd_seeds, backend="slurm")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no address"):
        run_missing([run], fails_for_odd_seeds, address="tcp://somewhere")


def test_curves_are_written_and_read(tmp_path: Path) -> None:
    rows = [{"steps": 100.0, "share": 1 / 3}, {"steps": 200.0, "share": 0.5}]
    write_rows(tmp_path / "curve.csv", rows)
    for found, row in zip(read_rows(tmp_path / "curve.csv"), rows, strict=True):
        assert found == pytest.approx(row)


def test_steps_and_intervals_by_hand() -> None:
    steps, shares = np.array([10.0, 20.0, 30.0]), np.array([0.2, 0.95, 0.4])
    assert first_reached(steps, shares, 0.9) == 20
    assert first_reached(steps, shares, 0.96) == np.inf
    # Standard deviation √2, so a standard error of 1; t with one degree of freedom
    np.testing.assert_allclose(half_width(np.array([[1.0], [3.0]])), 12.7062, rtol=1e-5)
    assert half_width(np.array([[1.0, 2.0]])).tolist() == [0, 0]


def test_interval_of_student_t() -> None:
    interval = Interval.of(np.array([1.0, 2.0, 3.0]))
    assert interval.mean == 2.0
    assert interval.half_width == pytest.approx(4.30 * 1.0 / np.sqrt(3), rel=1e-3)
    assert Interval.of(np.array([1.0])).half_width == 0.0
