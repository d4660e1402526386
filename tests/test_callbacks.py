"""OptionMonitor and HyperparameterLog, read back from the event files."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from matplotlib.figure import Figure
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import CallbackList, ConvertCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
from tensorboard.plugins.custom_scalar import layout_pb2  # type: ignore[import-untyped]
from tensorboard.plugins.hparams.backend_context import Context  # type: ignore[import-untyped]

import sb3_caps.envs  # noqa: F401 registers the grid
from sb3_caps import CAPS, PRQL, PiecewiseLinear
from sb3_caps.caps.gate import ACTOR, OPTIONS
from sb3_caps.reuse.action_names import action_names, option_labels
from sb3_caps.reuse.callbacks import (
    LONGEST_TIMELINE,
    Episode,
    HyperparameterLog,
    OptionMonitor,
    ReuseEvalCallback,
    draw_timeline,
    hyperparameters,
    run_episode,
)
from sb3_caps.reuse.episodes import Behaviour
from sb3_caps.studies.grid.monitor import option_maps
from tests.toy_world import Corridor


def balance(observations: np.ndarray) -> np.ndarray:
    return (observations[:, 2] + observations[:, 3] > 0).astype(np.int64)


def push_left(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations), dtype=np.int64)


def go_up(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations), dtype=np.int64)


def make_caps(env: Any = "CartPole-v1", **kwargs: Any) -> CAPS:
    return CAPS("MlpPolicy", env, source_policies=[balance, push_left], learning_starts=50, seed=0, **kwargs)


def short_cart_pole() -> gym.Env:
    return gym.make("CartPole-v1", max_episode_steps=20)


def read_events(folder: Path) -> EventAccumulator:
    (run,) = folder.iterdir()
    return EventAccumulator(str(run), {"images": 0, "histograms": 0, "scalars": 0}).Reload()


def test_every_tag_is_in_the_event_file(tmp_path: Path) -> None:
    seen: list[tuple[CAPS, Episode]] = []

    def draw(model: CAPS, episode: Episode) -> dict[str, Figure]:
        seen.append((model, episode))
        figure = Figure(figsize=(2, 1))
        figure.subplots().plot(episode.rewards)
        return {"rewards": figure}

    model = make_caps(tensorboard_log=str(tmp_path))
    monitor = OptionMonitor(gym.make("CartPole-v1"), every=200, n_states=64, draw=draw)
    model.learn(500, callback=monitor, log_interval=1)

    events = read_events(tmp_path)
    tags = events.Tags()
    names = ["balance", "push_left", "action_0", "action_1"]
    assert set(tags["histograms"]) == {f"per_option/termination_histogram/{name}" for name in names}
    assert set(tags["images"]) == {"options/timeline", "options/rewards"}
    assert {f"per_option/share/{name}" for name in names} <= set(tags["scalars"])
    # Every 200 steps, and at the end
    assert [image.step for image in events.Images("options/timeline")] == [200, 400, 500]
    histogram = events.Histograms("per_option/termination_histogram/balance")[0].histogram_value
    # All states, on an axis from 0 to 1
    assert histogram.num == sum(histogram.bucket) == 64
    assert (histogram.min, histogram.max) == (0, 1)
    assert 0.4 < histogram.sum / histogram.num < 0.6
    assert [given is model for given, _ in seen] == [True] * 3
    assert events.summary_metadata["_hparams_/session_start_info"] is not None


def test_hyperparameters_are_the_arguments() -> None:
    model = make_caps(learning_rate=PiecewiseLinear([(0, 0.5), (10, 0.1)]), gamma=0.9, termination=0.25)
    found = hyperparameters(model)
    assert found["algorithm"] == "CAPS"
    assert found["learning_rate"] == 0.5
    assert found["gamma"] == 0.9
    assert found["termination"] == 0.25
    assert found["source_policies"] == "balance, push_left"
    assert found["seed"] == 0
    assert "verbose" not in found


def test_hyperparameter_log_works_with_any_algorithm(tmp_path: Path) -> None:
    DQN("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path / "dqn")).learn(20, callback=HyperparameterLog())
    source = [balance]
    PRQL("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path / "prql"), source_policies=source).learn(
        20, callback=HyperparameterLog()
    )
    for name in ("dqn", "prql"):
        assert "_hparams_/session_start_info" in read_events(tmp_path / name).summary_metadata


def test_monitor_changes_nothing_in_the_run(tmp_path: Path) -> None:
    plain = make_caps().learn(300)
    watched = make_caps(tensorboard_log=str(tmp_path))
    watched.learn(300, callback=OptionMonitor(gym.make("CartPole-v1"), every=50))
    for ours, theirs in zip(watched.policy.parameters(), plain.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)


def test_without_tensorboard_it_does_nothing() -> None:
    def draw(model: CAPS, episode: Episode) -> dict[str, Figure]:
        raise AssertionError("nobody would see it")

    make_caps().learn(100, callback=OptionMonitor(gym.make("CartPole-v1"), every=10, draw=draw))


def test_the_timeline_says_who_acts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int | None] = []

    def watch(episode: Episode, names: list[str], n_sources: int, alone: int | None = None) -> Figure:
        drawn.append(alone)
        return draw_timeline(episode, names, n_sources, alone)

    monkeypatch.setattr("sb3_caps.reuse.callbacks.draw_timeline", watch)
    model = make_caps(tensorboard_log=str(tmp_path)).learn(10)
    monitor = OptionMonitor(gym.make("CartPole-v1"))
    monitor.init_callback(model)
    monitor._states.append(np.zeros((1, 4), dtype=np.float32))
    for controller in (Behaviour("push_left", is_source=True), ACTOR, OPTIONS):
        model.gate.controller = controller
        monitor._look()
    assert drawn == [1, None, None]


def test_without_an_environment_an_episode_of_training_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[Episode, str | None]] = []

    def watch(episode: Episode, names: list[str], n_sources: int, trained_by: str | None = None) -> Figure:
        drawn.append((episode, trained_by))
        return draw_timeline(episode, names, n_sources, trained_by=trained_by)

    monkeypatch.setattr("sb3_caps.reuse.callbacks.draw_timeline", watch)
    log: list[tuple[Any, ...]] = []

    def remember(local: dict[str, Any], _: dict[str, Any]) -> bool:
        log.append((local["actions"][0], local["options"][0], local["rewards"][0], local["dones"][0]))
        return True

    model = make_caps(short_cart_pole(), tensorboard_log=str(tmp_path))
    model.learn(100, callback=[ConvertCallback(remember), OptionMonitor(every=60)])
    events = read_events(tmp_path)
    assert len(events.Tags()["histograms"]) == 4
    assert [image.step for image in events.Images("options/timeline")] == [60, 100]
    # The latest episode that was over by then, as it was
    ends = [step for step, row in enumerate(log, start=1) if row[-1]]
    for (episode, acted), look in zip(drawn, (60, 100), strict=True):
        first, last = ([0, *(end for end in ends if end <= look)])[-2:]
        actions, options, rewards, _ = (np.array(column) for column in zip(*log[first:last], strict=True))
        assert np.array_equal(episode.actions, actions)
        assert np.array_equal(episode.options, options)
        assert np.array_equal(episode.rewards, rewards)
        assert episode.values.shape == episode.terminations.shape == (last - first, 4)
        # Actions are those of the options in what was observed
        observations = np.concatenate([np.asarray(observation) for observation in episode.observations])
        assert np.array_equal(balance(observations)[options == 0], actions[options == 0])
        assert acted is not None
        title = draw_timeline(episode, ["a", "b", "c", "d"], 2, trained_by=acted).axes[0].get_title()
        assert title.startswith(f"training, {acted}: return ")


@pytest.mark.parametrize("kind", ["dict", "image"])
def test_an_episode_of_training_of_any_observations(kind: str, tmp_path: Path) -> None:
    policy = {"dict": "MultiInputPolicy", "image": "CnnPolicy"}[kind]
    env = make_vec_env(lambda: Corridor(kind, horizon=8), n_envs=2)
    CAPS(policy, env, buffer_size=100, tensorboard_log=str(tmp_path)).learn(40)
    assert read_events(tmp_path).Tags()["images"] == ["options/timeline"]


def test_rewards_of_training_are_those_of_the_task(tmp_path: Path) -> None:
    env = VecNormalize(make_vec_env(short_cart_pole))
    monitor = OptionMonitor(every=60)
    make_caps(env, tensorboard_log=str(tmp_path)).learn(60, callback=monitor)
    assert monitor._latest is not None
    assert {step[-1] for step in monitor._latest[0]} == {1.0}


def test_episodes_without_end_are_not_remembered(tmp_path: Path) -> None:
    endless = make_vec_env(lambda: Corridor(horizon=10**9), n_envs=1)
    monitor = OptionMonitor(every=10**9)
    source = CAPS("MlpPolicy", endless, source_policies=[go_up], gradient_steps=0, tensorboard_log=str(tmp_path))
    source.learn(LONGEST_TIMELINE + 50, callback=monitor)
    assert len(monitor._steps) <= LONGEST_TIMELINE + 1


@pytest.mark.parametrize("given", ["none", "function", "list", "nested", "own"])
def test_caps_is_watched_where_it_has_a_tensorboard_log(given: str, tmp_path: Path) -> None:
    calls: list[int] = []

    def count(*_: Any) -> bool:
        calls.append(1)
        return True

    own = OptionMonitor(every=10)
    callbacks: dict[str, Any] = {
        "none": None,
        "function": count,
        "list": [ConvertCallback(count)],
        "nested": CallbackList([own]),
        "own": own,
    }
    make_caps(short_cart_pole(), tensorboard_log=str(tmp_path)).learn(60, callback=callbacks[given])
    assert len(calls) == (60 if given in ("function", "list") else 0)
    events = read_events(tmp_path)
    looks = [image.step for image in events.Images("options/timeline")]
    # The user's own takes its place
    assert (looks[-1], len(looks) > 1) == (60, given in ("nested", "own"))
    assert {"_hparams_/session_start_info", "custom_scalars__config__"} <= events.summary_metadata.keys()


def test_the_layout_shows_what_is_logged(tmp_path: Path) -> None:
    evaluation = ReuseEvalCallback(gym.make("CartPole-v1"), eval_freq=200, n_eval_episodes=1, verbose=0)
    make_caps(short_cart_pole(), tensorboard_log=str(tmp_path)).learn(600, callback=evaluation, log_interval=1)
    events = read_events(tmp_path)
    config = events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    (category,) = layout_pb2.Layout.FromString(config).category
    assert category.title == "What CAPS does"
    assert len(category.chart) == 6
    tags = [tag for chart in category.chart for tag in chart.multiline.tag]
    assert set(tags) <= set(events.Tags()["scalars"])
    # No two scalars that look alike; who acts is a text, too
    assert "reuse/acts_by/text_summary" in events.summary_metadata


def test_several_environments_and_normalisation(tmp_path: Path) -> None:
    env = VecNormalize(make_vec_env("CartPole-v1", n_envs=3))
    eval_env = VecNormalize(make_vec_env("CartPole-v1"), training=False, norm_reward=False)
    model = make_caps(env, tensorboard_log=str(tmp_path))
    model.learn(300, callback=OptionMonitor(eval_env, every=100))
    ours, theirs = (np.asarray(normalizer.normalize_obs(np.ones((1, 4)))) for normalizer in (eval_env, env))
    assert np.array_equal(ours, theirs)
    assert [image.step for image in read_events(tmp_path).Images("options/timeline")] == [102, 204, 300]


@pytest.mark.parametrize("kind", ["discrete", "dict", "image"])
def test_any_observations(kind: str, tmp_path: Path) -> None:
    policy = {"discrete": "MlpPolicy", "dict": "MultiInputPolicy", "image": "CnnPolicy"}[kind]
    model = CAPS(policy, Corridor(kind), buffer_size=100, tensorboard_log=str(tmp_path))
    model.learn(40, callback=OptionMonitor(Corridor(kind), every=40))
    tags = read_events(tmp_path).Tags()
    assert len(tags["histograms"]) == 3
    assert tags["images"] == ["options/timeline"]


def test_episode_is_what_evaluation_sees() -> None:
    model: Any = make_caps().learn(300)
    env = make_vec_env("CartPole-v1", seed=3)
    episode = run_episode(model, env)
    reward, _ = evaluate_policy(model, make_vec_env("CartPole-v1", seed=3), n_eval_episodes=1)
    assert episode.rewards.sum() == reward
    steps = len(episode.rewards)
    assert len(episode.observations) == len(episode.infos) == len(episode.actions) == steps
    assert episode.terminations.shape == (steps, 4)
    # Actions are those of the active options
    observations = np.concatenate([np.asarray(observation) for observation in episode.observations])
    every = np.stack([balance(observations), push_left(observations), np.zeros(steps), np.ones(steps)], axis=1)
    assert np.array_equal(episode.actions, every[np.arange(steps), episode.options])


def test_timeline_has_a_line_for_each_source_and_used_primitive() -> None:
    options = np.array([0, 0, 3, 3, 3, 0])
    terminations = np.tile([0.1, 0.2, 0.3, 0.9], (6, 1))
    episode = Episode([], options * 0, options, terminations * 0, terminations, np.ones(6), [{}] * 6)
    figure = draw_timeline(episode, ["a", "b", "action_0", "action_1"], n_sources=2)
    top, bottom = figure.axes
    assert [label.get_text() for label in top.get_yticklabels()] == ["a", "b", "action_1"]
    starts = [[path.get_extents().x0 for path in bars.get_paths()] for bars in top.collections]
    assert starts == [[0, 1, 5], [], [2, 3, 4]]
    assert bottom.patches[0].get_data().values.tolist() == [0.1, 0.1, 0.9, 0.9, 0.9, 0.1]
    assert bottom.get_ylim() == (0, 1)
    assert top.get_title() == "return 6 in 6 steps"
    alone = draw_timeline(episode, ["a", "b", "action_0", "action_1"], n_sources=2, alone=0)
    assert alone.axes[0].get_title() == "a acts alone: return 6 in 6 steps"


def test_actions_have_the_names_that_the_environment_gives_them() -> None:
    class Meant(Corridor):
        def get_action_meanings(self) -> list[str]:
            return ["LEFT", "RIGHT", "NOOP"]

    assert action_names(DummyVecEnv([Meant])) == ["LEFT", "RIGHT", "NOOP"]
    assert action_names(make_vec_env("sb3_caps/GridTarget-v0")) == ["up", "down", "left", "right"]
    assert action_names(make_vec_env("CartPole-v1")) is None
    assert option_labels(["a", "action_0", "action_1"], 1, ["left", "right"]) == ["a", "left", "right"]
    assert option_labels(["a", "action_0", "action_1"], 1, None) == ["a", "action_0", "action_1"]
    # Meanings of another number of actions are of a wrapped environment's
    assert option_labels(["a", "action_0"], 1, ["left", "right"]) == ["a", "action_0"]
    # A source that has the name of an action
    assert option_labels(["left", "action_0", "action_1"], 1, ["left", "right"]) == ["left", "action_0", "action_1"]


def test_scalars_and_histograms_have_the_names_of_actions(tmp_path: Path) -> None:
    env = gym.make("sb3_caps/GridTarget-v0")
    model = CAPS("MlpPolicy", env, source_policies=[go_up], learning_starts=50, seed=0, tensorboard_log=str(tmp_path))
    model.learn(200, callback=OptionMonitor(every=100, n_states=16), log_interval=1)
    tags = read_events(tmp_path).Tags()
    names = ["go_up", "up", "down", "left", "right"]
    assert {f"per_option/termination_histogram/{name}" for name in names} == set(tags["histograms"])
    logged = {tag for tag in tags["scalars"] if tag.startswith("per_option/share/")}
    assert logged == {f"per_option/share/{name}" for name in names}


def test_the_hparams_tab_puts_first_what_differs(tmp_path: Path) -> None:
    for gamma in (0.9, 0.99):
        env, folder = "CartPole-v1", str(tmp_path / str(gamma))
        DQN("MlpPolicy", env, gamma=gamma, tensorboard_log=folder).learn(5, callback=HyperparameterLog())
    contents = {}
    for run in tmp_path.glob("*/*"):
        metadata = EventAccumulator(str(run)).Reload().summary_metadata
        # An experiment would be that of one run alone
        assert "_hparams_/experiment" not in metadata
        contents[str(run)] = {tag: each.plugin_data.content for tag, each in metadata.items()}
    infos = Context(None)._compute_hparam_infos(contents)
    assert {info.name for info in infos if info.differs} == {"gamma"}
    assert {"learning_rate", "batch_size"} < {info.name for info in infos}


def test_maps_of_the_grid() -> None:
    env = make_vec_env("sb3_caps/GridTarget-v0")
    model = CAPS("MlpPolicy", env, source_policies=[push_left], seed=0)
    figures = option_maps(model, run_episode(model, make_vec_env("sb3_caps/GridTarget-v0", env_kwargs={"horizon": 5})))
    assert set(figures) == {"chosen_options", "termination_maps"}
    legend = figures["chosen_options"].axes[0].get_legend()
    counts = {text.get_text().split(" (")[0]: int(text.get_text()[:-1].split("(")[1]) for text in legend.get_texts()}
    assert counts.keys() == {"push_left", "primitive"}
    # Every free cell but the goal's
    grid_map, goal = env.get_attr("map")[0], env.get_attr("goal")[0]
    assert sum(counts.values()) == len(grid_map.start_cells(goal))
    assert figures["termination_maps"].axes[0].get_title() == "β of push_left"
    assert set(option_maps(CAPS("MlpPolicy", env), run_episode(model, env))) == {"chosen_options"}


def test_refuses_what_it_cannot_watch() -> None:
    with pytest.raises(ValueError, match=r"for CAPS, not DQN: see HyperparameterLog"):
        DQN("MlpPolicy", "CartPole-v1").learn(10, callback=OptionMonitor())
    with pytest.raises(ValueError, match=r"one evaluation environment, not 2"):
        OptionMonitor(make_vec_env("CartPole-v1", n_envs=2))
    with pytest.raises(ValueError, match=r"at least 1"):
        OptionMonitor(every=0)
