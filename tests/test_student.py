"""Students: policies of SB3's own that do what a model does, without its sources."""

import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_caps import CAPS
from tests.toy_world import Corridor, go_left, go_right


def asked(observations: np.ndarray) -> np.ndarray:
    asked.times += 1  # type: ignore[attr-defined]
    return go_right(observations)


def test_a_student_does_what_its_teacher_does_without_any_source(tmp_path) -> None:  # type: ignore[no-untyped-def]
    asked.times = 0  # type: ignore[attr-defined]
    model = CAPS("MlpPolicy", Corridor(), source_policies=[asked, go_left], seed=0, learning_starts=20).learn(600)
    student = model.distill(Corridor(), n_steps=500, n_eval_episodes=5, policy_kwargs={"net_arch": [16]})
    assert isinstance(student.model, PPO)
    assert student.mean_reward == pytest.approx(student.teacher_mean_reward)
    assert str(student).startswith("student ")

    student.model.save(tmp_path / "student")
    before = asked.times  # type: ignore[attr-defined]
    loaded = PPO.load(tmp_path / "student")
    mean, _ = evaluate_policy(loaded, Corridor(), 5, warn=False)
    assert mean == pytest.approx(student.mean_reward)
    assert asked.times == before  # type: ignore[attr-defined]


def test_what_cannot_be_taught_is_refused() -> None:
    model = CAPS("MlpPolicy", Corridor(), source_policies=[go_right])
    with pytest.raises(ValueError, match="n_steps must be a whole number of at least 5, not 2"):
        model.distill(Corridor(), n_steps=2)
