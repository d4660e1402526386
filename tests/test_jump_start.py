"""Jump-start: its curriculum, and what it shares with QDagger: trials of the sources and the choice of the guide."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecNormalize

from sb3_caps import JumpStart, QDagger
from sb3_caps.reuse.episodes import Behaviour, EpisodeResult
from sb3_caps.reuse.guided import Guided
from sb3_caps.reuse.selectors import LEARNED
from tests.hand_walk import LEFT, RIGHT, Walk, go_left, go_right
from tests.test_prql import SMALL, Actions, counts, means, prefer

ALGORITHMS = [JumpStart, QDagger]
NO_EXPLORATION: dict[str, Any] = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0}


def make(algorithm: type[Any] = JumpStart, n_envs: int = 1, **kwargs: Any) -> Any:
    env = make_vec_env(Walk, n_envs, env_kwargs=kwargs.pop("env_kwargs", None))
    kwargs = {"source_policies": [go_left, go_right], **SMALL, **kwargs}
    return algorithm("MlpPolicy", env, **kwargs)


def end(model: Any, behaviour: Behaviour, gain: float, length: int = 10) -> None:
    """Let an episode end with this return; the discounted one plays no role."""
    model.selector.running[behaviour] += 1
    model.selector.update(EpisodeResult(0, behaviour, discounted=np.nan, reward=gain, length=length))


def try_out(model: Any, arm: int, gain: float, length: int = 10) -> None:
    """Let a trial of a source, or of the random policy, end."""
    end(model, list(model.selector.evidence)[arm], gain, length)


def tried(model: Any, returns: list[float], length: int = 10) -> Any:
    """Let every source and the random policy have had their trials, with these returns."""
    for _ in range(model.trial_episodes):
        for arm, gain in enumerate(returns):
            try_out(model, arm, gain, length)
    return model


def finish(model: Any, *returns: float) -> None:
    """Let episodes at the present horizon end."""
    for gain in returns:
        end(model, model.selector.choose(), gain)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_source_and_a_random_policy_are_tried_alone_first(algorithm: type[Any]) -> None:
    model = make(algorithm, trial_episodes=2, learning_starts=0)
    prefer(model, LEFT)
    taken = Actions()
    model.learn(300, callback=taken)
    actions, ends = np.concatenate(taken.actions), np.flatnonzero(taken.dones)
    episodes = np.split(actions, ends + 1)
    # To the left until the time is over, to the right to the end, at random; and once more
    for first in (0, 3):
        assert episodes[first].tolist() == [LEFT] * 20
        assert episodes[first + 1].tolist() == [RIGHT] * 4
        assert set(episodes[first + 2]) == {LEFT, RIGHT}
    assert [behaviour.name for behaviour in model.selector.evidence] == ["go_left", "go_right", "random"]
    assert counts(model) == [2, 2, 2]
    # Not discounted: γ³ would be 0.97
    assert means(model)[:2] == [0.0, 1.0]
    if algorithm is JumpStart:
        assert [known.mean for known in model.selector.lengths.values()][:2] == [20.0, 4.0]
    assert model.selector.guide == Behaviour("go_right", is_source=True)
    assert model.selector.decide() == LEARNED


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_environments_that_start_together_try_different_arms(algorithm: type[Any]) -> None:
    model = make(algorithm, n_envs=7, train_freq=1)
    model.learn(7)
    candidates = list(model.selector.evidence)
    assert [model._tracker.behaviours.count(each) for each in candidates] == [3, 2, 2]
    # With that many under way the next one goes to what has two
    assert [model.selector.select(env) for env in range(2)] == candidates[1:]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_the_best_source_is_the_guide_whatever_the_size_of_rewards(algorithm: type[Any], scale: float) -> None:
    model = make(algorithm, trial_episodes=2)
    selector = model.selector
    try_out(model, 0, -30 * scale)
    try_out(model, 0, -10 * scale)
    try_out(model, 1, -12 * scale)
    try_out(model, 2, -50 * scale)
    try_out(model, 2, -60 * scale)
    assert selector.guide is None
    assert selector.advantage == 0
    try_out(model, 1, -14 * scale)
    # Means of -20 and -13; that of the random policy is -55
    assert selector.guide == selector.sources[1]
    assert selector.advantage == pytest.approx(42 * scale)
    assert selector.choose() in (Guided("go_right", True, math.inf), Guided("go_right", True, selector.horizon))
    # A trial that was under way still counts, but changes no choice
    try_out(model, 0, 1000 * scale)
    assert selector.guide == selector.sources[1]


def test_the_horizon_goes_down_from_the_length_of_the_guides_episodes() -> None:
    model = tried(make(curriculum_stages=4, average_episodes=1), [0.0, 1.0, 0.2], length=10)
    # 10 steps times 3/4, 2/4, 1/4 and 0, rounded up
    horizons = [model.selector.horizon]
    for _ in range(4):
        finish(model, 1.0)
        horizons.append(model.selector.horizon)
    assert horizons == [8, 5, 3, 0, 0]
    assert model.selector.stage == 4


def test_a_stage_that_changes_no_horizon_is_left_out() -> None:
    model = tried(make(curriculum_stages=10, average_episodes=1), [0.0, 1.0, 0.2], length=2)
    horizons = [model.selector.horizon]
    for _ in range(3):
        finish(model, 1.0)
        horizons.append(model.selector.horizon)
    assert horizons == [1, 0, 0, 0]


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1e-3, 5.0), (1e4, -1e5)])
def test_the_next_stage_comes_when_returns_are_within_the_tolerance_of_the_best(scale: float, shift: float) -> None:
    def returns(*values: float) -> list[float]:
        return [scale * value + shift for value in values]

    model = tried(make(curriculum_stages=5, average_episodes=2, tolerance=0.25), returns(3, 10, 2))
    # The guide has 10 and a random policy 2: down to 10 - 0.25 * 8 = 8 is within the tolerance
    assert model.selector.stage == 1
    finish(model, *returns(9, 6.9))
    assert model.selector.stage == 1
    # The mean of the latest two is 7.95, then 8.1
    finish(model, *returns(9))
    assert model.selector.stage == 1
    finish(model, *returns(7.2))
    assert model.selector.stage == 2
    # Nothing of the last stage is left: one episode is no mean of two
    finish(model, *returns(12))
    assert model.selector.stage == 2
    finish(model, *returns(16))
    assert model.selector.stage == 3
    # 14 is now the best: down to 14 - 0.25 * 12 = 11
    assert model.selector.best_return == pytest.approx(14 * scale + shift)
    finish(model, *returns(10.9, 10.9))
    assert model.selector.stage == 3
    finish(model, *returns(11.2))
    assert model.selector.stage == 4


def test_the_guide_acts_for_the_horizon_and_the_learned_policy_afterwards() -> None:
    task = {"length": 9, "horizon": 6}
    model = make(n_envs=2, learning_starts=0, gradient_steps=0, env_kwargs=task, **NO_EXPLORATION)
    tried(model, [0.0, 1.0, 0.2], length=5)
    prefer(model, LEFT)
    model.tolerance = 0.0
    model.selector.stage = 4
    taken = Actions()
    # No episode arrives in 6 steps, so that the horizon stays at 5 * 6/10 = 3
    model.learn(24, callback=taken, log_interval=None)
    right = np.array(taken.actions).reshape(2, 6, 2)
    assert model.selector.horizon == 3
    np.testing.assert_array_equal(right[..., 0], [[1, 1, 1, 0, 0, 0]] * 2)
    np.testing.assert_array_equal(right[..., 1], [[1, 1, 1, 0, 0, 0]] * 2)
    assert model._use.steps.tolist() == [0, 12, 12, 0]


def test_episodes_of_an_older_horizon_do_not_count() -> None:
    model = tried(make(average_episodes=2), [0.0, 1.0, 0.2])
    assert model.selector.choose() == Guided("go_right", is_source=True, steps=9)
    for steps, gain in ((9, 0.5), (10, 0.7), (9, 0.3)):
        end(model, Guided("go_right", is_source=True, steps=steps), gain)
    assert model.selector.recent.n == 2
    assert model.selector.recent_return == pytest.approx(0.4)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_guide_no_better_than_a_random_policy_does_not_act(algorithm: type[Any]) -> None:
    model = tried(make(algorithm, teacher_fraction=1.0) if algorithm is QDagger else make(), [-3.0, -2.0, -2.0])
    assert model.selector.guide == model.selector.sources[1]
    assert model.selector.horizon == 0
    assert model.selector.choose() == LEARNED
    model.learn(52, log_interval=None)
    assert model._use.steps[:2].tolist() == [0, 0]
    assert model._use.steps.sum() == 52


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("source_policies", [None, []])
def test_without_sources_it_is_dqn(algorithm: type[Any], n_envs: int, source_policies: Any) -> None:
    ours = make(algorithm, n_envs=n_envs, source_policies=source_policies).learn(600)
    theirs = DQN("MlpPolicy", make_vec_env(Walk, n_envs), **SMALL).learn(600)
    assert theirs._n_updates > 40
    for one, other in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        assert th.equal(one, other)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_returns_and_sources_know_nothing_of_vec_normalize(algorithm: type[Any]) -> None:
    seen = []

    def right(observations: np.ndarray) -> np.ndarray:
        seen.append(observations)
        return go_right(observations)

    env = VecNormalize(make_vec_env(Walk, 2))
    model = algorithm("MlpPolicy", env, source_policies=[go_left, right], learning_starts=10, **SMALL).learn(300)
    assert model.selector.guide.name == "right"
    assert means(model)[:2] == [0.0, 1.0]
    assert len(seen) > 100
    for observations in seen:
        np.testing.assert_allclose(np.sort(observations), [[0, 0, 0, 0, 1]] * len(observations), atol=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_seed_gives_the_same_run_and_saving_brings_it_back(algorithm: type[Any], tmp_path: Path) -> None:
    # A constant exploration rate: a linear one would know how long each call is
    kwargs: dict[str, Any] = {"exploration_initial_eps": 0.1, "exploration_final_eps": 0.1, "trial_episodes": 2}
    if algorithm is QDagger:
        kwargs["teacher_fraction"] = 0.0
    whole = make(algorithm, n_envs=2, **kwargs).learn(600)
    half = make(algorithm, n_envs=2, **kwargs).learn(200).learn(400, reset_num_timesteps=False)
    for one, other in zip(whole.policy.parameters(), half.policy.parameters(), strict=True):
        assert th.equal(one, other)

    whole.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model", env=make_vec_env(Walk, 3))
    for name in ("guide", "horizon", "advantage", "recent_return"):
        assert getattr(loaded.selector, name) == getattr(whole.selector, name)
    assert loaded.selector.guide == loaded.selector.sources[1]
    assert loaded.trial_episodes == 2
    assert loaded.selector.recent.latest == loaded.average_episodes
    observations = np.eye(5, dtype=np.float32)
    np.testing.assert_array_equal(
        loaded.predict(observations, deterministic=True)[0], whole.predict(observations, deterministic=True)[0]
    )
    tries = counts(loaded)
    loaded.learn(300, reset_num_timesteps=False)
    # The guide is known: no source is tried again
    assert counts(loaded) == tries
    with pytest.raises(ValueError, match="has 2 source policies"):
        algorithm.load(tmp_path / "model", env=make_vec_env(Walk, 1), source_policies=[go_left])


def test_saving_brings_back_the_curriculum(tmp_path: Path) -> None:
    model = tried(make(average_episodes=2), [0.0, 1.0, 0.2])
    finish(model, 1.0, 1.0, 0.5)
    model.save(tmp_path / "model")
    loaded = JumpStart.load(tmp_path / "model")
    selector = loaded.selector
    assert (selector.stage, selector.initial_horizon, selector.best_return) == (2, 10, 1.0)
    assert (selector.recent.n, selector.recent.mean) == (1, 0.5)


def test_over_how_many_episodes_the_learner_is_judged_may_change(tmp_path: Path) -> None:
    model = tried(make(average_episodes=2), [0.0, 1.0, 0.2])
    finish(model, 0.4)
    model.save(tmp_path / "model")
    loaded = JumpStart.load(tmp_path / "model", average_episodes=3)
    finish(loaded, 0.1, 0.2)
    assert loaded.selector.recent_return is None
    finish(loaded, 0.3)
    assert loaded.selector.recent_return == pytest.approx(0.2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_logs_tell_how_the_guide_is_used(algorithm: type[Any]) -> None:
    model = make(algorithm)
    logged: dict[str, Any] = {}

    class Recorder(Logger):
        def dump(self, step: int = 0) -> None:
            logged.update(self.name_to_value)
            super().dump(step)

    model.set_logger(Recorder(None, []))
    model.learn(600)
    assert logged["reuse/guide"] == "go_right"
    assert logged["reuse/gain/go_right"] == 1.0
    assert logged["reuse/episodes/random"] == 3
    assert "reuse/recent_return" in logged
    only = {JumpStart: {"horizon", "stage", "best_return"}, QDagger: {"distillation_weight"}}
    for kind, names in only.items():
        assert all((f"reuse/{name}" in logged) == (kind is algorithm) for name in names)
    assert ("train/distillation_loss" in logged) == (algorithm is QDagger)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trial_episodes": 0}, "trial_episodes must be a whole number of at least 1, not 0"),
        ({"trial_episodes": True}, "trial_episodes must be a whole number of at least 1, not True"),
        ({"trial_episodes": 2.5}, "trial_episodes must be a whole number of at least 1, not 2.5"),
        ({"average_episodes": float("nan")}, "average_episodes must be a number, not nan"),
        ({"source_policies": "go_left"}, "must be a list of source policies"),
    ],
)
def test_bad_arguments_are_refused(algorithm: type[Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(algorithm, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"curriculum_stages": 0}, "curriculum_stages must be a whole number of at least 1, not 0"),
        ({"tolerance": -0.1}, "tolerance must be a number from 0 to 1, not -0.1"),
        ({"tolerance": float("nan")}, "tolerance must be a number, not nan"),
    ],
)
def test_bad_arguments_of_jump_start_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(JumpStart, **arguments)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", ["reuse_probability", "reuse_decay", "no_such_argument"])
def test_what_would_be_ignored_is_refused(algorithm: type[Any], name: str) -> None:
    with pytest.raises(TypeError, match=name):
        make(algorithm, n_envs=1, **{name: 0.5})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_good_source_speeds_learning_up(algorithm: type[Any]) -> None:
    kwargs: dict[str, Any] = {
        **SMALL,
        # Nothing is learned from the trials: they are forgotten when learning starts
        "buffer_size": 400,
        "learning_starts": 500,
        "learning_rate": 3e-3,
        "train_freq": 1,
        "target_update_interval": 40,
        "gamma": 0.9,
        "exploration_initial_eps": 0.1,
        "exploration_final_eps": 0.1,
    }
    # The way to the end takes nearly all of the steps, which neither ε-greedy steps nor random ones find
    env = make_vec_env(Walk, 4, env_kwargs={"length": 13, "horizon": 14})
    guided: dict[str, Any] = {"source_policies": [go_left, go_right], "trial_episodes": 1}
    if algorithm is QDagger:
        guided["teacher_fraction"] = 0.3
    models = [DQN("MlpPolicy", env, **kwargs), algorithm("MlpPolicy", env, **guided, **kwargs)]
    arrivals, right = [], []
    for model in models:
        prefer(model, LEFT)
        model.learn(2500)
        arrivals.append(np.mean([episode["r"] for episode in model.ep_info_buffer]))
        right.append(model.predict(np.eye(13, dtype=np.float32)[:12], deterministic=True)[0].mean())
    assert arrivals[0] < 0.1
    # The learned policy acts alone by now, at random in one step of ten
    assert set(models[1]._tracker.behaviours) <= {LEARNED, None}
    assert arrivals[1] > 0.3
    assert right[1] == 1.0
