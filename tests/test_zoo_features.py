"""Source features in the configs of rl_zoo3."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

from sb3_caps import CAPS, SourceFeatures, VecSourceFeatures
from sb3_caps.commands import main
from sb3_caps.zoo.features import random_observations

QUICK = ["--eval-freq", "-1", "--seed", "1", "--verbose", "0", "--num-threads", "1"]
RUN = Path("logs", "caps", "CartPole-v1_1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two models, and a config that learns from what they see."""
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        DQN("MlpPolicy", "CartPole-v1", buffer_size=1, seed=seed).save(f"source_{seed}")
    return tmp_path


def train(algo: str = "caps", *arguments: str, **changes: Any) -> int:
    entry: dict[str, Any] = {"policy": "MlpPolicy", "n_timesteps": 60, "learning_starts": 20, "buffer_size": 100}
    entry["source_features"] = {"n_observations": 40, "n_components": 3}
    if algo == "caps":
        entry["source_policies"] = ["source_1.zip", "source_2.zip"]
    Path("own.yml").write_text(yaml.safe_dump({"CartPole-v1": entry | changes}))
    return main(["train", "--algo", algo, "--env", "CartPole-v1", "-conf", "own.yml", *QUICK, *arguments])


def test_a_run_learns_from_features_and_is_enjoyed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("caps", "--eval-freq", "30", normalize=True) == 0
    model = CAPS.load(RUN / "CartPole-v1.zip")
    assert model.observation_space.shape == (3 + 2 + 2,)
    assert model.options.source_names == ["source_1", "source_2"]
    assert main(["enjoy", "--env", "CartPole-v1", "--no-render", "-n", "60"]) == 0
    assert "Mean reward:" in capsys.readouterr().out

    # Going on needs the very same features
    saved = str(RUN / "CartPole-v1.zip")
    assert train("caps", "-i", saved, "-n", "20") == 0
    observations: Any = make_vec_env("CartPole-v1", 2, seed=3).reset()
    first, second = (
        SourceFeatures.load(RUN.with_name(f"CartPole-v1_{number}") / "CartPole-v1" / "source_features.pkl")
        for number in (1, 2)
    )
    np.testing.assert_array_equal(first(observations), second(observations))


def test_other_algorithms_learn_from_features_too(folder: Path) -> None:
    models = {"models": ["source_1.zip"], "n_observations": 40}
    assert train("dqn", source_features=models) == 0
    model = DQN.load("logs/dqn/CartPole-v1_1/CartPole-v1.zip")
    assert model.observation_space.shape[0] > 2  # type: ignore[index]
    assert main(["enjoy", "--algo", "dqn", "--env", "CartPole-v1", "--no-render", "-n", "20"]) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source_features": {"components": 3}}, "source_features is true or has any of models, n_observations"),
        ({"source_features": True, "frame_stack": 2}, "source_features cannot see frame_stack"),
        ({"source_features": True, "source_policies": []}, "SourceFeatures needs at least one model"),
        ({"source_features": {"models": ["source_1.zip"]}}, "Source policies source_2 see no observations but source"),
    ],
)
def test_what_cannot_work_is_said(
    changes: dict[str, Any], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("caps", **changes) == 2
    assert message in capsys.readouterr().err


def test_saved_features_are_the_same(folder: Path) -> None:
    env = make_vec_env("CartPole-v1", 2, seed=0)
    observations = random_observations(env, 30, seed=0)
    assert observations.shape == (30, 4)
    features = SourceFeatures(["source_1.zip", "source_2.zip"], observations)
    expected = features(observations)
    features.save("features.pkl")
    wrapped = VecSourceFeatures(env, "features.pkl")
    np.testing.assert_array_equal(wrapped.features(observations), expected)
    assert [policy.name for policy in wrapped.features.policies] == ["source_1", "source_2"]
    with pytest.raises(FileNotFoundError, match=r"There are no source features at gone\.pkl"):
        VecSourceFeatures(env, "gone.pkl")
