"""Libraries of policies: on disk, for several processes at once, and what is worth keeping in them."""

import json
import multiprocessing
import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import DDPG, DQN, PPO, SAC, TD3

from sb3_caps import CAPS, ContinuousCAPS, PolicyLibrary, as_source
from sb3_caps.commands import main
from sb3_caps.library import worth_of_sources
from sb3_caps.library.folder import Returns
from sb3_caps.sources import SourcePolicy
from tests.soak import times
from tests.toy_box import ToyBox, away, home
from tests.toy_world import LEFT, LENGTH, RIGHT, STAY, Corridor, go_right

TASK, BOX = "tests/Corridor-v0", "tests/ToyBox-v0"
# A hundred with `make soak`
KILLS = times(4, 100)

if TASK not in gym.registry:
    gym.register(TASK, entry_point="tests.toy_world:Corridor")
    gym.register(BOX, entry_point="tests.toy_box:ToyBox")


def always(action: int, name: str = "dqn") -> SourcePolicy:
    """A network that takes one action everywhere."""
    model = DQN("MlpPolicy", Corridor(), seed=0, buffer_size=10, policy_kwargs={"net_arch": [4]}, device="cpu")
    last: Any = model.q_net.q_net[-1]
    with th.no_grad():
        last.weight.zero_()
        last.bias.copy_(th.arange(3) == action)
    return as_source(model, name=name)


def turned(observations: np.ndarray) -> np.ndarray:
    """A map of observations, as an import string."""
    return np.asarray(observations)[:, ::-1]


def opposite(actions: np.ndarray) -> np.ndarray:
    return np.where(actions == LEFT, RIGHT, np.where(actions == RIGHT, LEFT, actions))


@pytest.fixture
def library(tmp_path: Path) -> PolicyLibrary:
    found = PolicyLibrary(tmp_path / "library")
    for name, action in (("left", LEFT), ("right", RIGHT), ("stay", STAY)):
        found.add(always(action), name, task=TASK, n_eval_episodes=2, origin="made by hand")
    return found


def test_what_a_library_keeps(library: PolicyLibrary) -> None:
    assert library.names == ["left", "right", "stay"]
    assert len(library) == 3
    assert "left" in library
    entry = library.entry("right")
    assert (entry.kind, entry.task, entry.origin, entry.deterministic) == ("DQNPolicy", TASK, "made by hand", True)
    assert entry.returns[TASK].mean == 1.0
    assert entry.returns[TASK].episodes == 2
    assert library.entry("left").returns[TASK].mean == 0.0
    assert entry.actions == "Discrete(3)"
    cells = np.eye(LENGTH, dtype=np.float32)
    found = {source.name: source.actions(cells, None, np.ones(LENGTH, dtype=bool))[0] for source in library}
    assert {name: set(actions.tolist()) for name, actions in found.items()} == {
        "left": {LEFT},
        "right": {RIGHT},
        "stay": {STAY},
    }
    with pytest.raises(KeyError, match="no policy"):
        library.remove("../library/left")
    library.remove("left")
    assert library.names == ["right", "stay"]
    assert sorted(path.name for path in library.folder.iterdir()) == [
        ".lock",
        *(f"{name}.{kind}" for name in ("right", "stay") for kind in ("json", "npz")),
    ]
    assert library.check() == {}


def test_a_policy_that_draws_its_actions_comes_back_as_one(tmp_path: Path) -> None:
    library = PolicyLibrary(tmp_path)
    library.add(PPO("MlpPolicy", Corridor(), seed=0), "ppo", deterministic=False)
    assert not library.entry("ppo").deterministic
    assert not library["ppo"].deterministic


@pytest.mark.parametrize("algorithm", [SAC, TD3, DDPG, ContinuousCAPS])
def test_policies_with_continuous_actions(tmp_path: Path, algorithm: Any) -> None:
    """They come back as they were, beside others that fit another task, and are reused."""
    sources = {"source_policies": {"home": SAC("MlpPolicy", ToyBox(), buffer_size=10, seed=1)}}
    kwargs: dict[str, Any] = sources if algorithm is ContinuousCAPS else {}
    model = algorithm("MlpPolicy", ToyBox(), buffer_size=100, seed=0, policy_kwargs={"net_arch": [16]}, **kwargs)
    library = PolicyLibrary(tmp_path)
    library.add(model, "box", task=BOX, n_eval_episodes=2)
    library.add(always(LEFT), "left", task=TASK)
    observations = np.random.default_rng(0).uniform(-1, 1, (20, 2)).astype(np.float32)
    starts = np.ones(20, dtype=bool)
    actions, _ = library["box"].actions(observations, None, starts)
    np.testing.assert_allclose(actions, as_source(model).actions(observations, None, starts)[0], atol=1e-6)
    assert [each.name for each in library.for_env(BOX)] == ["box"]
    assert library.entry("box").returns[BOX].mean == library.evaluate(BOX)["box"].mean < 0.0
    assert "'box' gains" in library.consider(home, ToyBox(), n_eval_episodes=3).reason
    reusing = ContinuousCAPS("MlpPolicy", ToyBox(), source_policies=library, buffer_size=100, seed=0, learning_starts=5)
    assert reusing.learn(20).options.source_names == ["box"]


def test_a_library_as_source_policies(library: PolicyLibrary) -> None:
    """Those that fit are reused, the others wait for their tasks."""
    library.add(DQN("MlpPolicy", "CartPole-v1", buffer_size=10), "pole", task="CartPole-v1")
    model = CAPS("MlpPolicy", Corridor(), source_policies=library, seed=0, learning_starts=20).learn(50)
    # First what has arrived somewhere
    expected = ["right", "left", "stay"]
    assert model.options.source_names == expected
    assert [source.name for source in library.for_env("CartPole-v1")] == ["pole"]
    assert [source.name for source in library.for_env(Corridor())] == expected
    assert [source.name for source in library.for_env(model.get_env())] == expected  # type: ignore[arg-type]


def test_what_did_well_on_some_task_is_tried_first(library: PolicyLibrary) -> None:
    for name in library.names:
        library.remove(name)
    returns = {
        "worst": {"a": 0.0},
        "middle": {"a": 5.0, "b": -3.0},
        "elsewhere": {"b": -2.0},
        "unknown": {},
        "alone": {"c": -100.0},
        "best": {"a": 10.0},
    }
    for name, means in returns.items():
        library.add(always(STAY), name)
        entry = library.entry(name)
        library._write(replace(entry, returns={task: Returns(mean, 0.0, 1) for task, mean in means.items()}))
    # Of 0 to 10 on a: 0, 0.5 and 1; of -3 to -2 on b: 0 and 1; alone on c, and without any task, 1
    names = [source.name for source in library.for_env(TASK)]
    assert names == ["elsewhere", "unknown", "alone", "best", "middle", "worst"]


def test_maps_are_code(library: PolicyLibrary) -> None:
    library.add(
        always(LEFT), "mapped", action_map="tests.test_library:opposite", observation_map="tests.test_library:turned"
    )
    actions, _ = library["mapped"].actions(np.eye(LENGTH, dtype=np.float32), None, np.ones(LENGTH, dtype=bool))
    assert set(actions.tolist()) == {RIGHT}
    untrusted = PolicyLibrary(library.folder, trust=False)
    assert [source.name for source in untrusted] == ["left", "right", "stay"]
    with pytest.raises(KeyError, match="trust=True"):
        untrusted["mapped"]
    file = library.folder.parent / "model.npz"
    CAPS("MlpPolicy", Corridor(), source_policies=untrusted, seed=0).export(file)
    loaded = CAPS.load(file, source_policies=library, trust=False)
    assert sorted(loaded.options.source_names) == ["left", "right", "stay"]
    assert library.trust


@pytest.mark.parametrize(
    ("policy", "kwargs", "message"),
    [
        (go_right, {}, "is a function, which is code"),
        (None, {"name": "left"}, "has a policy 'left' already"),
        (None, {"name": "../left"}, "is no name for a policy"),
        (None, {"name": ".hidden"}, "is no name for a policy"),
        (None, {"name": "options"}, "is no name for a policy"),
        (None, {"name": "new", "action_map": opposite}, "Maps are kept as import strings"),
    ],
)
def test_what_is_refused(library: PolicyLibrary, policy: Any, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        library.add(policy or always(LEFT), **kwargs)
    assert library.names == ["left", "right", "stay"]
    assert not list(library.folder.glob("*.partial"))


def test_damaged_entries_are_named(library: PolicyLibrary) -> None:
    (library.folder / "left.npz").write_bytes(b"PK")
    assert list(library.check()) == ["left"]
    file = library.folder / "stay.json"
    content = json.loads(file.read_text())
    for key, value in (("deterministic", "yes"), ("name", "other"), ("more", 1), ("returns", [1])):
        file.write_text(json.dumps(content | {key: value}))
        assert list(library.check()) == ["left", "stay"]
        with pytest.raises(ValueError, match=r"stay\.json is damaged"):
            library.entries()


def test_returns_on_another_task_are_remembered(library: PolicyLibrary) -> None:
    other = "tests/CorridorShort-v0"
    if other not in gym.registry:
        gym.register(other, entry_point="tests.toy_world:Corridor", kwargs={"horizon": 3})
    found = library.evaluate(other, 5)
    assert found.keys() == {"left", "right", "stay"}
    assert found["left"].mean == 0.0
    assert library.entry("right").returns[other] == found["right"]
    before = library.entry("right")
    # They are known: nothing is tried again
    library.evaluate(other, 50)
    assert library.entry("right") == before


def test_pruning_tells_how_much_is_lost(library: PolicyLibrary) -> None:
    found = library.prune(n_eval_episodes=2)
    assert found.names == ["left", "stay"]
    assert found.lost == {TASK: 0.0}
    assert "remove left, stay: the best of the others is lower by 0 on" in str(found)
    assert library.names == ["left", "right", "stay"]
    assert set(library.prune(tolerance=2.0).names) == {"left", "stay"}
    with pytest.raises(ValueError, match="knows of no task"):
        PolicyLibrary(library.folder / "empty").prune()


def test_considering_a_policy(library: PolicyLibrary) -> None:
    # Something in the library does the same
    again = library.consider(always(RIGHT), Corridor(), n_eval_episodes=5)
    assert not again.add
    assert (again.worth, again.best, again.difference) == (0.0, "right", 0.0)
    assert "'right' gains 100% of what it gains" in again.reason
    library.remove("right")
    new = library.consider(always(RIGHT), TASK, n_eval_episodes=5)
    assert new.add
    assert new.worth == 1.0
    assert new.difference == 1.0
    # Worse than random actions
    assert not library.consider(always(STAY), TASK, n_eval_episodes=5).add
    # It adds on a past task what nothing there does, whatever its own task is
    assert library.consider(always(RIGHT), Corridor(horizon=1), n_eval_episodes=200).worth > 0.1
    empty = PolicyLibrary(library.folder / "empty")
    assert (
        str(empty.consider(always(RIGHT), TASK, n_eval_episodes=5))
        == "add (1.00): nothing in the library fits this task"
    )
    with pytest.raises(ValueError, match="threshold must be a share"):
        library.consider(always(RIGHT), TASK, threshold=2.0)


def test_what_sources_are_worth_in_a_model(library: PolicyLibrary) -> None:
    model = CAPS("MlpPolicy", Corridor(), source_policies=library, seed=0, learning_starts=20).learn(900)
    model.gate.controller = next(each for each in model.selector.sources if each.name == "right")
    found = {each.name: each for each in worth_of_sources(model, Corridor(), n_eval_episodes=5)}
    assert found["right"].share == 1.0
    assert found["left"].share == 0.0
    assert found["left"].lost == 0.0
    assert found["right"].agreement == {"left": 0.0, "stay": 0.0}
    # The model and its source stay as they are
    assert model.options.source_names == ["right", "left", "stay"]
    assert model.gate.controller.name == "right"


def test_what_sources_are_worth_for_continuous_actions() -> None:
    arguments: dict[str, Any] = {"policy_kwargs": {"net_arch": [16]}, "batch_size": 16, "train_freq": 4, "seed": 0}
    sources = {"home": home, "away": away, "again": home}
    model = ContinuousCAPS("MlpPolicy", ToyBox(), source_policies=sources, device="cpu", **arguments).learn(300)
    model.gate.controller = next(each for each in model.selector.sources if each.name == "home")
    found = {each.name: each for each in worth_of_sources(model, ToyBox(), n_eval_episodes=3)}
    assert found["home"].share == 1.0
    assert found["away"].lost == found["again"].lost == 0.0
    assert found["home"].agreement["again"] == 1.0
    # Where there is nothing to do both do nothing
    assert found["home"].agreement["away"] < 1.0


def add_and_remove(folder: Path, source: SourcePolicy, who: str) -> None:
    """Add policies that stay, and others that go, as fast as possible, until it is over."""
    library, number = PolicyLibrary(folder), 0
    while not (folder.parent / "over").exists():
        library.add(source, f"{who}-{number}")
        # Known to everybody from now on
        with (folder.parent / who).open("a") as file:
            file.write(f"{who}-{number}\n")
        library.add(source, f"{who}-passing")
        assert f"{who}-passing" in [each.name for each in library]
        library.remove(f"{who}-passing")
        number += 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that start at once")
def test_four_processes_one_of_which_is_killed_again_and_again(tmp_path: Path) -> None:
    folder, source = tmp_path / "library", always(LEFT)
    rng, fork = random.Random(0), multiprocessing.get_context("fork")
    others = [fork.Process(target=add_and_remove, args=(folder, source, f"lasting{i}")) for i in range(3)]
    for process in others:
        process.start()
    for i in range(KILLS):
        victim = fork.Process(target=add_and_remove, args=(folder, source, f"killed{i}"))
        victim.start()
        time.sleep(0.2 + 0.5 * rng.random())
        victim.kill()
        victim.join()
    (tmp_path / "over").touch()
    for process in others:
        process.join()
        assert process.exitcode == 0
    library = PolicyLibrary(folder)
    assert library.check() == {}
    told = {line for file in tmp_path.iterdir() if file.is_file() for line in file.read_text().splitlines()}
    names = set(library.names)
    assert told <= names
    workers = {name.split("-")[0] for name in told}
    print(
        f"{KILLS} kills, {sum(who.startswith('killed') for who in workers)} of them of who had added a policy already, "
        f"among {len(names)} policies"
    )
    assert {"lasting0", "lasting1", "lasting2"} < workers
    # Whoever was killed was in one step: at most one policy that it has not told of, and one that was to go
    assert len(names - told) <= 2 * KILLS
    library.add(source, "last")
    assert (
        {file.stem for file in folder.glob("*.npz")}
        == {file.stem for file in folder.glob("*.json")}
        == names | {"last"}
    )


def test_the_command(library: PolicyLibrary, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(library.folder)

    def called(*arguments: str) -> str:
        assert main(["library", *arguments, "--folder", folder]) == 0
        return capsys.readouterr().out

    assert called("list").splitlines()[1].split()[:3] == ["left", "DQNPolicy", TASK]
    DQN("MlpPolicy", Corridor(), seed=0, buffer_size=10).save(tmp_path / "run")
    path = str(tmp_path / "run.zip")
    assert called("consider", path, "--env", TASK, "--episodes", "3").startswith("leave")
    assert called("add", path, "--name", "new", "--env", TASK, "--episodes", "2").strip() == "new"
    assert library.entry("new").origin == path
    assert called("prune").startswith("remove")
    called("remove", "new", "stay")
    assert library.names == ["left", "right"]
    assert "2 policies can be read" in called("check")
    (library.folder / "left.npz").write_bytes(b"")
    assert main(["library", "check", "--folder", folder]) == 1
    assert "left" in capsys.readouterr().out
    assert main(["library", "remove", "nobody", "--folder", folder]) == 2
    assert "no policy 'nobody'" in capsys.readouterr().err
