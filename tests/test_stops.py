"""A run that stops where an episode ends in every environment goes on as if it had not: nothing is drawn twice."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_caps import CAPS
from tests.test_resume import Payments, caps


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("loaded", [False, True])
def test_a_stop_at_the_end_of_all_episodes_draws_nothing_again(n_envs: int, loaded: bool, tmp_path: Path) -> None:
    models = []
    for parts in ([40], [8, 12, 20]):
        env = DummyVecEnv([lambda: Payments(4)] * n_envs)
        arguments: dict[str, Any] = {"selection_kwargs": {"survey_share": 0.0}, "exploration_schedule": lambda _: 0.3}
        model = caps(env, train_freq=1, learning_starts=0, gradient_steps=0, **arguments)
        for part in parts:
            model.learn(part * n_envs, reset_num_timesteps=False)
            if loaded and part == 8:
                model.save(tmp_path / "model")
                buffer = model.replay_buffer
                model = CAPS.load(tmp_path / "model", env=env, force_reset=False)
                model.replay_buffer = buffer
        models.append(model)
    whole, stopped = models
    assert whole.rng.bit_generator.state == stopped.rng.bit_generator.state
    for name in ("actions", "options"):
        np.testing.assert_array_equal(
            getattr(whole.replay_buffer, name)[:40], getattr(stopped.replay_buffer, name)[:40], err_msg=name
        )
