"""The study of task sequences: its measures by hand, and a small run of every method."""

from pathlib import Path

import numpy as np
import pytest

from sb3_caps import PolicyLibrary
from sb3_caps.commands import main
from sb3_caps.studies.sequences import poles
from sb3_caps.studies.sequences.grid import GOALS, steps_to
from sb3_caps.studies.sequences.study import LABELS, forward_transfer
from sb3_caps.studies.shared.runs import write_json


def test_measures_by_hand() -> None:
    assert forward_transfer(np.array([0.6]), np.array([0.2])).tolist() == pytest.approx([0.5])
    # Fifty episodes of a hundred steps without the goal, then all that reach it in the third step
    returns = np.concatenate([np.zeros(50), np.full(100, 0.95**2)])
    assert steps_to(returns, 0.95**2) == 50 * 100 + 50 * 3
    assert steps_to(returns, 1.0) == 50 * 100 + 100 * 3


def test_all_methods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for goal in range(len(GOALS)):
        # To plan takes minutes
        write_json(tmp_path / "optima" / f"{goal}.json", 0.4)
    arguments = ["reproduce", "sequences", "--seeds", "0", "--tasks", "3", "--episodes", "60", "--jobs", "1"]
    assert main([*arguments, "--results", str(tmp_path)]) == 0
    rows = {line.split(" | ")[0].strip("| "): line for line in capsys.readouterr().out.splitlines() if "|" in line}
    assert {*LABELS.values()} < rows.keys()
    for method, label in LABELS.items():
        cells = [cell.strip() for cell in rows[label].strip("|").split("|")]
        # What is kept is not forgotten
        assert (cells[3] == "0.000 ± 0.000") or method == "finetuning"
        if method in ("growing", "latest", "scratch"):
            assert cells[-1] == {"growing": "3.0", "latest": "1.0", "scratch": "0.0"}[method]
    assert (tmp_path / "figures" / "grid.png").is_file()
    # Nothing is done again
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("finished.json")}
    assert main([*arguments, "--results", str(tmp_path)]) == 0
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("finished.json")}
    assert len(before) == len(LABELS)


def test_poles(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poles, "STUDENT_STEPS", 80)
    monkeypatch.setattr(poles, "EVALUATIONS", 2)
    arguments = ["reproduce", "sequences", "--world", "poles", "--tasks", "2", "--steps", "400", "--jobs", "1"]
    assert main([*arguments, "--seeds", "0", "--results", str(tmp_path)]) == 0
    rows = {line.split(" | ")[0].strip("| "): line for line in capsys.readouterr().out.splitlines() if "|" in line}
    for method, size in {"growing": 2, "latest": 1, "finetuning": 0, "scratch": 0}.items():
        cells = [cell.strip() for cell in rows[LABELS[method]].strip("|").split("|")]
        assert (cells[3] == "0.000 ± 0.000") or method == "finetuning"
        assert cells[-1] == f"{size:.1f}"
    folder = next(tmp_path.rglob("growing/seed_0/library"))
    # Plain networks, which ask nobody
    assert {entry.kind for entry in PolicyLibrary(folder).entries()} == {"ActorCriticPolicy"}
    assert (tmp_path / "figures" / "poles.png").is_file()
    assert main([*arguments, "--method", "plpr", "--results", str(tmp_path)]) == 2
    assert "--world poles has no plpr" in capsys.readouterr().err


def test_a_pole_is_judged_by_hand() -> None:
    curve = poles.Curve(poles.draw_world(np.random.default_rng(0)), 1000, 0)
    curve.shares = [0.1, 0.95, 0.5]
    assert curve.steps_to_level == 200.0
    curve.shares = [0.1, 0.5]
    assert curve.steps_to_level == 1000.0
