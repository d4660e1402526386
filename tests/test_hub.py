"""Sharing on the Hugging Face Hub: the real client library, and a stub of the Hub on loopback."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_caps import CAPS, PRQL, as_source
from tests.hub_server import COMMIT, HubServer

hub = pytest.importorskip("huggingface_hub")
from sb3_caps.hub import load_from_hub, push_to_hub  # noqa: E402


def balance(observations: np.ndarray) -> np.ndarray:
    return (observations[:, 2] + observations[:, 3] > 0).astype(np.int64)


def push_left(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations), dtype=np.int64)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The Hub, and a client that knows where it is: it reads its settings once, when it is imported."""
    constants = importlib.import_module("huggingface_hub.constants")
    with HubServer() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.address)
        template = running.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield running


def make(env: Any = "CartPole-v1", **kwargs: Any) -> CAPS:
    return CAPS("MlpPolicy", env, source_policies=[balance, push_left], seed=0, **kwargs)


def test_push_and_load(server: HubServer) -> None:
    model = make(learning_starts=10).learn(300)
    address = push_to_hub(model, "me/caps-cart", "CartPole-v1", n_eval_episodes=2, private=True)
    assert address == f"{server.address}/me/caps-cart"
    assert server.private == {"me/caps-cart": True}
    files = server.files["me/caps-cart"]
    assert files.keys() == {"README.md", "caps-cart.zip", "results.json"}

    path = load_from_hub("me/caps-cart")
    loaded = CAPS.load(path)
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    ours, theirs = (each.predict(observations, deterministic=True)[0] for each in (model, loaded))
    assert np.array_equal(ours, theirs)
    # A source policy as any other, under a name that says what it is
    assert as_source(path).name == "caps-cart"
    assert COMMIT in str(load_from_hub("me/caps-cart", revision=COMMIT))


def test_the_card_says_what_was_reused(server: HubServer) -> None:
    model = make(learning_starts=10).learn(300)
    model.gate.controller = type(model.gate.controller)("balance", is_source=True)
    push_to_hub(model, "me/caps-cart", gym.make("CartPole-v1"), n_eval_episodes=2)
    card = hub.ModelCard(server.files["me/caps-cart"]["README.md"].decode())
    (result,) = card.data.eval_results
    assert (result.dataset_name, result.metric_type, result.metric_value) == (
        "CartPole-v1",
        "mean_reward",
        "500.00 +/- 0.00",
    )
    assert card.data.library_name == "stable-baselines3"
    assert {"CartPole-v1", "policy-reuse"} <= set(card.data.tags)
    assert "# CAPS on CartPole-v1" in card.text
    assert "in 300 steps by reusing `balance` (function), `push_left` (function)" in card.text
    assert "| balance | " in card.text
    assert "| this model | 500 | 0 |" in card.text
    assert "| its learner alone |" in card.text
    assert str(model.reuse_summary()) in card.text
    assert "gamma = 0.99" in card.text
    told = json.loads(server.files["me/caps-cart"]["results.json"])
    assert [each["name"] for each in told["returns"]] == ["balance", "push_left", "this model", "its learner alone"]


def test_normalisation_goes_along(server: HubServer) -> None:
    env = VecNormalize(make_vec_env("CartPole-v1", seed=1))
    model = make(env, learning_starts=10).learn(200)
    statistics: Any = env.obs_rms
    before = statistics.count
    push_to_hub(model, "me/normalised", "CartPole-v1", n_eval_episodes=1)
    assert "vec_normalize.pkl" in server.files["me/normalised"]
    # The model's own environment is left as it is
    assert (statistics.count, env.training, env.norm_reward) == (before, True, True)
    path = load_from_hub("me/normalised")
    loaded: Any = VecNormalize.load(str(path.with_name("vec_normalize.pkl")), make_vec_env("CartPole-v1"))
    assert np.array_equal(loaded.obs_rms.mean, statistics.mean)


def test_other_algorithms(server: HubServer) -> None:
    model = PRQL("MlpPolicy", "CartPole-v1", source_policies=[push_left], learning_starts=10, seed=0).learn(60)
    push_to_hub(model, "me/prql", "CartPole-v1", n_eval_episodes=1)
    text = server.files["me/prql"]["README.md"].decode()
    assert "# PRQL on CartPole-v1" in text
    assert "What was reused" not in text
    assert PRQL.load(load_from_hub("me/prql")).source_names == ["push_left"]


def test_bad_input(server: HubServer) -> None:
    with pytest.raises(ValueError, match="A repository of the Hub is called user/name, not 'caps'"):
        push_to_hub(make(), "caps", "CartPole-v1", n_eval_episodes=1)
    with pytest.raises(ValueError, match="n_eval_episodes must be at least 1, not 0"):
        push_to_hub(make(), "me/caps", "CartPole-v1", n_eval_episodes=0)
    with pytest.raises(hub.errors.RepositoryNotFoundError):
        load_from_hub("me/nothing")
    server.files["me/empty"] = {"README.md": b"#"}
    with pytest.raises(FileNotFoundError, match=r"me/empty has no empty\.zip"):
        load_from_hub("me/empty")


def test_the_hub_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("huggingface_hub.constants"), "ENDPOINT", "http://localhost:9")
    with pytest.raises(ConnectionError, match="The Hub at http://localhost:9 cannot be reached: "):
        push_to_hub(make(), "me/caps", "CartPole-v1", n_eval_episodes=1)


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install 'sb3-caps\[hub\]'"):
        load_from_hub("me/caps")


def test_the_commands(server: HubServer, tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    make().save(tmp_path / "model")
    settings = {"HF_ENDPOINT": server.address, "HF_HOME": str(tmp_path / "hf"), "SDL_VIDEODRIVER": "dummy"}

    def call(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sb3_caps", *argv]
        repository = {"PYTHONPATH": str(Path(__file__).parents[1])}
        environment = {**os.environ, **settings, **repository}
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    run = call("push_to_hub", "model.zip", "me/caps", "--env", "CartPole-v1", "--episodes", "1", "--video", "5")
    assert run.returncode == 0, run.stderr
    assert f"Uploaded to {server.address}/me/caps" in run.stdout
    assert server.files["me/caps"]["replay.mp4"][4:8] == b"ftyp"
    loaded = call("load_from_hub", "me/caps")
    assert Path(loaded.stdout.strip()).read_bytes() == server.files["me/caps"]["caps.zip"]
    missing = call("load_from_hub", "me/nothing")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "sb3-caps load_from_hub: " in missing.stderr
