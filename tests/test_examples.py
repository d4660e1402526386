"""The examples and the notebook run, with small numbers."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import numpy as np
import pytest
import torch as th
from nbclient import NotebookClient

from sb3_caps import PolicyLibrary

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def load(name: str) -> ModuleType:
    """Import an example, which is in no package."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= tested


def test_onnx_folder(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    example = load("onnx_folder")
    model = example.main(["--timesteps", "300", "--source-steps", "100", "--episodes", "2"])
    assert model.options.names == ["balance", "action_0", "action_1"]
    assert model.options.sources[0].kind == "ONNX"
    assert "balance: mean return" in capsys.readouterr().out


def test_changed_physics(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("changed_physics")
    env = example.long_pole()
    assert env.unwrapped.length == 3 * 0.5
    assert env.unwrapped.gravity == 15.0
    model = example.main(["--timesteps", "300", "--source-timesteps", "100", "--episodes", "2"])
    assert model.num_timesteps == 300
    assert model.options.n_sources == 2
    assert model.get_env().get_attr("length") == [1.5]
    printed = capsys.readouterr().out
    for name in ("PPO, seed 0", "PPO, seed 1", "DQN", "CAPS"):
        assert f"{name}: mean return" in printed


def test_rule_of_thumb(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("rule_of_thumb")
    assert example.with_the_motion(np.array([[-0.5, 0.01], [-0.5, -0.01]])).tolist() == [2, 0]
    model = example.main(["--timesteps", "300", "--episodes", "1"])
    assert model.options.names == ["with_the_motion", "action_0", "action_1", "action_2"]
    assert model.num_timesteps == 300
    # MountainCar costs 1 a step, at most 200
    mean = float(capsys.readouterr().out.split("mean return ")[-1])
    assert -200 <= mean < 0


def test_other_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("other_spaces")
    cart = example.NewCart()
    observation, _ = cart.reset(seed=0)
    np.testing.assert_allclose(example.to_old_sensors(observation[None])[0], cart.unwrapped.state, rtol=1e-5)
    speed = cart.unwrapped.state[1]
    cart.step(example.COAST)
    coasted = cart.unwrapped.state[1]
    cart.step(2)
    # Ten newtons for a fiftieth of a second move a kilogram; coasting hardly changes anything
    assert abs(coasted - speed) < 0.01
    assert cart.unwrapped.state[1] - coasted > 0.1
    model = example.main(["--timesteps", "300", "--source-timesteps", "100", "--episodes", "2"])
    assert model.options.names == ["old cart", "action_0", "action_1", "action_2"]
    assert "CAPS: mean return" in capsys.readouterr().out


def test_images(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("images")
    rooms = example.make_rooms((0, 0), 2)
    pictures = example.random_pictures(rooms, steps=5)
    assert pictures.shape == (10, 36, 36, 1)
    # One white square of four by four pixels
    assert (pictures.reshape(10, -1).sum(axis=1) == 16 * 255).all()
    model = example.main(["--timesteps", "400", "--source-timesteps", "512", "--episodes", "2"])
    assert model.options.n_sources == 2
    assert len(model.observation_space.shape) == 1
    assert "of the episodes arrive" in capsys.readouterr().out


def test_custom_loss(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("custom_loss")
    model = example.main(["--timesteps", "300", "--episodes", "2"])
    assert "CAPS: mean return" in capsys.readouterr().out
    data = model._sample(32)
    with th.no_grad():
        estimates, targets = model._estimates_and_targets(data)
        # Nothing of what pads sequences, and of other options than those that agreed
        learned = data.agreements & data.mask[..., None]
        values = estimates.values[learned]
        expected = (values - targets[learned]).square().mean() + model.penalty * values.square().mean()
        expected += model._termination_loss(data, estimates)
        assert model._compute_loss(data, estimates, targets).item() == pytest.approx(expected.item(), rel=1e-5)


def test_continuous(capsys: pytest.CaptureFixture[str]) -> None:
    example = load("continuous")
    model = example.main(["--timesteps", "700", "--source-timesteps", "150", "--episodes", "1"])
    assert model.num_timesteps == 700
    assert model.options.names == ["known", "light", "actor"]
    printed = capsys.readouterr().out
    for name in ("known", "light", "SAC", "ContinuousCAPS"):
        assert f"{name}: mean return -" in printed


def run_notebook(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a notebook with few steps, and see that it draws something: what it prints."""
    monkeypatch.setenv("SB3_CAPS_NOTEBOOK_STEPS", "300")
    # conftest.py has chosen a backend without pictures
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    return "".join(output.get("text", "") for output in outputs)


def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run_notebook("policy_reuse.ipynb", tmp_path, monkeypatch)
    assert printed.count("['ppo', 'ppo_2', 'action_0', 'action_1']") == 2
    assert "CAPS: " in printed
    assert (tmp_path / "caps_long_pole.zip").exists()


def test_notebook_of_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run_notebook("grow_a_library.ipynb", tmp_path, monkeypatch)
    assert "['usual-pole', 'action_0', 'action_1']" in printed
    assert "['usual-pole', 'long-pole', 'action_0', 'action_1']" in printed
    assert "student " in printed
    # What is left is what was printed last
    assert printed.strip().splitlines()[-1] == str(PolicyLibrary(tmp_path / "library").names)
