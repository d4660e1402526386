"""ContinuousCAPS stopped and gone on with: other arguments, the ends of episodes, episodes without end, Ctrl-C."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env

from sb3_caps import ContinuousCAPS
from sb3_caps.caps.gate import OPTIONS
from sb3_caps.continuous.buffers import SourceReplayBufferSamples
from tests.hand_walk import Stroll, stroll_left, stroll_right
from tests.test_resume import CELLS, Payments


class BoxPayments(Payments):
    """The same for any number: every step pays 1."""

    def __init__(self, length: float) -> None:
        super().__init__(length)
        self.action_space = spaces.Box(-1.0, 1.0, (1,))


def make(env: Any = None, algorithm: type[ContinuousCAPS] = ContinuousCAPS, **kwargs: Any) -> ContinuousCAPS:
    arguments: dict[str, Any] = {"source_policies": [stroll_left, stroll_right], "train_freq": 10, "seed": 0}
    arguments |= {"policy_kwargs": {"net_arch": [8]}, "learning_starts": 20, "device": "cpu"}
    return algorithm("MlpPolicy", env or make_vec_env(Stroll, n_envs=2, seed=0), **(arguments | kwargs))


def changed(model: ContinuousCAPS, how: str, folder: Path, **arguments: Any) -> ContinuousCAPS:
    """The same model, with other arguments from now on."""
    if how == "attribute":
        vars(model).update(arguments)
        return model
    model.save(folder / "model")
    return ContinuousCAPS.load(folder / "model", env=model.get_env(), **arguments)


@pytest.mark.parametrize("how", ["load", "attribute"])
def test_what_was_safe_and_is_no_more_acts_by_the_critic(how: str, tmp_path: Path) -> None:
    model = make(gradient_steps=0).learn(300)
    assert model.gate.controller.name == "stroll_right"
    model = changed(model, how, tmp_path, safe=False)
    if how == "attribute":
        # Not a single episode ends in it
        model.learn(2, reset_num_timesteps=False)
    assert model.gate.controller == OPTIONS
    model = changed(model, how, tmp_path, safe=True)
    if how == "attribute":
        model.learn(2, reset_num_timesteps=False)
    assert model.gate.controller.name == "stroll_right"
    assert (model.predict(CELLS, deterministic=True)[0] == 1.0).all()


@pytest.mark.parametrize("how", ["load", "attribute"])
def test_another_discount_is_compared_with_nothing_of_before(how: str, tmp_path: Path) -> None:
    model = make(gradient_steps=0).learn(300)
    model = changed(model, how, tmp_path, gamma=0.5)
    model.learn(300, reset_num_timesteps=False)
    known = model.selector.evidence["stroll_right"]
    assert known.n > 0
    # Four steps that pay 1 in the end
    assert known.mean == pytest.approx(0.95**3)


def test_nobody_acts_for_ever() -> None:
    model = make(BoxPayments(np.inf), gamma=0.9, gradient_steps=0).learn(3000)
    known = model.selector.rewards
    assert {each.mean for each in known.values()} == {100.0}
    assert {"stroll_left", "stroll_right", "random", "options"} <= known.keys()


@pytest.mark.parametrize("reset", [False, True])
def test_episodes_before_and_after_a_stop_are_not_merged(reset: bool) -> None:
    model = make(BoxPayments(10), gradient_steps=0)
    for steps in (10, 20, 5, 25, 10, 30):
        model.learn(steps, reset_num_timesteps=reset)
    known = model.selector.rewards
    # Those of what learns count for less and less
    assert sum(each.n for each in known.values()) >= 3
    assert {each.mean for each in known.values()} == {10.0}


class InterruptedStart(ContinuousCAPS):
    """Where somebody presses Ctrl-C in the gradient steps that the survey put off."""

    pressed = False

    def _train_step(self, data: SourceReplayBufferSamples) -> dict[str, float]:
        found = super()._train_step(data)
        if not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        return found


@pytest.mark.parametrize("loaded", [False, True])
def test_a_start_that_was_interrupted_is_made_later(loaded: bool, tmp_path: Path) -> None:
    # Too short for random actions to arrive
    env = make_vec_env(lambda: Stroll(horizon=5), n_envs=2, seed=0)
    model = make(env, InterruptedStart, train_freq=1, learning_starts=2, buffer_size=1000)
    with pytest.raises(KeyboardInterrupt):
        model.learn(500)
    assert not model.selector.surveying
    owed, buffer = model._owed_steps, model.replay_buffer
    assert owed > 0
    assert model._n_updates == 0
    if loaded:
        model.save(tmp_path / "model")
        model = InterruptedStart.load(tmp_path / "model", env=model.get_env())
        model.replay_buffer, model.pressed = buffer, True
    model.learn(20, reset_num_timesteps=False)
    assert (model._owed_steps, model._is_starting, model._is_cloned) == (0, False, True)
    assert model._n_updates > owed
    # The actor is what the best source is
    model.gate.controller = OPTIONS
    assert (model.actor.predict(CELLS[:4], deterministic=True)[0] > 0).all()
    # Rows that follow each other are one walk
    size = buffer.size()
    places, following = (each[:size].argmax(axis=-1) for each in (buffer.observations, buffer.next_observations))
    assert ((following[:-1] == places[1:]) | (places[1:] == 0)).all()
