"""Files that belong to another model are refused where they enter, with what they are."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.save_util import load_from_pkl

from sb3_caps import CAPS, OPSTL, PRQL, JumpStart, QDagger
from tests.toy_world import Corridor, go_left, go_right

OURS: list[Any] = [CAPS, OPSTL, PRQL, JumpStart, QDagger]
SOURCES = [go_right, go_left]


def model_of(algorithm: Any, env: Any = None, **arguments: Any) -> Any:
    if algorithm in OURS:
        arguments.setdefault("source_policies", [go_right] if algorithm in (JumpStart, QDagger) else SOURCES)
    if algorithm not in (PPO, A2C):
        arguments.setdefault("buffer_size", 100)
        arguments.setdefault("learning_starts", 10)
    return algorithm("MlpPolicy", Corridor() if env is None else env, seed=0, **arguments)


@pytest.mark.parametrize("saved", [*OURS, DQN, PPO, A2C])
def test_the_model_of_another_algorithm_is_named(saved: Any, tmp_path: Path) -> None:
    model_of(saved).save(tmp_path / "model")
    for algorithm in OURS:
        if algorithm is saved:
            assert type(algorithm.load(tmp_path / "model")) is saved
            continue
        with pytest.raises(ValueError, match=rf"not a {algorithm.__name__} model, this is a {saved.__name__} model"):
            algorithm.load(tmp_path / "model")


@pytest.mark.parametrize("algorithm", [DQN, PPO, A2C])
def test_algorithms_of_sb3_say_what_our_file_is(algorithm: Any, tmp_path: Path) -> None:
    model_of(CAPS).save(tmp_path / "model")
    with pytest.raises((ValueError, TypeError), match=r"This is a CAPS model.*CAPS\.load"):
        algorithm.load(tmp_path / "model")


class Mine(CAPS):
    """Of one's own."""


def test_models_of_derived_classes_and_open_files(tmp_path: Path) -> None:
    class Local(CAPS):
        """Which cannot be imported."""

    for saved, loaded in ((Mine, CAPS), (CAPS, Mine), (Local, CAPS)):
        file = io.BytesIO(b"before")
        file.seek(6)
        model_of(saved).save(file)
        file = io.BytesIO(file.getvalue()[6:])
        assert type(loaded.load(file)) is loaded


def envs(n_envs: int = 2, **arguments: Any) -> Any:
    return make_vec_env(lambda: Corridor(**arguments), n_envs=n_envs, seed=0)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"sequence_length": 8}, "sequence_length 4, not 8"),
        ({"env": envs(3)}, "n_envs 2, not 3"),
        ({"replay_buffer_kwargs": {"prioritized_share": 0.0}}, "prioritized_share 0.5, not 0.0"),
        ({"env": envs(kind="discrete")}, r"observation_space Box.*, not Discrete\(10\)"),
    ],
)
def test_a_replay_buffer_of_another_model_is_refused(other: dict[str, Any], difference: str, tmp_path: Path) -> None:
    given = {"env": envs(), "sequence_length": 4}
    model_of(CAPS, **given).learn(48).save_replay_buffer(tmp_path / "buffer")
    model = model_of(CAPS, **{**given, **other})
    own = model.replay_buffer
    with pytest.raises(ValueError, match=rf"buffer is the replay buffer of another model, with .*{difference}"):
        model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer is own
    # Its size may be another: sequences are drawn from what is there
    fitting = model_of(CAPS, **given, buffer_size=500)
    # As SB3's own tests do
    fitting.replay_buffer = None
    fitting.load_replay_buffer(tmp_path / "buffer")
    assert fitting.replay_buffer.size() == 24
    fitting.learn(50, reset_num_timesteps=False)


def test_replay_buffers_of_other_classes(tmp_path: Path) -> None:
    for algorithm in (CAPS, DQN, PRQL):
        model_of(algorithm).learn(20).save_replay_buffer(tmp_path / algorithm.__name__)
    with pytest.raises(ValueError, match=r"DQN holds a ReplayBuffer, where this model needs a OptionReplayBuffer"):
        model_of(CAPS).load_replay_buffer(tmp_path / "DQN")
    with pytest.raises(ValueError, match=r"CAPS holds a OptionReplayBuffer, where this model needs a ReplayBuffer"):
        model_of(PRQL).load_replay_buffer(tmp_path / "CAPS")
    model_of(PRQL, n_steps=3).save_replay_buffer(tmp_path / "three")
    with pytest.raises(ValueError, match=r"three holds a NStepReplayBuffer"):
        model_of(PRQL).load_replay_buffer(tmp_path / "three")
    with pytest.raises(ValueError, match=r"n_steps 3, not 5"):
        model_of(PRQL, n_steps=5).load_replay_buffer(tmp_path / "three")
    # Those of PRQL hold nothing of its own, and are SB3's
    model_of(PRQL).load_replay_buffer(tmp_path / "DQN")
    model = model_of(DQN)
    model.load_replay_buffer(tmp_path / "PRQL")
    model.learn(20)
    with pytest.raises(FileNotFoundError):
        model_of(CAPS).load_replay_buffer(tmp_path / "none")


def test_sb3_reads_our_buffers_and_a_failed_save_leaves_the_old_one(tmp_path: Path) -> None:
    model = model_of(CAPS).learn(20)
    model.save_replay_buffer(tmp_path / "buffer")
    before = (tmp_path / "buffer.pkl").read_bytes()
    np.testing.assert_array_equal(load_from_pkl(tmp_path / "buffer").rewards, model.replay_buffer.rewards)
    model.replay_buffer.note = lambda: None
    with pytest.raises(Exception, match="pickle"):
        model.save_replay_buffer(tmp_path / "buffer")
    assert (tmp_path / "buffer.pkl").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["buffer.pkl"]
