"""What studies share: runs that survive being killed, damaged files, locks, statistics and tables."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.files.lock import one_at_a_time
from sb3_caps.studies.shared.checkpoints import Checkpoints
from sb3_caps.studies.shared.runs import Run, check_file, read_rows, set_aside, write_json, write_rows
from sb3_caps.studies.shared.scheduler import finished_runs, run_missing
from sb3_caps.studies.shared.statistics import (
    Interval,
    bootstrap_interval,
    first_reached,
    half_width,
    interquartile_mean,
    median_reached,
    roc_area,
    running_mean,
)
from sb3_caps.studies.shared.tables import steps_table

HOLDER = """
import sys, time
from pathlib import Path
from sb3_caps.files.lock import one_at_a_time
with one_at_a_time(Path(sys.argv[1]), wait=False):
    print("mine", flush=True)
    time.sleep(120)
"""


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


def test_interquartile_mean_by_hand() -> None:
    """Of five the middle three; of three all, since a quarter of three is less than one."""
    assert interquartile_mean(np.array([9.0, 1.0, 2.0, 3.0, -9.0])) == 2.0
    assert interquartile_mean(np.array([0.0, 1.0, 5.0])) == 2.0


def test_roc_area_by_hand() -> None:
    """Of four pairs two are right, one is equal and one is wrong."""
    assert roc_area(np.array([3.0, 1.0]), np.array([1.0, 2.0])) == 2.5 / 4


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
    assert str(interval) == "2.000 ± 2.484"


def test_bootstrap_by_hand() -> None:
    # Of two runs the mean is drawn as 0, one half or 1, each end a quarter of the time
    assert bootstrap_interval(np.array([0.0, 1.0])) == (0.0, 1.0)
    assert bootstrap_interval(np.full(5, 0.3)) == pytest.approx((0.3, 0.3))
    assert bootstrap_interval(np.array([0.7])) == (0.7, 0.7)
    low, high = bootstrap_interval(np.random.default_rng(0).normal(size=400))
    # 1.96 standard errors on either side
    assert high - low == pytest.approx(2 * 1.96 / 20, rel=0.1)
    assert bootstrap_interval(np.array([1.0, 2.0, 9.0]), np.median) == (1.0, 9.0)


def test_running_means_and_medians_by_hand() -> None:
    np.testing.assert_allclose(running_mean(np.array([[0.0, 2.0, 4.0], [1.0, 1.0, 1.0]]), 2), [[1, 3], [1, 1]])
    np.testing.assert_allclose(running_mean(np.array([0.0, 2.0]), 50), [1.0])
    assert median_reached(np.array([1000.0, 3000.0, np.inf])) == "3,000 (2/3)"
    assert median_reached(np.array([np.inf, 3000.0, np.inf])) == "– (1/3)"


def test_a_table_of_curves_by_hand() -> None:
    steps = np.tile(np.arange(10, 60, 10.0), (2, 1))
    shares = np.array([[0.0, 0.5, 0.9, 0.9, 1.0], [0.0, 0.0, 0.6, 0.6, 0.8]])
    curves = {"caps": {"steps": steps, "share": shares, "seconds": 6 * steps}}
    row = steps_table(curves, {"caps": "CAPS", "dqn": "DQN"}).splitlines()[2]
    assert row == "| CAPS | 2 | 25 (2/2) | – (1/2) | – (1/2) | 90.0% (80.0% to 100.0%) | 80.0% | 5.0 |"


# Damaged files


@pytest.mark.parametrize("name", ["curve.csv", "finished.json", "model.zip"])
def test_a_damaged_result_is_set_aside_and_made_again(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path / "run", {"seed": 0}, steps=10)
    run_missing([run], leaves_a_result, jobs=1)
    before = (run.folder / name).read_bytes()
    (run.folder / name).write_bytes(before[: len(before) // 2])
    with pytest.raises(ValueError, match=rf"{name} is damaged: leave --draw out"):
        finished_runs([run], tmp_path)
    assert run.finished

    assert run_missing([run], leaves_a_result, jobs=1) == []
    told = capsys.readouterr().err
    assert f"{run.folder / name} is damaged" in told
    assert f"kept as {name}.damaged_1, the run is done again" in told
    assert check_file(run.folder / name) is None
    assert (run.folder / f"{name}.damaged_1").stat().st_size == len(before) // 2
    assert finished_runs([run], tmp_path) == [run]


def leaves_a_result(run: Run) -> dict[str, Any]:
    write_rows(run.curve, [{"steps": 5, "share": 0.25}, {"steps": 10, "share": 0.75}])
    np.savez(run.folder / "model", weights=np.arange(1000))
    (run.folder / "model.npz").rename(run.folder / "model.zip")
    return {"seconds": 1.5, "more": list(range(20))}


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no finished run of these in .*: leave --draw out"):
        finished_runs([Run(tmp_path / "run", {}, steps=10)], tmp_path)


def test_set_aside_forgets_nothing(tmp_path: Path) -> None:
    for content in ("first", "second"):
        (tmp_path / "file").write_text(content)
        set_aside(tmp_path / "file")
    assert [(tmp_path / f"file.damaged_{n}").read_text() for n in (1, 2)] == ["first", "second"]


def test_every_cut_of_a_table_is_noticed(tmp_path: Path) -> None:
    rows = [{"steps": 100.0, "share": 1 / 3}, {"steps": 200.0, "share": 0.5}]
    write_rows(tmp_path / "curve.csv", rows)
    whole = (tmp_path / "curve.csv").read_text()
    for length in range(len(whole)):
        (tmp_path / "curve.csv").write_text(whole[:length])
        if whole[:length] and whole[:length].endswith("\n"):
            # Whole lines are a shorter run: nothing tells them from it
            read_rows(tmp_path / "curve.csv")
        else:
            assert check_file(tmp_path / "curve.csv") is not None
    write_json(tmp_path / "config.json", {"name": "β", "number": np.float64(0.5)})
    assert '"β"' in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("name", ["model.zip", "replay_buffer.pkl", "state.pkl"])
def test_a_damaged_checkpoint_is_set_aside(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=100, learning_starts=10, device="cpu").learn(50)
    env = model.get_env()
    assert isinstance(env, VecEnv)
    checkpoints = Checkpoints(tmp_path, ())
    checkpoints.save(model, env, "notes")
    newest = checkpoints.newest()
    assert newest is not None
    found = checkpoints.load(DQN, env)
    assert found is not None
    assert found[1] == "notes"

    whole = (newest / name).read_bytes()
    (newest / name).write_bytes(whole[: len(whole) // 3])
    assert checkpoints.load(DQN, env) is None
    told = capsys.readouterr().err
    assert f"{newest} is damaged" in told
    assert f"kept as {newest.name}.damaged_1, the run starts again" in told
    assert checkpoints.newest() is None
    checkpoints.clear()
    assert not list(tmp_path.iterdir())


# One study in a folder


def test_the_second_study_in_a_folder_is_told_who_is_first(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "mine\n"
    with (
        pytest.raises(ValueError, match=rf"at work in .* \(process {holder.pid} on .*--results"),
        one_at_a_time(tmp_path, wait=False),
    ):
        pass
    # A process that was killed holds nobody up
    holder.kill()
    holder.communicate()
    with one_at_a_time(tmp_path, wait=False):
        assert (tmp_path / ".lock").read_text().startswith(f"{os.getpid()} on ")
    with one_at_a_time(tmp_path, wait=False):
        pass
