"""The study of the grid with networks, on a few steps."""

import json
from pathlib import Path

import pytest

from sb3_caps.commands import main
from sb3_caps.studies.shared.runs import read_rows

ARGUMENTS = ["reproduce", "grid-networks", "--task", "TargetPrime", "--seeds", "7", "--steps", "150", "--jobs", "1"]


def test_a_study_of_all_methods_leaves_its_record_and_repeats_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*ARGUMENTS, "--results", str(tmp_path)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    for label in ("CAPS, recommended", "CAPS, paper", "DQN"):
        assert f"| {label} | 1 |" in printed
    assert (tmp_path / "figures" / "TargetPrime.png").stat().st_size > 10_000
    curves = sorted(tmp_path.rglob("curve.csv"))
    assert len(curves) == 3
    for curve in curves:
        rows = read_rows(curve)
        assert len(rows) >= 10
        assert all(0 <= row["share"] < 1 for row in rows)
        assert json.loads((curve.parent / "config.json").read_text())["seed"] == 7

    before = [curve.stat().st_mtime_ns for curve in curves]
    assert main(arguments) == 0
    assert [curve.stat().st_mtime_ns for curve in curves] == before


def test_too_few_steps_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS[:-4], "--steps", "10", "--results", str(tmp_path)]) == 2
    assert "--steps must be at least 120, not 10" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
