"""rl_zoo3 with our algorithms for continuous actions: train, enjoy, optimise, configs with sources, and `sources`."""

import inspect
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import optuna
import pytest
import yaml
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

from sb3_caps import ContinuousCAPS
from sb3_caps.commands import main
from sb3_caps.reuse.episodes import Behaviour
from sb3_caps.settings import RUN_KEYS
from sb3_caps.zoo import ALGORITHMS, find_config
from tests.test_zoo import slow_down

HERE = "tests.test_zoo_continuous"
SOURCE = "source_policies:['tests.test_zoo:slow_down']"
PENDULUM = ["--env", "Pendulum-v1", "--seed", "1", "--verbose", "0", "--num-threads", "1"]
QUICK = ["-n", "220", "--eval-freq", "100", "--eval-episodes", "1"]
SMALL = ["learning_starts:20", "policy_kwargs:dict(net_arch=[8])"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("algo", ["continuous_caps", "cup", "ibrl", "continuous_jump_start"])
def test_a_run_trains_evaluates_and_is_watched(algo: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--algo", algo, *PENDULUM, *QUICK, "-tb", "tb", "-params", SOURCE, *SMALL]) == 0
    run = folder / "logs" / algo / "Pendulum-v1_1"
    assert {"best_model.zip", "evaluations.npz", "Pendulum-v1.zip"} <= {file.name for file in run.iterdir()}
    assert (run / "episodes.csv").exists() == (algo == "continuous_caps")
    algorithm: Any = ALGORITHMS[algo]
    assert algorithm.load(run / "Pendulum-v1.zip").source_names == ["slow_down"]
    assert main(["enjoy", "--algo", algo, "--env", "Pendulum-v1", "--no-render", "-n", "210"]) == 0
    assert "Mean reward:" in capsys.readouterr().out
    if algo == "continuous_caps":
        # The run goes on with its sources, and a page shows it
        resumed = ["-i", str(run / "Pendulum-v1.zip"), "-n", "30", "--eval-freq", "-1"]
        assert main(["train", "--algo", algo, *PENDULUM, *resumed, "-params", *SMALL[:1]]) == 0
        assert main(["explore", str(run), "--episodes", "1", "--max-steps", "5", "--no-frames"]) == 0
        assert (folder / "explore.html").is_file()


class Guided(BaseCallback):
    """Lets the model act by its source, whatever it learned."""

    def _on_step(self) -> bool:
        self.model.gate.controller = Behaviour("slow_down", is_source=True)  # type: ignore[attr-defined]
        return True


@pytest.mark.parametrize(("judge", "worth"), [("learner", 1.0), ("model", 2.0)])
def test_trials_are_judged_by_the_learner(
    judge: str, worth: float, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluate(model: ContinuousCAPS, *_: Any, **__: Any) -> tuple[list[float], list[int]]:
        return [2.0 if model.policy.gate.controller.is_source else 1.0], [1]

    monkeypatch.setattr("stable_baselines3.common.callbacks.evaluate_policy", evaluate)
    study = ["--storage", f"sqlite:///{folder}/study.db", "--study-name", "judged", "--n-trials", "1"]
    given = ["-n", "40", "--n-evaluations", "2", "-params", SOURCE, f"callback:['{HERE}.Guided']"]
    assert main(["optimize", "--algo", "continuous_caps", *PENDULUM, *given, *study, "--judge", judge]) == 0
    (trial,) = optuna.load_study(study_name="judged", storage=study[1]).trials
    assert set(trial.intermediate_values.values()) == {trial.value} == {worth}
    assert {"pull", "tau", "learning_rate"} <= trial.params.keys()


def test_changed_robots_reuse_the_latest_run_of_sac(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = ["train", "--algo", "continuous_caps", *PENDULUM, "-n", "40", "--eval-freq", "-1", "--variant"]
    assert main([*ours, "gravity"]) == 2
    assert "sb3-caps train --algo sac --env Pendulum-v1 -f logs makes one" in capsys.readouterr().err
    sac = ["-n", "30", "--eval-freq", "-1", "-params", "learning_starts:10"]
    assert main(["train", "--algo", "sac", *PENDULUM, *sac]) == 0
    for variant in ("gravity", "heavy"):
        assert main([*ours, variant]) == 0
        assert "Source policies: ['Pendulum-v1']" in capsys.readouterr().out
    (first, second) = sorted((folder / "logs" / "continuous_caps").iterdir())
    config = yaml.unsafe_load((first / "Pendulum-v1" / "config.yml").read_text())
    assert dict(config)["env_kwargs"] == {"g": 13.0}
    model = ContinuousCAPS.load(second / "Pendulum-v1.zip")
    # Networks of the same shape: actor and critics can be copied
    assert isinstance(model.options.sources[0].network, type(SAC("MlpPolicy", "Pendulum-v1").policy))


def test_every_entry_has_what_the_algorithms_take() -> None:
    files = {
        algo: find_config(algo, "Pendulum-v1") for algo in ("continuous_caps", "cup", "ibrl", "continuous_jump_start")
    }
    assert len(set(files.values())) == 1
    file = files["cup"]
    assert file is not None
    entries = yaml.safe_load(Path(file).read_text())
    assert {"Pendulum-v1", "Pendulum-v1@gravity", "Pendulum-v1@heavy", "default"} <= entries.keys()
    known = set(inspect.signature(SAC.__init__).parameters) | {"source_policies"} | RUN_KEYS
    assert (
        list(inspect.signature(SAC.__init__).parameters)[:-1]
        == list(inspect.signature(ContinuousCAPS.__init__).parameters)[
            : len(inspect.signature(SAC.__init__).parameters) - 1
        ]
    )
    for name, entry in entries.items():
        if name != "templates":
            assert not entry.keys() - known, name
            gym.make(name.partition("@")[0] if name != "default" else "Pendulum-v1", **entry.get("env_kwargs", {}))


def test_sources_tells_whether_one_fits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SAC("MlpPolicy", "Pendulum-v1", buffer_size=10).save(folder / "sac")
    assert main(["sources", "sac.zip", "tests.test_zoo:slow_down", "--env", "Pendulum-v1", "--episodes", "1"]) == 0
    told = capsys.readouterr().out
    assert told.count("fits Pendulum-v1") == told.count("in 1 episodes") == 2
    assert main(["sources", "sac.zip", "--env", "CartPole-v1"]) == 1
    assert "does not fit" in capsys.readouterr().out
    assert slow_down(np.ones((1, 3))).shape == (1, 1)
