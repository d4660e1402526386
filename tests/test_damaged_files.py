"""Every kind of file that we write, cut at random places and with bits flipped: refused by name, or whole after all."""

import functools
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

from sb3_caps import CAPS, as_source
from sb3_caps.files.save_util import read_pickle, write_pickle
from sb3_caps.studies.grid.results import _restore
from sb3_caps.studies.shared.checkpoints import Checkpoints
from sb3_caps.studies.shared.runs import check_file, read_rows, write_json, write_rows
from tests.soak import times
from tests.toy_world import LENGTH, Corridor

OBSERVATIONS = np.eye(LENGTH, dtype=np.float32)
STARTS = np.ones(LENGTH, dtype=bool)


def damages(whole: bytes, number: int, seed: int = 0) -> Iterator[bytes]:
    """A file that was cut, one with bits flipped, and so on."""
    rng = random.Random(seed)
    for i in range(number):
        content = bytearray(whole)
        if i % 2:
            for _ in range(rng.choice([1, 1, 8])):
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        else:
            # Often near the end, where the directories of zip files and checksums are
            kept = rng.randrange(len(content)) if i % 4 else len(content) - 1 - rng.randrange(min(len(content), 200))
            del content[kept:]
        yield bytes(content)


def refused(file: Path, number: int, load: Callable[[], Any], is_whole: Callable[[Any], bool]) -> int:
    """
    :return: how many damages were refused; what was loaded in spite of one has to be whole, and errors name the file
    """
    whole, n_refused = file.read_bytes(), 0
    for content in damages(whole, number):
        file.write_bytes(content)
        message, loaded = "", None
        try:
            loaded = load()
        except ValueError as error:
            message = str(error)
        if message:
            assert str(file) in message
            assert any(words in message for words in ("damaged", "not a usable saved SB3 model")), message
            n_refused += 1
        else:
            assert is_whole(loaded)
    file.write_bytes(whole)
    assert is_whole(load())
    print(f"{file.name}: {n_refused} of {number} damages refused, the others did not matter")
    return n_refused


@pytest.fixture(scope="module")
def model() -> CAPS:
    source = DQN("MlpPolicy", Corridor(), seed=3, buffer_size=10, policy_kwargs={"net_arch": [8]})
    env = make_vec_env(Corridor, n_envs=2, seed=0)
    arguments: dict[str, Any] = {
        "buffer_size": 60,
        "batch_size": 32,
        "learning_starts": 10,
        "policy_kwargs": {"net_arch": [8]},
    }
    return CAPS("MlpPolicy", env, source_policies=[source], seed=0, **arguments).learn(80)


def same(first: CAPS, second: CAPS) -> bool:
    ours, theirs = first.policy.state_dict(), second.policy.state_dict()
    return first.options.names == second.options.names and all(th.equal(ours[key], theirs[key]) for key in ours)


def same_buffer(first: Any, second: Any) -> bool:
    names = ["observations", "next_observations", "actions", "rewards", "dones", "options", "agreements"]
    names += ["option_actions", "next_option_actions"]
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in names)


def test_models(model: CAPS, tmp_path: Path) -> None:
    file = tmp_path / "model.zip"
    model.save(file)
    number = times(60, 6000)
    assert refused(file, number, lambda: CAPS.load(file), lambda loaded: same(model, loaded)) >= 5 / 6 * number
    expected = as_source(model).actions(OBSERVATIONS, None, STARTS)[0]

    def acts(source: Any) -> bool:
        return np.array_equal(source.actions(OBSERVATIONS, None, STARTS)[0], expected)

    number = times(30, 3000)
    assert refused(file, number, lambda: as_source(file), acts) >= 5 / 6 * number


def test_exports(model: CAPS, tmp_path: Path) -> None:
    file = tmp_path / "model.npz"
    model.export(file)
    expected = as_source(model).actions(OBSERVATIONS, None, STARTS)[0]

    number = times(20, 2000)
    for trust in (False, True):
        load = functools.partial(CAPS.load, file, trust=trust)
        assert refused(file, number, load, lambda loaded: same(model, loaded)) >= number / 2
    loaded = as_source(file, trust=False)
    np.testing.assert_array_equal(loaded.actions(OBSERVATIONS, None, STARTS)[0], expected)


def test_replay_buffers(model: CAPS, tmp_path: Path) -> None:
    file = tmp_path / "buffer.pkl"
    model.save_replay_buffer(file)
    whole = read_pickle(file)
    other = CAPS.load(_saved(model, tmp_path), env=make_vec_env(Corridor, n_envs=2))

    def load() -> Any:
        other.load_replay_buffer(file)
        return other.replay_buffer

    number = times(60, 6000)
    assert refused(file, number, load, lambda buffer: same_buffer(buffer, whole)) >= 5 / 6 * number


def _saved(model: CAPS, folder: Path) -> Path:
    model.save(folder / "saved.zip")
    return folder / "saved.zip"


@pytest.mark.parametrize("name", ["model.zip", "replay_buffer.pkl", "state.pkl"])
def test_checkpoints(name: str, model: CAPS, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = model.get_env()
    assert env is not None
    Checkpoints(tmp_path / "whole", ()).save(model, env, "notes")
    checkpoints, run = Checkpoints(tmp_path / "run", ()), tmp_path / "run"
    newest = Checkpoints(tmp_path / "whole", ()).newest()
    assert newest is not None
    number, n_aside = times(20, 2000), 0
    for content in damages((newest / name).read_bytes(), number):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(newest, run / newest.name)
        (run / newest.name / name).write_bytes(content)
        found = checkpoints.load(CAPS, env)
        if found is None:
            n_aside += 1
            assert [path.name for path in run.iterdir()] == [f"{newest.name}.damaged_1"]
            assert "is damaged" in capsys.readouterr().err
        else:
            loaded: Any = found[0]
            assert same(model, loaded)
            assert same_buffer(model.replay_buffer, loaded.replay_buffer)
            assert found[1] == "notes"
    assert n_aside >= 3 / 4 * number
    print(f"checkpoint with a damaged {name}: set aside {n_aside} times of {number}")


def test_checkpoints_of_the_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, config = tmp_path / "checkpoint.pkl", {"batch": "all"}
    write_pickle(file, (config, list(range(1000))))
    number, n_aside = times(100, 10_000), 0
    for content in damages(file.read_bytes(), number):
        file.write_bytes(content)
        found: Any = _restore(file, config)
        assert found is None or found == list(range(1000))
        n_aside += found is None
        # The next one looks for a name that is free: thousands of them would take it long
        file.with_name("checkpoint.pkl.damaged_1").unlink(missing_ok=True)
    assert n_aside >= 0.9 * number
    assert "the batch starts again" in capsys.readouterr().err
    print(f"checkpoint of the grid study: set aside {n_aside} times of {number}")


def test_a_directory_that_hides_an_array(tmp_path: Path) -> None:
    file = tmp_path / "result.npz"
    np.savez_compressed(file, returns=np.arange(500), tables=np.ones((20, 20)))
    content = bytearray(file.read_bytes())
    first = content.index(b"PK\1\2")
    second = content.index(b"PK\1\2", first + 1)
    # The second entry becomes the comment of the first one
    content[first + 32 : first + 34] = (content.index(b"PK\5\6") - second).to_bytes(2, "little")
    file.write_bytes(content)
    with np.load(file) as arrays:
        assert arrays.files == ["returns"]
    assert check_file(file) == "1 of 2 entries in it are found"


def test_results(tmp_path: Path) -> None:
    """Text has no checksum: what is still a table of numbers may be another one, but nothing else comes through."""
    rows = [{"steps": 100.0 * i, "share": i / 7} for i in range(20)]
    write_rows(tmp_path / "curve.csv", rows)
    write_json(tmp_path / "finished.json", {"seconds": 1.5, "name": "β", "rows": rows})
    np.savez_compressed(tmp_path / "result.npz", returns=np.arange(500), tables=np.ones((20, 20)))
    number = times(200, 20_000)
    for name in ("curve.csv", "finished.json", "result.npz"):
        file, n_found = tmp_path / name, 0
        assert check_file(file) is None
        for content in damages(file.read_bytes(), number):
            file.write_bytes(content)
            n_found += check_file(file) is not None
            if check_file(file) is not None:
                continue
            if name == "curve.csv":
                assert all(len(row) == 2 for row in read_rows(file))
            if name == "result.npz":
                with np.load(file) as arrays:
                    np.testing.assert_array_equal(arrays["returns"], np.arange(500))
                    np.testing.assert_array_equal(arrays["tables"], np.ones((20, 20)))
        print(f"{name}: {n_found} of {number} damages noticed")
        assert n_found >= 0.4 * number
