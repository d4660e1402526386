"""What users of SB3 rely on without thinking of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

from sb3_caps import CAPS, OPSTL, PRQL, JumpStart, QDagger
from tests.toy_world import Corridor, go_left, go_right


@pytest.mark.parametrize("algorithm", [DQN, CAPS, PRQL, OPSTL, JumpStart, QDagger])
@pytest.mark.parametrize("kind", ["box", "discrete", "dict", "image"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_action_for_one_observation_is_an_array(algorithm: Any, kind: str, deterministic: bool) -> None:
    env: Any = Corridor(kind)
    policy = {"dict": "MultiInputPolicy", "image": "CnnPolicy"}.get(kind, "MlpPolicy")
    sources = {DQN: {}, CAPS: {"source_policies": [go_right, go_left]}}.get(algorithm, {"source_policies": [go_right]})
    # A small one of images, too
    arguments = {"policy_kwargs": {"net_arch": [8]}, "buffer_size": 50}
    model = algorithm(policy, env, seed=0, **sources, **arguments)
    observation, _ = env.reset(seed=0)
    for exploration_rate in (0.0, 1.0):
        model.exploration_rate = exploration_rate
        action, _ = model.predict(observation, deterministic=deterministic)
        assert isinstance(action, np.ndarray)
        assert action.shape == ()
        assert np.issubdtype(action.dtype, np.integer)
        env.step(action)


@pytest.mark.parametrize("kind", ["box", "discrete", "dict", "image"])
@pytest.mark.parametrize("optimize_memory_usage", [False, True])
def test_the_buffer_gives_its_observations_as_sb3_does(kind: str, optimize_memory_usage: bool) -> None:
    """Beside SB3's buffer, which got the same steps: episodes that end and that are truncated, and more than fit."""
    policy = {"dict": "MultiInputPolicy", "image": "CnnPolicy"}.get(kind, "MlpPolicy")
    env = make_vec_env(lambda: Corridor(kind, horizon=4), n_envs=2, seed=0)
    arguments: dict[str, Any] = {"buffer_size": 40, "batch_size": 32, "seed": 0}
    theirs = DQN(policy, env, **arguments).replay_buffer
    model = CAPS(policy, env, **arguments, optimize_memory_usage=optimize_memory_usage)
    ours: Any = model.replay_buffer
    assert theirs is not None
    add = ours.add

    def add_to_both(*step: Any, **ours_alone: Any) -> None:
        theirs.add(*step)
        add(*step, **ours_alone)

    ours.add = add_to_both
    for steps in (20, 60):
        model.learn(steps, reset_num_timesteps=False)
        for name in ("observations", "next_observations"):
            expected, found = getattr(theirs, name), getattr(ours, name)
            for key in expected if isinstance(expected, dict) else [...]:
                assert found[key].dtype == expected[key].dtype
                np.testing.assert_array_equal(found[key][: ours.size()], expected[key][: ours.size()])
                assert found[key].shape == expected[key].shape


def test_compressed_observations_say_why_they_are_no_array() -> None:
    model = CAPS("CnnPolicy", Corridor("image"), buffer_size=50, replay_buffer_kwargs={"compression": "zlib"})
    for name in ("observations", "next_observations"):
        with pytest.raises(AttributeError, match=r"no array of all observations: they are compressed \(zlib\).*sample"):
            getattr(model.replay_buffer, name)


def test_steps_without_options_teach_primitives_and_no_source() -> None:
    """Users extend a buffer with steps of their own, also where others were: what sources would do is not known."""
    arguments: dict[str, Any] = {"buffer_size": 32, "batch_size": 32, "learning_starts": 1000, "seed": 0}
    model = CAPS("MlpPolicy", Corridor(), source_policies=[go_right], **arguments).learn(40)
    buffer: Any = model.replay_buffer
    assert buffer.agreements[..., 0].any()
    steps = [getattr(buffer, name).copy() for name in ("observations", "next_observations", "actions", "rewards")]
    buffer.extend(*steps, buffer.dones.copy(), [[{"TimeLimit.truncated": np.array([False])}]] * 32)
    assert not buffer.agreements[..., 0].any()
    np.testing.assert_array_equal(buffer.agreements[..., 1:], np.eye(3, dtype=bool)[buffer.actions])
    assert buffer.size() == 32
    model.train(gradient_steps=1, batch_size=32)


def test_drawn_predictions_follow_the_seed_and_change_no_training(tmp_path: Path) -> None:
    """As SB3's ``test_deterministic_training_common`` has it."""

    def predicted(model: CAPS) -> list[int]:
        return [int(model.predict(observation, deterministic=False)[0]) for _ in range(30)]

    observation, _ = Corridor().reset(seed=0)
    made = [CAPS("MlpPolicy", Corridor(), source_policies=[go_right], seed=seed) for seed in (0, 0, 1)]
    for model in made:
        model.exploration_rate = 1.0
    before = made[0].rng.bit_generator.state
    runs = [predicted(model) for model in made]
    assert runs[0] == runs[1] != runs[2]
    assert made[0].rng.bit_generator.state == before
    # Each draws anew
    assert len(set(runs[0])) == 3
    made[0].save(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model")
    assert predicted(loaded) == predicted(made[0])
    made[0].set_random_seed(0)
    assert predicted(made[0]) == runs[0]
