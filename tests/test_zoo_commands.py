"""rl_zoo3's recording, plots, tracking and own commands, on folders of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from sb3_caps import CAPS
from sb3_caps.commands import main
from sb3_caps.zoo import plots
from sb3_caps.zoo.plots import with_folder_names

QUICK = ["--eval-freq", "-1", "--seed", "1", "--verbose", "0", "--num-threads", "1"]
ENV = "sb3_caps/MonsterKongG2-v0"
NAME = "sb3_caps-MonsterKongG2-v0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_runs(algo: str, level: float, number: int = 2) -> None:
    """Folders as rl_zoo3 leaves them, with the files that its plots read."""
    for i in range(1, number + 1):
        run = Path("logs", algo, f"{NAME}_{i}")
        run.mkdir(parents=True)
        rows = "".join(f"{level},10,{episode}.0\n" for episode in range(1, 21))
        (run / "0.monitor.csv").write_text(f"#{json.dumps({'t_start': 0.0, 'env_id': ENV})}\nr,l,t\n{rows}")
        results = np.linspace(0, level, 5)[:, None] + np.array([[0.0, 0.1 * i]])
        np.savez(run / "evaluations.npz", timesteps=np.arange(1, 6) * 40, results=results, ep_lengths=results)


def is_picture(file: Path) -> bool:
    return file.read_bytes().startswith(b"\x89PNG")


def test_plots_of_runs_whose_environment_has_a_slash(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_runs("caps", 40.0)
    write_runs("dqn", 20.0)
    save = ["--save-figures", "figures"]
    assert main(["plot_train", "-e", ENV, "-w", "5", *save]) == 0
    assert is_picture(Path("figures", "Training_Episodic_Reward.png"))

    assert main(["all_plots", "-a", "caps", "dqn", "-e", ENV, "-o", "curves", *save]) == 0
    assert is_picture(Path("figures", f"Results_{NAME}.png"))
    told = capsys.readouterr().out
    assert "|40 +/- 0|20 +/- 0|" in told.replace(" |", "|")

    assert main(["plot_from_file", "-i", "curves", "--keep-envs", ENV, "-b", *save]) == 0
    assert is_picture(Path("figures", "Sensitivity_plot.png"))
    assert is_picture(Path("figures", "Sensitivity_box_plot.png"))


def test_statistics_of_rliable(folder: Path) -> None:
    pytest.importorskip("rliable")
    write_runs("caps", 1.0, 3)
    write_runs("dqn", 0.5, 3)
    assert main(["all_plots", "-a", "caps", "dqn", "-e", ENV, "-o", "curves", "--no-display"]) == 0
    command = ["plot_from_file", "-i", "curves", "-r", "-vs", "-iqm", "--save-figures", "figures"]
    with pytest.warns(UserWarning, match="not found for normalizing scores"):
        assert main(command) == 0
    # A learning curve, four kinds of statistics, and the sensitivity plot
    assert len(list(Path("figures").glob("*.png"))) == 6


def test_what_cannot_be_plotted_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_runs("caps", 1.0, number=1)
    for command in ("plot_train", "all_plots"):
        assert main([command, "-e", ENV, "Nope-v1"]) == 2
        assert "There is no run of caps on Nope-v1 in logs" in capsys.readouterr().err
    assert main(["all_plots", "-e", ENV, "-o", "curves", "--no-display"]) == 0
    assert main(["plot_from_file", "-i", "curves", "--save-figures", "figures"]) == 2
    assert "needs at least two runs of every algorithm" in capsys.readouterr().err

    def broken(module: str, extra: str) -> None:
        # As rliable is beside pandas 3
        raise TypeError("deprecate_kwarg() missing 1 required positional argument")

    monkeypatch.setattr(plots, "require", broken)
    assert main(["plot_train", "-e", ENV]) == 2
    assert "pip install 'sb3-caps[plots]' brings a pandas below 3" in capsys.readouterr().err


def test_environments_become_names_of_folders() -> None:
    given = ["-f", "my/logs", "-e", "a/B-v0", "C-v1", "-o", "out/file", "--keep-envs=a/B-v0"]
    assert with_folder_names(given) == ["-f", "my/logs", "-e", "a-B-v0", "C-v1", "-o", "out/file", "--keep-envs=a-B-v0"]


def test_a_video_of_a_run(folder: Path) -> None:
    # The arguments of this environment are in its config, and give other observations than the default ones
    assert main(["train", "--env", ENV, "--variant", "cpu", "-n", "64", *QUICK]) == 0
    assert main(["record_video", "--env", ENV, "-n", "10"]) == 0
    (video,) = Path("logs", "caps", f"{NAME}_1", "videos").glob("*.mp4")
    assert b"ftyp" in video.read_bytes()[:16]


def run_module(module: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    repository = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [repository, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_rl_zoo3s_own_commands_with_the_plugin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m rl_zoo3.train`` to the letter."""
    monkeypatch.syspath_prepend(folder)
    Path("custom_envs.py").write_text("import sb3_caps.zoo.plugin\n")
    Path("rules.py").write_text("def still(observations):\n    return [5] * len(observations)\n")
    entry = {"policy": "MlpPolicy", "n_timesteps": 40, "env_kwargs": {"observation": "features"}}
    entry |= {"source_policies": ["rules:still"], "learning_rate": [[0, 1e-3], [40, 1e-4]]}
    Path("own.yml").write_text(yaml.safe_dump({ENV: entry}))
    arguments = ["--algo", "caps", "--env", ENV]
    done = run_module("rl_zoo3.train", *arguments, "-conf", "own.yml", *QUICK)
    assert done.returncode == 0, done.stderr
    model = CAPS.load(folder / "logs" / "caps" / f"{NAME}_1" / f"{NAME}.zip")
    assert model.options.source_names == ["still"]
    for module in ("rl_zoo3.enjoy", "rl_zoo3.record_video"):
        # rl_zoo3's recording forgets the arguments of the environment that are in a config
        watch = ["-f", "logs", "-n", "5", "--no-render", "--env-kwargs", "observation:'features'"]
        done = run_module(module, *arguments, *watch)
        assert done.returncode == 0, done.stderr
        assert f"{NAME}.zip" in done.stdout


def test_tracking_with_weights_and_biases_offline(folder: Path) -> None:
    pytest.importorskip("wandb")
    arguments = ["train", "--env", "CartPole-v1", "-n", "300", *QUICK, "--track"]
    done = run_module("sb3_caps", *arguments, WANDB_MODE="offline", WANDB_SILENT="true")
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    stored = file.read_bytes()
    # What goes to TensorBoard, its pictures, and the settings of the run
    for word in (b"options/source_share", b"options/timeline", b"saved_hyperparams", b"rollout/ep_rew_mean"):
        assert word in stored
