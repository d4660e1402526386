"""Exports: models and sources that act as before, loaded without running anything."""

import inspect
import io
import os
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.dqn.policies import DQNPolicy
from torch import nn

from sb3_caps import CAPS, PRQL, PiecewiseLinear, as_source, export_source
from sb3_caps.caps.arguments import Actor, Termination
from sb3_caps.caps.gate import BEST, LEARNERS, OPTIONS
from sb3_caps.caps.policies import CAPSPolicy
from sb3_caps.caps.selection import Selection
from sb3_caps.files.archive import write_archive
from sb3_caps.files.descriptions import as_plain
from sb3_caps.files.schema import ARGUMENTS, NOT_EXPORTED, POLICY_ARGUMENTS
from sb3_caps.reuse.episodes import Behaviour
from tests.paper import paper
from tests.test_save_load import same_parameters
from tests.toy_world import LENGTH, Corridor, go_left, go_right

SMALL: dict[str, Any] = {"buffer_size": 100, "learning_starts": 10}


def observations(kind: str) -> Any:
    env = Corridor(kind)
    found = []
    for position in range(LENGTH):
        env.position = position
        found.append(env.observe())
    return np.array(found)


def actions_of(source: Any, kind: str, **arguments: Any) -> np.ndarray:
    return as_source(source, **arguments).actions(observations(kind), None, np.zeros(LENGTH, dtype=bool))[0]


@pytest.mark.parametrize("kind", ["box", "discrete", "image"])
@pytest.mark.parametrize("algorithm", [DQN, PPO, A2C, PRQL])
def test_a_source_acts_as_before(algorithm: Any, kind: str, tmp_path: Path) -> None:
    policy_kwargs: dict[str, Any] = {"net_arch": [16, 8], "activation_fn": nn.ELU}
    policy = "MlpPolicy"
    if kind == "image":
        policy, policy_kwargs = "CnnPolicy", {"features_extractor_kwargs": {"features_dim": 32}, "net_arch": [8]}
    arguments = {"n_steps": 20} if algorithm in (PPO, A2C) else SMALL
    model = algorithm(policy, Corridor(kind), seed=3, policy_kwargs=policy_kwargs, learning_rate=0.01, **arguments)
    model.learn(60)
    export_source(as_source(model, name="mine"), tmp_path / "source")
    assert os.listdir(tmp_path) == ["source.npz"]
    for path in (tmp_path / "source.npz", str(tmp_path / "source")):
        np.testing.assert_array_equal(actions_of(path, kind, trust=False), actions_of(model, kind))
    assert as_source(tmp_path / "source.npz").name == "mine"
    # And fits the environment that it is for
    learner = CAPS(policy, Corridor(kind), source_policies=[tmp_path / "source.npz"], **SMALL)
    learner.learn(20)
    assert learner.options.source_names == ["mine"]


def caps_model(env: Any = None, **arguments: Any) -> CAPS:
    sources = [PPO("MlpPolicy", Corridor(), seed=1, n_steps=20, batch_size=20).learn(60), DQN("MlpPolicy", Corridor())]
    given = {"source_policies": sources, "seed": 0, **SMALL, **arguments}
    return CAPS("MlpPolicy", Corridor() if env is None else env, **given).learn(100)


@pytest.mark.parametrize("shared", [True, False])
def test_a_model_acts_and_learns_on_as_before(shared: bool, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "train_freq": (8, "step"),
        "sequence_length": 4,
        "stats_window_size": 7,
        "gradient_steps": -1,
        "gamma": np.float64(0.9),
        "replay_buffer_kwargs": {"prioritized_share": 0.25},
        "termination_kwargs": {"regularization": 0.05, "initial": (0.2, 0.6), "target": (0.3, 0.9)},
        "exploration": "terminations",
        "actor_kwargs": {"interval": 64, "learning_rate": 0.001},
        "selection_kwargs": {"survey_share": 0.1, "memory": 0.5},
        "policy_kwargs": {"net_arch": [32], "execution": "interrupting", "averaging": 0.1, "shared_values": shared},
    }
    model = caps_model(**arguments)
    model.export(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model.npz", env=Corridor(), trust=False)
    assert same_parameters(model, loaded)
    state = {"_stats_window_size", "num_timesteps", "_n_updates", "_actor_started", "exploration_rate", "seed"}
    for name in (arguments.keys() | state) - {"stats_window_size", "policy_kwargs"}:
        assert getattr(loaded, name) == getattr(model, name), name
    assert arguments["policy_kwargs"].items() <= loaded.policy_kwargs.items()
    assert loaded.options.names == model.options.names
    assert loaded.policy.execution == model.policy.execution
    np.testing.assert_array_equal(actions_of(tmp_path / "model.npz", "box"), actions_of(model, "box"))
    loaded.learn(50, reset_num_timesteps=False)
    assert loaded.num_timesteps == model.num_timesteps + 56
    # Arguments of `load` count here too, by either name, and a model can be loaded to act alone
    assert CAPS.load(tmp_path / "model.npz", gamma=0.5, trust=False).gamma == 0.5
    assert CAPS.load(tmp_path / "model.npz", custom_objects={"gamma": 0.5}, trust=False).gamma == 0.5
    for given in ({"gama": 0.5}, {"custom_objects": {"gama": 0.5}}):
        with pytest.raises(TypeError, match=r"gama.*did you mean gamma"):
            CAPS.load(tmp_path / "model.npz", trust=False, **given)
    with pytest.raises(ValueError, match=r"not a PRQL model, this is a CAPS"):
        PRQL.load(tmp_path / "model.npz")
    with pytest.raises(ValueError, match="spaces do not match"):
        CAPS.load(tmp_path / "model.npz", env=Corridor("discrete"), trust=False)


def test_an_open_file_and_other_sources(tmp_path: Path) -> None:
    model = caps_model()
    model.export(tmp_path / "model")
    file = io.BytesIO(b"before" + (tmp_path / "model.npz").read_bytes())
    for _ in range(2):
        file.seek(6)
        assert same_parameters(model, CAPS.load(file, trust=False))
    others = [as_source(go_right, name="ppo"), as_source(go_left, name="dqn")]
    loaded = CAPS.load(tmp_path / "model.npz", env=Corridor(), source_policies=others, trust=False)
    assert [source.kind for source in loaded.source_policies] == ["function"] * 2
    assert same_parameters(model, loaded)
    # The model acts by a source that is there
    model.gate.controller = Behaviour("dqn", is_source=True)
    model.export(tmp_path / "model")
    for names in (["ppo", "dqn"], ["dqn", "ppo"], ["one", "two"]):
        others = [as_source(go_right, name=names[0]), as_source(go_left, name=names[1])]
        loaded = CAPS.load(tmp_path / "model.npz", env=Corridor(), source_policies=others, trust=False)
        assert (loaded.gate.controller.name == "dqn") == ("dqn" in names)
        loaded.predict(observations("box"))
        loaded.learn(50)
    assert CAPS.load(tmp_path / "model.npz", source_policies=others[:1], trust=False).options.source_names == ["one"]
    export_source(model.source_policies[0], tmp_path / "source")
    with pytest.raises(ValueError, match="not a CAPS model, this is a source policy: pass it in source_policies"):
        CAPS.load(tmp_path / "source.npz", trust=False)


CONTROLLERS = [*LEARNERS, BEST, Behaviour("dqn", is_source=True)]


@pytest.mark.parametrize("controller", CONTROLLERS, ids=lambda controller: controller.name)
def test_what_a_model_acts_by_comes_along(controller: Behaviour, tmp_path: Path) -> None:
    model = caps_model()
    model.gate.controller, model.gate.disabled = controller, {"ppo"}
    # Networks that all act otherwise
    for network in (*model.policy.networks(), *model.policy.actors()):
        assert network is not None
        for parameter in network.parameters():
            nn.init.normal_(parameter)
    model.export(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model.npz", trust=False)
    assert loaded.gate == model.gate == loaded.policy.gate
    assert loaded.gate is loaded.policy.gate
    expected, _ = model.predict(observations("box"), deterministic=True)
    np.testing.assert_array_equal(loaded.predict(observations("box"), deterministic=True)[0], expected)
    np.testing.assert_array_equal(actions_of(tmp_path / "model.npz", "box", trust=False), expected)
    # And as a source of another model
    outer = CAPS("MlpPolicy", Corridor(), source_policies=[model], **SMALL)
    outer.export(tmp_path / "outer")
    inner = CAPS.load(tmp_path / "outer.npz", trust=False).source_policies[0]
    np.testing.assert_array_equal(actions_of(inner, "box"), expected)


def test_values_stay_in_their_unit(tmp_path: Path) -> None:
    model = caps_model()
    assert model._scale is not None
    model._scale.value = 3.0
    model.export(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model.npz", env=Corridor(), trust=False)
    assert loaded._scale is not None
    assert loaded._scale.value == model._scale.value > 0
    loaded.learn(50, reset_num_timesteps=False)
    assert loaded._scale.value == 3.0


def test_what_sources_and_learner_are_worth_comes_along(tmp_path: Path) -> None:
    model = caps_model(buffer_size=1000, train_freq=1, target_update_interval=50)
    model.learn(900, reset_num_timesteps=False)
    model.export(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model.npz", env=Corridor(), trust=False)
    assert loaded.reuse_summary() == model.reuse_summary()
    ours: Any = model.selector
    theirs: Any = loaded.selector
    assert {"ppo", "dqn"} < ours.evidence.keys()
    for name in ("evidence", "rewards"):
        expected, found = getattr(ours, name), getattr(theirs, name)
        assert expected.keys() == found.keys()
        for behaviour, known in expected.items():
            assert found[behaviour].state() == known.state(), behaviour
    for name in ("steps", "choices", "agreeing"):
        np.testing.assert_array_equal(getattr(loaded._use, name), getattr(model._use, name))
    # More is added to what is known
    loaded.learn(100, reset_num_timesteps=False)
    assert loaded._use.steps.sum() == loaded.num_timesteps == 1100
    assert all(theirs.rewards[name].n >= ours.rewards[name].n > 0 for name in ("ppo", "dqn"))
    assert any(theirs.rewards[name].state() != known.state() for name, known in ours.rewards.items())


def test_models_without_a_selector_of_evidence(tmp_path: Path) -> None:
    CAPS("MlpPolicy", Corridor(), **SMALL).export(tmp_path / "new")
    loaded = CAPS.load(tmp_path / "new.npz", env=Corridor(), trust=False)
    with pytest.raises(ValueError, match="call learn first"):
        loaded.reuse_summary()
    loaded.learn(50)
    model = caps_model(safe=False)
    model.export(tmp_path / "unsafe")
    loaded = CAPS.load(tmp_path / "unsafe.npz", env=Corridor(), trust=False)
    assert loaded.reuse_summary() == model.reuse_summary()
    assert type(loaded.selector) is type(model.selector)
    loaded.learn(50, reset_num_timesteps=False)
    # What is known is of no use without `safe`
    known = caps_model()
    known.gate.controller = Behaviour("dqn", is_source=True)
    known.export(tmp_path / "safe")
    assert CAPS.load(tmp_path / "safe.npz", trust=False).gate.controller.name == "dqn"
    loaded = CAPS.load(tmp_path / "safe.npz", env=Corridor(), safe=False, trust=False)
    assert type(loaded.selector) is type(model.selector)
    assert loaded.gate.controller == OPTIONS
    loaded.learn(50, reset_num_timesteps=False)


@pytest.mark.parametrize(
    "schedule",
    [
        PiecewiseLinear([(0, 1e-3), (50, 1e-4)]),
        PiecewiseLinear([(0, 1e-3), (50, 1e-4)], 200),
        LinearSchedule(0.001, 0.0001, 0.5),
        ConstantSchedule(0.002),
        FloatSchedule(0.003),
    ],
    ids=str,
)
def test_schedules_come_along(schedule: Any, tmp_path: Path) -> None:
    arguments = {
        "learning_rate": schedule,
        "exploration_schedule": schedule,
        "termination_kwargs": {"target": schedule},
    }
    model = caps_model(**arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.export(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model.npz", env=Corridor(), trust=False)
    loaded.learn(100)
    assert loaded.exploration_rate == model.exploration_rate
    assert loaded.policy.optimizer.param_groups[0]["lr"] == model.policy.optimizer.param_groups[0]["lr"]
    assert loaded._scheduled_value("target_termination") == model._scheduled_value("target_termination")


def test_what_is_code_is_passed_to_load(tmp_path: Path) -> None:
    network: dict[str, Any] = {"net_arch": [16], "optimizer_class": th.optim.SGD}
    with pytest.warns(
        UserWarning, match=r"Not exported, pass it to load: policy_kwargs\['optimizer_class'\] is code\."
    ):
        caps_model(policy_kwargs=network).export(tmp_path / "model")
    changed = network | {"optimizer_kwargs": {"momentum": 0.5}, "execution": "call-and-return", "averaging": None}
    loaded = CAPS.load(tmp_path / "model.npz", env=Corridor(), policy_kwargs=changed, trust=False)
    loaded.learn(50)
    assert isinstance(loaded.policy.optimizer, th.optim.SGD)
    assert loaded.policy.optimizer.param_groups[0]["momentum"] == 0.5
    assert loaded.policy.execution.mode == "call-and-return"
    assert loaded.policy.q_net_average is None
    with pytest.raises(ValueError, match=r"does not fit policy_kwargs \{'net_arch': \[8\]\}"):
        CAPS.load(tmp_path / "model.npz", policy_kwargs={"net_arch": [8]}, trust=False)


def test_a_model_of_the_paper_stays_one(tmp_path: Path) -> None:
    model = caps_model(**paper())
    model.export(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model.npz", env=Corridor(), trust=False)
    assert same_parameters(model, loaded)
    for name in ("sequence_length", "termination_kwargs", "exploration", "normalize_returns", "safe"):
        assert getattr(loaded, name) == paper()[name], name
    assert loaded.replay_buffer.prioritized_share == 0.0
    assert loaded.policy.q_net_average is None
    assert not loaded.policy.shared_values
    assert loaded.policy.execution.mode == "call-and-return"


def test_normalisation_and_a_model_of_ours_as_a_source(tmp_path: Path) -> None:
    env = VecNormalize(make_vec_env(Corridor, n_envs=2, seed=0))
    inner = caps_model(env)
    export_source(inner, tmp_path / "inner")
    np.testing.assert_array_equal(actions_of(tmp_path / "inner.npz", "box", trust=False), actions_of(inner, "box"))
    outer = caps_model(source_policies=[inner])
    outer.export(tmp_path / "outer")
    loaded = CAPS.load(tmp_path / "outer.npz", trust=False)
    seen, starts = observations("box"), np.ones(LENGTH, dtype=bool)
    as_a_source: Any = as_source(tmp_path / "outer.npz", trust=False).policy
    for options in (loaded.options, as_a_source.options):
        expected, _ = outer.options.actions(seen, outer.options.initial_states(), starts)
        np.testing.assert_array_equal(options.actions(seen, options.initial_states(), starts)[0], expected)


def test_layers_of_normalisation_and_sources_that_draw(tmp_path: Path) -> None:
    env = VecNormalize(VecNormalize(make_vec_env(Corridor, n_envs=2, seed=0), clip_obs=1.0), epsilon=0.1)
    model = PPO("MlpPolicy", env, n_steps=20, batch_size=20, seed=0).learn(200)
    for deterministic in (False, True):
        given = as_source(model)
        given.deterministic = deterministic
        export_source(given, tmp_path / "source")
        source = as_source(tmp_path / "source.npz", trust=False)
        assert source.deterministic is deterministic
        seen, starts = np.random.default_rng(0).uniform(-1, 1, (200, LENGTH)).astype(np.float32), np.ones(200, bool)
        for seed in (None, 3):
            (expected, _), (found, _) = (
                each.actions(seen, None, starts, rng=None if seed is None else np.random.default_rng(seed))
                for each in (given, source)
            )
            np.testing.assert_array_equal(found, expected)
    assert len(set(found)) > 1


class Mine(DQN):
    """Whose policy is SB3's: what it has learned can be exported."""


class Extractor(FlattenExtractor):
    """Which may do anything."""


def test_what_is_code_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with pytest.raises(ValueError, match=r"'go_right' is a function, which is code"):
        export_source(go_right, file)
    with pytest.raises(ValueError, match=r"'go_right' is a function"):
        caps_model(source_policies=[go_right]).export(file)
    plain = Mine("MlpPolicy", Corridor())
    with pytest.raises(ValueError, match=r"'mine' has an observation_map or an action_map"):
        export_source(as_source(plain, name="mine", action_map=lambda actions: actions), file)
    odd = DQN("MlpPolicy", Corridor(), policy_kwargs={"features_extractor_class": Extractor})
    with pytest.raises(ValueError, match=r"'dqn' is a policy with a Extractor and cannot be exported"):
        export_source(odd, file)
    hardtanh = DQN("MlpPolicy", Corridor(), policy_kwargs={"activation_fn": nn.Hardtanh})
    with pytest.raises(ValueError, match=r"'dqn' is a policy with Hardtanh"):
        export_source(hardtanh, file)
    with pytest.raises(ValueError, match=r"a policy with a CombinedExtractor"):
        export_source(DQN("MultiInputPolicy", Corridor("dict"), buffer_size=10), file)
    changed = DQN("MlpPolicy", Corridor())
    changed.q_net.q_net.insert(1, nn.Dropout())
    with pytest.raises(ValueError, match=r"The layers of 'dqn' are not those that its arguments make"):
        export_source(changed, file)
    deep = DQN("MlpPolicy", Corridor(), policy_kwargs={"net_arch": [2] * 33})
    with pytest.raises(
        ValueError, match=r"'dqn' cannot be exported: save it \(dqn/arguments/net_arch must be a list of"
    ):
        export_source(deep, file)
    for array in (np.array([True]), np.zeros(0), np.array([1], dtype=object), np.array(["a"])):
        with pytest.raises(ValueError, match=r"x is of \d numbers of type .* and cannot be exported"):
            write_archive(file, {}, {"x": array})
    assert not os.listdir(tmp_path)
    export_source(plain, file)
    given: dict[str, Any] = {"learning_rate": lambda _: 1e-3, "termination_kwargs": {"target": lambda _: 0.5}}
    with pytest.warns(UserWarning, match=r"learning_rate must be a finite number.*termination_kwargs/target must be"):
        caps_model(**given).export(file)
    loaded = CAPS.load(f"{file}.npz", **given, trust=False)
    assert loaded.termination_kwargs is given["termination_kwargs"]
    with pytest.raises(ValueError, match=r"cannot be exported: save it \(source/name must be a name.*not 'a\\nb'"):
        export_source(as_source(plain, name="a\nb"), file)


CALLED: list[str] = []


def call(observations: Any) -> np.ndarray:
    """What must not be reached, not even by being imported again."""
    CALLED.append("called")
    return go_right(observations)


def explode() -> None:
    CALLED.append("unpickled")


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return explode, ()


def test_without_trust_nothing_runs(tmp_path: Path) -> None:
    model = CAPS("MlpPolicy", Corridor(), source_policies=[call], **SMALL)
    model.note = Bomb()  # type: ignore[attr-defined]
    model.save(tmp_path / "model")
    DQN("MlpPolicy", Corridor(), **SMALL).save(tmp_path / "X")
    (tmp_path / "X").mkdir()
    (tmp_path / "X" / "vecnormalize.pkl").write_bytes(b"not to be opened")
    np.savez(tmp_path / "objects", description=np.array([Bomb()], dtype=object), allow_pickle=True)
    caps_model().export(tmp_path / "good")
    CALLED.clear()
    for file in ("model.zip", "X.zip", "X", "objects.npz"):
        for load in (as_source, CAPS.load):
            if (tmp_path / file).is_dir():
                continue
            with pytest.raises(ValueError, match=r"trust=False only what export_source|is damaged, or no export"):
                load(tmp_path / file, trust=False)
    with pytest.raises(ValueError, match=r"os:system is not an export.*run code"):
        as_source("os:system", trust=False)
    with pytest.raises(ValueError, match=r"tests.test_export:call is not an export"):
        CAPS.load(tmp_path / "good.npz", source_policies=["tests.test_export:call"] * 2, trust=False)
    assert CALLED == []
    # The bomb works where it is trusted
    CAPS.load(tmp_path / "model")
    assert CALLED == ["unpickled"]


def test_every_argument_has_a_kind_or_is_not_exported() -> None:
    """One that is new needs a place in ``schema``: as plain values, or not at all."""
    arguments = inspect.signature(CAPS).parameters.keys() - {"_init_setup_model"}
    assert ARGUMENTS.keys() | NOT_EXPORTED == arguments
    assert not ARGUMENTS.keys() & NOT_EXPORTED
    known = {*inspect.signature(CAPSPolicy.__init__).parameters, *inspect.signature(DQNPolicy.__init__).parameters}
    described = {"observation_space", "action_space", "options", "gate", "activation_fn"}
    described |= {"features_extractor_class", "features_extractor_kwargs"}
    others = {"self", "args", "kwargs", "lr_schedule", "optimizer_class", "optimizer_kwargs"}
    assert POLICY_ARGUMENTS["caps"].keys() == known - described - others
    for name, group in (("termination_kwargs", Termination), ("actor_kwargs", Actor), ("selection_kwargs", Selection)):
        values = {key: as_plain(value) for key, value in vars(group()).items()}
        assert ARGUMENTS[name].read(values, name).keys() == group.__dataclass_fields__.keys()


def test_a_cartpole_with_infinite_bounds(tmp_path: Path) -> None:
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, seed=0)
    export_source(model, tmp_path / "source")
    source = as_source(tmp_path / "source.npz", trust=False)
    assert source.observation_space == gym.make("CartPole-v1").observation_space
    batch = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    expected, _ = model.predict(batch, deterministic=True)
    np.testing.assert_array_equal(source.actions(batch, None, np.ones(50, dtype=bool))[0], expected)
