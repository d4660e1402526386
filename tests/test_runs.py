"""Short runs of every combination, the same seed giving the same run, and what is logged."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from sb3_caps import CAPS, PAPER, PiecewiseLinear
from tests.paper import paper
from tests.toy_world import Corridor, go_left, go_right, right_then_stay

POLICIES = {
    "box": "MlpPolicy",
    "discrete": "MlpPolicy",
    "dict": "MultiInputPolicy",
    "image": "CnnPolicy",
    "image_first": "CnnPolicy",
}


def run(kind: str = "box", n_envs: int = 2, steps: int = 160, **kwargs: Any) -> CAPS:
    arguments = {"buffer_size": 200, "learning_starts": 40, "batch_size": 16, "seed": 0, **kwargs}
    env = make_vec_env(Corridor, n_envs=n_envs, seed=0, env_kwargs={"kind": kind, "horizon": 9})
    return CAPS(POLICIES[kind], env, source_policies=[go_right, right_then_stay], **arguments).learn(steps)


@pytest.mark.parametrize(("kind", "n_envs", "sequence_length"), list(itertools.product(POLICIES, [1, 3], [1, 4])))
def test_observations_environments_and_sequences(kind: str, n_envs: int, sequence_length: int) -> None:
    model = run(kind, n_envs, steps=120, sequence_length=sequence_length)
    assert model._n_updates > 0
    assert all(th.isfinite(parameter).all() for parameter in model.policy.parameters())


@pytest.mark.parametrize(
    "kwargs",
    [
        {"train_freq": (2, "episode"), "n_envs": 1},
        {"train_freq": (3, "step"), "gradient_steps": -1},
        {"gradient_steps": 4, "tau": 0.01, "target_update_interval": 1, "n_envs": 1},
        {"learning_rate": lambda progress: 1e-3 * progress},
        {"learning_rate": PiecewiseLinear([(0, 1e-3), (100, 1e-4)])},
        {"learning_starts": 0},
        {"optimize_memory_usage": True},
        {"optimize_memory_usage": True, "kind": "image"},
        {"optimize_memory_usage": True, "kind": "dict"},
        {"termination": 1.0},
        {"termination": 0.5, "sequence_length": 8},
        {"policy_kwargs": {"execution": "interrupting"}, "termination_kwargs": {"initial": (0.1, 0.5)}},
        PAPER,
        paper(policy_kwargs={"execution": "interrupting"}, termination_kwargs={"initial": (0.1, 0.5)}),
        {"policy_kwargs": {"shared_values": False, "averaging": None}},
        {"replay_buffer_kwargs": {"prioritized_share": 1.0}},
        {"selection_kwargs": {"actor": False}},
        {"exploration": "terminations"},
        {"normalize_returns": False},
        {"safe": False},
        {"policy_kwargs": {"net_arch": [16], "activation_fn": th.nn.Tanh}},
        {"policy_kwargs": {"net_arch": []}},
        {"policy_kwargs": {"optimizer_class": th.optim.RMSprop, "optimizer_kwargs": {"alpha": 0.9}}},
        {"policy_kwargs": {"normalize_images": False}, "kind": "image_first"},
        {"device": "cpu", "max_grad_norm": 0.5, "stats_window_size": 5},
        {"replay_buffer_kwargs": {"handle_timeout_termination": False}},
    ],
    ids="-".join,
)
def test_arguments_of_sb3(kwargs: dict[str, Any]) -> None:
    model = run(**kwargs)
    assert model._n_updates > 0
    assert all(th.isfinite(parameter).all() for parameter in model.policy.parameters())


def test_vec_normalize_and_frame_stack() -> None:
    env = make_vec_env(Corridor, n_envs=2, seed=0)
    model = CAPS("MlpPolicy", VecNormalize(env), source_policies=[go_right], learning_starts=20, seed=0).learn(200)
    # The buffer keeps the original observations, and samples normalised ones
    assert set(np.unique(model.replay_buffer.stores[None].data)) <= {0.0, 1.0}
    observations = model.replay_buffer.sample(64, env=model._vec_normalize_env).observations
    assert isinstance(observations, th.Tensor)
    assert observations.min() < 0
    stacked = VecFrameStack(make_vec_env(Corridor, n_envs=2, seed=0, env_kwargs={"kind": "image"}), n_stack=2)
    image_model = CAPS("CnnPolicy", stacked, source_policies=[go_right_of_stack], buffer_size=100, learning_starts=20)
    image_model.learn(60)
    assert image_model.observation_space.shape == (4, 36, 36)


def go_right_of_stack(observations: np.ndarray) -> np.ndarray:
    assert observations.shape[1:] == (36, 36, 4)
    return np.ones(len(observations), dtype=np.int64)


def test_the_literal_call() -> None:
    model = CAPS("CnnPolicy", Corridor("image"), learning_starts=10**6)
    assert model.learn.__defaults__ is not None
    assert model.learn.__defaults__[0] == 100_000
    stop_after = 40

    def stop(local: dict[str, Any], _: dict[str, Any]) -> bool:
        return bool(local["self"].num_timesteps < stop_after)

    model.learn(callback=stop)
    assert model.num_timesteps == stop_after
    assert model.options.names == ["action_0", "action_1", "action_2"]


@pytest.mark.parametrize("kind", ["box", "image"])
def test_the_same_seed_gives_the_same_run_to_the_last_bit(kind: str) -> None:
    first, second, other = run(kind), run(kind), run(kind, seed=1)
    for name in ("actions", "options", "agreements", "option_actions", "next_option_actions", "rewards", "dones"):
        np.testing.assert_array_equal(getattr(first.replay_buffer, name), getattr(second.replay_buffer, name))
    ours, theirs = first.policy.state_dict(), second.policy.state_dict()
    assert all(th.equal(ours[key], theirs[key]) for key in ours)
    assert not all(th.equal(ours[key], value) for key, value in other.policy.state_dict().items())


def test_learning_twice_and_a_new_environment() -> None:
    model = run()
    model.learn(104)
    assert model.num_timesteps == 104
    model.learn(104, reset_num_timesteps=False)
    assert model.num_timesteps == 208
    model.set_env(make_vec_env(Corridor, n_envs=2, seed=5))
    model.learn(56)
    assert model.num_timesteps == 56


def test_schedules_in_absolute_steps() -> None:
    rates: list[tuple[int, float, float]] = []

    def watch(local: dict[str, Any], _: dict[str, Any]) -> bool:
        model = local["self"]
        rates.append((model.num_timesteps, model.exploration_rate, model.policy.optimizer.param_groups[0]["lr"]))
        return True

    arguments: dict[str, Any] = {
        "learning_rate": PiecewiseLinear([(0, 1e-3), (200, 1e-4)]),
        "exploration_schedule": PiecewiseLinear([(50, 1.0), (150, 0.2)]),
        "learning_starts": 0,
        "train_freq": 1,
    }
    model = CAPS("MlpPolicy", Corridor(), seed=0, **arguments)
    model.learn(180, callback=watch)
    model.learn(120, callback=watch, reset_num_timesteps=False)
    by_step = {step: (epsilon, rate) for step, epsilon, rate in rates}
    # The callback comes before the step's own update, so it sees the values of the step before
    assert by_step[51][0] == pytest.approx(1.0)
    assert by_step[101][0] == pytest.approx(0.6)
    assert by_step[251][0] == pytest.approx(0.2)
    assert by_step[101][1] == pytest.approx(5.5e-4)
    assert by_step[300][1] == pytest.approx(1e-4)


@pytest.mark.parametrize("arguments", [{}, PAPER])
def test_logs(arguments: dict[str, Any], tmp_path: Path) -> None:
    model = run(steps=40, **arguments)
    model.set_logger(configure(str(tmp_path), ["json", "csv", "stdout"]))
    model.learn(600, log_interval=4)
    rows = [json.loads(line) for line in (tmp_path / "progress.json").read_text().splitlines()]
    last = rows[-1]
    shares = [last[f"per_option/share/{name}"] for name in model.options.names]
    assert sum(shares) == pytest.approx(1.0)
    assert last["options/source_share"] == pytest.approx(sum(shares[:2]))
    assert 1 <= last["options/mean_length"] < 9
    assert 1 <= last["options/mean_agreement"] <= 3
    assert 0 < last["rollout/exploration_rate"] <= 1
    assert {"train/loss", "train/n_updates", "rollout/ep_rew_mean"} <= last.keys()
    # β has a loss of its own where it is learned online
    assert ("train/termination_loss" in last) == bool(arguments)
    # What whole episodes say, and what the model acts by
    assert ("reuse/acts_by" in last) == ("reuse/mean_reward/go_right" in last) == (not arguments)


def test_statistics_by_hand() -> None:
    """One option for good, β never ending it: its share is 1, its length that of the episodes."""
    env = make_vec_env(lambda: Corridor(horizon=5), n_envs=1, seed=0)
    arguments = paper(termination=0.0, exploration_schedule=lambda _: 0.0)
    model = CAPS("MlpPolicy", env, source_policies=[go_left], learning_starts=0, gradient_steps=0, **arguments)
    last = model.q_net.q_net[-1]
    assert isinstance(last, th.nn.Linear)
    with th.no_grad():
        last.bias[0] = 10.0
    logger = configure(None, [])
    model.set_logger(logger)
    model.learn(60, log_interval=10**6)
    model._use.record(logger, model.options.names, 1)
    assert logger.name_to_value["per_option/share/go_left"] == 1.0
    assert logger.name_to_value["options/mean_length"] == 5.0
    assert logger.name_to_value["options/mean_agreement"] == 2.0
    assert model._use.of(slice(0, 1)) == (1.0, 5.0)


def test_callbacks_and_progress_bar(tmp_path: Path) -> None:
    model = CAPS(
        "MlpPolicy", Corridor(), source_policies=[go_right], seed=0, tensorboard_log=str(tmp_path / "tb"), verbose=0
    )
    callbacks = [
        EvalCallback(Corridor(), eval_freq=50, n_eval_episodes=2, best_model_save_path=str(tmp_path), verbose=0),
        CheckpointCallback(save_freq=100, save_path=str(tmp_path), save_replay_buffer=True),
    ]
    model.learn(200, callback=callbacks, progress_bar=True)
    assert CAPS.load(tmp_path / "best_model").options.source_names == ["go_right"]
    assert (tmp_path / "rl_model_200_steps.zip").is_file()
    assert list((tmp_path / "tb" / "CAPS_1").glob("events*"))
