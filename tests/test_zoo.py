"""rl_zoo3 with our algorithms: folders, configs, source policies, resuming, enjoying, optimising."""

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import optuna
import pytest
import rl_zoo3
import rl_zoo3.train
import torch as th
import yaml
from rl_zoo3 import hyperparams_opt
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from sb3_caps import CAPS, PolicyLibrary
from sb3_caps.commands import main
from sb3_caps.reuse.episodes import Behaviour
from sb3_caps.zoo import ALGORITHMS, find_config, make_source, register
from sb3_caps.zoo.algorithms import convert_params, sample_params
from sb3_caps.zoo.runs import latest_model, latest_run_id

HERE = "tests.test_zoo"
QUICK = ["--eval-freq", "-1", "--seed", "1", "--verbose", "0", "--num-threads", "1"]
CONFIGS = Path(__file__).parents[1] / "zoo_configs"
# What rl_zoo3 takes out of an entry before the algorithm gets the rest.
ZOO_KEYS = {"n_timesteps", "n_envs", "env_kwargs", "env_wrapper", "frame_stack", "callback", "normalize"} | {
    "eval_env_kwargs"  # and what we do
}


def balance(observations: np.ndarray) -> np.ndarray:
    return (observations[:, 2] + observations[:, 3] > 0).astype(np.int64)


def slow_down(observations: np.ndarray) -> np.ndarray:
    return np.clip(-2.0 * observations[:, 2:], -2.0, 2.0)


def make_constant(action: int) -> Any:
    return lambda observations: np.full(len(observations), action)


def fails_late(observations: np.ndarray) -> np.ndarray:
    # A cart that has left the start
    return np.where(np.abs(observations[:, 0]) > 0.1, 7, 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, with the configs of the repository found by the package itself."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained_dqn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log folder with a run of DQN on CartPole."""
    logs = tmp_path_factory.mktemp("dqn_logs")
    assert main(["train", "--algo", "dqn", "--env", "CartPole-v1", "-n", "50", "-f", str(logs), *QUICK]) == 0
    return logs


def saved_config(run: Path, env: str = "CartPole-v1") -> dict[str, Any]:
    return dict(yaml.unsafe_load((run / env / "config.yml").read_text()))


def files_of(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}


def start(command: list[str], folder: Path) -> "subprocess.Popen[str]":
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)


def test_every_registry_has_our_algorithms() -> None:
    register()
    found = 0
    # Those that can be imported: others evaluate on import, or need packages that their releases have dropped
    for module_name in ("utils", "train", "enjoy", "exp_manager", "hyperparams_opt", "load_from_hub", "record_video"):
        module = importlib.import_module(f"rl_zoo3.{module_name}")
        for name in ("ALGOS", "HYPERPARAMS_SAMPLER", "HYPERPARAMS_CONVERTER"):
            registry = getattr(module, name, None)
            if registry is not None:
                assert {"caps", "prql", "ops_tl"} <= set(registry), (module_name, name)
                found += 1
    assert found >= 8
    assert rl_zoo3.ALGOS["caps"] is CAPS


def test_evaluation_may_have_arguments_of_its_own(folder: Path) -> None:
    entry = {"policy": "MlpPolicy", "n_timesteps": 40, "env_kwargs": {"sutton_barto_reward": True}}
    entry["eval_env_kwargs"] = {"sutton_barto_reward": False}
    (folder / "own.yml").write_text(yaml.safe_dump({"CartPole-v1": entry}))
    arguments = ["--env", "CartPole-v1", "-conf", "own.yml", "-f", "logs", "--eval-freq", "20", *QUICK[2:]]
    assert main(["train", "--algo", "caps", *arguments]) == 0
    # By Sutton and Barto an episode has the reward -1 when it ends, and by default 1 for every step
    results = np.load(folder / "logs" / "caps" / "CartPole-v1_1" / "evaluations.npz")["results"]
    assert results.min() >= 1


def test_folders_are_those_of_rl_zoo3(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--env", "CartPole-v1", "-n", "60", "--eval-freq", "30", "--save-freq", "40", *QUICK[2:]]
    monkeypatch.setattr(sys, "argv", ["train", "--algo", "dqn", "-f", "theirs", *arguments])
    rl_zoo3.train.train()
    for algo in ("caps", "dqn"):
        assert main(["train", "--algo", algo, "-f", "ours", *arguments]) == 0
    expected = files_of(folder / "theirs" / "dqn" / "CartPole-v1_1")
    assert {"best_model.zip", "evaluations.npz", "CartPole-v1/config.yml", "CartPole-v1/command.txt"} <= expected
    # Who acted in each episode, too
    assert files_of(folder / "ours" / "caps" / "CartPole-v1_1") == expected | {"episodes.csv"}
    assert files_of(folder / "ours" / "dqn" / "CartPole-v1_1") == expected
    theirs, ours = (
        yaml.unsafe_load((folder / name / "CartPole-v1_1" / "CartPole-v1" / "args.yml").read_text())
        for name in ("theirs/dqn", "ours/caps")
    )
    assert theirs.keys() == ours.keys()


def test_a_config_with_each_kind_of_source(folder: Path, trained_dqn: Path) -> None:
    model = DQN("MlpPolicy", "CartPole-v1")
    (folder / "configs").mkdir()
    model.save(folder / "beside_config.zip")
    (folder / "beside_config.zip").rename(folder / "configs" / "beside_config.zip")
    model.save(folder / "here.zip")
    config = folder / "configs" / "mine.yml"
    sources = [
        "beside_config.zip",
        "here",
        "dqn:CartPole-v1",
        f"{HERE}:balance",
        {"source": f"{HERE}:make_constant", "kwargs": {"action": 1}, "name": "right"},
    ]
    entry = {"policy": "MlpPolicy", "n_timesteps": 30, "source_policies": sources}
    config.write_text(json.dumps({"CartPole-v1": entry}))
    command = ["train", "--env", "CartPole-v1", "-conf", str(config), "-f", str(trained_dqn), *QUICK]
    assert main(command) == 0

    run = trained_dqn / "caps" / "CartPole-v1_1"
    loaded = CAPS.load(run / "CartPole-v1.zip")
    assert loaded.options.source_names == ["beside_config", "here", "CartPole-v1", "balance", "right"]
    # The saved config names the very models, so that it means the same after further runs
    assert saved_config(run)["source_policies"] == [
        str(folder / "configs" / "beside_config.zip"),
        str(folder / "here.zip"),
        str(trained_dqn / "dqn" / "CartPole-v1_1" / "CartPole-v1.zip"),
        f"{HERE}:balance",
        sources[4],
    ]


def test_latest_run_with_a_model_is_taken(folder: Path) -> None:
    register()
    for number, file in ((1, "CartPole-v1.zip"), (2, "best_model.zip"), (10, "CartPole-v1.zip"), (11, "monitor.csv")):
        run = folder / "logs" / "dqn" / f"CartPole-v1_{number}"
        run.mkdir(parents=True)
        (run / file).touch()
    DQN("MlpPolicy", "CartPole-v1").save(folder / "logs" / "dqn" / "CartPole-v1_10" / "CartPole-v1.zip")
    assert make_source("dqn:CartPole-v1", "logs").name == "CartPole-v1"
    # A run that was killed has checkpoints
    assert latest_run_id("logs/dqn", "CartPole-v1") == 10
    for steps in (900, 1000):
        (folder / "logs" / "dqn" / "CartPole-v1_11" / f"rl_model_{steps}_steps.zip").touch()
    assert latest_run_id("logs/dqn", "CartPole-v1") == 11
    assert latest_model("dqn", "CartPole-v1", "logs").name == "rl_model_1000_steps.zip"
    assert latest_run_id("logs/dqn", "Cart") == latest_run_id("logs/caps", "CartPole-v1") == 0
    with pytest.raises(ValueError, match=r"has a source and any of"):
        make_source({"path": "a.zip"}, "logs")


def test_resuming_keeps_the_sources_of_the_model(folder: Path) -> None:
    sources = f"source_policies:['{HERE}:balance', '{HERE}:balance']"
    first = ["train", "--env", "CartPole-v1", "-n", "120", "--save-replay-buffer", *QUICK]
    # In units of rewards: that of returns may grow, and the values with it
    units = "normalize_returns:False"
    assert main([*first, "-params", sources, units, "learning_starts:50"]) == 0
    saved = folder / "logs" / "caps" / "CartPole-v1_1" / "CartPole-v1.zip"
    # No gradient step in the second run: the networks have to be those of the first
    assert main([*first, "-i", str(saved), "-params", units, "learning_starts:1000"]) == 0
    again = CAPS.load(saved.parents[1] / "CartPole-v1_2" / "CartPole-v1.zip")
    assert again.options.source_names == ["balance", "balance_2"]
    for ours, theirs in zip(again.q_net.parameters(), CAPS.load(saved).q_net.parameters(), strict=True):
        assert th.equal(ours, theirs)
    again.load_replay_buffer(saved.parents[1] / "CartPole-v1_2" / "replay_buffer.pkl")
    assert again.replay_buffer.size() >= 240


def test_a_config_that_names_a_library(folder: Path) -> None:
    library = PolicyLibrary(folder / "configs" / "library")
    library.add(DQN("MlpPolicy", "CartPole-v1", buffer_size=10), "pole")
    library.add(DQN("MlpPolicy", "Acrobot-v1", buffer_size=10), "acrobot")
    entry = {"policy": "MlpPolicy", "n_timesteps": 30, "source_policies": {"library": "library"}}
    (folder / "configs" / "mine.yml").write_text(yaml.safe_dump({"CartPole-v1": entry}))
    train = ["train", "--env", "CartPole-v1", "-conf", "configs/mine.yml", *QUICK]
    assert main(train) == 0
    run = folder / "logs" / "caps" / "CartPole-v1_1"
    assert CAPS.load(run / "CartPole-v1.zip").options.source_names == ["pole"]
    assert saved_config(run)["source_policies"] == {"library": str(library.folder.resolve())}
    entry["source_policies"] = {"library": "nowhere"}
    (folder / "configs" / "mine.yml").write_text(yaml.safe_dump({"CartPole-v1": entry}))
    assert main(train) == 2


def test_enjoy_a_saved_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--env", "CartPole-v1", *QUICK[2:]]
    params = f"source_policies:['{HERE}:balance']"
    assert main(["train", *arguments, "-n", "60", "--eval-freq", "30", "-params", params]) == 0
    for best in ([], ["--load-best"]):
        assert main(["enjoy", "--env", "CartPole-v1", "-f", "logs", "--no-render", "-n", "600", *best]) == 0
        assert "Mean reward:" in capsys.readouterr().out


def test_environments_with_action_masks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not allowed there is an error."""
    gym.register("Masked-v0", entry_point="tests.test_masks:Strict")
    Path("own.yml").write_text(yaml.safe_dump({"Masked-v0": {"policy": "MlpPolicy", "n_timesteps": 60}}))
    try:
        arguments = ["--env", "Masked-v0", "-conf", "own.yml", *QUICK[2:]]
        assert main(["train", *arguments, "--eval-freq", "30"]) == 0
        assert main(["enjoy", "--env", "Masked-v0", "--no-render", "-n", "200"]) == 0
        assert "Mean reward:" in capsys.readouterr().out
        trials = ["--n-trials", "1", "--n-jobs", "1", "--n-evaluations", "1", "--no-optim-plots"]
        assert main(["optimize", *arguments, *trials, "--judge", "model"]) == 0
    finally:
        gym.registry.pop("Masked-v0")


def test_a_refused_run_leaves_no_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = ["train", "--env", "CartPole-v1", "-n", "40", *QUICK]
    assert main([*train, "-params", "nonsense:1"]) == 2
    assert not (folder / "logs").exists()
    assert main(train) == 0
    for refused in ("gamma:'high'", "nonsense:1", "termination:2", "source_policies:['nowhere.zip']"):
        assert main([*train, "-params", refused]) == 2
    assert [run.name for run in (folder / "logs" / "caps").iterdir()] == ["CartPole-v1_1"]
    # A folder without a model is passed over, as one that an optimisation leaves
    (folder / "logs" / "caps" / "CartPole-v1_2").mkdir()
    (folder / "logs" / "caps" / "CartPole-v1_2" / "0.monitor.csv").write_text('#{"t_start": 0.0}\nr,l,t\n')
    capsys.readouterr()
    assert main(["enjoy", "--env", "CartPole-v1", "--no-render", "-n", "5"]) == 0
    assert "Loading latest experiment, id=1" in capsys.readouterr().out
    assert main(["plot", "logs", "-w", "1"]) == 0
    assert "1 runs drawn" in capsys.readouterr().out


@pytest.mark.parametrize("n_timesteps", ["0", "-5"])
def test_a_run_has_steps(n_timesteps: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--env", "CartPole-v1", "-n", n_timesteps]) == 2
    assert f"-n must be at least 1, not {n_timesteps}: leave it out" in capsys.readouterr().err
    assert not (folder / "logs").exists()


def test_one_config_for_algorithms_with_and_without_sources(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [f"{HERE}:balance"]
    entry = {"policy": "MlpPolicy", "n_timesteps": 30, "source_policies": sources}
    (folder / "both.yml").write_text(yaml.safe_dump({"CartPole-v1": entry}))
    train = ["train", "--env", "CartPole-v1", "-conf", "both.yml", *QUICK]
    assert main([*train, "--algo", "caps"]) == 0
    assert "left out" not in capsys.readouterr().out
    assert main([*train, "--algo", "dqn"]) == 0
    assert "dqn takes no source policies: those of the config are left out." in capsys.readouterr().out
    configs = [saved_config(folder / "logs" / algo / "CartPole-v1_1") for algo in ("caps", "dqn")]
    assert [each.get("source_policies") for each in configs] == [sources, None]
    # Those that are named for this run are refused
    assert main([*train, "--algo", "dqn", "-params", f"source_policies:{sources}"]) == 2
    assert "dqn has no argument source_policies" in capsys.readouterr().err


def test_two_workers_share_a_study(folder: Path) -> None:
    arguments = ["--env", "CartPole-v1", "-n", "150", "--n-evaluations", "1", "--eval-episodes", "1", *QUICK[4:]]
    study = ["--storage", f"sqlite:///{folder}/study.db", "--study-name", "shared"]
    command = [sys.executable, "-m", "sb3_caps", "optimize", *arguments, *study, "--n-trials", "2"]
    workers = [start(command, folder) for _ in range(2)]
    outputs = [worker.communicate(timeout=240)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    trials = optuna.load_study(study_name="shared", storage=study[1]).trials
    assert [trial.number for trial in trials] == [0, 1, 2, 3]
    assert all(trial.state.is_finished() for trial in trials)
    assert {"termination_regularization", "sequence_length_pow", "learning_rate"} <= trials[0].params.keys()

    # A trial can be trained with: its numbers replace those of the config
    train = ["train", "--env", "CartPole-v1", "-n", "20", *study, "--trial-id", "1", *QUICK]
    assert main(train) == 0
    (model,) = folder.glob("logs/caps/*/CartPole-v1.zip")
    wanted = {"regularization": trials[1].params["termination_regularization"]}
    assert CAPS.load(model).termination_kwargs == wanted


class _Guided(BaseCallback):
    """Lets the model act by its source, whatever it learned."""

    def _on_step(self) -> bool:
        self.model.gate.controller = Behaviour("balance", is_source=True)  # type: ignore[attr-defined]
        return True


@pytest.mark.parametrize(
    ("judge", "told", "worth"),
    [
        ([], "judged by the learner alone (--judge learner)", 1.0),
        (["--judge", "model"], "judged by the model, which may act by a source (--judge model)", 2.0),
    ],
)
def test_trials_are_judged_by_the_learner(
    judge: list[str],
    told: str,
    worth: float,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def evaluate(model: CAPS, *_: Any, **__: Any) -> tuple[list[float], list[int]]:
        # What `predict` acts by at that moment
        return [2.0 if model.policy.gate.controller.is_source else 1.0], [1]

    monkeypatch.setattr("stable_baselines3.common.callbacks.evaluate_policy", evaluate)
    given = [f"source_policies:['{HERE}:balance']", f"callback:['{HERE}._Guided']"]
    study = ["--storage", f"sqlite:///{folder}/study.db", "--study-name", "judged", "--n-trials", "1"]
    short = ["-n", "60", "--n-evaluations", "2", *QUICK[2:], "-params", *given]
    assert main(["optimize", "--env", "CartPole-v1", *short, *study, *judge]) == 0
    assert told in capsys.readouterr().out
    (trial,) = optuna.load_study(study_name="judged", storage=study[1]).trials
    assert set(trial.intermediate_values.values()) == {trial.value} == {worth}


def test_evaluations_of_a_run_tell_of_the_learner_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = ["train", "--env", "CartPole-v1", "-n", "100", "--eval-freq", "50", "--eval-episodes", "1", "-tb", "tb"]
    callback = f"callback:['{HERE}._Guided']"
    assert main([*train, *QUICK[2:], "-params", f"source_policies:['{HERE}:balance']", callback]) == 0
    (run,) = (folder / "tb" / "CartPole-v1").iterdir()
    events = EventAccumulator(str(run)).Reload()
    model, learner = (events.Scalars(f"eval/{tag}") for tag in ("mean_reward", "learner_mean_reward"))
    assert {each.value for each in model} == {500.0}
    assert [each.step for each in learner] == [each.step for each in model]
    # Who acted in each episode
    assert (folder / "logs/caps/CartPole-v1_1/episodes.csv").is_file()


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_what_is_sampled_fits_the_algorithm(algo: str) -> None:
    register()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    extra = {"using_her_replay_buffer": False, "her_kwargs": {}}
    for _ in range(5):
        trial = study.ask()
        sampled = hyperparams_opt.HYPERPARAMS_SAMPLER[algo](trial, 0, 1, dict(extra))
        # What a trial stores gives the same arguments as what it ran with
        assert hyperparams_opt.HYPERPARAMS_CONVERTER[algo](dict(trial.params)) == sampled
        algorithm: Any = ALGORITHMS[algo]
        env, source = ("CartPole-v1", balance) if issubclass(algorithm, DQN) else ("Pendulum-v1", slow_down)
        algorithm("MlpPolicy", env, source_policies=[source], buffer_size=100, **sampled)


def test_a_sequence_fits_into_a_batch() -> None:
    fixed = {"sequence_length_pow": 4, "batch_size_pow": 2, "termination_regularization": 1e-3, "net_arch": "small"}
    fixed |= {"one_minus_gamma": 0.01, "learning_rate": 1e-4, "train_freq": 4, "subsample_steps": 1}
    fixed |= {"exploration_final_eps": 0.1, "exploration_fraction": 0.1, "target_update_interval": 10}
    trial = optuna.trial.FixedTrial(fixed)
    sampled = sample_params("caps", trial, 0, 1, {"using_her_replay_buffer": False, "her_kwargs": {}})
    assert sampled["sequence_length"] == sampled["batch_size"] == 4
    converted = convert_params(fixed)
    assert converted["sequence_length"] == 4
    assert converted["termination_kwargs"] == sampled["termination_kwargs"] == {"regularization": 1e-3}


@pytest.mark.parametrize("algo", ["caps", "dqn"])
def test_piecewise_linear_schedules(algo: str, folder: Path) -> None:
    schedules = ["learning_rate:[(0, 1e-2), (100, 1e-3)]", "exploration_schedule:[(0, 1.0), (100, 0.5), (200, 0.0)]"]
    extra = ["learning_starts:10", "train_freq:1", "gradient_steps:1"]
    command = ["train", "--algo", algo, "--env", "CartPole-v1", "-n", "150", *QUICK, "-params", *schedules, *extra]
    assert main(command) == 0
    model = ALGOS[algo].load(folder / "logs" / algo / "CartPole-v1_1" / "CartPole-v1.zip")
    assert model.exploration_rate == pytest.approx(0.25, abs=0.01)  # type: ignore[attr-defined]
    assert model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)


ALGOS: dict[str, type[BaseAlgorithm]] = {**ALGORITHMS, "dqn": DQN}


def test_tensorboard_of_a_run(folder: Path) -> None:
    command = ["train", "--env", "CartPole-v1", "-n", "60", "-tb", "tb", *QUICK]
    assert main([*command, "-params", f"source_policies:['{HERE}:balance']", "learning_starts:10"]) == 0
    assert main([*command, "--algo", "dqn"]) == 0
    events = {run.name: EventAccumulator(str(run)).Reload() for run in (folder / "tb" / "CartPole-v1").iterdir()}
    assert events.keys() == {"CAPS_1", "DQN_1"}
    assert events["CAPS_1"].Tags()["images"] == ["options/timeline"]
    assert "per_option/termination_histogram/balance" in events["CAPS_1"].Tags()["histograms"]
    for event in events.values():
        assert "_hparams_/session_start_info" in event.summary_metadata


def our_environments() -> list[str]:
    return [env for env in gym.registry if env.startswith("sb3_caps/") and not env.startswith("sb3_caps/PLE")]


@pytest.mark.parametrize("algo", ["caps", "dqn", "prql", "ops_tl", "jump_start", "qdagger"])
def test_every_environment_has_settings(algo: str) -> None:
    entries = yaml.safe_load((CONFIGS / f"{algo}.yml").read_text())
    wanted = {f"{env}{variant}" for env in our_environments() for variant in ("", "@cpu", "@paper")}
    assert len(wanted) >= 30
    assert wanted <= entries.keys()
    assert {"CartPole-v1", "atari", "default"} <= entries.keys()
    classes = [cls for cls in ALGOS[algo].__mro__ if "__init__" in vars(cls) and cls is not object]
    known = {name for cls in classes for name in inspect.signature(cls.__init__).parameters}  # type: ignore[misc]
    for name, entry in entries.items():
        if name not in ("templates", "sources", "source_lists"):
            assert set(entry) - known - ZOO_KEYS <= {"exploration_schedule"}, name
            assert {"policy", "n_timesteps"} <= entry.keys(), name


def test_the_paper_settings_are_the_papers() -> None:
    paper = yaml.safe_load((CONFIGS / "caps.yml").read_text())["sb3_caps/MonsterKongG1-v0"]
    expected = {
        "policy": "CnnPolicy",
        "buffer_size": 1_000_000,
        "batch_size": 32,
        "train_freq": 4,
        "learning_starts": 50_000,
        "gamma": 0.99,
        "sequence_length": 1,
        "termination_kwargs": {"learning_rate": 0.00025, "regularization": 0.005, "initial": 0.5, "target": None},
    }
    assert {key: paper[key] for key in expected} == expected
    # 2.5 and 4.375 million training steps, one every 4 steps
    assert paper["learning_rate"] == [[0, 1e-4], [4 * 2_500_000, 5e-5]]
    assert paper["exploration_schedule"] == [[0, 1.0], [4 * 4_375_000, 0.05]]
    assert [source["name"] for source in paper["source_policies"]] == ["diamond", "gem", "coin"]


@pytest.mark.parametrize(
    ("algo", "env"),
    [
        *((algo, "sb3_caps/MonsterKongG2-v0") for algo in ("caps", "dqn", "prql", "ops_tl", "jump_start", "qdagger")),
        # Planning four source policies for the grid takes longer than all else here: once will do
        ("caps", "sb3_caps/GridTarget-v0"),
        ("dqn", "sb3_caps/GridTarget-v0"),
    ],
)
def test_configured_runs_train_and_evaluate(algo: str, env: str, folder: Path) -> None:
    short = ["-n", "160", "--eval-freq", "80", "--eval-episodes", "1", *QUICK[2:]]
    command = ["train", "--algo", algo, "--env", env, "--variant", "cpu", *short]
    assert main([*command, "-params", "learning_starts:40"]) == 0
    (run,) = (folder / "logs" / algo).iterdir()
    assert {"best_model.zip", "evaluations.npz"} <= files_of(run)
    assert "source_policies" in saved_config(run, env.replace("/", "-")) or algo == "dqn"
    model = ALGOS[algo].load(run / "best_model.zip")
    assert type(model) is ALGOS[algo]


def test_settings_of_the_working_directory_come_first(folder: Path) -> None:
    assert find_config("caps", "CartPole-v1") == str(CONFIGS / "caps.yml")
    (folder / "zoo_configs").mkdir()
    (folder / "zoo_configs" / "caps.yml").write_text("default: {policy: MlpPolicy, n_timesteps: 10}")
    assert find_config("caps", "CartPole-v1") == "zoo_configs/caps.yml"
    # rl_zoo3 has settings for this one, and for that algorithm; we have not
    assert find_config("dqn", "LunarLander-v3") is None
    assert find_config("ppo", "CartPole-v1") is None


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_training_saves_and_says_where(sent: signal.Signals, folder: Path) -> None:
    command = [sys.executable, "-m", "sb3_caps", "train", "--env", "CartPole-v1", "-n", "1000000", *QUICK[:4]]
    # A shell that starts tests in the background may ignore interrupts, and children inherit that
    allowing = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    )
    worker = start([sys.executable, "-c", allowing, *command], folder)
    assert worker.stdout is not None
    for line in worker.stdout:
        if "total_timesteps" in line:
            worker.send_signal(sent)
            break
    rest = worker.communicate(timeout=120)[0]
    assert worker.returncode == 0, rest
    assert "Saving to logs/caps/CartPole-v1_1" in rest
    assert CAPS.load(folder / "logs" / "caps" / "CartPole-v1_1" / "CartPole-v1.zip").num_timesteps > 0


def test_a_source_that_fails_leaves_the_run_saved(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--env", "CartPole-v1", "-n", "5000", *QUICK, "-params"]
    assert main([*command, f"source_policies:['{HERE}:fails_late']"]) == 2
    printed = capsys.readouterr()
    assert "Source policy 'fails_late' returned an action out of range" in printed.err
    assert "Traceback" not in printed.err
    assert CAPS.load(folder / "logs" / "caps" / "CartPole-v1_1" / "CartPole-v1.zip").num_timesteps > 0


def returns_a_number(number: int) -> int:
    return number


def test_only_what_makes_a_source_is_called(tmp_path: Path) -> None:
    file = tmp_path / "written"
    for name, kwargs in (
        ("os:system", {"command": f"touch {file}"}),
        ("subprocess:run", {"args": ["touch", str(file)]}),
        ("pathlib:Path.touch", {"self": file}),
        (f"{HERE}:subprocess.check_call", {"args": ["touch", str(file)]}),
        (f"{HERE}:QUICK", {}),
    ):
        with pytest.raises(ValueError, match=rf"'{name}' does not make a source policy: with kwargs, pass a function"):
            make_source({"source": name, "kwargs": kwargs}, "logs")
    assert not file.exists()
    with pytest.raises(ValueError, match="7 is not a source policy"):
        make_source({"source": f"{HERE}:returns_a_number", "kwargs": {"number": 7}}, "logs")
