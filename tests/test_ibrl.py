"""IBRL: it acts and bootstraps by the best candidate, learns, saves and loads."""

from pathlib import Path

import numpy as np
import pytest
import torch as th

from sb3_caps.ibrl import IBRL
from tests.toy_box import ToyBox, away, home


def make() -> IBRL:
    return IBRL(
        "MlpPolicy",
        ToyBox(),
        source_policies=[home, away],
        learning_starts=20,
        policy_kwargs={"net_arch": [8]},
        seed=0,
        device="cpu",
    )


def test_it_acts_by_what_the_critic_values_most() -> None:
    model = make().learn(200)
    observations = np.random.default_rng(0).uniform(-1, 1, size=(20, 2)).astype(np.float32)
    actions, _ = model.predict(observations, deterministic=True)
    states = th.as_tensor(observations)
    with th.no_grad():
        own = model.actor(states, deterministic=True)
        candidates = [th.as_tensor(home(observations) / 2), th.as_tensor(away(observations) / 2), own]
        values = th.stack([th.cat(model.critic(states, each), dim=1).min(dim=1).values for each in candidates])
    chosen = values.argmax(dim=0)
    for i in range(20):
        np.testing.assert_allclose(actions[i], 2 * candidates[int(chosen[i])][i], atol=1e-5)


def test_it_bootstraps_from_the_best_candidate() -> None:
    model = make().learn(100)
    data = model.replay_buffer.sample(6)
    with th.no_grad():
        found = model._next_values(data, th.tensor(0.0))
        assert isinstance(data.next_observations, th.Tensor)
        for source in range(2):
            answers = data.next_source_actions[:, source]
            values = th.cat(model.critic_target(data.next_observations, answers), dim=1).min(dim=1).values
            assert (found[:, 0] >= values - 1e-5).all()


def test_it_saves_and_loads(tmp_path: Path) -> None:
    model = make().learn(100)
    model.save(tmp_path / "model")
    loaded = IBRL.load(tmp_path / "model", env=ToyBox(), device="cpu")
    observations = np.zeros((3, 2), dtype=np.float32)
    expected, _ = model.predict(observations, deterministic=True)
    assert loaded.predict(observations, deterministic=True)[0] == pytest.approx(expected)
    loaded.learn(30)


def test_without_sources_it_is_sac() -> None:
    model = IBRL("MlpPolicy", ToyBox(), learning_starts=10, policy_kwargs={"net_arch": [8]}, device="cpu").learn(40)
    assert model.predict(np.zeros(2, dtype=np.float32))[0].shape == (2,)
