"""CUP: its loss by hand-worked numbers, and that it learns, saves and loads."""

from pathlib import Path

import numpy as np
import pytest
import torch as th

from sb3_caps.cup import CUP
from sb3_caps.cup.cup import guidance_loss
from tests.toy_box import ToyBox, away, home


def test_guidance() -> None:
    means = th.tensor([[0.0], [0.0], [0.0]])
    answers = th.tensor([[[1.0], [3.0]], [[1.0], [3.0]], [[1.0], [3.0]]])
    source_values = th.tensor([[5.0, 4.0], [4.0, 5.0], [1.0, 2.0]])
    values = th.tensor([[4.0], [4.0], [4.0]])
    # By the first source, whose advantage is 1, bounded by 0.1 · 4; by the second one; by none, as both are worse
    loss = guidance_loss(means, answers, source_values, values, bound=0.1)
    assert loss.item() == pytest.approx((0.4 * 1 + 0.4 * 9 + 0) / 3)
    unbounded = guidance_loss(means, answers, source_values, values, bound=10.0)
    assert unbounded.item() == pytest.approx((1 * 1 + 1 * 9 + 0) / 3)


def test_it_learns_saves_and_loads(tmp_path: Path) -> None:
    model = CUP(
        "MlpPolicy",
        ToyBox(),
        source_policies=[home, away],
        learning_starts=20,
        policy_kwargs={"net_arch": [8]},
        guidance=2.0,
        seed=0,
        device="cpu",
    ).learn(150)
    model.save(tmp_path / "model")
    loaded = CUP.load(tmp_path / "model", env=ToyBox(), device="cpu")
    observations = np.random.default_rng(0).uniform(-1, 1, size=(5, 2)).astype(np.float32)
    expected, _ = model.predict(observations, deterministic=True)
    np.testing.assert_allclose(loaded.predict(observations, deterministic=True)[0], expected)
    assert loaded.guidance == 2.0
    loaded.learn(50)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="guidance must be a number"):
        CUP("MlpPolicy", ToyBox(), guidance=-1.0)
