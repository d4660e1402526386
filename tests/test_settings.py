"""The settings of ``zoo_configs``: what the studies learn with, read as it was written, and files that are no YAML."""

from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.utils import LinearSchedule

from sb3_caps import PiecewiseLinear
from sb3_caps.common.settings import SCHEDULES, algorithm_arguments, config_file, entries, make_schedules, settings
from sb3_caps.envs.monster_kong.env import HORIZON
from sb3_caps.studies import demo
from sb3_caps.studies.grid_networks import study as grid_networks
from sb3_caps.studies.monster_kong.methods import ALL_METHODS, PRESETS, arguments_of, horizon_of

# One training step for every four transitions: the paper counts its schedules in training steps
PAPER: dict[str, Any] = {
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
PAPER_CAPS = {"termination_learning_rate": 0.00025, "termination_regularization": 0.005, "initial_termination": 0.5}
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
    "initial_termination": 0.12,
    "target_termination": LinearSchedule(0.12, 0.2, 0.8),
    "sequence_length": 16,
    "option_weights": 1 / 3,
    "greedy_temperature": LinearSchedule(0.02, 0.001, 0.3),
    "execution": "interrupting",
    "interruption_margin": 0.01,
    "averaging": 0.003,
    "exploration_bonus": LinearSchedule(0.01, 0.0, 0.4),
    "exploration_episodes": 0.25,
    "exploration_novelty": 3.0,
}
FEATURES: dict[str, Any] = {"policy_kwargs": {"net_arch": [128, 128]}}
PIXELS: dict[str, Any] = {"batch_size": 64, "gradient_steps": 2, "buffer_size": 200_000, "policy_kwargs": {}}
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


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, (LinearSchedule, PiecewiseLinear)):
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
        ("caps", PAPER | PAPER_CAPS),
        ("caps-0.5", PAPER | PAPER_CAPS | {"termination": 0.5}),
        ("dqn", PAPER),
        ("ops-tl", PAPER),
    ],
)
@pytest.mark.parametrize("observation", ["features", "pixels"])
def test_the_papers_preset(method: str, wanted: dict[str, Any], observation: str) -> None:
    asked = config(method, "paper", observation)
    assert (asked["steps"], horizon_of(asked)) == (125 * 12_500 * 4, HORIZON)
    same(arguments_of(asked), wanted | (FEATURES if observation == "features" else {}))


def test_prql_explores_by_reuse_alone_in_the_paper() -> None:
    found = arguments_of(config("prql", "paper", "pixels"))
    without = {name: value for name, value in PAPER.items() if name != "exploration_fraction"}
    same(found, without | {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0})


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        ("caps", RECOMMENDED | RECOMMENDED_CAPS),
        ("dqn", RECOMMENDED),
        ("prql", RECOMMENDED | {"exploration_initial_eps": 1.0}),
        ("ops-tl", RECOMMENDED),
    ],
)
def test_the_recommended_preset(method: str, wanted: dict[str, Any]) -> None:
    asked = config(method, "recommended", "features")
    assert (asked["steps"], horizon_of(asked)) == (400_000, 100)
    same(arguments_of(asked), wanted | FEATURES)
    # As long as there is: a schedule goes with the length of a run, and a buffer is no larger than it can get
    short = arguments_of({**asked, "steps": 1000})
    same(short, wanted | FEATURES | {"buffer_size": 1000})
    pixels = config(method, "recommended", "pixels")
    assert (pixels["steps"], horizon_of(pixels)) == (200_000, 100)
    same(arguments_of(pixels), wanted | PIXELS)


def test_methods_change_what_they_say() -> None:
    same(
        arguments_of(config("caps-1", "recommended", "features")),
        {name: value for name, value in (RECOMMENDED | RECOMMENDED_CAPS).items() if name != "target_termination"}
        | FEATURES
        | {"termination": 1.0},
    )
    source_features = arguments_of(config("dqn-source-features", "recommended", "pixels"))
    same(source_features, RECOMMENDED | FEATURES)
    ablations = [name for name in ALL_METHODS if name.startswith("caps-without-")]
    assert ablations == [f"caps-without-{name.replace('_', '-')}" for name in RECOMMENDED_CAPS]
    without_execution = arguments_of(config("caps-without-execution", "recommended", "features"))
    assert not {"execution", "interruption_margin"} & without_execution.keys()


def test_the_grid_with_networks() -> None:
    assert (grid_networks.GAMMA, grid_networks.N_ENVS, grid_networks.STEPS) == (0.95, 8, 30_000)
    own: dict[str, dict[str, Any]] = {
        "caps": {
            "sequence_length": 8,
            "execution": "interrupting",
            "option_weights": 1 / 3,
            "greedy_temperature": LinearSchedule(0.02, 0.001, 0.5),
            "exploration_bonus": LinearSchedule(0.05, 0.0, 0.5),
        },
        "caps-paper": PAPER_CAPS,
        "dqn": {},
    }
    for method, wanted in own.items():
        same(algorithm_arguments(grid_networks.ENTRIES[method], 30_000), GRID | wanted)


def test_the_demo() -> None:
    assert (demo.GAMMA, demo.N_ENVS, demo.STEPS) == (0.95, 8, 24_000)
    same(algorithm_arguments(demo.ENTRIES["DQN"], 24_000), GRID)
    own = {"sequence_length": 8, "execution": "interrupting"}
    own |= {"termination_learning_rate": 0.5, "termination_regularization": 0.02}
    same(algorithm_arguments(demo.ENTRIES["CAPS"], 24_000), GRID | own)


@pytest.mark.parametrize("algo", ["caps", "dqn", "prql", "ops_tl"])
def test_every_entry_of_the_package_can_be_made(algo: str) -> None:
    file = config_file(algo)
    assert file is not None
    for name, entry in entries(file).items():
        if name not in ("templates", "sources", "source_lists"):
            made = algorithm_arguments(entry, 1000)
            assert not {"n_timesteps", "n_envs", "policy", "source_policies"} & made.keys()
            assert not any(isinstance(made.get(key), (list, dict)) for key in SCHEDULES), name
    # What a caller changes stays with the caller
    entry = settings(algo, "CartPole-v1")
    entry["policy_kwargs"]["net_arch"].append(1)
    assert settings(algo, "CartPole-v1")["policy_kwargs"] == {"net_arch": [256, 256]}


def test_schedules_in_steps_and_in_shares_of_a_run() -> None:
    given = {
        "learning_rate": [[0, "1e-2"], [100, 1e-3]],
        "exploration_bonus": {"start": 1, "end": 0, "end_fraction": 0.5},
    }
    made = make_schedules({**given, "gamma": 0.9, "greedy_temperature": 0.1}, 200)
    assert made.keys() == given.keys()
    assert [made["learning_rate"](remaining) for remaining in (1.0, 0.75, 0.5, 0.0)] == [1e-2, 5.5e-3, 1e-3, 1e-3]
    assert [made["exploration_bonus"](remaining) for remaining in (1.0, 0.75, 0.5, 0.0)] == [1.0, 0.5, 0.0, 0.0]
    with pytest.raises(ValueError, match="exploration_bonus needs start, end and end_fraction"):
        make_schedules({"exploration_bonus": {"begin": 1.0}}, 200)


@pytest.mark.parametrize(("text", "message"), [("a: [1, 2\nb: 3", "is no valid YAML"), ("- 1", "needs an entry for")])
def test_a_config_that_is_none(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yml").write_text(text)
    with pytest.raises(ValueError, match=message) as refused:
        entries(tmp_path / "bad.yml")
    assert str(tmp_path / "bad.yml") in str(refused.value)
    assert "\n" not in str(refused.value)
