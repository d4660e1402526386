"""The settings of ``zoo_configs``: what the studies learn with, read as it was written, and files that are no YAML."""

from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.utils import LinearSchedule

from sb3_caps import CAPS, PAPER, PiecewiseLinear
from sb3_caps.envs.monster_kong.env import HORIZON
from sb3_caps.reuse.checks import constructor_arguments
from sb3_caps.settings import (
    GROUPS,
    RUN_KEYS,
    SCHEDULES,
    algorithm_arguments,
    config_file,
    entries,
    make_schedules,
    settings,
)
from sb3_caps.studies import demo
from sb3_caps.studies.grid_networks import study as grid_networks
from sb3_caps.studies.monster_kong.methods import ALL_METHODS, PRESETS, arguments_of, horizon_of
from sb3_caps.studies.reuse.runs import get_method

# One training step for every four transitions: the paper counts its schedules in training steps
PAPER_DQN: dict[str, Any] = {
    "learning_rate": PiecewiseLinear([(0, 1e-4), (2_500_000 * 4, 5e-5)], 6_250_000),
    "buffer_size": 1_000_000,
    "learning_starts": 50_000,
    "batch_size": 32,
    "gamma": 0.99,
    "train_freq": 4,
    "gradient_steps": 1,
    "target_update_interval": 10_000,
    "exploration_fraction": 4_375_000 * 4 / 6_250_000,
    "exploration_initial_eps": 1.0,
    "exploration_final_eps": 0.05,
}
PAPER_CAPS: dict[str, Any] = {
    "sequence_length": 1,
    "termination_kwargs": {"learning_rate": 0.00025, "regularization": 0.005, "initial": 0.5, "target": None},
    "exploration": "terminations",
    "normalize_returns": False,
    "safe": False,
    "replay_buffer_kwargs": {"prioritized_share": 0.0},
    "policy_kwargs": {"execution": "call-and-return", "shared_values": False, "averaging": None},
}
# As DQN has it by default
COPIED_TARGET: dict[str, Any] = {"tau": 1.0}
RECOMMENDED: dict[str, Any] = {
    "learning_rate": LinearSchedule(5e-4, 5e-5, 1.0),
    "buffer_size": 400_000,
    "learning_starts": 2_000,
    "batch_size": 256,
    "tau": 0.03,
    "target_update_interval": 16,
    "gamma": 0.99,
    "train_freq": 1,
    "gradient_steps": 4,
    "exploration_fraction": 0.2,
    "exploration_final_eps": 0.05,
}
RECOMMENDED_CAPS: dict[str, Any] = {
    "sequence_length": 16,
    "termination_kwargs": {
        "learning_rate": 0.00025,
        "regularization": 0.005,
        "initial": 0.12,
        "target": LinearSchedule(0.12, 0.2, 0.8),
    },
    "exploration": "terminations",
    "normalize_returns": False,
    "safe": False,
    "replay_buffer_kwargs": {"prioritized_share": 0.0},
    # The average moves as far in a rollout of four gradient steps, or of two, as 0.003 would take it at once
    "policy_kwargs": {"execution": "interrupting", "shared_values": False, "averaging": 0.00075},
}
FEATURES: dict[str, Any] = {"policy_kwargs": {"net_arch": [128, 128]}}
PIXELS: dict[str, Any] = {"batch_size": 64, "gradient_steps": 2, "buffer_size": 200_000, "policy_kwargs": {}}
PIXELS_CAPS: dict[str, Any] = {"policy_kwargs": {"averaging": 0.0015}}
GRID: dict[str, Any] = {
    "learning_rate": 1e-3,
    "buffer_size": 50_000,
    "learning_starts": 1000,
    "batch_size": 64,
    "gamma": 0.95,
    "train_freq": 1,
    "gradient_steps": 2,
    "tau": 0.02,
    "target_update_interval": 8,
    "exploration_fraction": 0.5,
}


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    """Later arguments in place of earlier ones, and groups of them as well."""
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = {**found.get(name, {}), **value} if isinstance(value, dict) else value
    return found


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, dict):
            same(found[name], value)
        elif isinstance(value, (LinearSchedule, PiecewiseLinear)):
            for remaining in (1.0, 0.9, 0.5, 0.1, 0.0):
                assert found[name](remaining) == value(remaining), name
        else:
            assert found[name] == value, name


def config(method: str, preset: str, observation: str) -> dict[str, Any]:
    asked = {"method": method, "preset": preset, "observation": observation}
    entry = PRESETS[preset].entry(
        ALL_METHODS[method].algorithm, "features" if "source-features" in method else observation
    )
    return {**asked, "steps": int(entry["n_timesteps"])}


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        ("caps", PAPER_DQN | PAPER_CAPS | COPIED_TARGET),
        ("dqn", PAPER_DQN),
        ("ops-tl", PAPER_DQN),
    ],
)
@pytest.mark.parametrize("observation", ["features", "pixels"])
def test_the_papers_preset(method: str, wanted: dict[str, Any], observation: str) -> None:
    asked = config(method, "paper", observation)
    assert (asked["steps"], horizon_of(asked)) == (125 * 12_500 * 4, HORIZON)
    same(arguments_of(asked), merged(wanted, FEATURES if observation == "features" else {}))


def test_fixed_terminations_in_the_papers_preset() -> None:
    found = arguments_of(config("caps-0.5", "paper", "pixels"))
    wanted = merged(PAPER_DQN, PAPER_CAPS, COPIED_TARGET, {"termination": 0.5})
    wanted["termination_kwargs"]["target"] = None
    same(found, wanted)


def test_prql_explores_by_reuse_alone_in_the_paper() -> None:
    found = arguments_of(config("prql", "paper", "pixels"))
    without = {name: value for name, value in PAPER_DQN.items() if name != "exploration_fraction"}
    same(found, without | {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0})


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        ("caps", RECOMMENDED | RECOMMENDED_CAPS),
        ("dqn", RECOMMENDED | {"n_steps": 3}),
        ("prql", RECOMMENDED | {"exploration_initial_eps": 1.0, "n_steps": 8, "temperature_growth": 0.2}),
        ("ops-tl", RECOMMENDED | {"n_steps": 8}),
    ],
)
def test_the_recommended_preset(method: str, wanted: dict[str, Any]) -> None:
    asked = config(method, "recommended", "features")
    assert (asked["steps"], horizon_of(asked)) == (400_000, 100)
    same(arguments_of(asked), merged(wanted, FEATURES))
    # As long as there is: a schedule goes with the length of a run, and a buffer is no larger than it can get
    short = arguments_of({**asked, "steps": 1000})
    same(short, merged(wanted, FEATURES, {"buffer_size": 1000}))
    pixels = config(method, "recommended", "pixels")
    assert (pixels["steps"], horizon_of(pixels)) == (200_000, 100)
    same(arguments_of(pixels), merged(wanted, PIXELS, PIXELS_CAPS if method == "caps" else {}))


def test_methods_change_what_they_say() -> None:
    recommended = merged(RECOMMENDED, RECOMMENDED_CAPS, FEATURES)
    without_target = merged(recommended, {"termination": 1.0})
    without_target["termination_kwargs"]["target"] = None
    same(arguments_of(config("caps-1", "recommended", "features")), without_target)
    source_features = arguments_of(config("dqn-source-features", "recommended", "pixels"))
    same(source_features, RECOMMENDED | FEATURES | {"n_steps": 3})
    # With its defaults CAPS has what all methods share, and nothing else
    same(arguments_of(config("caps-defaults", "recommended", "features")), RECOMMENDED | FEATURES)
    learned = merged(recommended, {"termination_kwargs": {"target": LinearSchedule(0.12, 0.5, 0.6)}})
    del learned["termination_kwargs"]["learning_rate"]
    same(arguments_of(config("caps-beta", "recommended", "features")), learned)
    ablations = [name for name in ALL_METHODS if name.startswith("caps-without-")]
    parts = ["sequence-length", "target"]
    assert ablations == [f"caps-without-{part}" for part in parts]
    for part in parts:
        wanted = merged(recommended)
        # Where the paper's setting is not the default it is said
        if part == "sequence-length":
            wanted["sequence_length"] = 1
        if part == "target":
            wanted["termination_kwargs"]["target"] = None
        same(arguments_of(config(f"caps-without-{part}", "recommended", "features")), wanted)
    # What one method leaves out, the others keep
    same(arguments_of(config("caps", "recommended", "features")), recommended)


@pytest.mark.parametrize("method", ["dqn", "prql", "ops-tl"])
def test_baselines_have_one_of_the_settings_that_were_tried(method: str) -> None:
    found = {"bandit_exploration": 1.0, **arguments_of(config(method, "recommended", "features"))}
    tried = settings("monster_kong", "trials")[method]
    assert len(tried) == 4
    assert [found | each == found for each in tried].count(True) == 1


def test_the_grid_with_networks() -> None:
    assert (grid_networks.GAMMA, grid_networks.N_ENVS, grid_networks.STEPS) == (0.95, 8, 30_000)
    # CAPS learns with its defaults
    own: dict[str, dict[str, Any]] = {"caps": {}, "caps-paper": PAPER_CAPS, "dqn": {}}
    for method, wanted in own.items():
        same(algorithm_arguments(grid_networks.ENTRIES[method], 30_000), GRID | wanted)


def test_the_demo() -> None:
    assert (demo.GAMMA, demo.N_ENVS, demo.STEPS) == (0.95, 8, 24_000)
    for algorithm in ("DQN", "CAPS"):
        same(algorithm_arguments(demo.ENTRIES[algorithm], 24_000), GRID)


def test_the_paper_is_one_word_and_the_same_everywhere() -> None:
    """``PAPER``, the entries of the zoo and the method of the reuse suite, argument by argument."""
    same(PAPER, PAPER_CAPS)
    file = config_file("caps")
    assert file is not None
    named = {name: entry for name, entry in entries(file).items() if name.endswith(("@paper", "@networks_paper"))}
    assert {
        "sb3_caps/MonsterKong-v0@paper",
        "sb3_caps/Grid-v0@paper",
        "sb3_caps/Grid-v0@networks_paper",
    } <= named.keys()
    theirs = {"paper of the reuse suite": dict(get_method("caps-paper").arguments), **named}
    for name, entry in theirs.items():
        for argument, value in PAPER.items():
            found = entry[argument]
            if argument == "policy_kwargs":
                # A network is that of the task
                found = {key: part for key, part in found.items() if key != "net_arch"}
            assert found == value, (name, argument)
        # Nothing else that is new: all other arguments are DQN's
        others = entry.keys() - PAPER.keys() - RUN_KEYS - {"policy", "source_policies", "exploration_schedule"}
        assert others <= constructor_arguments(DQN).keys(), name
    # Whatever CAPS has beside DQN and has a choice of, the paper says
    new = constructor_arguments(CAPS).keys() - constructor_arguments(DQN).keys()
    of_what_it_lacks = {"actor_kwargs", "selection_kwargs", "selector_class", "loss_fn"}
    assert new - PAPER.keys() == {"source_policies", "termination", "exploration_schedule"} | of_what_it_lacks


@pytest.mark.parametrize("algo", ["caps", "dqn", "prql", "ops_tl"])
def test_every_entry_of_the_package_can_be_made(algo: str) -> None:
    file = config_file(algo)
    assert file is not None
    for name, entry in entries(file).items():
        if name not in ("templates", "sources", "source_lists"):
            made = algorithm_arguments(entry, 1000)
            assert not {"n_timesteps", "n_envs", "policy", "source_policies"} & made.keys()
            assert not any(isinstance(made.get(key), (list, dict)) for key in SCHEDULES), name
            for group, keys in GROUPS.items():
                assert not any(isinstance(made.get(group, {}).get(key), dict) for key in keys), name
    # What a caller changes stays with the caller
    entry = settings(algo, "CartPole-v1")
    entry["policy_kwargs"]["net_arch"].append(1)
    assert settings(algo, "CartPole-v1")["policy_kwargs"] == {"net_arch": [256, 256]}


def test_schedules_in_steps_and_in_shares_of_a_run() -> None:
    given = {
        "learning_rate": [[0, "1e-2"], [100, 1e-3]],
        "exploration_schedule": {"start": 1, "end": 0, "end_fraction": 0.5},
        "termination_kwargs": {"target": [[0, 0.5], [200, "1e-1"]], "initial": [0.2, 0.4]},
    }
    made = make_schedules({**given, "gamma": 0.9}, 200)
    assert made.keys() == given.keys()
    assert [made["learning_rate"](remaining) for remaining in (1.0, 0.75, 0.5, 0.0)] == [1e-2, 5.5e-3, 1e-3, 1e-3]
    epsilon, target = made["exploration_schedule"], made["termination_kwargs"]["target"]
    assert [epsilon(remaining) for remaining in (1.0, 0.75, 0.5, 0.0)] == [1.0, 0.5, 0.0, 0.0]
    assert [target(remaining) for remaining in (1.0, 0.0)] == [0.5, 0.1]
    # What is no schedule stays as it is, a pair for sources and primitives too
    assert made["termination_kwargs"]["initial"] == [0.2, 0.4]
    pair = make_schedules({"termination_kwargs": {"target": [0.1, 1.0]}}, 200)
    assert pair == {"termination_kwargs": {"target": [0.1, 1.0]}}
    with pytest.raises(ValueError, match="target needs start, end and end_fraction"):
        make_schedules({"termination_kwargs": {"target": {"begin": 1.0}}}, 200)


@pytest.mark.parametrize(("text", "message"), [("a: [1, 2\nb: 3", "is not valid YAML"), ("- 1", "needs an entry for")])
def test_a_config_that_is_none(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yml").write_text(text)
    with pytest.raises(ValueError, match=message) as refused:
        entries(tmp_path / "bad.yml")
    assert str(tmp_path / "bad.yml") in str(refused.value)
    assert "\n" not in str(refused.value)
