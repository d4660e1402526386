"""`sb3-caps plot`: who acted, the learner's line, sources as a reference, and runs that were resumed."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import load_results

from sb3_caps import CAPS
from sb3_caps.commands import main
from sb3_caps.commands.plot import (
    Curve,
    Episodes,
    best_sources,
    draw_curves,
    joined,
    line_styles,
    read_monitor,
    read_training,
    smoothed,
    training_curve,
)
from sb3_caps.reuse.episode_log import COLUMNS, EpisodeLog
from tests.toy_world import Corridor, go_left, go_right

ROWS = [("good", 1, 5.0), ("bad", 1, -5.0), ("random", 0, -4.0), *[("actor", 0, float(i)) for i in range(10)]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_run(run: Path, rows: Any = ROWS, start: float = 100.0, trained_agent: str | None = None) -> Path:
    """As a run of the zoo leaves it, with episodes of ten steps."""
    (run / "Task-v0").mkdir(parents=True)
    monitor = ["r,l,t", *(f"{reward},10,{i}" for i, (_, _, reward) in enumerate(rows))]
    (run / "0.monitor.csv").write_text("\n".join([f'#{{"t_start": {start}}}', *monitor, ""]))
    with (run / "episodes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for i, (acted, is_source, reward) in enumerate(rows):
            writer.writerow((reward, 10, start + i, "", 10 * (i + 1), 0, acted, is_source))
    agent = "''" if trained_agent is None else trained_agent
    (run / "Task-v0" / "args.yml").write_text(
        f"!!python/object/apply:collections.OrderedDict\n- - - algo\n    - caps\n  - - trained_agent\n    - {agent}\n"
    )
    return run


def test_one_line_is_the_learners(folder: Path) -> None:
    episodes = read_training([write_run(folder / "caps" / "Task-v0_1")], "steps", "reward")
    assert episodes.acted == ["good", "bad", "random"] + ["learner"] * 10
    assert episodes.best_source == "good"
    curve = training_curve("a", episodes, window=2)
    assert curve.x.tolist() == [*range(50, 131, 10)]
    assert curve.y.tolist() == [i + 0.5 for i in range(9)]
    assert best_sources([curve]) == {"good": 5.0}
    figure = draw_curves([curve], "steps", "training reward")
    line, reference = figure.axes[0].lines
    assert line.get_ydata().tolist() == curve.y.tolist()
    assert (reference.get_label(), reference.get_ydata()[0]) == ("best source: good (5)", 5.0)
    assert figure.axes[0].get_ylabel() == "training reward of the learner"
    # Below, a bar for each episode in the colour of who acted
    rug = figure.axes[1]
    bars = {bars.get_label(): [path.get_extents().x0 for path in bars.get_paths()] for bars in rug.collections}
    assert bars == {"good": [0], "bad": [10], "random": [20], "learner": [*range(30, 130, 10)]}
    assert len({tuple(bars.get_facecolor()[0]) for bars in rug.collections}) == 4


def test_what_explores_is_not_what_was_learned(folder: Path) -> None:
    explored = [("exploring", 0, -3.0), ("mixing", 0, -4.0)]
    run = write_run(folder / "caps" / "Task-v0_1", [*ROWS, *explored])
    episodes = read_training([run], "steps", "reward")
    assert episodes.acted[-3:] == ["learner", "learner exploring", "learner exploring"]
    assert training_curve("a", episodes, window=1).y.tolist() == [float(i) for i in range(10)]
    # With safe=False the learner always explores
    always = write_run(folder / "caps" / "Task-v0_2", [*ROWS[:3], *explored])
    assert training_curve("a", read_training([always], "steps", "reward"), window=1).y.tolist() == [-3, -4]


def test_no_line_has_the_colour_of_a_source(folder: Path) -> None:
    episodes = read_training([write_run(folder / "caps" / "Task-v0_1")], "steps", "reward")
    figure = draw_curves([training_curve(f"caps Task-v0_{n}", episodes, 1) for n in range(1, 5)], "steps", "reward")
    lines = {to_hex(line.get_color()) for line in figure.axes[0].lines[:4]}
    assert len(lines) == 4
    assert not lines & {to_hex(bars.get_facecolor()[0]) for bars in figure.axes[1].collections}


def test_runs_that_do_not_say_who_acted_are_drawn_as_they_are(folder: Path) -> None:
    run = write_run(folder / "caps" / "Task-v0_1")
    (run / "episodes.csv").unlink()
    curve = training_curve("a", read_training([run], "steps", "reward"), window=1)
    assert curve.y.tolist() == [row[-1] for row in ROWS]
    assert curve.episodes is None
    assert len(draw_curves([curve], "steps", "reward").axes) == 1
    # Where only sources have acted yet there is nothing else to draw
    only = write_run(folder / "caps" / "Task-v0_2", ROWS[:2])
    assert len(training_curve("a", read_training([only], "steps", "reward"), window=1).y) == 2


def test_a_resumed_run_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_run(folder / "caps" / "Task-v0_1")
    other = write_run(folder / "caps" / "Task-v0_2")
    second = write_run(folder / "caps" / "Task-v0_3", ROWS[3:], 200.0, "caps/Task-v0_1/Task-v0.zip")
    # From another working directory the path leads nowhere, but the name tells
    third = write_run(folder / "caps" / "Task-v0_4", ROWS[3:5], 300.0, "elsewhere/caps/Task-v0_3/best_model.zip")
    assert joined([first, other, second, third]) == [[other], [first, second, third]]
    # Alone it is drawn alone
    assert joined([second]) == [[second]]
    episodes = read_training([first, second, third], "steps", "reward")
    assert episodes.x.tolist() == [*range(10, 10 * (13 + 10 + 2) + 1, 10)]
    assert len(episodes.acted) == len(episodes.y) == 25
    for run, steps in ((first, [10, 20]), (second, [5, 10])):
        np.savez(run / "evaluations.npz", timesteps=steps, results=np.ones((2, 3)), ep_lengths=np.ones((2, 3)))
    for arguments, runs in (([], 2), (["--mean"], 2), (["-x", "hours"], 2), (["--evaluations"], 1)):
        assert main(["plot", "caps", *arguments]) == 0
        assert f"{runs} runs drawn" in capsys.readouterr().out


def test_two_runs_that_went_on_with_the_same_one(folder: Path) -> None:
    first = write_run(folder / "caps" / "Task-v0_1")
    agent = "caps/Task-v0_1/Task-v0.zip"
    others = [write_run(folder / "caps" / f"Task-v0_{n}", trained_agent=agent) for n in (2, 3)]
    assert joined([first, *others]) == [[first, others[0]], [first, others[1]]]


def test_a_clock_that_began_anew(folder: Path) -> None:
    # SB3's Monitor goes on with a file where it is asked to, and counts its seconds from 0 again
    file = folder / "0.monitor.csv"
    file.write_text('#{"t_start": 100.0}\nr,l,t\n1,10,5.0\n2,10,9.0\n3,10,1.0\n4,10,2.0\n')
    assert [episode["t"] for episode in read_monitor(file)] == [105.0, 109.0, 110.0, 111.0]


def test_runs_can_be_told_apart() -> None:
    labels = [f"caps Task-v0_{n}" for n in range(1, 10)] + ["dqn Task-v0_1", "dqn Task-v0_2"]
    styles = line_styles(labels)
    assert list(styles) == labels
    assert len(set(styles.values())) == len(labels)
    # Methods keep their colours
    assert styles["caps Task-v0_1"] == ("#d62839", "-")
    assert styles["dqn Task-v0_1"] == ("#4a4e69", "-")
    assert line_styles(["CAPS", "DQN"]) == {"CAPS": ("#d62839", "-"), "DQN": ("#4a4e69", "-")}
    # The first six are of six colours, none a shade of another
    colours = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour, _ in list(styles.values())[:6]])
    apart = np.abs(colours[:, None] - colours[None]).sum(axis=2)
    assert apart[~np.eye(6, dtype=bool)].min() > 90


def test_many_runs_have_no_rows() -> None:
    episodes = Episodes(np.arange(1, 5), np.ones(4), ["good", "learner", "learner", "learner"])
    curves = [Curve(str(n), *smoothed(episodes.x, episodes.y, 1), episodes) for n in range(9)]
    assert len(draw_curves(curves[:8], "steps", "reward").axes) == 2
    assert len(draw_curves(curves, "steps", "reward").axes) == 1


def test_the_file_says_who_acted(tmp_path: Path) -> None:
    env = make_vec_env(lambda: Corridor(horizon=8), n_envs=2, monitor_dir=str(tmp_path))
    model = CAPS("MlpPolicy", env, source_policies=[go_right, go_left], seed=0, learning_starts=10)
    names: set[str] = set()

    def watch(*_: Any) -> bool:
        names.update(behaviour.name for behaviour in model._tracker.behaviours if behaviour is not None)
        return True

    model.learn(300, callback=[EpisodeLog(tmp_path), ConvertCallback(watch)])
    found = read_monitor(tmp_path / "episodes.csv")
    theirs = load_results(str(tmp_path))
    assert len(found) == len(theirs)
    assert sorted((each["r"], each["l"]) for each in found) == sorted(zip(theirs.r, theirs.l, strict=True))
    assert {"go_right", "go_left", "random"} < {each["acted"] for each in found}
    assert {each["acted"] for each in found} - {"go_right", "go_left", "random"} <= {"learner", "learner exploring"}
    with (tmp_path / "episodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["acted"] for row in rows} <= names
    assert {row["acted"] for row in rows if row["is_source"] == "1"} == {"go_right", "go_left"}
    # The next run goes on with it
    model.learn(100, callback=EpisodeLog(tmp_path))
    assert len(read_monitor(tmp_path / "episodes.csv")) > len(found)


def test_it_is_for_caps(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="EpisodeLog is for CAPS, not DQN"):
        DQN("MlpPolicy", Corridor()).learn(10, callback=EpisodeLog(tmp_path))
    assert not list(tmp_path.iterdir())
