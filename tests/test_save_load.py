"""Saving and loading: training goes on as if nothing had happened, and nothing is lost on the way."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule, set_random_seed
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps import CAPS, PRQL, PiecewiseLinear, as_source
from sb3_caps.caps.gate import BUILT_IN, Gate
from sb3_caps.caps.selection import CAPSSelector
from sb3_caps.reuse.episodes import Behaviour
from tests.paper import paper
from tests.toy_world import LENGTH, Corridor, go_left, go_right, right_then_stay

SOURCES = [go_right, right_then_stay]


def corridors(n_envs: int = 2) -> VecEnv:
    return make_vec_env(Corridor, n_envs=n_envs, seed=0)


def same_parameters(first: CAPS, second: CAPS) -> bool:
    ours, theirs = first.policy.state_dict(), second.policy.state_dict()
    return ours.keys() == theirs.keys() and all(th.equal(ours[key], theirs[key]) for key in ours)


def known(model: CAPS) -> dict[str, tuple[float, float, float]]:
    """What the episodes of each behaviour came to."""
    assert isinstance(model.selector, CAPSSelector)
    return {name: (each.n, each.mean, each.std) for name, each in model.selector.evidence.items()}


def test_load_brings_everything_back(tmp_path: Path) -> None:
    source = DQN("MlpPolicy", Corridor(), seed=5)
    model = CAPS(
        "MlpPolicy",
        corridors(),
        learning_rate=PiecewiseLinear([(0, 1e-3), (500, 1e-4)]),
        source_policies=[*SOURCES, source],
        exploration_schedule=PiecewiseLinear([(0, 1.0), (200, 0.1)]),
        learning_starts=50,
        sequence_length=4,
        termination_kwargs={
            "learning_rate": 0.01,
            "regularization": 0.03,
            "target": LinearSchedule(0.1, 0.3, 1.0),
        },
        exploration="terminations",
        policy_kwargs={"averaging": 0.05},
        seed=0,
    )
    model.learn(400)
    model.save(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model", env=corridors())
    assert loaded.options.names == model.options.names
    assert same_parameters(model, loaded)
    state, loaded_state = model.policy.optimizer.state_dict(), loaded.policy.optimizer.state_dict()
    assert state["param_groups"] == loaded_state["param_groups"]
    assert all(th.equal(state["state"][0][key], loaded_state["state"][0][key]) for key in ("exp_avg", "exp_avg_sq"))
    assert loaded.policy.termination_optimizer.param_groups[0]["lr"] == 0.01
    assert loaded.exploration_rate == pytest.approx(0.1)
    assert (loaded.policy.execution_mode, loaded.policy.margin) == ("interrupting", 0.03)
    assert loaded.policy.execution == model.policy.execution
    assert loaded._scheduled_value("target_termination") == pytest.approx(0.3)
    for attribute in ("sequence_length", "num_timesteps", "exploration", "policy_kwargs", "_n_updates", "gate"):
        assert getattr(loaded, attribute) == getattr(model, attribute)
    assert loaded._scale.value == model._scale.value == 1.0
    assert known(loaded) == known(model)
    assert {"go_right", "right_then_stay", "dqn", "random"} <= known(model).keys()
    assert str(loaded.reuse_summary()) == str(model.reuse_summary())
    observations = np.eye(LENGTH, dtype=np.float32)
    np.testing.assert_array_equal(
        loaded.predict(observations, deterministic=True)[0], model.predict(observations, deterministic=True)[0]
    )
    loaded.learn(104, reset_num_timesteps=False)
    assert loaded.num_timesteps == 504
    assert loaded.lr_schedule(loaded._current_progress_remaining) == pytest.approx(1e-4)


@pytest.mark.parametrize("settings", [{}, paper()])
def test_resumed_training_equals_uninterrupted_training(settings: dict[str, Any], tmp_path: Path) -> None:
    """The same environments, the buffer saved beside the model: the same run, whatever others draw in the meantime."""

    def second_half(model: CAPS, seed: int) -> CAPS:
        set_random_seed(seed)
        return model.learn(200, reset_num_timesteps=False)

    def first_half(env: VecEnv) -> CAPS:
        return CAPS("MlpPolicy", env, source_policies=SOURCES, seed=1, learning_starts=50, **settings).learn(304)

    whole = second_half(first_half(corridors()), seed=7)
    env = corridors()
    half = first_half(env)
    half.save(tmp_path / "half")
    half.save_replay_buffer(tmp_path / "buffer")
    resumed = CAPS.load(tmp_path / "half", env=env, force_reset=False)
    resumed.load_replay_buffer(tmp_path / "buffer")
    second_half(resumed, seed=8)
    assert resumed.num_timesteps == whole.num_timesteps == 504
    assert same_parameters(resumed, whole)
    np.testing.assert_array_equal(resumed.replay_buffer.options, whole.replay_buffer.options)


def test_replay_buffer_keeps_options_and_agreements(tmp_path: Path) -> None:
    model = CAPS("MlpPolicy", corridors(), source_policies=SOURCES, seed=1).learn(304)
    model.save_replay_buffer(tmp_path / "buffer")
    other = CAPS("MlpPolicy", corridors(), source_policies=SOURCES, seed=2)
    other.load_replay_buffer(tmp_path / "buffer")
    assert other.replay_buffer.size() == 152
    np.testing.assert_array_equal(other.replay_buffer.priorities.values, model.replay_buffer.priorities.values)
    for name in ("option_actions", "next_option_actions"):
        np.testing.assert_array_equal(getattr(other.replay_buffer, name), getattr(model.replay_buffer, name))
    for name in ("options", "agreements", "actions", "rewards", "dones", "timeouts"):
        np.testing.assert_array_equal(getattr(other.replay_buffer, name), getattr(model.replay_buffer, name))


def test_parameters_round_trip() -> None:
    first = CAPS("MlpPolicy", Corridor(), source_policies=SOURCES, seed=1, learning_starts=10).learn(200)
    second = CAPS("MlpPolicy", Corridor(), source_policies=SOURCES, seed=2)
    assert not same_parameters(first, second)
    second.set_parameters(first.get_parameters())  # type: ignore[arg-type]
    assert same_parameters(first, second)


def test_sources_of_a_loaded_model_are_matched_by_name(tmp_path: Path) -> None:
    model = CAPS("MlpPolicy", Corridor(), source_policies=SOURCES, seed=1).learn(150)
    model.save(tmp_path / "model")
    names = model.options.source_names
    others = {name: as_source(go_left) for name in names}
    loaded = CAPS.load(tmp_path / "model", env=Corridor(), source_policies=others)
    assert loaded.options.source_names == names
    assert same_parameters(model, loaded)
    loaded.learn(48)
    assert CAPS.load(tmp_path / "model", env=Corridor(), source_policies=[go_left]).options.n_sources == 1
    # The relatives have no numbers for each source, but their selectors have
    PRQL("MlpPolicy", Corridor(), source_policies=SOURCES, seed=1).save(tmp_path / "prql")
    with pytest.raises(ValueError, match=r"has 2 source policies.*but 1 were passed.*go_left"):
        PRQL.load(tmp_path / "prql", env=Corridor(), source_policies=[go_left])


def test_arguments_of_load_take_the_place_of_saved_ones(tmp_path: Path) -> None:
    CAPS("MlpPolicy", Corridor(), exploration_schedule=PiecewiseLinear([(0, 1.0), (50, 0.5)])).save(tmp_path / "model")
    loaded = CAPS.load(
        tmp_path / "model", env=Corridor(), exploration_schedule=PiecewiseLinear([(0, 0.4), (100, 0.2)]), tau=0.5
    )
    loaded.learn(100)
    assert loaded.exploration_rate == pytest.approx(0.2)
    assert loaded.tau == 0.5


@pytest.mark.parametrize("controller", ["go_right", *(each.name for each in BUILT_IN)])
@pytest.mark.parametrize("kind", ["box", "discrete", "dict", "image"])
def test_random_parameters_make_the_same_actions_after_loading(kind: str, controller: str, tmp_path: Path) -> None:
    """As SB3 tests its algorithms: every tensor of the state dict may be any numbers."""
    policy = {"dict": "MultiInputPolicy", "image": "CnnPolicy"}.get(kind, "MlpPolicy")
    arguments: dict[str, Any] = {"policy_kwargs": {"net_arch": [16]}, "buffer_size": 50, "seed": 0}
    model = CAPS(policy, Corridor(kind), source_policies=SOURCES, **arguments)
    model.gate.controller, model.gate.disabled = Behaviour(controller, controller == "go_right"), {"right_then_stay"}
    given = model.policy.state_dict()
    assert all(value.is_floating_point() for value in given.values())
    th.manual_seed(0)
    random = {name: th.rand_like(value) for name, value in given.items()}
    model.policy.load_state_dict(random)
    assert all(th.equal(value, random[name]) for name, value in model.policy.state_dict().items())

    space = model.observation_space
    space.seed(0)
    samples = [space.sample() for _ in range(20)]
    batch: Any = {key: np.stack([each[key] for each in samples]) for key in samples[0]} if kind == "dict" else samples
    observations = batch if kind == "dict" else np.stack(batch)
    expected, _ = model.predict(observations, deterministic=True)
    model.save(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model", env=Corridor(kind))
    assert same_parameters(model, loaded)
    assert loaded.gate == Gate(Behaviour(controller, controller == "go_right"), {"right_then_stay"})
    assert loaded.policy.gate is loaded.gate
    np.testing.assert_array_equal(loaded.predict(observations, deterministic=True)[0], expected)


def test_load_without_environment_predicts(tmp_path: Path) -> None:
    CAPS("CnnPolicy", Corridor("image"), source_policies=SOURCES, seed=1, buffer_size=50).save(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model")
    observation, _ = Corridor("image").reset(seed=0)
    action, _ = loaded.predict(observation, deterministic=True)
    assert int(action) in range(3)


class Unpicklable:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, observations: Any) -> np.ndarray:
        return go_right(observations)


def test_a_source_that_cannot_be_saved_is_named_and_costs_nothing(tmp_path: Path) -> None:
    saved = CAPS("MlpPolicy", Corridor(), source_policies=[go_right], seed=1)
    saved.save(tmp_path / "model")
    before = (tmp_path / "model.zip").read_bytes()
    model = CAPS("MlpPolicy", Corridor(), source_policies=[go_right, Unpicklable()], seed=1).learn(20)
    for name in ("model", "new"):
        with pytest.raises(ValueError, match=r"'Unpicklable' cannot be pickled.*import string.*exclude=\['options'\]"):
            model.save(tmp_path / name)
    assert (tmp_path / "model.zip").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.zip"]
    # The way out that the message names
    model.save(tmp_path / "new", exclude=["options"])
    with pytest.raises(ValueError, match=r"\['go_right', 'Unpicklable'\] were not saved"):
        CAPS.load(tmp_path / "new")
    loaded = CAPS.load(tmp_path / "new", source_policies=[go_right, Unpicklable()])
    assert same_parameters(model, loaded)


def test_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    model = CAPS("MlpPolicy", Corridor(), seed=1)
    model.save(tmp_path / "model")
    before = (tmp_path / "model.zip").read_bytes()
    model.note = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        model.save(tmp_path / "model")
    assert (tmp_path / "model.zip").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("saved", "wanted"), [(None, 0.2), (0.2, None), (0.2, 0.1)])
def test_averaging_may_change_when_loading(saved: float | None, wanted: float | None, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"learning_starts": 20, "policy_kwargs": {"averaging": saved}, "seed": 0}
    CAPS("MlpPolicy", corridors(), **arguments).learn(100).save(tmp_path / "model")
    # SB3 refuses other `policy_kwargs` among the arguments
    changed = {"policy_kwargs": {"averaging": wanted}}
    model = CAPS.load(tmp_path / "model", env=corridors(), custom_objects=changed)
    assert (model.policy.q_net_average is None) == (wanted is None)
    if saved is None:
        # The average starts as the network
        assert model.policy.q_net_average is not None
        for ours, theirs in zip(model.q_net.parameters(), model.policy.q_net_average.parameters(), strict=True):
            assert th.equal(ours, theirs)
    model.learn(50, reset_num_timesteps=False)
