"""Exports of models and sources with continuous actions: they act as before, and loading them runs nothing."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import A2C, DDPG, PPO, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise

from sb3_caps import CAPS, CUP, ContinuousCAPS, as_source, export_source
from sb3_caps.caps.gate import ACTOR, BEST, OPTIONS
from sb3_caps.continuous.selection import Selection
from sb3_caps.files.archive import read_archive, write_archive
from sb3_caps.files.descriptions import as_plain
from sb3_caps.files.schema import CONTINUOUS_ARGUMENTS, NOT_EXPORTED
from sb3_caps.reuse.episodes import Behaviour
from tests.test_continuous import same
from tests.toy_box import ToyBox, home

SEEN = np.random.default_rng(0).uniform(-1, 1, size=(20, 2)).astype(np.float32)


def small(net_arch: Any = (8,), seed: int = 1) -> dict[str, Any]:
    """Anew each time: SAC writes into what it is given."""
    layers = net_arch if isinstance(net_arch, dict) else list(net_arch)
    return {"policy_kwargs": {"net_arch": layers}, "seed": seed, "device": "cpu"}


def make(**arguments: Any) -> ContinuousCAPS:
    sources = {"sac": SAC("MlpPolicy", ToyBox(), **small()), "td3": TD3("MlpPolicy", ToyBox(), **small())}
    given = {"learning_starts": 20, **small(seed=0), **arguments}
    return ContinuousCAPS("MlpPolicy", ToyBox(), source_policies=sources, **given)


@pytest.mark.parametrize("algorithm", [SAC, TD3, DDPG, PPO, A2C])
def test_a_source_acts_as_before(algorithm: Any, tmp_path: Path) -> None:
    values = "vf" if algorithm in (PPO, A2C) else "qf"
    model = algorithm("MlpPolicy", ToyBox(), **small({"pi": [8, 7], values: [9]}))
    export_source(model, tmp_path / "source.npz")
    loaded = as_source(tmp_path / "source.npz", trust=False)
    found, _ = loaded.box_actions(SEEN, None, np.ones(20, dtype=bool), ToyBox().action_space)
    np.testing.assert_allclose(found, model.predict(SEEN, deterministic=True)[0], atol=1e-6)


@pytest.mark.parametrize("controller", [ACTOR, OPTIONS, BEST, Behaviour("td3", is_source=True)])
def test_a_model_acts_as_before(controller: Behaviour, tmp_path: Path) -> None:
    model = make(policy_kwargs={"net_arch": [8], "execution": "call-and-return", "n_critics": 3}).learn(200)
    model.gate.controller, model.gate.disabled = controller, {"sac"}
    model.export(tmp_path / "model.npz")
    loaded = ContinuousCAPS.load(tmp_path / "model.npz", device="cpu", trust=False)
    assert loaded.gate == model.gate
    assert same(loaded, model)
    np.testing.assert_allclose(loaded.predict(SEEN, deterministic=True)[0], model.predict(SEEN, deterministic=True)[0])
    # And it is a source
    source = as_source(tmp_path / "model.npz", trust=False)
    found, _ = source.box_actions(SEEN, None, np.ones(20, dtype=bool), ToyBox().action_space)
    np.testing.assert_allclose(found, model.predict(SEEN, deterministic=True)[0], atol=1e-6)


def test_a_model_learns_on(tmp_path: Path) -> None:
    model = make(ent_coef="auto_0.3", pull=2.0, selection_kwargs={"trial_share": 0.4}).learn(300)
    model.export(tmp_path / "model.npz")
    loaded = ContinuousCAPS.load(tmp_path / "model.npz", env=ToyBox(), device="cpu", trust=False)
    assert loaded.num_timesteps == 300
    assert (loaded.pull, loaded.selection_kwargs, loaded.ent_coef) == (2.0, {"trial_share": 0.4}, "auto_0.3")
    assert loaded.log_ent_coef is not None
    assert model.log_ent_coef is not None
    assert loaded.log_ent_coef.item() == pytest.approx(model.log_ent_coef.item(), rel=1e-5)
    assert loaded._is_cloned == model._is_cloned
    for name in ("evidence", "rewards", "lengths"):
        before, after = getattr(model.selector, name), getattr(loaded.selector, name)
        assert {key: known.state() for key, known in before.items()} == {
            key: known.state() for key, known in after.items()
        }
    assert not loaded.selector.surveying
    assert loaded.selector.decide() == model.selector.decide()
    assert loaded.reuse_summary().acts_by == model.reuse_summary().acts_by
    loaded.learn(200, reset_num_timesteps=False)
    assert loaded.num_timesteps == 500
    assert not same(loaded, model)


def test_a_fixed_entropy_coefficient_stays(tmp_path: Path) -> None:
    make(ent_coef=0.25).export(tmp_path / "model.npz")
    loaded = ContinuousCAPS.load(tmp_path / "model.npz", env=ToyBox(), device="cpu")
    assert loaded.ent_coef_tensor.item() == 0.25
    assert loaded.selector.surveying
    loaded.learn(100)


def test_what_is_code_is_told_or_refused(tmp_path: Path) -> None:
    noisy = make(action_noise=NormalActionNoise(np.zeros(2), np.ones(2)))
    with pytest.warns(UserWarning, match="Not exported, pass it to load: action_noise is code"):
        noisy.export(tmp_path / "model.npz")
    function = ContinuousCAPS("MlpPolicy", ToyBox(), source_policies=[home], **small())
    with pytest.raises(ValueError, match="'home' is a function"):
        function.export(tmp_path / "model.npz")
    with pytest.raises(ValueError, match="use_sde"):
        make(use_sde=True).export(tmp_path / "model.npz")
    with pytest.raises(ValueError, match="use_sde"):
        export_source(SAC("MlpPolicy", ToyBox(), use_sde=True, device="cpu"), tmp_path / "source.npz")
    make().export(tmp_path / "model.npz")
    with pytest.raises(ValueError, match="not a CAPS model, this is a ContinuousCAPS"):
        CAPS.load(tmp_path / "model.npz")
    with pytest.raises(ValueError, match="not a CUP model"):
        CUP.load(tmp_path / "model.npz")


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("ent_coef", "automatic"),
        ("ent_coef", "auto_inf"),
        ("ent_coef", "auto_x"),
        ("target_entropy", "low"),
        ("buffer_size", 10**12),
        ("replay_buffer_kwargs", {"n_sources": 3}),
        ("selection_kwargs", {"memory": "much"}),
    ],
)
def test_what_no_export_holds_is_refused(argument: str, value: Any, tmp_path: Path) -> None:
    make().export(tmp_path / "model.npz")
    content, arrays = read_archive(tmp_path / "model.npz")
    content["model"]["arguments"][argument] = value
    write_archive(tmp_path / "changed.npz", content, arrays)
    with pytest.raises(ValueError, match=f"is damaged.*{argument}"):
        ContinuousCAPS.load(tmp_path / "changed.npz", env=ToyBox())


@pytest.mark.parametrize("kind", ["sac", "caps"])
def test_the_policy_of_something_else_is_refused(kind: str, tmp_path: Path) -> None:
    make().export(tmp_path / "model.npz")
    content, arrays = read_archive(tmp_path / "model.npz")
    policy = content["model"]["policy"]
    policy["kind"] = kind
    if kind == "sac":
        del policy["options"], policy["gate"], policy["arguments"]["execution"]
    write_archive(tmp_path / "changed.npz", content, arrays)
    with pytest.raises(ValueError, match="is damaged"):
        ContinuousCAPS.load(tmp_path / "changed.npz", env=ToyBox())


def test_every_argument_has_a_kind_or_is_not_exported() -> None:
    arguments = inspect.signature(ContinuousCAPS).parameters.keys() - {"_init_setup_model", "action_noise"}
    # CAPS alone has the last two
    assert CONTINUOUS_ARGUMENTS.keys() | NOT_EXPORTED == arguments | {"loss_fn", "selector_class"}
    values = {key: as_plain(value) for key, value in vars(Selection()).items()}
    assert CONTINUOUS_ARGUMENTS["selection_kwargs"].read(values, "").keys() == Selection.__dataclass_fields__.keys()
