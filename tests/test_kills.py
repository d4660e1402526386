"""Writers and studies that are killed at random moments: files are the old one or the new one, and results the same."""

import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

from sb3_caps import CAPS
from sb3_caps.studies.grid import results as grid
from sb3_caps.studies.shared.checkpoints import Checkpoints
from sb3_caps.studies.shared.runs import check_file, read_rows, write_json, write_rows
from tests.soak import times
from tests.toy_world import Corridor

KILLS = times(12, 300)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that start at once")


def stamp(model: Any, number: int) -> None:
    """Mark all that is saved with one number."""
    model.num_timesteps = number
    model.replay_buffer.rewards[:] = number
    model.q_net.q_net[-1].bias.data.fill_(number)


def write_all(model: CAPS, folder: Path, first: int) -> None:
    """Write every kind of file again and again, each time with another number, until someone ends it."""
    env = model.get_env()
    assert env is not None
    number = first
    while True:
        number += 1
        stamp(model, number)
        model.save(folder / "model.zip")
        model.save_replay_buffer(folder / "buffer.pkl")
        model.export(folder / "model.npz")
        write_rows(folder / "curve.csv", [{"steps": float(number), "share": number} for _ in range(200)])
        write_json(folder / "finished.json", [number] * 500)
        Checkpoints(folder / "run", ()).save(model, env, number)


def number_of(model: Any) -> int:
    bias = model.q_net.q_net[-1].bias.detach().numpy()
    assert (bias == model.num_timesteps).all()
    return model.num_timesteps


def numbers_in(folder: Path, model: CAPS) -> list[int]:
    """The number in each file, after seeing that all of the file has it."""
    env = model.get_env()
    assert env is not None
    for name in ("curve.csv", "finished.json"):
        assert check_file(folder / name) is None
    steps = {row["steps"] for row in read_rows(folder / "curve.csv")}
    model.load_replay_buffer(folder / "buffer.pkl")
    found: Any = Checkpoints(folder / "run", ()).load(CAPS, env)
    assert found is not None
    assert len(steps) == len(set(model.replay_buffer.rewards.flat)) == 1
    assert number_of(found[0]) == found[1]
    assert (found[0].replay_buffer.rewards == found[1]).all()
    loaded = [CAPS.load(folder / "model.zip"), CAPS.load(folder / "model.npz", trust=False)]
    return [*map(number_of, loaded), int(model.replay_buffer.rewards[0, 0]), int(steps.pop()), found[1]]


def test_writers_killed_at_random_moments(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"buffer_size": 2000, "policy_kwargs": {"net_arch": [32]}, "learning_starts": 10}
    source = DQN("MlpPolicy", Corridor(), seed=0, buffer_size=10)
    model = CAPS("MlpPolicy", make_vec_env(Corridor, n_envs=2), source_policies=[source], seed=0, **arguments)
    model.learn(40)
    rng, fork, last, n_between = random.Random(0), multiprocessing.get_context("fork"), [0] * 5, 0
    for _ in range(KILLS):
        writer = fork.Process(target=write_all, args=(model, tmp_path, max(last)))
        writer.start()
        deadline = time.monotonic() + 60
        while not (tmp_path / "run").exists() or not any((tmp_path / "run").glob("checkpoint_*")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.2 * rng.random())
        writer.kill()
        writer.join()
        numbers = numbers_in(tmp_path, model)
        # None goes back to what it was before
        assert all(new >= old for new, old in zip(numbers, last, strict=True))
        n_between += max(numbers) > min(numbers)
        last = numbers
    # What the killed writers have left is gone with the next one
    number = max(last) + 1
    stamp(model, number)
    model.save(tmp_path / "model.zip")
    env = model.get_env()
    assert env is not None
    Checkpoints(tmp_path / "run", ()).save(model, env, number)
    left = [path.name for path in tmp_path.rglob("*") if path.name.endswith(".partial")]
    assert left == []
    assert [path.name for path in (tmp_path / "run").iterdir()] == [f"checkpoint_{number}"]
    print(f"{KILLS} kills, {n_between} of them between two files of one turn, {number} turns")


def go_on(results: grid.Results) -> None:
    """A batch of the grid study, which keeps a checkpoint after every look."""
    grid.CHECKPOINT_SECONDS, grid.STEPS_BETWEEN_LOOKS = 0.0, 50
    grid.run_batch(results, "prql", lambda _: None)


def test_a_study_killed_at_random_moments_ends_with_the_same_numbers(tmp_path: Path) -> None:
    whole, killed = grid.Results(tmp_path / "whole", 1, 60), grid.Results(tmp_path / "killed", 1, 60)
    grid.run_batch(whole, "prql", lambda _: None)
    expected = whole.load("prql")
    result, checkpoint = killed.path("prql", grid.RESULT), killed.path("prql", grid.CHECKPOINT)

    def compare() -> None:
        found = killed.load("prql")
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
        result.unlink()

    rng, fork, n_resumed, n_ended = random.Random(1), multiprocessing.get_context("fork"), 0, 0
    for _ in range(KILLS):
        n_resumed += checkpoint.exists()
        study = fork.Process(target=go_on, args=(killed,))
        study.start()
        time.sleep(0.3 * rng.random())
        study.kill()
        study.join()
        if result.exists():
            n_ended += 1
            compare()
    grid.run_batch(killed, "prql", lambda _: None)
    compare()
    left = [path.name for path in result.parent.iterdir() if path.suffix in (".partial", ".damaged_1")]
    assert left == []
    print(f"{KILLS} kills of a study, {n_resumed} of them in one that had been resumed, {n_ended} after its end")
