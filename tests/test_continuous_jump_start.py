"""ContinuousJumpStart: sources are tried, the best one begins episodes, and its part gets shorter."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env

from sb3_caps.jump_start import ContinuousJumpStart
from sb3_caps.reuse.guided import Guided
from tests.toy_box import STEPS, ToyBox, away, home


def make(env: Any = None, **arguments: Any) -> ContinuousJumpStart:
    given: dict[str, Any] = {"learning_starts": 20, "policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu"}
    sources = {"away": away, "home": home}
    return ContinuousJumpStart("MlpPolicy", env or ToyBox(), source_policies=sources, **{**given, **arguments})


def test_the_best_source_begins_and_its_part_gets_shorter() -> None:
    model = make(tolerance=1.0)
    # Three episodes of each source and of random actions
    model.learn(9 * STEPS)
    assert model.selector.guide is not None
    assert model.selector.guide.name == "home"
    assert model.selector.stage == 1
    model.learn(3 * STEPS, reset_num_timesteps=False)
    begun = model._tracker.behaviours[0]
    assert isinstance(begun, Guided)
    assert begun.steps < STEPS
    actions = model.replay_buffer.actions[: model.replay_buffer.pos, 0]
    answers = model.replay_buffer.answers.before[: model.replay_buffer.pos, 0, 1]
    followed = (actions == answers).all(axis=1)[9 * STEPS : 10 * STEPS]
    # The guide first, and the actor afterwards
    assert followed.tolist() == [True] * 9 + [False]
    model.learn(60 * STEPS, reset_num_timesteps=False)
    assert model.selector.horizon == 0


def test_it_saves_loads_and_goes_on(tmp_path: Path) -> None:
    model = make(env=make_vec_env(ToyBox, n_envs=2)).learn(200)
    model.save(tmp_path / "model")
    loaded = ContinuousJumpStart.load(tmp_path / "model", env=make_vec_env(ToyBox, n_envs=2), device="cpu")
    assert loaded.selector.guide == model.selector.guide
    observations = np.zeros((3, 2), dtype=np.float32)
    expected, _ = model.predict(observations, deterministic=True)
    assert loaded.predict(observations, deterministic=True)[0] == pytest.approx(expected)
    loaded.learn(40, reset_num_timesteps=False)
    assert loaded.num_timesteps == 240


def test_without_sources_it_is_sac() -> None:
    small: dict[str, Any] = {"learning_starts": 10, "policy_kwargs": {"net_arch": [8]}, "device": "cpu"}
    model = ContinuousJumpStart("MlpPolicy", ToyBox(), **small).learn(40)
    assert model.predict(np.zeros(2, dtype=np.float32))[0].shape == (2,)


@pytest.mark.parametrize("bad", [{"trial_episodes": 0}, {"curriculum_stages": 1.5}, {"tolerance": 2.0}])
def test_bad_arguments_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        make(**bad)
