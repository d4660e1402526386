"""The Monster Kong study: exact evaluation, runs that survive being killed, and what becomes of their curves."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN

from sb3_caps import CAPS, PAPER
from sb3_caps.caps.gate import ACTOR, BEST, OPTIONS, SAMPLED_ACTOR
from sb3_caps.envs.monster_kong.physics import ACTIONS
from sb3_caps.envs.monster_kong.planner import plan
from sb3_caps.envs.monster_kong.sources import optimal_policy
from sb3_caps.envs.monster_kong.vec_env import MonsterKongVecEnv
from sb3_caps.reuse.episodes import Behaviour
from sb3_caps.reuse.execution import OptionExecution
from sb3_caps.studies.monster_kong import study
from sb3_caps.studies.monster_kong.evaluation import ExactEvaluation, Outcome, PlayedEvaluation, paper_average
from sb3_caps.studies.monster_kong.figures import executions_table, terminations_table
from sb3_caps.studies.monster_kong.methods import (
    ABLATIONS,
    ALGORITHMS,
    ALL_METHODS,
    METHODS,
    PRESETS,
    TASKS,
    arguments_of,
)
from sb3_caps.studies.monster_kong.sources import (
    make_sources,
    network_file,
)
from sb3_caps.studies.shared import checkpoints
from sb3_caps.studies.shared.checkpoints import Checkpoints, EpochCallback
from sb3_caps.studies.shared.runs import read_rows
from tests.paper import paper
from tests.toy_world import SMALL_MAP as MAP


def arguments(results: Path, *given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    study.add_arguments(parser)
    return parser.parse_args(["--results", str(results), "--task", "g2", "--seeds", "7", "--jobs", "1", *given])


def test_exact_evaluation_knows_the_optimum() -> None:
    """A DQN whose network answers with the planner's actions gets the optimum, from every start."""
    evaluate = ExactEvaluation(MAP, "princess")
    model = DQN("MlpPolicy", MonsterKongVecEnv(1, MAP, "princess", "features"), buffer_size=1, device="cpu")
    best = th.eye(6)[th.from_numpy(evaluate.plan.actions)]
    model.policy.q_net.forward = lambda obs: best  # type: ignore[method-assign]
    outcome = evaluate(model)
    assert outcome.returns.mean() == pytest.approx(evaluate.optimum)
    assert outcome.successes == 1
    np.testing.assert_array_equal(outcome.lengths, evaluate.plan.steps[evaluate.plan.starts])


@pytest.mark.parametrize(
    ("given", "controller"),
    [
        (PAPER, OPTIONS),
        (paper(policy_kwargs={"execution": "interrupting"}), OPTIONS),
        ({}, OPTIONS),
        ({}, BEST),
        ({}, Behaviour("coin", is_source=True)),
        ({}, ACTOR),
        # Of a sharp actor, so that draws are known
        ({}, SAMPLED_ACTOR),
    ],
)
def test_exact_evaluation_is_what_playing_gives(given: dict[str, Any], controller: Behaviour) -> None:
    env = MonsterKongVecEnv(1, MAP, "princess", "features")
    sources = make_sources(MAP, "princess", "features", "planner", Path())
    model = CAPS("MlpPolicy", env, source_policies=sources, seed=3, device="cpu", **given)
    model.gate.controller = controller
    evaluate = ExactEvaluation(MAP, "princess", horizon=60)
    # Any network will do that sometimes wins: one that chooses and ends options in all kinds of ways
    for _ in range(50):
        with th.no_grad():
            for parameter in model.policy.parameters():
                parameter.normal_()
            model.policy.actor.policy_net[-1].weight.mul_(1e4)  # type: ignore[operator]
        exact = evaluate(model)
        if 0 < exact.successes < 1:
            break
    starts = plan(MAP, "princess").starts
    games = MonsterKongVecEnv(len(starts), MAP, "princess", "features", horizon=60)
    games.reset()
    games.states = games.previous = starts.astype(np.int64)
    observations: Any = games._observer.many(starts, starts)
    state, dones = None, np.ones(len(starts), dtype=bool)
    returns, lengths = np.zeros(len(starts)), np.zeros(len(starts), dtype=np.int64)
    for step in range(1, 61):
        actions, state = model.predict(observations, state=state, episode_start=dones, deterministic=True)
        observations, rewards, dones, _ = games.step(actions)
        first = dones & (lengths == 0)
        lengths[first] = step
        returns[first] = rewards[first] * 0.99 ** (step - 1)
    np.testing.assert_array_equal(exact.lengths, lengths)
    np.testing.assert_allclose(exact.returns, returns)
    assert 0 < exact.successes < 1


def test_the_papers_average_by_hand() -> None:
    # Whatever starts are drawn: ten steps begin two episodes of six steps, or ten of one
    assert paper_average(Outcome(np.array([0.5]), np.array([6])), seed=0, n_steps=10) == 0.5
    both = Outcome(np.array([0.0, 1.0]), np.array([9, 1]))
    drawn = np.random.default_rng(3).integers(2, size=10)
    begun = [r for r, before in zip(drawn, np.cumsum(9 - 8 * drawn) - (9 - 8 * drawn), strict=True) if before < 10]
    assert paper_average(both, seed=3, n_steps=10) == pytest.approx(np.mean(begun))


class Planner:
    """What an evaluation needs of a model, by the planner's shortest paths."""

    def __init__(self) -> None:
        self.act = optimal_policy(MAP, "princess", "features")

    def predict(self, observation: np.ndarray, **_: Any) -> tuple[np.ndarray, None]:
        return self.act(observation), None


def test_played_evaluation_plays_all_episodes_to_their_end() -> None:
    """So an optimal policy wins them all, and is worth about the optimum; not one is cut off by the number of steps."""
    evaluate = PlayedEvaluation(MAP, "princess", "features", n_steps=2400)
    outcome = evaluate(cast(Any, Planner()))
    assert outcome.successes == 1
    assert outcome.lengths.sum() >= 2400
    np.testing.assert_allclose(outcome.returns, 0.99 ** (outcome.lengths - 1.0))
    assert outcome.returns.mean() == pytest.approx(evaluate.optimum, rel=0.1)


@pytest.mark.parametrize(
    ("method", "observation"),
    [("caps", "features"), ("dqn", "features"), ("prql", "features"), ("caps-source-features", "pixels")],
)
def test_a_run_goes_on_from_its_checkpoint_to_the_last_bit(
    method: str, observation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--method", method, "--observation", observation, "--steps", "2800")
    (whole,) = study.plan_runs(arguments(tmp_path / "whole", *given))
    (cut,) = study.plan_runs(arguments(tmp_path / "cut", *given))
    monkeypatch.setattr(study, "EpochCallback", partial(EpochCallback, seconds_between=0))
    monkeypatch.setattr(checkpoints, "TIMES_BETWEEN", 0)
    monkeypatch.setattr(study, "PlayedEvaluation", partial(PlayedEvaluation, n_steps=600))
    for run in (whole, cut):
        for goal in ("diamond", "coin", "princess") if observation == "pixels" else ():
            untrained = DQN("CnnPolicy", MonsterKongVecEnv(1, "b", goal), buffer_size=1, seed=0, device="cpu")
            untrained.save(network_file(Path(run.config["results"]), "b", goal, "pixels"))
    study.execute(whole)

    save = Checkpoints.save

    def killed(self: Checkpoints, model: Any, env: Any, notes: Any) -> None:
        save(self, model, env, notes)
        if model.num_timesteps >= 2100:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        study.execute(cut)
    monkeypatch.setattr(Checkpoints, "save", save)
    study.execute(cut)

    curves = [[{**row, "seconds": 0} for row in read_rows(run.curve)] for run in (whole, cut)]
    assert curves[0] == curves[1]
    assert [row["steps"] for row in curves[0]] == [704, 1408, 2112, 2800]
    algorithm = ALGORITHMS[ALL_METHODS[method].algorithm]
    models = [algorithm.load(run.folder / "model.zip", device="cpu") for run in (whole, cut)]
    for one, other in zip(models[0].policy.parameters(), models[1].policy.parameters(), strict=True):
        assert th.equal(one, other)
    assert not list(cut.folder.glob("*checkpoint*"))


def test_a_killed_study_is_resumed_without_repeating_a_finished_run(tmp_path: Path) -> None:
    given = ["--results", str(tmp_path), "--task", "g2", "--method", "dqn", "caps", "--seeds", "0", "--jobs", "1"]
    given += ["--steps", "2400"]
    script = (
        "import argparse; from sb3_caps.studies.monster_kong import study;"
        "parser = argparse.ArgumentParser(); study.add_arguments(parser); study.run(parser.parse_args())"
    )
    command = [sys.executable, "-c", script, *given]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, start_new_session=True, env=environment, **quiet)
    runs = {run.config["method"]: run for run in study.plan_runs(arguments(tmp_path, *given[2:]))}
    deadline = time.monotonic() + 60
    while not (runs["dqn"].finished and runs["caps"].curve.exists()):
        assert time.monotonic() < deadline
        assert process.poll() is None or runs["caps"].finished
        time.sleep(0.05)
    # The whole group: no worker of it may finish the job
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in runs["dqn"].folder.iterdir()}

    subprocess.run(command, check=True, env=environment, **quiet)
    assert {path: path.stat().st_mtime_ns for path in runs["dqn"].folder.iterdir()} == before
    assert runs["caps"].finished
    assert read_rows(runs["caps"].curve)[-1]["steps"] >= 2400
    assert list((tmp_path / "figures").glob("figure11_g2_*.png"))

    # Drawing runs nothing, whatever else is missing
    shutil.rmtree(tmp_path / "figures")
    assert study.run(arguments(tmp_path, *given[2:], "--seeds", "0", "1", "--draw")) == 0
    assert list((tmp_path / "figures").glob("figure10_g2_*.png"))
    assert not list(tmp_path.glob("**/seed_1"))

    # What was published is drawn without the folders of its runs
    other, table = tmp_path / "other", "figures/table_g2_features_recommended.md"
    published = ["--seeds", "1", "--draw", "--published", str(tmp_path / "runs.json")]
    assert study.run(arguments(other, *given[2:], *published)) == 0
    assert (other / table).read_text() == (tmp_path / table).read_text()
    assert {path.name for path in other.iterdir()} == {"runs.json", "figures"}


def test_a_finished_model_is_executed_as_it_was_and_otherwise(tmp_path: Path) -> None:
    (run,) = study.plan_runs(arguments(tmp_path, "--method", "caps", "--steps", "2800"))
    study.execute(run)
    shares = {row.split(" | ")[0]: row.split(" | ")[1] for row in executions_table([run]).splitlines()[2:]}
    assert shares["| as learned"] == f"{read_rows(run.curve)[-1]['share']:.1%}"
    # Asked again of a model that executes its options in this very way
    evaluate = ExactEvaluation(*TASKS["g2"])
    model = CAPS.load(run.folder / "model.zip", device="cpu")
    model.policy.execution_mode = "call-and-return"
    expected = evaluate(model).returns.mean() / evaluate.optimum
    assert shares["| call-and-return"] == f"{expected:.1%}"
    for label, margin in (("without a margin", 0.0), ("with a margin of 0.02", 0.02)):
        model.policy.execution_mode, model.policy.margin = "interrupting", margin
        assert shares[f"| {label}"] == f"{evaluate(model).returns.mean() / evaluate.optimum:.1%}"
    model = CAPS.load(run.folder / "model.zip", device="cpu")
    model.policy.q_net_average = None
    expected = evaluate(model).returns.mean() / evaluate.optimum
    assert shares["| without `averaging`"] == f"{expected:.1%}"
    assert "| call-and-return, ends drawn" in shares
    assert "| interrupting" not in shares, "that is as learned"

    model = CAPS.load(run.folder / "model.zip", device="cpu")
    _, beta = model.policy.values_and_terminations(evaluate.observations)
    wrong = ~np.take_along_axis(evaluate.plan.optimal, evaluate.actions_of(model)[:, :3], axis=1)
    told = beta[:, :3] + 1e-9 * np.random.default_rng(0).random(wrong.shape)  # ties count as half
    places = np.argsort(np.argsort(told[evaluate.plan.steps > 0], axis=None)).reshape(-1, 3) + 1
    positives = wrong[evaluate.plan.steps > 0]
    area = (places[positives].mean() - (positives.sum() + 1) / 2) / (~positives).sum()
    told_by_table = terminations_table([run]).splitlines()[2].split(" | ")
    assert told_by_table[0] == "| β"
    assert float(told_by_table[1]) == pytest.approx(area, abs=0.02)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_options_end_with_probability_beta(beta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate, ended = ExactEvaluation(MAP, "princess", horizon=50), []
    states = len(evaluate.observations)
    # An agent that does nothing plays to the end
    actions = np.full((states, 2), ACTIONS.index("no-op"))
    next_options = OptionExecution.next_options

    def watch(active: np.ndarray, starts: bool, ends: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        ended.append(ends[:, 0])
        return next_options(active, starts, ends, chosen)

    monkeypatch.setattr(OptionExecution, "next_options", staticmethod(watch))
    evaluate.follow(np.zeros(states, dtype=int), np.full((states, 2), beta), actions, np.random.default_rng(0))
    np.testing.assert_allclose(np.concatenate(ended).mean(), beta, atol=0.03)


def test_options_are_drawn_by_their_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate, drawn = ExactEvaluation(MAP, "princess", horizon=50), []
    states = len(evaluate.observations)
    actions = np.full((states, 2), ACTIONS.index("no-op"))
    next_options = OptionExecution.next_options

    def watch(active: np.ndarray, starts: bool, ends: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        drawn.append(next_options(active, starts, ends, chosen))
        return drawn[-1]

    monkeypatch.setattr(OptionExecution, "next_options", staticmethod(watch))
    likely = np.tile([0.3, 0.7], (states, 1))
    evaluate.follow(likely, np.ones((states, 2), dtype=bool), actions, np.random.default_rng(0))
    np.testing.assert_allclose(np.concatenate(drawn).mean(), 0.7, atol=0.03)


def test_settings_of_baselines_are_tried_on_the_map_of_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[Any] = []

    def run_all(runs: list[Any], _: argparse.Namespace) -> bool:
        planned.extend(runs)
        return False

    monkeypatch.setattr(study, "run_all", run_all)
    study.run(arguments(tmp_path, "--trials", "--steps", "400"))
    counts = Counter(run.config["method"].rpartition("-trial-")[0] for run in planned)
    assert counts == {"dqn": 8, "prql": 8, "ops-tl": 8}
    assert {run.config["task"] for run in planned} == {"tuning"}
    assert {run.config["seed"] for run in planned} == {100, 101}
    for run in planned[::2]:
        model = study.build(run.config, MonsterKongVecEnv(2, *TASKS["tuning"], "features"))
        for name, value in ALL_METHODS[run.config["method"]].arguments.items():
            assert getattr(model, name) == value
    assert "n_steps=8" in ALL_METHODS["prql-trial-3"].label


def test_the_third_map_has_a_goal() -> None:
    assert ExactEvaluation(*TASKS["third"]).optimum > 0.1


def test_the_papers_settings_are_the_papers() -> None:
    (run,) = study.plan_runs(arguments(Path("results"), "--method", "caps", "--preset", "paper"))
    found = arguments_of(run.config)
    # 1.25 million training steps of the 2.5 over which the learning rate falls, one for each four transitions
    assert found["learning_rate"].at(5_000_000) == pytest.approx(7.5e-5)
    assert found["exploration_fraction"] * run.steps == pytest.approx(17_500_000)
    assert (found["learning_starts"], found["batch_size"], found["train_freq"]) == (50_000, 32, 4)
    assert run.steps == 125 * PRESETS["paper"].epoch
    env = MonsterKongVecEnv(1, "b", "gem", "features")
    model = study.build({**run.config, "steps": 1000}, env)
    assert isinstance(model, CAPS)
    assert model.termination_kwargs["initial"] == 0.5
    assert (model.sequence_length, model.policy.execution_mode) == (1, "call-and-return")
    assert model.termination_kwargs["regularization"] == 0.005
    assert {name: found[name] for name in PAPER if name != "policy_kwargs"} == {
        name: value for name, value in PAPER.items() if name != "policy_kwargs"
    }
    assert model.options.source_names == ["diamond", "coin", "princess"]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", METHODS | ABLATIONS)
def test_every_method_can_be_built(method: str, preset: str) -> None:
    (run,) = study.plan_runs(arguments(Path("results"), "--method", method, "--preset", preset))
    model = study.build({**run.config}, MonsterKongVecEnv(2, "b", "gem", "features"))
    with_sources = ALL_METHODS[method].sources != "none" and method != "dqn"
    assert len(getattr(model, "source_names", [])) == (3 if with_sources else 0)


def test_source_features_are_for_pixels() -> None:
    given = arguments(Path("results"), "--method", "caps-source-features")
    with pytest.raises(ValueError, match="learns from pixels: pass --observation pixels"):
        study.plan_runs(given)
    given.observation = ["pixels"]
    (run,) = study.plan_runs(given)
    # As from features: the settings for pixels are for convolutional networks
    assert run.steps == PRESETS["recommended"].entry("caps", "features")["n_timesteps"] == 400_000
    assert arguments_of(run.config)["batch_size"] == 256
