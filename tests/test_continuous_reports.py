"""What ContinuousCAPS tells of itself: learner, evaluation, TensorBoard, the log of episodes and the explorer."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from sb3_caps import CUP, ContinuousCAPS
from sb3_caps.caps.gate import ACTOR, BEST, OPTIONS
from sb3_caps.caps.summary import PolicySummary, ReuseSummary
from sb3_caps.commands import main
from sb3_caps.explorer import record
from sb3_caps.explorer.recording import camera_on
from sb3_caps.reuse.callbacks import Episode, OptionMonitor, ReuseEvalCallback, run_episode
from sb3_caps.reuse.episode_log import EpisodeLog
from sb3_caps.reuse.episodes import Behaviour
from tests.toy_box import ToyBox, away, home

SMALL: dict[str, Any] = {"learning_starts": 20, "policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu"}
SOURCE = Behaviour("home", is_source=True)


def make(**arguments: Any) -> ContinuousCAPS:
    sources = arguments.pop("source_policies", [home, away])
    return ContinuousCAPS("MlpPolicy", Monitor(ToyBox()), source_policies=sources, **{**SMALL, **arguments})


def toy() -> gym.Env:
    return ToyBox()


def push(observations: np.ndarray) -> np.ndarray:
    return np.clip(-2.0 * observations[:, 2:], -2.0, 2.0)


def test_the_learner_acts_whatever_the_gate_says() -> None:
    model = make().learn(200)
    observations = np.random.default_rng(0).uniform(-1, 1, size=(20, 2)).astype(np.float32)
    model.gate.controller = OPTIONS
    learned, state = model.predict(observations, deterministic=True)
    model.gate.controller = SOURCE
    np.testing.assert_allclose(model.predict(observations)[0], home(observations), atol=1e-5)
    learner = model.learner()
    assert learner.behaviour == OPTIONS
    found, found_state = learner.predict(observations, deterministic=True)
    np.testing.assert_array_equal(found, learned)
    assert state is not None
    assert found_state is not None
    np.testing.assert_array_equal(found_state[0], state[0])
    with learner.acting():
        np.testing.assert_array_equal(model.predict(observations, deterministic=True)[0], learned)
    assert evaluate_policy(model.learner(), make_vec_env(ToyBox, seed=1), 2)[0] < 0  # type: ignore[operator]


def test_evaluation_tells_the_learner_from_the_model(tmp_path: Path) -> None:
    model = make(learning_rate=0.0, tensorboard_log=str(tmp_path))
    callback = ReuseEvalCallback(Monitor(ToyBox()), n_eval_episodes=2, eval_freq=200, verbose=0)
    model.learn(400, callback=callback, log_interval=1)
    (run,) = tmp_path.iterdir()
    events = EventAccumulator(str(run), {"images": 0, "histograms": 0, "scalars": 0}).Reload()
    scalars = set(events.Tags()["scalars"])
    assert {
        "eval/mean_reward",
        "eval/learner_mean_reward",
        "reuse/acts_by_source",
        "reuse/mean_reward/home",
        "reuse/mean_reward/away",
        "reuse/mean_reward/random",
        "reuse/learner_lead",
        "reuse/pull",
        "options/source_share",
        "train/termination_loss",
        "train/critic_loss",
        "train/ent_coef",
    } <= scalars
    assert "reuse/acts_by/text_summary" in events.summary_metadata
    # One for each option, by itself where there is a log for TensorBoard
    names = ["home", "away", "actor"]
    assert set(events.Tags()["histograms"]) == {f"per_option/termination_histogram/{name}" for name in names}
    assert "options/timeline" in events.Tags()["images"]
    assert events.Scalars("reuse/acts_by_source")[-1].value in (0, 1)
    means = {name: events.Scalars(f"reuse/mean_reward/{name}")[-1].value for name in ("home", "away")}
    assert means["home"] > means["away"]


def test_the_monitor_follows_an_episode_of_its_own(tmp_path: Path) -> None:
    seen: list[Episode] = []

    def draw(model: ContinuousCAPS, episode: Episode) -> dict[str, Any]:
        seen.append(episode)
        return {}

    monitor = OptionMonitor(ToyBox(), every=100, n_states=8, draw=draw)
    make(tensorboard_log=str(tmp_path)).learn(200, callback=monitor)
    assert len(seen) == 2
    for episode in seen:
        assert episode.actions.shape == (10, 2)
        assert episode.values.shape == episode.terminations.shape == (10, 3)
        assert set(episode.options.tolist()) <= {0, 1, 2}


@pytest.mark.parametrize("callback", [OptionMonitor(), ReuseEvalCallback(Monitor(ToyBox())), EpisodeLog("anywhere")])
def test_what_has_no_learner_of_its_own_is_refused(callback: Any) -> None:
    model = CUP("MlpPolicy", ToyBox(), source_policies=[home], **SMALL)
    with pytest.raises(ValueError, match=f"{type(callback).__name__} is for CAPS, not CUP"):
        model.learn(10, callback=callback)


def test_values_are_what_the_options_are_worth_by_the_networks_that_act() -> None:
    model = make().learn(300)
    observations = np.random.default_rng(0).uniform(-1, 1, size=(5, 2)).astype(np.float32)
    model.policy.keep_best()
    for controller in (OPTIONS, BEST):
        model.gate.controller = controller
        values, beta = model.policy.values_and_terminations(observations)
        assert values.shape == beta.shape == (5, 3)
        # The best option acts, as nothing was learned since
        _, state = model.predict(observations, deterministic=True)
        assert state is not None
        np.testing.assert_array_equal(state[0], values.argmax(axis=1))
    one, _ = model.policy.values_and_terminations(observations[0])
    np.testing.assert_allclose(one[0], values[0], rtol=1e-4)


def test_without_sources_the_actor_acts_in_every_step() -> None:
    model = make(source_policies=None).learn(60)
    assert model.gate.controller == ACTOR
    values, beta = model.policy.values_and_terminations(np.zeros((4, 2), dtype=np.float32))
    assert values.shape == (4, 1)
    assert not beta.any()
    episode = run_episode(model, make_vec_env(ToyBox))
    assert episode.options.tolist() == [0] * 10
    assert model.reuse_summary().policies == []


def test_the_log_of_episodes_says_who_acted(tmp_path: Path) -> None:
    make().learn(300, callback=EpisodeLog(tmp_path))
    rows = list(csv.DictReader((tmp_path / "episodes.csv").open()))
    assert len(rows) == 30
    assert [row["acted"] for row in rows[:3]] == ["home", "away", "random"]
    assert [row["is_source"] for row in rows[:3]] == ["1", "1", "0"]


def test_what_explores_is_no_rival_in_the_summary() -> None:
    policies = [PolicySummary(name, mean, 0.1, 3) for name, mean in (("home", 1.0), ("options", 2.0), ("mixing", 3.0))]
    assert ReuseSummary(policies, "options").reason == "It had the highest mean return in whole episodes."


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    make(verbose=1).learn(100)
    told = capsys.readouterr().out
    assert "Options: home (function), away (function), actor" in told
    assert "predict acts by" in told


@pytest.mark.parametrize("controller", [OPTIONS, BEST, SOURCE])
def test_the_explorer_records_what_it_does(controller: Behaviour) -> None:
    model = make().learn(200)
    model.gate.controller = controller
    env, camera = camera_on(ToyBox())
    found = record(model, env, camera, episodes=1, seed=3, max_steps=100)
    assert [each["name"] for each in found["options"]] == ["home", "away", "actor"]
    (episode,) = found["episodes"]
    assert np.shape(episode["actions"]) == (10, 2)
    assert np.shape(episode["values"]) == np.shape(episode["terminations"]) == (10, 3)
    expected = "home acts alone" if controller == SOURCE else "critic values what another one does more"
    assert expected in found["ending"]
    if controller == SOURCE:
        assert episode["options"] == [0] * 10
    json.dumps(found, allow_nan=False)


def test_the_command_explores_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = gym.make("Pendulum-v1", max_episode_steps=20)
    model = ContinuousCAPS("MlpPolicy", env, source_policies=[push], **SMALL)
    model.learn(60)
    model.save(tmp_path / "model")
    given = ["--env", "Pendulum-v1", "--episodes", "1", "--max-steps", "5", "--no-frames"]
    assert main(["explore", str(tmp_path / "model.zip"), *given, "-o", str(tmp_path / "page.html")]) == 0
    assert "episode 1: return" in capsys.readouterr().out
    html = (tmp_path / "page.html").read_text()
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert np.shape(json.loads(found)["episodes"][0]["actions"]) == (5, 1)
