"""The benchmark of continuous actions: it trains sources, runs, goes on where it was, and prints a table."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

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


def test_pendulums_differ() -> None:
    env = benchmark.TASKS["pendulum_mass"].make()
    assert env.unwrapped.m == 1.5  # type: ignore[attr-defined]
    assert benchmark.TASKS["pendulum_gravity"].make().unwrapped.g == 13.0  # type: ignore[attr-defined]
    reversed_below = benchmark.ReversedBelow(benchmark.pendulum())
    reversed_below.reset(seed=0)
    for angle, sign in ((0.0, 1.0), (3.0, -1.0)):
        reversed_below.unwrapped.state = np.array([angle, 0.0])  # type: ignore[attr-defined]
        assert reversed_below.action(np.ones(1)).tolist() == [sign]


def test_robots_differ() -> None:
    pytest.importorskip("mujoco")
    gravity = benchmark.double_pendulum(1.5).unwrapped.model.opt.gravity[2]  # type: ignore[attr-defined]
    assert gravity == pytest.approx(-9.81 * 1.5)
    for side in (1, -1):
        env: gym.Env = benchmark.reacher(side)
        assert all(env.reset(seed=seed)[0][4] * side > 0 for seed in range(5))
