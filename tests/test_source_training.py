"""Sources that a command trains, and tasks with other physics that reuse them; sources from a hub."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_caps import CAPS, as_source
from sb3_caps.commands import main
from sb3_caps.commands.sources import chosen
from sb3_caps.envs.physics import ChangedPhysics
from sb3_caps.settings import settings
from sb3_caps.studies.reuse.worlds import World
from sb3_caps.studies.reuse.worlds.classic import Acrobot, CartPole, MountainCar

CONFIG = Path(__file__).parents[1] / "zoo_configs" / "caps.yml"
QUICK = ["-n", "64", "--eval-freq", "-1", "--seed", "1", "--verbose", "0", "--num-threads", "1"]
VARIANTS = ["CartPole-v1@long", "CartPole-v1@weak", "Acrobot-v1@heavy", "MountainCar-v0@steep", "LunarLander-v3@windy"]


def test_families_and_single_sources_are_chosen() -> None:
    known = settings("reuse", "sources")
    assert chosen(["cartpole", "acrobot-ppo", "cartpole-dqn"], known) == ["cartpole-dqn", "cartpole-ppo", "acrobot-ppo"]
    assert chosen(["cartpole-harmful-1"], known) == ["cartpole-harmful-1"]


def test_a_variant_reuses_what_the_command_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["sources", "--train", "mountaincar", "--steps", "300", "--jobs", "1"]
    assert main(command) == 0
    assert capsys.readouterr().out.split() == [f"sources/mountaincar-{name}/model.zip" for name in ("dqn", "ppo")]
    written = Path("sources/mountaincar-ppo/model.zip").stat().st_mtime_ns
    assert json.loads(Path("sources/mountaincar-ppo/config.json").read_text())["steps"] == 300
    assert main(command) == 0
    assert Path("sources/mountaincar-ppo/model.zip").stat().st_mtime_ns == written
    capsys.readouterr()
    assert main(["sources"]) == 0
    assert "mountaincar-ppo   300,000 steps  trained" in capsys.readouterr().out

    assert main(["sources", "sources/mountaincar-dqn", "sources/mountaincar-ppo", "--env", "MountainCar-v0"]) == 0
    assert main(["train", "--env", "MountainCar-v0", "--variant", "steep", *QUICK]) == 0
    model = CAPS.load("logs/caps/MountainCar-v0_1/MountainCar-v0.zip")
    assert model.options.source_names == ["mountaincar-dqn", "mountaincar-ppo"]
    # The trained PPO has normalised observations
    assert as_source("sources/mountaincar-ppo").act.normalizer is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_use_sources_that_the_command_trains(variant: str) -> None:
    entry = yaml.safe_load(CONFIG.read_text())[variant]
    names = [Path(source).name for source in entry["source_policies"]]
    known = settings("reuse", "sources")
    assert chosen([known[names[0]]["env"]], known) == names


def variant_env(name: str) -> gym.Env:
    (changes,) = yaml.safe_load(CONFIG.read_text())[name]["env_wrapper"]
    ((wrapper, numbers),) = changes.items()
    assert wrapper == f"{ChangedPhysics.__module__}.{ChangedPhysics.__name__}"
    return ChangedPhysics(gym.make(name.partition("@")[0]), **numbers)


@pytest.mark.parametrize(
    ("name", "make_world"),
    [
        ("CartPole-v1@long", lambda: CartPole(gravity=15.0, length=1.5)),
        ("CartPole-v1@weak", lambda: CartPole(force=2.5)),
        ("MountainCar-v0@steep", lambda: MountainCar(gravity=0.0027, force=0.0009)),
        ("Acrobot-v1@heavy", lambda: Acrobot(lengths=(1.0, 1.5), masses=(1.0, 1.5))),
    ],
)
def test_variants_move_as_the_worlds_of_the_reuse_suite(name: str, make_world: Callable[[], World]) -> None:
    env, world = variant_env(name), make_world()
    env.reset(seed=0)
    env.action_space.seed(0)
    generator = np.random.default_rng(0)
    for _ in range(15):
        state = np.array(env.unwrapped.state, dtype=np.float64)  # type: ignore[attr-defined]
        action = int(env.action_space.sample())
        found, reward, terminated, _, _ = env.step(action)
        expected, rewards, ended = world.step(state[None], np.array([action]), generator)
        np.testing.assert_allclose(found, world.observe(expected)[0], rtol=1e-4, atol=1e-5)
        assert (reward, terminated) == (rewards[0], ended[0])


def test_physics_that_a_world_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match=r"CartPoleEnv has no number 'gravitas': it has .*gravity"):
        ChangedPhysics(gym.make("CartPole-v1"), gravitas=15.0)


def hub_snapshot(cache: Path, repository: str) -> Path:
    """The folder of a repository, as Hugging Face's ``load_from_hub`` leaves it: links to files named by their hash."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "blobs").mkdir(parents=True)
    snapshot = folder / "snapshots" / ("0123456789" * 4)
    snapshot.mkdir(parents=True)
    return snapshot


def put(snapshot: Path, name: str, save: Callable[[str], Any]) -> Path:
    blob = snapshot.parents[1] / "blobs" / f"{abs(hash(name)):064x}"
    written = snapshot.parents[1] / name
    save(str(written))
    written.rename(blob)
    (snapshot / name).symlink_to(Path("..", "..", "blobs", blob.name))
    return snapshot / name


def test_a_path_from_the_hub_is_a_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = PPO("MlpPolicy", "CartPole-v1", seed=3)
    path = put(hub_snapshot(tmp_path, "sb3/ppo-CartPole-v1"), "ppo-CartPole-v1.zip", model.save)
    assert path.is_symlink()
    source = as_source(str(path))
    assert source.name == "ppo-CartPole-v1"
    observations: Any = make_vec_env("CartPole-v1", 4, seed=0).reset()
    actions, _ = source.actions(observations, None, np.ones(4, dtype=bool))
    np.testing.assert_array_equal(actions, model.predict(observations, deterministic=True)[0])
    assert CAPS("MlpPolicy", "CartPole-v1", source_policies=[str(path)]).options.source_names == ["ppo-CartPole-v1"]
    assert main(["sources", str(path), "--env", "CartPole-v1"]) == 0
    assert "fits CartPole-v1" in capsys.readouterr().out


def test_the_normalisation_from_the_hub_is_used(tmp_path: Path) -> None:
    env = VecNormalize(make_vec_env("CartPole-v1", 2, seed=0))
    model = PPO("MlpPolicy", env, n_steps=32, seed=0).learn(64)
    snapshot = hub_snapshot(tmp_path, "sb3/ppo-CartPole-v1")
    path = put(snapshot, "ppo-CartPole-v1.zip", model.save)
    put(snapshot, "vec_normalize.pkl", env.save)
    observations: Any = env.unwrapped.reset()
    expected, _ = model.predict(env.normalize_obs(observations), deterministic=True)
    actions, _ = as_source(path).actions(observations, None, np.ones(2, dtype=bool))
    np.testing.assert_array_equal(actions, expected)
