"""What is refused, where it enters, and what the message says."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_caps import CAPS, PiecewiseLinear, as_source
from tests.toy_world import Corridor, go_left, go_right


def caps(**kwargs: Any) -> CAPS:
    return CAPS("MlpPolicy", Corridor(), **kwargs)


def test_action_space_must_be_discrete() -> None:
    with pytest.raises(AssertionError, match=r"only supports.*Discrete.*Box"):
        CAPS("MlpPolicy", "Pendulum-v1")


def test_actions_start_at_zero() -> None:
    env = Corridor()
    env.action_space = spaces.Discrete(3, start=1)
    with pytest.raises(ValueError, match="numbered from 0"):
        CAPS("MlpPolicy", env)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"n_steps": 3}, "n_steps must be 1, not 3.*sequence_length"),
        ({"termination": 1.5}, "termination must be None or a probability from 0 to 1, not 1.5"),
        ({"termination": -0.1}, "not -0.1"),
        (
            {"termination_kwargs": {"initial": 0.0}},
            r"termination_kwargs\['initial'\] must be one probability, or.*not 0.0",
        ),
        ({"termination_kwargs": {"initial": (0.5, 1.0)}}, r"not \(0.5, 1.0\)"),
        ({"termination_kwargs": {"initial": (0.5, 0.5, 0.5)}}, "pair of them"),
        (
            {"termination_kwargs": {"learning_rate": -0.1}},
            r"\['learning_rate'\] must be a number of at least 0, not -0.1",
        ),
        ({"termination_kwargs": {"regularization": -0.1}}, r"\['regularization'\] must be a number of at least 0"),
        ({"termination_kwargs": {"regularization": None}}, r"\['regularization'\] must be a number .*not None"),
        ({"termination_kwargs": {"initial": None}}, r"\['initial'\] must be one probability.*not None"),
        ({"termination_kwargs": {"rate": 0.1}}, "termination_kwargs must be a dict with some of learning_rate.*'rate'"),
        ({"termination_kwargs": 0.1}, "termination_kwargs must be a dict with some of .*not 0.1"),
        ({"sequence_length": 0}, "sequence_length must be a whole number from 1 to batch_size"),
        ({"sequence_length": 65}, r"batch_size \(64\)"),
        ({"policy_kwargs": {"execution": "sometimes"}}, "call-and-return.*interrupting.*'sometimes'"),
        ({"termination_kwargs": {"target": 1.5}}, r"\['target'\] must be one probability, or a pair of them.*not 1.5"),
        ({"termination_kwargs": {"target": (0.1, 1.5)}}, r"not \(0.1, 1.5\)"),
        (
            {"termination_kwargs": {"target": 0.2}, "termination": 0.5},
            r"termination, which fixes β everywhere, or termination_kwargs\['target'\]",
        ),
        ({"exploration": "sometimes"}, "exploration must be one of .*'steps', 'terminations'.*'sometimes'"),
        ({"actor_kwargs": {"softness": 1.5}}, r"actor_kwargs\['softness'\] must be a number from 0 to 1, not 1.5"),
        ({"actor_kwargs": {"window": 0}}, r"actor_kwargs\['window'\] must be a whole number of at least 1, not 0"),
        ({"actor_kwargs": {"rate": 0.1}}, "actor_kwargs must be a dict with some of learning_rate.*'rate'"),
        (
            {"selection_kwargs": {"survey_share": -0.1}},
            r"selection_kwargs\['survey_share'\] must be a number from 0 to 1, not -0.1",
        ),
        ({"selection_kwargs": {"memory": 0}}, r"\['memory'\] must be a number from 0.01 to 1, not 0"),
        ({"selection_kwargs": {"actor": 1}}, r"\['actor'\] must be True or False, not 1"),
        ({"selection_kwargs": 3}, "selection_kwargs must be a dict with some of survey_share.*not 3"),
        ({"safe": 1}, "safe must be True or False, not 1"),
        ({"normalize_returns": None}, "normalize_returns must be True or False, not None"),
        ({"policy_kwargs": {"averaging": 0.0}}, "averaging must be None or a share above 0 and up to 1, not 0.0"),
        (
            {"replay_buffer_kwargs": {"prioritized_share": 1.5}},
            "prioritized_share must be a share from 0 to 1, not 1.5",
        ),
        ({"replay_buffer_class": ReplayBuffer}, "OptionReplayBuffer"),
        ({"replay_buffer_class": HerReplayBuffer}, "HerReplayBuffer .HER. is not supported"),
        ({"source_policies": "model.zip"}, "must be a list of source policies.*'model.zip'"),
        ({"source_policies": 3}, "must be a list"),
        ({"source_policies": go_right}, "must be a list"),
        ({"source_policies": [3]}, "3 is not a source policy"),
        ({"source_policies": ["tests.toy_world:nothing"]}, "'tests.toy_world:nothing' cannot be imported"),
        ({"source_policies": ["no_such_module:policy"]}, "cannot be imported: No module"),
        (
            {"source_policies": [as_source(go_right, name="a"), as_source(go_left, name="a")]},
            "Two options are named 'a'",
        ),
        ({"source_policies": [as_source(go_right, name="action_1")]}, "Two options are named 'action_1'"),
    ],
)
def test_arguments(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        caps(**kwargs)


def test_an_empty_list_of_sources_is_fine() -> None:
    assert caps(source_policies=[]).options.names == ["action_0", "action_1", "action_2"]


def test_schedule_points_in_order() -> None:
    with pytest.raises(ValueError, match="in the order of their steps"):
        PiecewiseLinear([(10, 1.0), (0, 0.5)])
    with pytest.raises(ValueError, match="needs total_timesteps"):
        PiecewiseLinear([(0, 1.0), (10, 0.5)])(0.5)


def test_spaces_of_a_source_must_fit() -> None:
    cartpole = DQN("MlpPolicy", "CartPole-v1", buffer_size=10)
    with pytest.raises(ValueError, match=r"'dqn' expects observations of Box.*\(4,\).*emits Box.*\(10,\)"):
        caps(source_policies=[cartpole])
    fewer_actions = Corridor()
    fewer_actions.action_space = spaces.Discrete(2)
    with pytest.raises(ValueError, match=r"'dqn' acts in Discrete\(2\).*takes Discrete\(3\)"):
        caps(source_policies=[DQN("MlpPolicy", fewer_actions, buffer_size=10)])
    with pytest.raises(ValueError, match=r"Discrete\(10\)"):
        caps(source_policies=[DQN("MlpPolicy", Corridor("discrete"), buffer_size=10)])


def test_model_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no saved model at .*missing.zip"):
        caps(source_policies=[tmp_path / "missing"])
    (tmp_path / "damaged.zip").write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(ValueError, match=r"damaged.zip is not a usable saved SB3 model"):
        caps(source_policies=[tmp_path / "damaged.zip"])
    DQN("MlpPolicy", Corridor(), buffer_size=10).save(tmp_path / "whole")
    whole = (tmp_path / "whole.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cut.zip is not a usable saved SB3 model"):
        caps(source_policies=[tmp_path / "cut.zip"])
    with pytest.raises(ValueError, match="holds 3 saved models"):
        caps(source_policies=[tmp_path])


class Spoiled:
    """A source that returns something else after some steps."""

    def __init__(self, then: Any) -> None:
        self.then, self.calls = then, 0

    def __call__(self, observations: np.ndarray) -> Any:
        self.calls += 1
        return go_right(observations) if self.calls <= 20 else self.then


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (np.array([1, 1]), r"'spoiled' returned actions of shape \(2,\): expected 1 integers from 0 to 2"),
        (np.array(1), r"shape \(\)"),
        (np.array([0.5]), r"'spoiled' returned float64 actions"),
        (np.array([np.nan]), r"nan"),
        (None, r"'spoiled' returned actions of shape \(\)"),
        (np.array([3]), r"'spoiled' returned an action out of range, array\(\[3\]\)"),
        (np.array([-1]), r"out of range"),
        (np.array([True]), r"bool"),
    ],
)
def test_actions_of_a_source(then: Any, message: str, tmp_path: Path) -> None:
    model = caps(source_policies=[go_left, as_source(Spoiled(then), name="spoiled")], learning_starts=5, seed=0)
    with pytest.raises(ValueError, match=message):
        model.learn(100)
    # At the first step that it happened, and the run so far can be saved
    assert model.num_timesteps == 20
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = CAPS.load(tmp_path / "model", env=Corridor(), source_policies=[go_left, go_right])
    loaded.load_replay_buffer(tmp_path / "buffer")
    # The step itself is not stored: what the sources do after it is a part of it
    assert loaded.replay_buffer.size() == 19
    loaded.learn(20, reset_num_timesteps=False)
    assert loaded.num_timesteps == 40


def test_an_exception_in_a_source_surfaces_with_its_name() -> None:
    def broken(observations: np.ndarray) -> np.ndarray:
        raise KeyError("no such thing")

    with pytest.raises(RuntimeError, match="Source policy 'broken' failed: KeyError: 'no such thing'") as caught:
        caps(source_policies=[broken]).learn(10)
    assert isinstance(caught.value.__cause__, KeyError)


def test_observation_kinds_need_their_policy() -> None:
    with pytest.raises(ValueError, match="MultiInputPolicy"):
        CAPS("MlpPolicy", Corridor("dict"))
    with pytest.raises(gym.error.NameNotFound):
        CAPS("MlpPolicy", "NoSuchEnvironment-v0")
