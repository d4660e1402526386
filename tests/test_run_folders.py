"""Runs that start at once have a folder each."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rl_zoo3")

from rl_zoo3 import exp_manager

from sb3_caps import CAPS
from sb3_caps.commands import main
from sb3_caps.zoo.runs import make_run_folder


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    first = tmp_path / "logs" / "caps" / "Task-v0_3"
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(make_run_folder, [first] * 20))
    assert sorted(made) == sorted(first.with_name(f"Task-v0_{number}") for number in range(3, 23))
    assert all(folder.is_dir() for folder in made)
    # Where a run has a name of its own there is no other number
    assert make_run_folder(tmp_path / "Task-v0_3_a1b2") == tmp_path / "Task-v0_3_a1b2"
    with pytest.raises(FileExistsError, match="Task-v0_3_a1b2 is there already"):
        make_run_folder(tmp_path / "Task-v0_3_a1b2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    entry: dict[str, Any] = {"policy": "MlpPolicy", "n_timesteps": 50, "learning_starts": 10}
    Path("own.yml").write_text(json.dumps({"CartPole-v1": entry}))
    return tmp_path


TRAIN = ["train", "--env", "CartPole-v1", "-conf", "own.yml", "--eval-freq", "-1"]


def test_runs_that_start_at_once_have_a_folder_each(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What each of them finds when it starts
    monkeypatch.setattr(exp_manager, "get_latest_run_id", lambda *_: 0)
    for seed in range(4):
        assert main([*TRAIN, "--seed", str(seed)]) == 0
    runs = sorted(Path("logs/caps").iterdir())
    assert [run.name for run in runs] == [f"CartPole-v1_{number}" for number in range(1, 5)]
    for seed, run in enumerate(runs):
        assert (run / "CartPole-v1" / "config.yml").is_file()
        assert CAPS.load(run / "CartPole-v1.zip").seed == seed


def test_a_run_that_is_refused_leaves_the_others_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exp_manager, "get_latest_run_id", lambda *_: 0)
    assert main(TRAIN) == 0
    assert main([*TRAIN, "-params", "gama:0.9"]) == 2
    assert [run.name for run in Path("logs/caps").iterdir()] == ["CartPole-v1_1"]
    assert Path("logs/caps/CartPole-v1_1/CartPole-v1.zip").is_file()
