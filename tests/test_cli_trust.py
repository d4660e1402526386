"""The command where it is used: in folders of others, in folders that are gone, on disks that are full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stable_baselines3 import DQN

from sb3_caps import export_source
from sb3_caps.commands import main, working_directory_on_path
from sb3_caps.commands.plot import find_runs

# As the installed script has it: Python itself does not look into the working directory
COMMAND = [sys.executable, "-I", "-c", "import sys; from sb3_caps.commands import main; sys.exit(main())"]
# What torch looks for and does without, and what is not installed everywhere
WANTED = ("cuda", "dill", "optree", "onnx", "pygame", "pandas", "seaborn", "cloudpickle")


def called(argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *argv], cwd=folder, capture_output=True, text=True, timeout=120)


def traps(folder: Path) -> Path:
    """Files that say that they ran, under the names of modules that others would import."""
    for name in WANTED:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'a').write('{name} ')\n")
    return folder / "ran"


@pytest.mark.parametrize("trust", [[], ["--no-trust"]])
def test_nothing_that_lies_beside_a_source_is_run(trust: list[str], tmp_path: Path) -> None:
    export_source(DQN("MlpPolicy", "CartPole-v1", buffer_size=10), tmp_path / "x")
    ran = traps(tmp_path)
    done = called(["sources", "x.npz", "--env", "CartPole-v1", *trust], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fits CartPole-v1" in done.stdout
    assert not ran.exists(), ran.read_text()


def test_without_trust_no_environment_of_the_working_directory_is_made(tmp_path: Path) -> None:
    export_source(DQN("MlpPolicy", "CartPole-v1", buffer_size=10), tmp_path / "x")
    (tmp_path / "mine.py").write_text("import gymnasium as gym\ngym.register('Mine-v0', 'mine:make')\nprint('ran')\n")
    done = called(["sources", "x.npz", "--env", "mine:Mine-v0", "--no-trust"], tmp_path)
    assert done.returncode == 2
    assert "ran" not in done.stdout


def test_commands_that_load_nothing_of_the_users_run_nothing_beside_them(tmp_path: Path) -> None:
    ran = traps(tmp_path)
    for argv in (["play", "--help"], ["play", "monster-kong", "--policy", "random", "--no-window", "--max-steps", "2"]):
        done = called(argv, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    assert not ran.exists(), ran.read_text()


def test_the_working_directory_is_on_the_path_for_as_long_as_it_is_needed() -> None:
    before = list(sys.path)
    with working_directory_on_path():
        assert sys.path == [*before, os.getcwd()]
        sys.path.insert(0, "elsewhere")
    assert sys.path == before


@pytest.mark.skipif(os.name != "posix", reason="other systems keep a folder that somebody is in")
@pytest.mark.parametrize("command", ["sources", "plot", "train", "explore", "play"])
def test_a_working_directory_that_is_gone(command: str, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    code = f"import os, sys; os.rmdir({str(folder)!r}); from sb3_caps.commands import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, command, "x"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr == f"sb3-caps {command}: the working directory is gone: change to another one.\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["explore", "run.zip", "--env", "CartPole-v1", "--seed", "-1"],
        ["play", "monster-kong", "--policy", "random", "--no-window", "--seed", "-1"],
    ],
)
def test_a_seed_is_not_negative(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err == f"sb3-caps {argv[0]}: --seed must be at least 0, not -1\n"


HEADER = '#{"t_start": 0.0}\nr,l,t\n'


@pytest.mark.parametrize("content", ["", HEADER, f"{HEADER}1.0,1"], ids=["empty", "no episode", "first episode cut"])
def test_a_run_without_episodes_does_not_keep_others_from_being_drawn(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    for name, text in (("a_1", f"{HEADER}1.0,10,0.5\n2.0,10,0.7\n"), ("a_2", content), ("b_1", f"{HEADER}1.0,5,0.5\n")):
        (tmp_path / "logs" / name).mkdir(parents=True)
        (tmp_path / "logs" / name / "0.monitor.csv").write_text(text)
    assert len(find_runs(Path("logs"))) == 3
    assert main(["plot", "logs"]) == 0
    told = capsys.readouterr()
    assert "2 runs drawn to curves.png" in told.out
    assert "logs/a_2 has no reward of training episodes: it is left out.\n" in told.err
    # Where there is nothing else it is refused
    assert main(["plot", "logs/a_2"]) == 2
    told = capsys.readouterr()
    assert told.err.endswith("sb3-caps plot: logs/a_2 has no reward of training episodes\n")


@pytest.mark.skipif(sys.platform != "linux", reason="a full disk is imitated by a limit of the size of files")
@pytest.mark.parametrize("target", ["film.gif", "frames"])
def test_a_full_disk_leaves_no_cut_recording(target: str, tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    pytest.importorskip("PIL.Image")
    before = b"what was there"
    if target.endswith(".gif"):
        (tmp_path / target).write_bytes(before)
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        "from sb3_caps.commands import main\n"
        "sys.exit(main())\n"
    )
    argv = ["play", "monster-kong", "--policy", "random", "--no-window", "--max-steps", "20", "--record", target]
    done = subprocess.run(
        [sys.executable, "-B", "-I", "-c", code, *argv], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("sb3-caps play: [Errno ")
    left = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == ({target: before} if target.endswith(".gif") else {})
