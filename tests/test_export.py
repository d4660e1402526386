"""Exports: models and sources that act as before, loaded without running anything."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from sb3_caps import CAPS, PRQL, PiecewiseLinear, as_source, each, export_source
from tests.paper import paper
from tests.test_save_load import same_parameters
from tests.toy_world import LENGTH, Corridor, go_right

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
        "termination_kwargs": {"regularization": 0.05, "initial": [0.2, 0.6], "target": [0.3, 0.9]},
        "exploration_kwargs": {"durations": "termination", "weights": [3, 1, 1, 1, 1]},
        "policy_kwargs": {"net_arch": [32], "execution": "interrupting", "averaging": 0.1, "shared_values": shared},
    }
    model = caps_model(**arguments)
    model.export(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model.npz", env=Corridor(), trust=False)
    assert same_parameters(model, loaded)
    for name in (*arguments, "num_timesteps", "_n_updates", "exploration_rate", "gamma", "seed"):
        expected, found = getattr(model, name), getattr(loaded, name)
        if name == "policy_kwargs":
            assert {key: found[key] for key in expected} == expected
        else:
            assert (tuple(found) if isinstance(expected, tuple) else found) == expected, name
    assert loaded.options.names == model.options.names
    assert loaded.policy.execution == model.policy.execution
    np.testing.assert_array_equal(actions_of(tmp_path / "model.npz", "box"), actions_of(model, "box"))
    loaded.learn(50, reset_num_timesteps=False)
    assert loaded.num_timesteps == model.num_timesteps + 56
    # Arguments of `load` count here too, and a model can be loaded to act alone
    assert CAPS.load(tmp_path / "model.npz", gamma=0.5, trust=False).gamma == 0.5
    with pytest.raises(TypeError, match=r"gama.*did you mean gamma"):
        CAPS.load(tmp_path / "model.npz", gama=0.5, trust=False)
    with pytest.raises(ValueError, match=r"no PRQL model, this is a CAPS"):
        PRQL.load(tmp_path / "model.npz")


def test_values_stay_in_their_unit(tmp_path: Path) -> None:
    model = caps_model()
    assert model._scale is not None
    model._scale.value = 3.0
    model.export(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model.npz", env=Corridor(), trust=False)
    assert loaded._scale is not None
    assert loaded._scale.value == model._scale.value > 0


def test_what_sources_and_learner_are_worth_comes_along(tmp_path: Path) -> None:
    model = caps_model(buffer_size=1000, train_freq=1, target_update_interval=50)
    model.learn(900, reset_num_timesteps=False)
    model.export(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model.npz", env=Corridor(), trust=False)
    assert loaded.reuse_summary() == model.reuse_summary()
    assert model._trials is not None
    assert loaded._trials is not None
    assert all(model._trials.source_returns)
    assert model._trials.learner_returns
    for ours, theirs in ((model._trials, loaded._trials), (model._use, loaded._use)):
        assert vars(ours).keys() == vars(theirs).keys()
        for name, value in vars(ours).items():
            assert type(getattr(theirs, name)) is type(value), name
            np.testing.assert_array_equal(getattr(theirs, name), value, name)
    assert loaded._trials.learner_returns.maxlen == model._trials.learner_returns.maxlen
    # Trials go on where they were
    loaded.learn(100, reset_num_timesteps=False)
    assert loaded._trials.steps == loaded.num_timesteps == 1100
    # A model that has not learned has nothing to tell
    CAPS("MlpPolicy", Corridor(), **SMALL).export(tmp_path / "new")
    with pytest.raises(ValueError, match="call learn first"):
        CAPS.load(tmp_path / "new.npz", trust=False).reuse_summary()


def test_what_is_code_is_passed_to_load(tmp_path: Path) -> None:
    network: dict[str, Any] = {"net_arch": [16], "optimizer_class": th.optim.SGD}
    with pytest.warns(UserWarning, match=r"policy_kwargs are code and not exported: pass them to load"):
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
    for name in ("sequence_length", "termination_kwargs", "exploration_kwargs", "normalize_returns", "safe"):
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
    assert not os.listdir(tmp_path)
    export_source(plain, file)
    with pytest.warns(UserWarning, match="learning_rate are code and not exported: pass them to load"):
        caps_model(learning_rate=PiecewiseLinear([(0, 1e-3), (50, 1e-4)])).export(file)


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
    model = CAPS("MlpPolicy", Corridor(), source_policies=[each(call)], **SMALL)
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
    with pytest.raises(ValueError, match=r"os:system is no export.*run code"):
        as_source("os:system", trust=False)
    with pytest.raises(ValueError, match=r"tests.test_export:call is no export"):
        CAPS.load(tmp_path / "good.npz", source_policies=["tests.test_export:call"] * 2, trust=False)
    assert CALLED == []
    # The bomb works where it is trusted
    CAPS.load(tmp_path / "model")
    assert CALLED == ["unpickled"]


def test_a_description_that_was_changed_runs_nothing_and_says_so(tmp_path: Path) -> None:
    caps_model().export(tmp_path / "model")
    with np.load(tmp_path / "model.npz") as file:
        arrays = dict(file)
    content = json.loads(arrays["description"].item())

    def load(change: Any) -> CAPS:
        changed = json.loads(json.dumps(content))
        change(changed)
        np.savez(tmp_path / "changed", **{**arrays, "description": np.array(json.dumps(changed))})
        return CAPS.load(tmp_path / "changed.npz", trust=False)

    load(lambda description: None)
    for change in (
        lambda description: description["model"]["policy"].update(kind="os:system"),
        lambda description: description["model"]["policy"].update(activation_fn="Module"),
        lambda description: description["model"]["policy"]["arguments"].update(net_arch=[3]),
        lambda description: description["model"]["policy"].pop("options"),
        lambda description: description["model"]["records"].update({"os:system": {}}),
        lambda description: description["model"]["records"].update(_trials={"steps": "os:system"}),
        lambda description: description.update(format="sb3_caps export 0"),
    ):
        with pytest.raises(ValueError, match="is damaged, or no export"):
            load(change)
    # What an export never has is not looked at
    loaded = load(
        lambda description: description["model"]["arguments"].update(
            source_policies=["os:system"], tensorboard_log="/elsewhere", device="cuda", made_up=1
        )
    )
    assert loaded.tensorboard_log is None
    assert not hasattr(loaded, "made_up")
    assert loaded.options.n_sources == 2
    with zipfile.ZipFile(tmp_path / "model.npz") as archive:
        assert all(name.endswith(".npy") for name in archive.namelist())


def test_a_cartpole_with_infinite_bounds(tmp_path: Path) -> None:
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, seed=0)
    export_source(model, tmp_path / "source")
    source = as_source(tmp_path / "source.npz", trust=False)
    assert source.observation_space == gym.make("CartPole-v1").observation_space
    batch = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    expected, _ = model.predict(batch, deterministic=True)
    np.testing.assert_array_equal(source.actions(batch, None, np.ones(50, dtype=bool))[0], expected)
