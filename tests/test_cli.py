"""The command line: help, errors in one line, plot and sources."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.monitor import Monitor

import sb3_caps
from sb3_caps import export_source
from sb3_caps.commands import COMMANDS, main
from sb3_caps.commands.plot import Curve, draw_curves, find_runs, read_training, smoothed
from tests.toy_world import Corridor

HERE = "tests.test_cli"


def always_right(observations: np.ndarray) -> np.ndarray:
    return np.ones(len(observations), dtype=np.int64)


def much_too_high(observations: np.ndarray) -> np.ndarray:
    return np.full(len(observations), 9)


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that an error prints."""
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "command", ["train", "enjoy", "record_video", "optimize", "plot", "plot_train", "all_plots", "sources"]
)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert f"sb3-caps {command}" in printed
    if command in ("train", "optimize"):
        assert "--variant" in printed
        assert "source_policies" in printed
        assert "--n-trials" in printed


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert all(f"\n    {name}" in printed for name in COMMANDS)


def test_help_and_version_are_quick_and_import_nothing_heavy(folder: Path) -> None:
    code = (
        "import sys, sb3_caps, gymnasium\n"
        "from sb3_caps.commands import main\n"
        "for words in (['--help'], ['--version'], ['sources', '--help'], ['sources']):\n"
        "    try: main(words)\n"
        "    except SystemExit: pass\n"
        "heavy = {'torch', 'stable_baselines3', 'matplotlib', 'pandas', 'pygame', 'scipy', 'rl_zoo3'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert 'sb3_caps/Grid-v0' in gymnasium.registry\n"
        "assert {'CAPS', 'PRQL', 'each'} <= set(dir(sb3_caps))\n"
        "from sb3_caps import CAPS\n"
        "assert 'torch' in sys.modules\n"
        "assert sb3_caps.CAPS is CAPS and not hasattr(sb3_caps, 'SPAC')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"sb3-caps {sb3_caps.__version__}\n" in done.stdout
    asked = subprocess.run([sys.executable, "-m", "sb3_caps", "--version"], capture_output=True, text=True, timeout=120)
    assert asked.stdout == f"sb3-caps {sb3_caps.__version__}\n"


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["dance"])
    assert stopped.value.code == 2
    assert "invalid choice: 'dance'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train", "--env", "CartPole-v2"], "CartPole-v2 not found in gym registry, you maybe meant CartPole-v"),
        (["train", "--env", "CartPole-v1", "-conf", "none.yml"], "No such file or directory: 'none.yml'"),
        (["train", "--env", "CartPole-v1", "--variant", "huge"], "no variant 'huge' for CartPole-v1"),
        (["train", "--algo", "dqn", "--env", "CartPole-v1", "--variant", "long"], "caps.yml has it: pass it as -conf."),
        (["train", "--env", "CartPole-v1", "-i", "none.zip"], "must be a valid path to a .zip file"),
        (["train", "--env", "CartPole-v1", "-params", "gamma:gama"], "not gamma:gama: name 'gama' is not defined"),
        (["train", "--env", "CartPole-v1", "-params", "gama:0.9"], "caps has no argument gama"),
        (["train", "--env", "CartPole-v1", "-params", "source_policies:['a.zip']"], "no source policy a.zip in"),
        (["train", "--env", "CartPole-v1", "-params", "source_policies:['dqn:Acrobot-v1']"], "no trained dqn for Acro"),
        (["train", "--env", "CartPole-v1", "-params", "source_policies:['no.module:f']"], "cannot be imported"),
        (["train", "--env", "CartPole-v1", "-params", "source_policies:'a.zip'"], "must be a list of source policies"),
        (["train", "--env", "Pendulum-v1"], "Discrete"),
        (["enjoy", "--env", "CartPole-v1"], "folder was not found"),
        (
            ["optimize", "--env", "CartPole-v1", "--storage", "nonsense", "--study-name", "s"],
            "the address of a data",
        ),
        (["plot", "nowhere"], "There is no run with a *monitor.csv in nowhere"),
        (["plot", "nowhere", "--window", "0"], "--window must be at least 1"),
        (["plot", "nowhere", "--evaluations", "-x", "hours"], "Evaluations are stored by steps"),
        (["demo", "--steps", "0"], "--steps must be at least 96, not 0"),
        (["reproduce", "grid", "--jobs", "0"], "--jobs must be at least 1, not 0"),
        (["reproduce", "grid-networks", "--steps", "-5"], "--steps must be at least 120, not -5"),
        (["reproduce", "monster-kong", "--steps", "0"], "--steps must be at least 4, not 0"),
        (["reproduce", "monster-kong", "--steps", "-5"], "--steps must be at least 4, not -5"),
        (["reproduce", "monster-kong-analysis", "--steps", "0"], "--steps must be at least 64, not 0"),
        (["reproduce", "monster-kong", "--draw"], "no finished run of these in results/monster_kong: leave --draw out"),
        (["all_plots"], "rl_zoo3's all_plots needs -e or --env"),
        (["plot_from_file"], "rl_zoo3's plot_from_file needs -i or --input"),
        (["record_video", "--env", "CartPole-v1"], "folder was not found"),
        (["sources", "none.zip"], "There is no saved model at none.zip"),
        (["sources", "--train", "chess"], "There is no source 'chess' to train: pass any of cartpole, acrobot, "),
        (["sources", "none.zip", "--train", "cartpole"], "ask for one of the two"),
        (["sources", "--train", "cartpole", "--jobs", "0"], "--jobs must be at least 1, not 0"),
        (["train", "--env", "CartPole-v1", "--variant", "weak"], "`sb3-caps sources --train cartpole-dqn` trains it."),
        (["train", "--env", "CartPole-v1", "--judge", "model"], "--judge is for trials: sb3-caps optimize takes it."),
        (
            ["sources", f"{HERE}:always_right", "--episodes", "3"],
            "--episodes needs an environment to act in: pass --env",
        ),
        (["sources", "x:y", "--env", "CartPole-v1", "--episodes", "0"], "--episodes must be at least 1, not 0"),
        (["sources", "dqn:CartPole-v1"], "There is no trained dqn for CartPole-v1 in logs"),
        (["sources", f"{HERE}:always_right", "--env", "CartPole-v77"], "CartPole"),
    ],
)
def test_errors_are_one_line(argv: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    line = error_line(capsys)
    assert line.startswith(f"sb3-caps {argv[0]}: ")
    assert message in line


@pytest.mark.parametrize(
    ("argv", "module", "extra"),
    [
        (["train"], "rl_zoo3", "zoo"),
        (["train", "--track"], "wandb", "track"),
        (["enjoy"], "requests", "zoo"),
        (["plot_train", "-e", "Task-v0"], "seaborn", "plots"),
        (["plot", "run"], "matplotlib", "studies"),
    ],
)
def test_a_missing_extra_is_named(argv: list[str], module: str, extra: str, folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "0.monitor.csv").write_text('#{"t_start": 0.0}\nr,l,t\n1.0,5,0.1\n')
    # None in sys.modules makes Python refuse the import, as it would for a package that is not there
    code = f"import sys; sys.modules['{module}'] = None; from sb3_caps.commands import main; sys.exit(main({argv}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert f"pip install 'sb3-caps[{extra}]'" in done.stderr


def test_sources_tells_what_they_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DQN("MlpPolicy", Corridor("box")).save("walker")
    assert main(["sources", "walker.zip", f"{HERE}:always_right"]) == 0
    printed = capsys.readouterr().out
    assert "walker\n" in printed
    assert "DQNPolicy (stable_baselines3.dqn.policies)" in printed
    assert "Box(0.0, 1.0, (10,), float32)" in printed
    assert "Discrete(3)" in printed
    assert "always_right\n  kind          function" in printed


def test_sources_tells_what_fits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DQN("MlpPolicy", "CartPole-v1").save("cart")
    DQN("MlpPolicy", "Acrobot-v1").save("acrobat")
    assert main(["sources", "cart", f"{HERE}:always_right", "--env", "CartPole-v1"]) == 0
    assert capsys.readouterr().out.count("fits CartPole-v1") == 2
    assert main(["sources", "cart", "acrobat", "--env", "CartPole-v1"]) == 1
    printed = capsys.readouterr().out
    assert "does not fit: Source policy 'acrobat' expects observations of" in printed
    # What each is worth, of those that fit
    assert main(["sources", "cart", f"{HERE}:always_right", "acrobat", "--env", "CartPole-v1", "--episodes", "3"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("mean reward") == 2
    assert re.search(r"always_right\n(  .*\n)+  mean reward   9\.\d+ ± [\d.]+ in 3 episodes\n", printed)
    # A function has no spaces to compare: it has to act
    assert main(["sources", f"{HERE}:much_too_high", "--env", "CartPole-v1"]) == 1
    assert "returned an action out of range" in capsys.readouterr().out
    # One number is an action of one dimension, and none of four
    assert main(["sources", f"{HERE}:always_right", "--env", "Pendulum-v1"]) == 0
    assert main(["sources", f"{HERE}:always_right", "--env", "BipedalWalker-v3"]) == 1
    assert "returned actions of shape (2,): expected (2, 4)" in capsys.readouterr().out


def test_sources_without_running_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=10)
    model.save("cart")
    export_source(model, "cart_export")
    assert main(["sources", "cart_export.npz", "--env", "CartPole-v1", "--no-trust"]) == 0
    assert "fits CartPole-v1" in capsys.readouterr().out
    for source in ("cart.zip", f"{HERE}:always_right", "a:b.zip"):
        assert main(["sources", source, "--no-trust"]) == 2
    told = capsys.readouterr().err
    assert "cart.zip is not an export" in told
    assert "always_right is not an export" in told
    with pytest.raises(SystemExit):
        main(["sources", "--help"])
    assert "runs code: name only those that you trust" in " ".join(capsys.readouterr().out.split())


def test_sources_of_the_working_directory(folder: Path) -> None:
    (folder / "my_heuristics.py").write_text("def left(observations):\n    return [0] * len(observations)\n")
    command = [sys.executable, "-c", "import sys; from sb3_caps.commands import main; sys.exit(main())"]
    # As the installed script has it: Python itself does not look into the working directory
    command.insert(1, "-I")
    arguments = ["sources", "my_heuristics:left", "--env", "CartPole-v1"]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fits CartPole-v1" in done.stdout


def write_run(run: Path, rewards: list[float], length: int = 10, start: float = 0.0) -> None:
    run.mkdir(parents=True, exist_ok=True)
    number = len(list(run.glob("*monitor.csv")))
    rows = "".join(f"{reward},{length},{i + 1}.0\n" for i, reward in enumerate(rewards))
    (run / f"{number}.monitor.csv").write_text(f"#{json.dumps({'t_start': start})}\nr,l,t\n{rows}")


def test_monitor_files_are_read_as_they_were_written(folder: Path) -> None:
    env = Monitor(Corridor("box", horizon=3), "run/0", info_keywords=())
    for _ in range(4):
        env.reset(seed=0)
        done = False
        while not done:
            _, _, terminated, truncated, _ = env.step(2)
            done = terminated or truncated
    env.close()
    steps, lengths = read_training([folder / "run"], "steps", "length")[:2]
    assert steps.tolist() == [3, 6, 9, 12]
    assert lengths.tolist() == [3, 3, 3, 3]
    hours, _ = read_training([folder / "run"], "hours", "reward")[:2]
    assert 0 <= hours[-1] < 0.1


def test_episodes_of_several_environments_are_put_in_order(folder: Path) -> None:
    write_run(folder / "run", [1, 3], start=100.0)
    write_run(folder / "run", [2, 4], length=5, start=100.5)
    steps, rewards, _ = read_training([folder / "run"], "steps", "reward")
    assert rewards.tolist() == [1, 2, 3, 4]
    assert steps.tolist() == [10, 15, 25, 30]
    with pytest.raises(ValueError, match=r"has no success of training episodes"):
        read_training([folder / "run"], "steps", "success")


def test_running_means() -> None:
    x, y = smoothed(np.array([1, 2, 3, 4]), np.array([0.0, 2.0, 4.0, 6.0]), window=2)
    assert x.tolist() == [2, 3, 4]
    assert y.tolist() == [1.0, 3.0, 5.0]
    x, y = smoothed(np.array([1, 2]), np.array([0.0, 2.0]), window=50)
    assert (x.tolist(), y.tolist()) == ([2], [1.0])


def test_curves_of_one_label_become_their_mean() -> None:
    curves = [Curve("a", np.array([0, 10]), np.array([0.0, 1.0])), Curve("a", np.array([0, 20]), np.array([1.0, 1.0]))]
    figure = draw_curves(curves, "steps", "reward", mean=True)
    (line,) = figure.axes[0].lines
    assert line.get_label() == "a (mean of 2)"
    # Only as far as both go
    assert (line.get_xdata()[0], line.get_xdata()[-1]) == (0, 10)
    assert (line.get_ydata()[0], line.get_ydata()[-1]) == (0.5, 1.0)
    assert len(draw_curves(curves, "steps", "reward").axes[0].lines) == 2


def test_plot_draws_runs_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        write_run(folder / "logs" / "caps" / f"Task-v0_{number}", [0, 1, 1])
    write_run(folder / "logs" / "dqn" / "Task-v0_1", [0, 0, 1])
    assert len(find_runs(folder / "logs")) == 3
    # One that has just begun has nothing to draw
    write_run(folder / "logs" / "dqn" / "Task-v0_2", [])
    assert main(["plot", "logs", "-w", "2", "-o", "out/all.png"]) == 0
    assert "3 runs drawn to out/all.png" in capsys.readouterr().out
    assert main(["plot", "ours=logs/caps", "theirs=logs/dqn", "--mean", "-w", "1", "-o", "mean.png"]) == 0
    for file in ("out/all.png", "mean.png"):
        assert (folder / file).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("n_episodes", [1, 3, 20, 50, 51])
@pytest.mark.parametrize("mean", [[], ["--mean"]])
def test_short_runs_can_be_seen(n_episodes: int, mean: list[str], folder: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    write_run(folder / "caps" / "Task-v0_1", [float(i % 2) for i in range(n_episodes)])
    assert main(["plot", "caps", *mean]) == 0
    picture = image.imread("curves.png")[..., :3]
    # The only colour there is; the sample in the legend has it too: about 25 pixels long and 2 high
    coloured = picture.max(axis=2) - picture.min(axis=2) > 0.3
    assert coloured.sum() > 80


def test_monitor_files_that_were_cut(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder / "run", [1, 2, 3])
    file = folder / "run" / "0.monitor.csv"
    whole = file.read_text()
    # Within a number, where nothing but the missing end of the line tells
    file.write_text(whole[:-2])
    assert main(["plot", "run"]) == 0
    assert "run/0.monitor.csv: the last line is cut and left out" in error_line(capsys)
    rewards = read_training([folder / "run"], "steps", "reward").y
    assert rewards.tolist() == [1, 2]

    for text, message in (
        (whole[:8], "run/0.monitor.csv does not begin as a monitor file does: move it away"),
        (whole.replace("2,10", "2"), "run/0.monitor.csv, line 4, is not an episode: remove it"),
        (whole.splitlines()[0] + "\n", "run has no reward of training episodes"),
    ):
        file.write_text(text)
        capsys.readouterr()
        assert main(["plot", "run"]) == 2
        assert message in error_line(capsys)


def test_a_config_that_is_no_yaml_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.yml").write_text("CartPole-v1:\n  policy: MlpPolicy\n n_timesteps: [1\n")
    for variant in ([], ["--variant", "cpu"]):
        assert main(["train", "--env", "CartPole-v1", "-conf", "bad.yml", *variant]) == 2
        assert "bad.yml is not valid YAML, fix it: " in error_line(capsys)


def test_plot_draws_evaluations(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder / "logs" / "caps" / "Task-v0_1"
    run.mkdir(parents=True)
    results = np.array([[0.0, 1.0], [1.0, 1.0]])
    np.savez(run / "evaluations.npz", timesteps=[10, 20], results=results, ep_lengths=results)
    assert main(["plot", "logs", "--evaluations"]) == 0
    assert (folder / "curves.png").is_file()
    assert main(["plot", "logs", "--evaluations", "-y", "success"]) == 2
    assert "has no success of evaluations" in error_line(capsys)
    whole = (run / "evaluations.npz").read_bytes()
    (run / "evaluations.npz").write_bytes(whole[: len(whole) // 2])
    assert main(["plot", "logs", "--evaluations"]) == 2
    assert "logs/caps/Task-v0_1/evaluations.npz is damaged" in error_line(capsys)
