"""The grid study: runs that can be killed, numbers of its tables, and the command from start to end."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from sb3_caps.colours import option_colour
from sb3_caps.commands import main
from sb3_caps.envs.grid import GridMap
from sb3_caps.files.save_util import is_running
from sb3_caps.studies.grid.batches import BATCHES, METHODS, TASKS, optimum
from sb3_caps.studies.grid.claims import claims
from sb3_caps.studies.grid.designs import ALL, MAPS, N_TARGETS, SETTINGS, choices, targets, with_needed
from sb3_caps.studies.grid.drawing import ARROWS, draw_options
from sb3_caps.studies.grid.metrics import Study, episodes_to, optimal_actions, source_agreement
from sb3_caps.studies.grid.reports import highest, predicted_theta
from sb3_caps.studies.grid.results import Results, execute, run_batch
from sb3_caps.studies.grid.verdicts import Difference, at_least, better, difference
from sb3_caps.studies.shared.plots import new_figure, save
from sb3_caps.studies.shared.statistics import Interval

RUNS, EPISODES = 2, 15


# Numbers


def test_episodes_until_a_level() -> None:
    returns = np.zeros((3, 300))
    returns[0, 120:] = 1.0
    returns[1] = 0.5
    # 90 of the last 100 episodes are at 1 after episode 210; the second run never gets there, the third never starts.
    np.testing.assert_array_equal(episodes_to(returns, 0.9), [210, np.inf, np.inf])
    np.testing.assert_array_equal(episodes_to(returns, 0.5), [170, 100, np.inf])
    np.testing.assert_array_equal(episodes_to(returns[:, :50], 0.5), [np.inf, 50, np.inf])


def test_which_actions_and_sources_are_optimal() -> None:
    rooms = GridMap.load("rooms")
    goal = rooms.goals["g"]
    right = optimal_actions("g")
    # Left of the goal only "right" leads into it; below it only "up".
    np.testing.assert_array_equal(right[goal - 1], [False, False, False, True])
    np.testing.assert_array_equal(right[goal + rooms.width], [True, False, False, False])
    agreement = source_agreement("g'")
    # The goal g' lies in the room of G1: from everywhere else the way is nearly the same.
    shares = agreement[:, rooms.free_cells].mean(axis=1)
    assert shares[0] > 0.85
    assert shares[0] == shares.max()


def test_batches_are_complete_and_ordered() -> None:
    assert with_needed(["option_critic", "prql"]) == ["option_critic_sources", "option_critic", "prql"]
    variants = {(trial.variant, trial.task) for batch in BATCHES.values() for trial in batch.trials(1)}
    assert {(method, task) for method in METHODS for task in TASKS} <= variants


def test_every_run_has_its_own_seed_and_nothing_is_run_twice() -> None:
    trials = [(trial.variant, trial.task, trial.seed) for name in BATCHES for trial in BATCHES[name].trials(3)]
    described = [trial for trial in trials if trial[0] != "source"]
    assert len(described) == len(set(described))
    assert {seed for _, _, seed in trials} == {0, 1, 2}


# Stopping and going on


def test_a_killed_batch_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, killed = Results(tmp_path / "whole", 1, 150), Results(tmp_path / "killed", 1, 150)
    execute(whole.run("prql"))
    # A process that saves after every look, killed without warning as soon as it has saved once.
    code = (
        "from pathlib import Path; from sb3_caps.studies.grid import results as g; "
        "g.CHECKPOINT_SECONDS, g.STEPS_BETWEEN_LOOKS = 0.0, 300; "
        f"g.execute(g.Results(Path({str(tmp_path / 'killed')!r}), 1, 150).run('prql'))"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    checkpoint = killed.path("prql", "checkpoint.pkl")
    while not checkpoint.exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not killed.is_finished("prql")

    saved = checkpoint.stat().st_size
    assert saved > 0
    reports: list[int] = []
    monkeypatch.setattr("sb3_caps.studies.grid.results.STEPS_BETWEEN_LOOKS", 300)
    run_batch(killed, "prql", reports.append)
    # From the start the first report, after 300 steps of three runs, would be of fewer than from the checkpoint.
    fresh: list[int] = []
    run_batch(Results(tmp_path / "fresh", 1, 150), "prql", fresh.append)
    assert reports[0] > fresh[0]
    assert not checkpoint.exists()
    for name, array in whole.load("prql").items():
        np.testing.assert_array_equal(array, killed.load("prql")[name])


@pytest.mark.parametrize("found", ["of another configuration", "damaged"])
def test_only_a_checkpoint_that_fits_is_used(found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = Results(tmp_path, 1, 5)
    execute(results.run("prql"))
    expected = results.load("prql")["returns"]
    results.path("prql", "result.npz").unlink()
    checkpoint = results.path("prql", "checkpoint.pkl")
    if found == "damaged":
        checkpoint.write_bytes(b"what an older version has left")
    else:
        checkpoint.write_bytes(pickle.dumps(({"batch": "prql", "trials": []}, "never looked at")))
    execute(results.run("prql"))
    np.testing.assert_array_equal(results.load("prql")["returns"], expected)
    assert not checkpoint.exists()
    kept = [path.name for path in checkpoint.parent.glob("*.damaged_1")]
    assert kept == (["checkpoint.pkl.damaged_1"] if found == "damaged" else [])
    assert (f"{checkpoint} is damaged" in capsys.readouterr().err) == (found == "damaged")


def children_of(process: int) -> set[int]:
    """The processes that a process has started, by Linux's own list."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True)
    return set(map(int, found.stdout.split()))


def test_a_killed_study_leaves_nobody_at_work(tmp_path: Path) -> None:
    arguments = ["--runs", "2", "--episodes", "3000", "--results", str(tmp_path), "--jobs", "2"]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-m", "sb3_caps", "reproduce", "grid", *arguments], **quiet)
    folder = Results(tmp_path, 2, 3000).folder
    deadline = time.monotonic() + 120
    while len(list(folder.glob("*/curve.csv"))) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    workers = children_of(process.pid)
    assert len(workers) >= 2
    # Another study in the same folder is told about this one
    again = [sys.executable, "-m", "sb3_caps", "reproduce", "grid", *arguments]
    refused = subprocess.run(again, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2
    assert f"Another study is at work in {tmp_path} (process {process.pid} on" in refused.stderr

    process.kill()
    process.wait()
    while any(map(is_running, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    time.sleep(1.5)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_two_writers_of_one_batch_publish_whole_files(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from sb3_caps.studies.grid import results as g; "
        "g.CHECKPOINT_SECONDS, g.STEPS_BETWEEN_LOOKS = 0.0, 300; "
        f"g.execute(g.Results(Path({str(tmp_path)!r}), 1, 60).run('prql'))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    results = Results(tmp_path, 1, 60)
    seen = 0
    while any(writer.poll() is None for writer in writers):
        with suppress(FileNotFoundError):
            config, _ = pickle.loads(results.path("prql", "checkpoint.pkl").read_bytes())
            assert config["batch"] == "prql"
            seen += 1
        if results.is_finished("prql"):
            assert results.run("prql").damaged() == {}
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen
    execute(Results(tmp_path / "alone", 1, 60).run("prql"))
    for name, array in Results(tmp_path / "alone", 1, 60).load("prql").items():
        np.testing.assert_array_equal(array, results.load("prql")[name])
    assert not [path for path in results.path("prql", "").iterdir() if path.name.endswith(".partial")]


# Words


def test_words_of_differences() -> None:
    def word(low: float, high: float) -> str:
        return better(Difference((low + high) / 2, low, high), margin=0.05)

    assert word(0.01, 0.3) == "held"
    assert word(-0.02, 0.04) == "failed: no difference"
    assert word(-0.2, 0.04) == "failed"
    assert word(-0.3, -0.01) == "failed: the opposite"
    assert word(-0.01, 0.06) == "undecided"
    bar = [at_least(Interval(mean, 0.02), 0.9) for mean in (0.93, 0.91, 0.85)]
    assert bar == ["held", "undecided", "failed"]


def test_differences_are_not_paired() -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(1.0, 0.1, 10), random.normal(0.5, 0.3, 12)
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    found = difference(first, second)
    np.testing.assert_allclose([found.low, found.high], expected)
    np.testing.assert_allclose(found, difference(first[::-1], second))
    assert difference(np.ones(1), np.zeros(1)) == Difference(1.0, 1.0, 1.0)


def test_every_method_is_tuned_over_as_many_settings() -> None:
    assert {len(choice.settings) for choice in choices().values()} == {SETTINGS}
    assert {choice.base.random_ties for choice in choices().values()} == {True, False}
    trials = ALL["tuning_ops_tl"].trials(2)
    # A source task is learned from the other three, on seeds that no result is reported for.
    assert {len(trial.config.sources) for trial in trials} == {3}
    assert {trial.task for trial in trials} == {"G1", "G2", "G3", "G4"}
    assert min(trial.seed for trial in trials) >= 1000


def test_the_rate_of_equation_2() -> None:
    # One visit after the other, against the closed form.
    theta, pushes = 0.0, 0.0
    for _ in range(20_000):
        beta = 1 / (1 + np.exp(-theta))
        theta += 0.02 * beta * (1 - beta)
        pushes += 0.02
    np.testing.assert_allclose(predicted_theta(np.array([pushes])), theta, rtol=1e-3)


def test_random_targets_are_free_cells_that_no_task_has() -> None:
    for name in MAPS:
        on = GridMap.load(name)
        cells = [int(target.split("/")[1]) for target in targets(name)]
        assert len(set(cells)) == N_TARGETS
        assert set(cells) <= set(on.free_cells.tolist()) - set(on.goals.values())


def test_the_coarse_optimum_is_near_the_planners() -> None:
    for name in TASKS:
        assert highest(name) == pytest.approx(optimum(name).value, rel=0.05)


# The command


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole study, very short."""
    folder = tmp_path_factory.mktemp("study")
    arguments = ["--runs", str(RUNS), "--episodes", str(EPISODES), "--results", str(folder)]
    assert main(["reproduce", "grid", *arguments]) == 0
    return folder


def test_the_study_leaves_figures_tables_curves_configs_and_commands(finished: Path) -> None:
    folder = finished / f"{RUNS}_runs_{EPISODES}_episodes"
    for number in range(1, 8):
        assert (folder / f"figure_{number}.png").read_bytes().startswith(b"\x89PNG")
    text = (folder / "tables.md").read_text()
    for heading in ("Figure 2", "Figure 5", "Figure 7", "## Ablations on g", "## Claims"):
        assert heading in text
    for batch in BATCHES:
        config = json.loads((folder / batch / "config.json").read_text())["trials"]
        with np.load(folder / batch / "result.npz") as result:
            assert result["returns"].shape == (len(config), BATCHES[batch].episodes(EPISODES))
            assert (result["returns"] >= 0).all()
        assert (folder / batch / "command.txt").read_text().startswith("sb3-caps")
        assert not (folder / batch / "checkpoint.pkl").exists()


def test_runs_with_other_sources_got_other_sources(finished: Path) -> None:
    results = Results(finished, RUNS, EPISODES)
    learned = results.load("option_critic_sources")["preferences"].reshape(4, RUNS, -1, 4)
    for trial in results.trials("option_critic"):
        np.testing.assert_array_equal(np.stack(trial.config.preferences), learned[:, trial.seed])


def test_what_is_on_disk_is_not_run_again(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--runs", str(RUNS), "--episodes", str(EPISODES), "--results", str(finished), "--figure", "3"]
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("result.npz")}
    assert main(["reproduce", "grid", *arguments]) == 0
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("result.npz")} == before
    output = capsys.readouterr()
    assert "figure_3.png" in output.out
    assert "figure_2.png" not in output.out


def test_a_damaged_result_is_set_aside_and_run_again(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = Results(finished, RUNS, EPISODES)
    file = results.path("caps", "result.npz")
    expected = results.load("caps")
    file.write_bytes(file.read_bytes()[:1000])
    arguments = ["--runs", str(RUNS), "--episodes", str(EPISODES), "--results", str(finished), "--figure", "3"]
    assert main(["reproduce", "grid", *arguments, "--jobs", "1"]) == 0
    assert f"{file} is damaged (File is not a zip file): kept as result.npz.damaged_1" in capsys.readouterr().err
    for name, array in results.load("caps").items():
        np.testing.assert_array_equal(array, expected[name])


def test_results_of_other_settings_are_refused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Results(finished, RUNS, EPISODES).path("caps", "config.json")
    before = file.read_text()
    file.write_text(before.replace('"half_life": 25.0', '"half_life": 26.0'))
    arguments = ["--runs", str(RUNS), "--episodes", str(EPISODES), "--results", str(finished), "--figure", "3"]
    assert main(["reproduce", "grid", *arguments]) != 0
    assert f"{file.parent} has results of other settings" in capsys.readouterr().err
    file.write_text(before)


def test_every_claim_has_a_verdict_and_a_number(finished: Path) -> None:
    rows = claims(Study(Results(finished, RUNS, EPISODES), list(BATCHES)), margin=0.05)
    assert len(rows) > 20
    for row in rows:
        assert row.verdict.split(":")[0] in ("held", "failed", "undecided")
        assert any(character.isdigit() for character in row.measured)


@pytest.mark.parametrize(
    ("part", "heading"),
    [
        ("surface", "Which statements hold where"),
        ("tuning", "CAPS minus the others"),
        ("targets", "30 random targets"),
        ("theorems", "Equation 2 predicts"),
    ],
)
def test_the_other_parts_leave_tables_and_figures(part: str, heading: str, tmp_path: Path) -> None:
    arguments = ["--part", part, "--runs", "2", "--episodes", "3", "--results", str(tmp_path), "--jobs", "1"]
    assert main(["reproduce", "grid", *arguments]) == 0
    folder = tmp_path / "2_runs_3_episodes"
    assert heading in (folder / f"{part}.md").read_text()
    assert (folder / f"{part}.png").exists() == (part != "tuning")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runs", "0"], "--runs must be at least 1"),
        (["--episodes", "-3"], "--episodes must be at least 1"),
        (["--part", "surface", "--figure", "2"], "leave --part surface out"),
        (["--draw"], "--draw is for --part surface"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "grid", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["tetris"], ["grid", "--figure", "9"]])
def test_unknown_study_or_figure(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["reproduce", *arguments])
    assert "invalid choice" in capsys.readouterr().err


# Pictures


def test_arrows_and_colours_of_a_picture(tmp_path: Path) -> None:
    grid_map = GridMap.from_text("#####\n#...#\n#..x#\n#####")
    options = np.zeros(grid_map.n_cells, dtype=int)
    options[7], options[8] = 1, 3
    actions = np.full(grid_map.n_cells, 3)
    figure, axes = new_figure(4, 4)
    draw_options(axes[0, 0], grid_map, options, actions, ["a", "b", "up", "right"], 2, grid_map.goals["x"], "title")
    (arrows,) = [item for item in axes[0, 0].get_children() if type(item).__name__ == "Quiver"]
    # One arrow for each of the five free cells but the goal, pointing right.
    assert arrows.N == 5
    np.testing.assert_allclose(np.sign(arrows.U), 1.0)
    np.testing.assert_allclose(arrows.V, 0.0)
    labels = [text.get_text() for text in axes[0, 0].get_legend().get_texts()]
    assert labels == ["a (3)", "b (1)", "primitive (1)"]
    assert option_colour(0, 2) != option_colour(1, 2) != option_colour(2, 2)
    assert save(figure, tmp_path / "new" / "picture.png").stat().st_size > 1000
    np.testing.assert_array_equal(ARROWS[[0, 1]], [(0, -1), (0, 1)])


def test_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "matplotlib.figure", missing)
    with pytest.raises(ImportError, match=r"sb3-caps\[studies\]"):
        new_figure(1, 1)
