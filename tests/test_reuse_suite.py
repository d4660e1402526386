"""The reuse suite: what it runs, tasks and sources, and the command from end to end."""

import argparse
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from operator import attrgetter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_caps import CAPS
from sb3_caps.commands import main
from sb3_caps.reuse.evaluation import discounted_returns
from sb3_caps.settings import settings
from sb3_caps.studies.reuse import CONDITIONS, TASKS, Task, get_task, make_sources, register_task, study
from sb3_caps.studies.reuse.catalogue import FAMILIES, MAPS
from sb3_caps.studies.reuse.references import Alone, Random, mean_return
from sb3_caps.studies.reuse.runs import APART, FINE_TUNE, build, get_method
from sb3_caps.studies.reuse.tasks import references
from sb3_caps.studies.reuse.training import make_training_env, train_missing, trainings
from sb3_caps.studies.reuse.worlds import BatchedVecEnv
from sb3_caps.studies.reuse.worlds.errands import Errands

get_task("grid-g")  # registers all tasks
ALL, PLANNED = list(TASKS), [name for name, task in TASKS.items() if task.optimum is not None and task.best is not None]


# --- what is run ---


def test_what_the_suite_runs() -> None:
    """Every method with helpful sources, other sources for CAPS, more seeds for what is compared, fewer where long."""
    parser = argparse.ArgumentParser()
    study.add_arguments(parser)

    def runs(task: str, *given: str) -> dict[tuple[str, str], int]:
        found = study.planned(parser.parse_args(list(given)), [task], Path())
        return dict(Counter((run.config["method"], run.config["sources"]) for run in found))

    assert runs("grid-g") == {
        ("dqn", "none"): 10,
        ("caps", "helpful"): 10,
        **{("caps", condition): 3 for condition in ("useless", "harmful", "mixed", "best")},
        ("caps-none", "none"): 10,
        **{(method, "helpful"): 5 for method in ("caps-paper", "prql", "ops-tl", "jump-start", "qdagger")},
    }
    assert runs("kong-g1") == {("dqn", "none"): 1, ("caps", "helpful"): 1, ("caps-none", "none"): 1}
    assert runs("kong-g1", "--method", "prql", "--seeds", "1", "2") == {("prql", "helpful"): 2}
    ablations = settings("reuse", "ablations")
    assert runs("grid-g", "--ablations") == {(method, "helpful"): 5 for method in ("caps", *ablations)}
    tried = runs("grid-tuning", "--trials")
    assert len(tried) == 4 * len(settings("reuse", "trials"))
    assert set(tried.values()) == {3}
    groups = ("--trials", "--unset", "--partial")
    tuning, unset, partly = (set(study.usual_tasks(parser.parse_args([group]))) for group in groups)
    assert tuning == {"cartpole-tuning", "mountaincar-tuning", "grid-tuning"}
    assert len(unset) == 6
    assert len(partly) == 10
    assert set(study.usual_tasks(parser.parse_args([]))) == set(TASKS) - tuning - unset - partly
    methods = {(method, "helpful"): 1 for method in ("caps", "fine-tune")} | {
        (method, "none"): 1 for method in ("dqn-tuned", "caps-none")
    }
    assert runs("pole-long", "--partial", "--seeds", "1") == methods
    # Rules cannot go on with their training
    del methods["fine-tune", "helpful"]
    assert runs("errand-paid", "--partial", "--seeds", "1") == methods


def test_as_many_settings_are_tried_for_each_method() -> None:
    trials = settings("reuse", "trials")
    assert {len(tried) for tried in trials.values()} == {4}
    for name in ("prql-trial-4", "prql-trial-x", "dqn-trial-0"):
        with pytest.raises(ValueError, match="There is no method"):
            get_method(name)
    config = {"task": "key-door", "sources": "helpful", "seed": 0}
    for name, tried in trials.items():
        for i, arguments in enumerate(tried):
            model = build({**config, "method": f"{name}-trial-{i}"}, Path())
            for argument, value in arguments.items():
                assert getattr(model, argument) == value
        reported = build({**config, "method": name}, Path())
        assert {argument: getattr(reported, argument) for argument in tried[0]} in tried


def test_an_ablation_takes_one_thing_away() -> None:
    config = {"task": "key-door", "sources": "helpful", "seed": 0}
    usual = build({**config, "method": "caps"}, Path())
    assert isinstance(usual, CAPS)
    assert (usual.safe, usual.policy.averaging, usual._termination.target) == (True, 0.0025, (0.1, 1.0))
    for method, given in (("no-trials", "safe"), ("no-average", "policy.averaging"), ("no-following", "_termination")):
        model = build({**config, "method": method}, Path())
        assert attrgetter(given)(model) != attrgetter(given)(usual)
        assert model.policy_kwargs["net_arch"] == usual.policy_kwargs["net_arch"]


# --- tasks and sources ---


@pytest.mark.parametrize("name", ALL)
def test_task_makes_sense(name: str) -> None:
    """Environments step, there are three tasks of each to learn from, and the scale goes up from random actions."""
    task = get_task(name)
    if task.kind in ("lander", "minatar") or name == "freeway-sticky":
        pytest.importorskip("Box2D" if task.kind == "lander" else "minatar")
    env: Any = task.make_env(3, 0)
    env.reset()
    for action in range(int(env.action_space.n)):
        observations, rewards, _, _ = env.step(np.full(3, action))
    assert observations.shape[0] == rewards.shape[0] == 3
    low, high = task.scale
    assert low < high
    assert task.steps // 16 >= task.settings["n_envs"]
    for source in make_sources(task, "useless", Path(), [8]):
        actions, _ = source.actions(observations, None, np.ones(3, dtype=bool))
        assert all(env.action_space.contains(action) for action in actions)
    assert make_sources(task, "none", Path(), [8]) == []


@pytest.mark.parametrize("name", PLANNED)
def test_planned_sources(name: str) -> None:
    """The best source has the optimum, harmful ones nothing, and every source can be pickled and keeps its actions."""
    task = get_task(name)
    assert references()[name]["reference"] == pytest.approx(task.optimum())  # type: ignore[misc]
    env: Any = task.make_env(100, 0)
    low, high = task.scale
    best = make_sources(task, "best", Path(), [8])[0]
    spread = discounted_returns(Alone(best), env, task.discount, 300)
    assert spread.mean() == pytest.approx(high, abs=4 * spread.std() / np.sqrt(300))
    observations = env.reset()
    starts = np.ones(100, dtype=bool)
    for source in [*make_sources(task, "harmful", Path(), [8]), *make_sources(task, "helpful", Path(), [8])]:
        restored = pickle.loads(pickle.dumps(source))
        np.testing.assert_array_equal(
            restored.actions(observations, None, starts)[0], source.actions(observations, None, starts)[0]
        )
    harmful = make_sources(task, "harmful", Path(), [8])[0]
    assert (mean_return(Alone(harmful), task, env, 100) - low) / (high - low) < 0.1


def test_conditions() -> None:
    task = get_task("key-door")
    names = {condition: [s.name for s in make_sources(task, condition, Path(), [8])] for condition in CONDITIONS}
    assert names["helpful"] == ["to_K", "to_D"]
    assert names["useless"] == ["useless_0", "useless_1", "useless_2"]
    assert names["mixed"] == ["useless_0", "useless_1", "to_K", "useless_2", "useless_3", "useless_4"]
    assert names["best"] == ["optimal"]
    with pytest.raises(ValueError, match="pass one of helpful"):
        make_sources(task, "good", Path(), [8])
    # Each seed has other random networks
    first, again, other = (make_sources(task, "useless", Path(), [8], seed)[0] for seed in (0, 0, 1))
    observations: Any = task.make_env(50, 0).reset()
    acts = [source.actions(observations, None, np.ones(50, dtype=bool))[0] for source in (first, again, other)]
    np.testing.assert_array_equal(acts[0], acts[1])
    assert not np.array_equal(acts[0], acts[2])


def test_tasks_are_held_back() -> None:
    held_back = {name for name in ALL if get_task(name).held_back}
    partly = {"crossing-lava-two", "crossing-three", "breakout-ramped", "asterix-ramped"}
    assert held_back == {"acrobot-heavy", "asterix-sticky", "kong-third"} | partly
    assert (MAPS / "kong_third.txt").is_file()


def test_every_training_has_an_environment() -> None:
    for entry in trainings().values():
        name = entry["env"].removeprefix("-")
        assert name in FAMILIES or name in TASKS
    env: Any = make_training_env("-cartpole", 2, 0)
    env.reset()
    assert env.step(np.zeros(2, dtype=np.int64))[1].tolist() == [-1.0, -1.0]


def test_wrong_names_are_refused() -> None:
    with pytest.raises(ValueError, match="the tasks are cartpole-long"):
        get_task("cartpole")
    with pytest.raises(ValueError, match="the methods are dqn"):
        get_method("sarsa")
    with pytest.raises(ValueError, match="is not a Task"):
        get_task("tests.test_reuse_suite:ALL")
    with pytest.raises(ValueError, match="already"):
        register_task(get_task("grid-g"))
    with pytest.raises(FileNotFoundError, match="reuse --train"):
        make_sources(get_task("cartpole-long"), "helpful", Path("nowhere"), [8])


SHARING = [name for name in settings("reuse", "methods") if name not in ("dqn-tuned", FINE_TUNE)]


@pytest.mark.parametrize("method", [*SHARING, *settings("reuse", "ablations")])
def test_methods_share_their_settings(method: str) -> None:
    config = {"task": "key-door", "method": method, "sources": "helpful", "seed": 0}
    model, kind = build(config, Path()), get_task("key-door").settings
    assert isinstance(model, OffPolicyAlgorithm)
    assert (model.batch_size, model.gamma, model.tau) == (kind["batch_size"], kind["gamma"], kind["tau"])
    assert (model.gradient_steps, model.n_envs) == (kind["gradient_steps"], kind["n_envs"])
    assert model.policy_kwargs["net_arch"] == kind["net_arch"]


# --- the command ---

TINY = Task(
    "tiny",
    "errands",
    lambda n_envs, seed: BatchedVecEnv(Errands("#####\n#K.D#\n#####", [("K", "D")], horizon=10), n_envs, seed),
    steps=640,
    helpful=lambda folder: [Errands("#####\n#K.D#\n#####", [("K", "D")]).go_to("K")],
    harmful=lambda folder: [],
    best=lambda folder: [],
    reference=1.0,
    random=0.0,
    arguments={"n_envs": 4, "net_arch": [8], "learning_starts": 50, "gradient_steps": 1, "episodes": 4},
)


def test_final_evaluations_share_no_starts() -> None:
    """Copies of an environment have seeds in a row: fewer of them than the seeds of two runs are apart."""
    assert max(kind["episodes"] for kind in settings("reuse", "kinds").values()) <= APART


class SourceFan(DQN):
    """Somebody's method: DQN that is told of sources."""

    def __init__(self, *args: Any, source_policies: Any = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert len(source_policies) == 1


def test_a_third_party_method_and_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tiny suite from end to end: runs, tables, figures; and nothing runs twice."""
    where = "tests.test_reuse_suite"
    command = ["reproduce", "reuse", "--task", f"{where}:TINY", "--method", "dqn", "caps", f"{where}:SourceFan"]
    command += ["--sources", "helpful", "--seeds", "0", "1", "--jobs", "1", "--results", str(tmp_path)]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "| SourceFan | 2 |" in out
    assert (tmp_path / "report.md").read_text() in out
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {"overview.png", "tasks.png", "runs.png"}
    curves = sorted(tmp_path.glob("*/640_steps/*/*/seed_*/curve.csv"))
    assert len(curves) == 6
    assert all(len(curve.read_text().splitlines()) == 17 for curve in curves)
    written = [curve.stat().st_mtime_ns for curve in curves]
    assert main([*command, "--draw"]) == 0
    assert main(command) == 0
    assert [curve.stat().st_mtime_ns for curve in curves] == written

    # Someone else runs a method of their own, and compares it with these runs
    records = json.loads((tmp_path / "runs.json").read_text())
    assert [len(record["returns"]) for record in records] == [16] * 6
    assert {record["method"] for record in records} == {"dqn", "caps", f"{where}:SourceFan"}
    theirs = [*command[:5], f"{where}:SourceFan", *command[8:-1], str(tmp_path / "theirs")]
    assert main([*theirs, "--published", str(tmp_path / "runs.json")]) == 0
    report = (tmp_path / "theirs" / "report.md").read_text()
    assert all(f"| {label} | 2 |" in report for label in ("DQN", "CAPS", "SourceFan"))
    assert "6 runs of 3,840 steps in all; one after another they took 0.0 hours." in report
    assert len(json.loads((tmp_path / "theirs" / "runs.json").read_text())) == 6


def test_bad_sources_alone_have_a_report_too(tmp_path: Path) -> None:
    command = [
        "reproduce",
        "reuse",
        "--task",
        "tests.test_reuse_suite:TINY",
        "--method",
        "caps",
        "--sources",
        "useless",
    ]
    assert main([*command, "--seeds", "0", "--jobs", "1", "--results", str(tmp_path)]) == 0
    assert "CAPS, useless" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "figures" / "tasks.png").exists()


def test_a_killed_suite_goes_on(tmp_path: Path) -> None:
    """After a kill, finished runs stay as they are, and the rest is the same as without it."""
    arguments = ["reproduce", "reuse", "--task", "key-door", "--method", "dqn", "--seeds", "0", "1", "2"]
    arguments += ["--steps", "1600", "--jobs", "1", "--results"]
    command = [sys.executable, "-c", "import sys; from sb3_caps.commands import main; sys.exit(main())"]
    killed = tmp_path / "killed"
    process = subprocess.Popen(
        [*command, *arguments, str(killed)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list(killed.glob("**/finished.json")):
        assert process.poll() is None, "the suite ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = {file: file.stat().st_mtime_ns for file in killed.glob("**/finished.json")}
    assert 1 <= len(done) < 3
    assert main([*arguments, str(killed)]) == 0
    assert {file: file.stat().st_mtime_ns for file in done} == done
    assert main([*arguments, str(tmp_path / "whole")]) == 0
    for file in killed.glob("**/finished.json"):
        other = tmp_path / "whole" / file.relative_to(killed)
        assert json.loads(other.read_text())["final"] == json.loads(file.read_text())["final"]


def test_training_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source is trained once, with its normalisation, and then acts."""
    entry = trainings()["mountaincar-ppo"] | {"steps": 256}
    monkeypatch.setattr("sb3_caps.studies.reuse.training.trainings", lambda: {"mountaincar-ppo": entry})
    assert train_missing(tmp_path, ["mountaincar-ppo"], jobs=1) == []
    model = tmp_path / "mountaincar-ppo" / "model.zip"
    written = model.stat().st_mtime_ns
    assert (model.parent / "model" / "vecnormalize.pkl").is_file()
    assert train_missing(tmp_path, ["mountaincar-ppo"], jobs=1) == []
    assert model.stat().st_mtime_ns == written


def test_random_actions_are_all_actions() -> None:
    space = gym.spaces.Discrete(3)
    actions, _ = Random(space).predict(np.zeros((100, 2)))
    assert set(actions.tolist()) == {0, 1, 2}
