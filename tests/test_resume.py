"""Runs that stop and go on, with other arguments, other sources and other environments."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps import CAPS
from sb3_caps.caps.gate import BEST, OPTIONS
from sb3_caps.caps.selection import CAPSSelector
from sb3_caps.reuse.evidence import Evidence
from tests.hand_walk import LEFT, RIGHT, Walk, go_left, go_right

CELLS = np.eye(5, dtype=np.float32)


class Payments(gym.Env[np.ndarray, np.int64]):
    """
    Every step pays 1, whatever is done.

    :param length: of an episode, which ends by itself
    """

    action_space: spaces.Space

    def __init__(self, length: float) -> None:
        self.length = length
        self.observation_space, self.action_space = spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        return np.zeros(1, dtype=np.float32), 1.0, self.steps >= self.length, False, {}


SMALL: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "learning_starts": 20, "device": "cpu"}


def caps(env: gym.Env | VecEnv, **kwargs: Any) -> CAPS:
    arguments: dict[str, Any] = {"source_policies": [go_left, go_right], "train_freq": 10, "seed": 0}
    return CAPS("MlpPolicy", env, **(SMALL | arguments | kwargs))


def selector(model: CAPS) -> CAPSSelector:
    assert isinstance(model.selector, CAPSSelector)
    return model.selector


def interrupted(model: CAPS, after: int) -> None:
    """Press Ctrl-C in a run."""

    def stop(found: dict[str, Any], _: dict[str, Any]) -> bool:
        if found["self"].num_timesteps >= after:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        model.learn(100_000, callback=ConvertCallback(stop))


def stopped(model: CAPS, after: int) -> None:
    """Stop a long run by a callback."""
    model.learn(100_000, callback=ConvertCallback(lambda found, _: found["self"].num_timesteps < after))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("stop", [stopped, interrupted])
@pytest.mark.parametrize("reloaded", [False, True])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Walk"])
def test_a_long_run_that_stopped_and_a_shorter_one(
    env_id: str, reloaded: bool, stop: Callable[[CAPS, int], None], seed: int, tmp_path: Path
) -> None:
    env = make_vec_env(env_id if env_id != "Walk" else Walk, n_envs=2, seed=seed)
    model = caps(env, seed=seed)
    stop(model, 600)
    if reloaded:
        model.save(tmp_path / "model")
        model = CAPS.load(tmp_path / "model", env=env)
    for steps in (400, 3, 400):
        model.learn(steps)
        chooser, controller = selector(model), model.gate.controller
        # Somebody who was seen acting, and by networks that were kept
        assert chooser.of(controller).n > 0 or controller == OPTIONS
        assert controller != BEST or chooser.kept
        assert controller == chooser.decide()
        assert model.predict(env.reset(), deterministic=True)[0].shape == (2,)  # type: ignore[arg-type]
    assert len(chooser.under_way) == 2


class Interrupted:
    """A source that walks to the right and back, where somebody presses Ctrl-C once."""

    def __init__(self, after: int) -> None:
        self.calls, self.after = 0, after

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        self.calls += 1
        if self.calls == self.after:
            raise KeyboardInterrupt
        return (observations.argmax(axis=1) < 2).astype(np.int64)


@pytest.mark.parametrize("after", [30, 31, 32])
def test_after_an_interruption_in_a_source_what_sources_do_fits_the_observations(after: int) -> None:
    model = caps(make_vec_env(Walk, n_envs=2, seed=0), source_policies=[Interrupted(after)], buffer_size=1000)
    with pytest.raises(KeyboardInterrupt):
        model.learn(400)
    for _ in range(2):
        model.learn(100, reset_num_timesteps=False)
    buffer, size = model.replay_buffer, model.replay_buffer.size()
    places = np.asarray(buffer.observations)[:size].argmax(axis=-1)
    np.testing.assert_array_equal(buffer.option_actions[:size, :, 0], places < 2)
    np.testing.assert_array_equal(
        buffer.actions[:size][buffer.options[:size] == 0], (places < 2)[buffer.options[:size] == 0]
    )


def always(model: CAPS, action: int) -> None:
    """Let the values of options prefer one action everywhere, whatever they prefer in other networks."""
    for network in (model.q_net, model.policy.acting_net):
        last = network.q_net[-1]
        assert isinstance(last, th.nn.Linear)
        with th.no_grad():
            last.weight.zero_()
            last.bias.zero_()
            last.bias[-2 + action] = 100.0


def made_safe(model: CAPS, safe: bool, how: str, folder: Path) -> CAPS:
    """The same model, with safety or without from now on."""
    if how == "attribute":
        model.safe = safe
        return model
    model.save(folder / "model")
    return CAPS.load(folder / "model", env=model.get_env(), safe=safe)


@pytest.mark.parametrize("how", ["load", "attribute"])
def test_what_was_safe_and_is_no_more_acts_by_the_values_of_its_options(how: str, tmp_path: Path) -> None:
    model = caps(make_vec_env(Walk, n_envs=2, seed=0)).learn(1000)
    assert model.gate.controller != OPTIONS, "a source, or networks that were kept"
    model = made_safe(model, False, how, tmp_path)
    model.learn(200, reset_num_timesteps=False)
    assert (model.gate.controller, model.gate.disabled) == (OPTIONS, set())
    for action in (LEFT, RIGHT):
        always(model, action)
        assert model.predict(CELLS, deterministic=True)[0].tolist() == [action] * 5


@pytest.mark.parametrize("how", ["load", "attribute"])
def test_what_was_not_safe_and_is_now_acts_by_what_is_worth_most(how: str, tmp_path: Path) -> None:
    model = caps(make_vec_env(Walk, n_envs=2, seed=0), safe=False).learn(200)
    model = made_safe(model, True, how, tmp_path)
    model.learn(1500, reset_num_timesteps=False)
    chooser = selector(model)
    assert chooser.of(model.gate.controller).n > 0
    assert model.gate.controller == chooser.decide()
    assert model.predict(CELLS[:1], deterministic=True)[0].tolist() == [RIGHT]


@pytest.mark.parametrize("again", ["learn", "load", "set_env"])
@pytest.mark.parametrize("gamma", [1.0, 0.99])
def test_restarts_do_not_raise_the_unit_of_returns(gamma: float, again: str, tmp_path: Path) -> None:
    """Episodes of 100 steps that pay 1 each, begun anew after every 90."""
    model = caps(Payments(100), gamma=gamma, gradient_steps=0)
    for _ in range(6):
        model.learn(90, reset_num_timesteps=again == "learn")
        if again == "set_env":
            model.set_env(Payments(100))
        if again == "load":
            model.save(tmp_path / "model")
            model = CAPS.load(tmp_path / "model", env=Payments(100))
    assert model._scale.value == pytest.approx(90 if gamma == 1 else (1 - 0.99**90) / 0.01)
    # What goes on without a reset is one episode
    model.learn(50)
    model.learn(50, reset_num_timesteps=False)
    assert model._scale.value == pytest.approx(100 if gamma == 1 else (1 - 0.99**100) / 0.01)


def test_what_was_paid_before_normalisation_was_switched_off_belongs_to_no_episode_after() -> None:
    model = caps(Payments(100), gamma=1.0, gradient_steps=0).learn(50)
    for steps, normalize_returns in ((140, False), (60, True)):
        model.normalize_returns = normalize_returns
        model.learn(steps, reset_num_timesteps=False)
    assert model._scale.value <= 100


@pytest.mark.parametrize("reset", [False, True])
def test_episodes_before_and_after_a_stop_are_not_merged(reset: bool) -> None:
    """Stopping on the last step of an episode, and in the middle of one."""
    model = caps(Payments(10), source_policies=[lambda observations: np.zeros(len(observations), dtype=int)])
    for steps in (10, 20, 5, 25, 10, 30):
        model.learn(steps, reset_num_timesteps=reset)
    known = selector(model).rewards
    # Of what learns, older episodes count for less
    assert sum(each.n for each in known.values()) >= 4
    assert [each.mean for each in known.values()] == pytest.approx([10.0] * len(known))
    assert [each.std for each in known.values()] == pytest.approx([0.0] * len(known), abs=1e-6)


def test_nobody_acts_for_ever() -> None:
    """Episodes that never end are judged by stretches of ten horizons: 100 steps at γ = 0.9."""
    model = caps(Payments(np.inf), gamma=0.9).learn(6000)
    known = selector(model).rewards
    assert {each.mean for each in known.values()} == {100.0}
    assert {"go_left", "go_right", "random"} < known.keys()
    assert sum(each.n for each in selector(model).evidence.values() if each.latest is None) < 60


def test_other_sources_are_not_judged_by_those_that_were_in_their_place(tmp_path: Path) -> None:
    env = make_vec_env(Walk, n_envs=2, seed=0)
    arguments: dict[str, Any] = {"learning_rate": 1e-12, "selection_kwargs": {"actor": False}}
    model = caps(env, normalize_returns=False, **arguments)
    always(model, LEFT)
    model.learn(1500)
    assert model.gate.controller.name == "go_right"
    model.gate.disabled = {"go_left"}
    model.save(tmp_path / "model")

    def back(observations: np.ndarray) -> np.ndarray:
        return go_left(observations)

    def forth(observations: np.ndarray) -> np.ndarray:
        return go_right(observations)

    loaded = CAPS.load(tmp_path / "model", env=env, source_policies=[forth, back])
    assert not loaded.gate.controller.is_source
    assert loaded.gate.disabled == set()
    for known in (selector(loaded).evidence, selector(loaded).rewards):
        assert all(known[name].n == 0 for name in ("go_left", "go_right", "forth", "back") if name in known)
    # In the place of the best one stands a bad one now
    assert loaded.predict(CELLS, deterministic=True)[0].tolist() == [LEFT] * 5
    loaded.learn(1500)
    assert loaded.gate.controller.name == "forth"
    # What comes back under its name, in another place, is known
    again = CAPS.load(tmp_path / "model", env=env, source_policies=[go_right, forth])
    assert again.gate.controller.name == "go_right"
    assert selector(again).rewards["go_right"].mean == 1.0
    assert again.predict(CELLS, deterministic=True)[0].tolist() == [RIGHT] * 5


@pytest.mark.parametrize("loaded", [False, True])
def test_gamma_may_change_between_runs(loaded: bool, tmp_path: Path) -> None:
    env = make_vec_env(Walk, n_envs=2, seed=0)
    model = caps(env).learn(1000)
    if loaded:
        model.save(tmp_path / "model")
        model = CAPS.load(tmp_path / "model", env=env, gamma=0.5)
    else:
        model.gamma = 0.5
    steps = model._use.steps.sum()
    model.learn(600, reset_num_timesteps=False)
    assert model._scale.gamma == 0.5
    # Four steps that pay 1 in the end are worth 0.95³ now, and 0.999³ before: that is not compared
    known = selector(model).evidence["go_right"]
    assert known.n > 0
    assert known.mean == pytest.approx(0.95**3)
    # How often options were used is as true as it was
    assert model._use.steps.sum() == steps + 600


def test_gamma_may_change_while_a_run_goes_on() -> None:
    """As a callback that schedules it does."""
    model = caps(make_vec_env(Walk, n_envs=2, seed=0))

    def change(found: dict[str, Any], _: dict[str, Any]) -> bool:
        found["self"].gamma = 0.5 + 0.4 * found["self"]._current_progress_remaining
        return True

    model.learn(600, callback=ConvertCallback(change))
    assert model.num_timesteps == 600


def sizes(model: CAPS) -> dict[str, int]:
    """The bytes of everything that a run keeps, beside networks and replay."""
    names = ("selector", "gate", "_tracker", "_stretches", "_scale", "_use", "_last_options", "_last_option_actions")
    return {name: len(pickle.dumps(vars(model)[name])) for name in names}


def calls(run: Callable[[], Any]) -> int:
    """How many functions of ours are called."""
    found = 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal found
        found += event == "call" and "sb3_caps" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def test_an_episode_costs_the_same_however_long_the_run_is() -> None:
    model = caps(Payments(1), gradient_steps=0, selection_kwargs={"actor": False})
    model.learn(1000)
    # A longer run that goes on: the survey is over
    before, first = sizes(model), calls(lambda: model.learn(1000, reset_num_timesteps=False))
    model.learn(6000, reset_num_timesteps=False)
    after, last = sizes(model), calls(lambda: model.learn(1000, reset_num_timesteps=False))
    assert last == pytest.approx(first, rel=0.1)
    for name, size in before.items():
        # Numbers have more digits
        assert after[name] <= size + 64, name


def test_evidence_of_a_run_holds_no_list_that_grows() -> None:
    model = caps(Payments(1), gradient_steps=0).learn(3000)
    known = [each for part in (selector(model).evidence, selector(model).rewards) for each in part.values()]
    assert max(each.n for each in known) > 20
    for each in known:
        assert isinstance(each, Evidence)
        assert all(len(value) <= 10 for value in vars(each).values() if hasattr(value, "__len__"))
