"""Source policies from files: which one is meant, how it acts, and what is said where it cannot be used."""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_caps import CAPS, PRQL, as_source
from tests.toy_world import LENGTH, Corridor, go_left, go_right

OBSERVATIONS = np.eye(LENGTH, dtype=np.float32)
NO_STARTS = np.zeros(LENGTH, dtype=bool)


def test_zoo_folder_with_normalisation(tmp_path: Path) -> None:
    env = VecNormalize(make_vec_env(Corridor, n_envs=2, seed=0))
    model = DQN("MlpPolicy", env, seed=0, learning_starts=10)
    model.learn(300)
    # As rl_zoo3 writes it
    folder = tmp_path / "Corridor-v0_1"
    (folder / "Corridor-v0").mkdir(parents=True)
    model.save(folder / "Corridor-v0")
    env.save(str(folder / "Corridor-v0" / "vecnormalize.pkl"))
    expected = model.predict(env.normalize_obs(OBSERVATIONS), deterministic=True)[0]
    for given in (folder, folder / "Corridor-v0.zip", model):
        actions, _ = as_source(given).actions(OBSERVATIONS, None, NO_STARTS)
        np.testing.assert_array_equal(actions, expected)
    model.save(folder / "best_model")
    assert as_source(folder).name == "Corridor-v0_1"


class Scaled(VecNormalize):
    """A normalisation that can be told from others: it multiplies with a number."""

    def __init__(self, factor: float) -> None:
        super().__init__(make_vec_env(Corridor))
        self.factor = factor

    def normalize_obs(self, obs: Any) -> Any:
        return obs * self.factor


def factor_of(source: Any, **arguments: Any) -> float | None:
    normalizer: Any = as_source(source, **arguments).act.normalizer  # type: ignore[attr-defined]
    return None if normalizer is None else normalizer.statistics.factor


def save(path: Path, factor: float | None = None) -> Path:
    """A model, or a normalisation with its own number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if factor is None:
        DQN("MlpPolicy", Corridor(), buffer_size=1).save(path)
    else:
        Scaled(factor).save(str(path))
    return path


def test_only_the_normalisation_of_the_model_counts(tmp_path: Path) -> None:
    for number in (1, 2):
        save(tmp_path / f"X_{number}" / "vecnormalize.pkl", number)
    first, second, plain = (save(tmp_path / f"{name}.zip") for name in ("X_1", "X_2", "plain"))
    assert [factor_of(path) for path in (first, second, plain)] == [1, 2, None]
    # rl_zoo3's run, and SB3's checkpoints
    run = tmp_path / "Corridor-v0_7"
    save(run / "Corridor-v0" / "vecnormalize.pkl", 3)
    save(run / "rl_model_vecnormalize_50_steps.pkl", 4)
    for name, factor in (("Corridor-v0", 3), ("best_model", 3), ("rl_model_40_steps", 3), ("rl_model_50_steps", 4)):
        assert factor_of(save(run / f"{name}.zip")) == factor
    assert factor_of(run) == 3
    assert factor_of(save(run / "something_else.zip")) is None


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("goal.zip", "vecnormalize.pkl"),
        ("goal.zip", "vec_normalize.pkl"),
        ("best_model.zip", "CartPole-v1/vecnormalize.pkl"),
        ("Corridor-v0_1/best_model.zip", "Corridor-v0_1/Corridor-v1/vecnormalize.pkl"),
    ],
)
def test_a_normalisation_that_may_be_meant_is_refused_and_not_opened(model: str, file: str, tmp_path: Path) -> None:
    path = save(tmp_path / model)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(b"whoever opens this fails")
    with pytest.raises(ValueError, match=r"not certain whether .*pkl is the normalisation of .*zip: load the model"):
        as_source(path)
    # The ways out that the message names
    assert factor_of(DQN.load(path)) is None
    assert factor_of(DQN.load(path, env=Scaled(5))) == 5
    assert factor_of(path, observation_map=lambda observations: observations) is None


SHORT: dict[type[Any], dict[str, Any]] = {PPO: {"n_steps": 8, "batch_size": 8}, DQN: {"learning_starts": 10}}


@pytest.mark.parametrize(("algorithm", "told"), [(PPO, True), (A2C, True), (DQN, False)])
def test_a_model_without_its_normalisation_is_noticed(algorithm: type[Any], told: bool, tmp_path: Path) -> None:
    plain = algorithm("MlpPolicy", Corridor(), seed=0, **SHORT.get(algorithm, {}))
    plain.learn(20)
    plain.save(tmp_path / "plain")
    env = VecNormalize(make_vec_env(Corridor, n_envs=2, seed=0))
    model = algorithm("MlpPolicy", env, seed=0, **SHORT.get(algorithm, {}))
    model.learn(100)
    model.save(tmp_path / "walker")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        as_source(tmp_path / "plain")
        as_source(tmp_path / "walker")
    messages = [str(warning.message) for warning in caught]
    assert ["walker.zip was trained with a VecNormalize, which is not there" in each for each in messages] == [
        True
    ] * told
    # Where it should be, or something in its place
    (tmp_path / "walker").mkdir()
    env.save(str(tmp_path / "walker" / "vecnormalize.pkl"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_source(tmp_path / "walker.zip").act.normalizer is not None  # type: ignore[attr-defined]
        (tmp_path / "walker" / "vecnormalize.pkl").unlink()
        as_source(tmp_path / "walker.zip", observation_map=env.normalize_obs)


def test_a_damaged_normalisation_is_named(tmp_path: Path) -> None:
    model, file = save(tmp_path / "X.zip"), save(tmp_path / "X" / "vecnormalize.pkl", 1)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"X/vecnormalize.pkl, the normalisation of .*X.zip, cannot be read"):
        as_source(model)
    file.write_bytes(b"\x80\x04N.")
    with pytest.raises(ValueError, match=r"X/vecnormalize.pkl.* holds no VecNormalize, but NoneType"):
        as_source(model)


def test_a_model_of_ours_carries_its_normalisation(tmp_path: Path) -> None:
    env = VecNormalize(make_vec_env(Corridor, n_envs=2, seed=0))
    model = CAPS("MlpPolicy", env, source_policies=[go_right, go_left], seed=0, learning_starts=10)
    model.learn(300)
    model.save(tmp_path / "model")
    (tmp_path / "vecnormalize.pkl").write_bytes(b"whoever opens this fails")
    expected, _ = model.predict(env.normalize_obs(OBSERVATIONS), deterministic=True)
    for given in (model, tmp_path / "model"):
        np.testing.assert_array_equal(as_source(given).actions(OBSERVATIONS, None, NO_STARTS)[0], expected)


def test_without_its_source_policies(tmp_path: Path) -> None:
    for algorithm in (CAPS, PRQL):
        model = algorithm("MlpPolicy", Corridor(), source_policies=[go_right], seed=0)
        model.save(tmp_path / algorithm.__name__, exclude=["options"])
    with pytest.raises(
        ValueError, match=r"CAPS.zip was saved without its source policies \['go_right'\].*CAPS.load\(.*pass the model"
    ):
        as_source(tmp_path / "CAPS")
    loaded = CAPS.load(tmp_path / "CAPS", source_policies=[go_right])
    expected, _ = loaded.predict(OBSERVATIONS, deterministic=True)
    np.testing.assert_array_equal(as_source(loaded).actions(OBSERVATIONS, None, NO_STARTS)[0], expected)
    # What PRQL has learned acts without them
    expected, _ = PRQL.load(tmp_path / "PRQL", source_policies=[go_right]).predict(OBSERVATIONS, deterministic=True)
    np.testing.assert_array_equal(as_source(tmp_path / "PRQL").actions(OBSERVATIONS, None, NO_STARTS)[0], expected)


def test_missing_code_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "heuristics_of_mine.py"
    module.write_text("def wise(observations):\n    return [1] * len(observations)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    CAPS("MlpPolicy", Corridor(), source_policies=["heuristics_of_mine:wise"], seed=0).save(tmp_path / "model")
    assert as_source(tmp_path / "model").name == tmp_path.name
    del sys.modules["heuristics_of_mine"]
    module.write_text("def wiser(observations):\n    return [1] * len(observations)\n\n\n")
    with pytest.raises(
        ValueError, match=r"without its source policies \['wise'\], or they cannot be[\s\S]*attribute 'wise'"
    ):
        as_source(tmp_path / "model")
    del sys.modules["heuristics_of_mine"]
    module.unlink()
    with pytest.raises(ValueError, match=r"model.zip cannot be loaded without the module 'heuristics_of_mine'"):
        as_source(tmp_path / "model")


def test_a_class_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    class Mine(CAPS):
        """One that only this function knows."""

    model = Mine("MlpPolicy", Corridor(), source_policies=[go_right], seed=0)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"The algorithm of .*model.zip cannot be imported.*Mine.*pass the model"):
        as_source(tmp_path / "model")
    expected, _ = model.predict(OBSERVATIONS, deterministic=True)
    np.testing.assert_array_equal(as_source(model).actions(OBSERVATIONS, None, NO_STARTS)[0], expected)
