"""The benchmark of continuous actions: it trains sources, runs, goes on where it was, and prints a table."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import SAC

from benchmarks import continuous as benchmark
from tests.toy_box import ToyBox


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    task = benchmark.BoxTask(ToyBox, 200, {"one": (ToyBox, 120), "other": (lambda: ToyBox(falls=True), 120)})
    monkeypatch.setitem(benchmark.TASKS, "toy", task)
    monkeypatch.setattr(benchmark, "SETTINGS", {"policy_kwargs": {"net_arch": [8]}, "device": "cpu"})
    monkeypatch.setattr(benchmark, "EPISODES", 1)
    monkeypatch.setattr(benchmark, "LAST_EPISODES", 2)


@pytest.mark.usefixtures("small")
def test_every_method_runs_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["toy", "--methods", *benchmark.METHODS, "--seeds", "0", "--folder", str(tmp_path)]
    benchmark.main(arguments)
    printed = capsys.readouterr().out
    for method in benchmark.METHODS:
        assert f"| toy | {method} | 1 |" in printed
    assert len(benchmark.run("toy", "caps", 0, tmp_path)["curve"]) == benchmark.EVALUATIONS
    written = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    benchmark.main(arguments)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == written
    # What there is makes the same table, and one file
    capsys.readouterr()
    benchmark.main([*arguments, "--shown", "--seeds", "0", "1", "--json", str(tmp_path / "all.json")])
    assert capsys.readouterr().out.strip() == printed[printed.index("| task") :].strip()
    kept = json.loads((tmp_path / "all.json").read_text())["toy"]
    assert kept.keys() == set(benchmark.METHODS)
    assert kept["portfolio"]["0"]["end"] == max(kept["sac"]["0"]["end"], kept["best_source"]["0"]["end"])


def test_pendulums_differ() -> None:
    env = benchmark.TASKS["pendulum_mass"].make()
    assert env.unwrapped.m == 1.5  # type: ignore[attr-defined]
    assert benchmark.TASKS["pendulum_gravity"].make().unwrapped.g == 13.0  # type: ignore[attr-defined]
    reversed_below = benchmark.ReversedBelow(benchmark.pendulum())
    reversed_below.reset(seed=0)
    for angle, sign in ((0.0, 1.0), (3.0, -1.0)):
        reversed_below.unwrapped.state = np.array([angle, 0.0])  # type: ignore[attr-defined]
        assert reversed_below.action(np.ones(1)).tolist() == [sign]


def test_robots_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    # Where MuJoCo writes its warnings
    monkeypatch.chdir(tmp_path)
    found, known = benchmark.TASKS["half_cheetah"].make(), benchmark.body("HalfCheetah-v5")
    changed: Any = found.unwrapped.model  # type: ignore[attr-defined]
    original: Any = known.unwrapped.model  # type: ignore[attr-defined]
    assert changed.body_mass[1] == pytest.approx(1.5 * original.body_mass[1])
    assert changed.actuator_gear[:, 0] == pytest.approx(0.8 * original.actuator_gear[:, 0])
    heavy: Any = benchmark.TASKS["double_pendulum"].make().unwrapped.model  # type: ignore[attr-defined]
    assert heavy.opt.gravity[2] == pytest.approx(-9.81 * 1.5)
    for name, place, middle in (("reacher", 4, 0.0), ("pusher", 17, 0.45)):
        for side, (make, _) in zip((-1, 1), benchmark.TASKS[name].sources.values(), strict=True):
            env: gym.Env = make()
            assert all(env.reset(seed=seed)[0][place] * side > middle * side for seed in range(5))


def test_untrained_sources_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "SETTINGS", {"policy_kwargs": {"net_arch": [8]}, "device": "cpu"})
    files = benchmark.source_files(benchmark.TASKS["pendulum_mass_useless"], tmp_path)
    one, other = (SAC.load(file, device="cpu").predict(np.ones(3))[0] for file in files)
    assert one != pytest.approx(other)


def test_speed_is_beside_sac(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--speed", "20"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"{n} sources" for n in (0, 1, 4, 16)]
    assert all(float(line.split()[2]) > 0 for line in lines)


def test_unknown_tasks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["pole"]):
        with pytest.raises(SystemExit):
            benchmark.main(arguments)
    assert "pass tasks out of pendulum_gravity" in capsys.readouterr().err
