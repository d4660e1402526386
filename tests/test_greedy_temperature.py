"""A softmax in place of the greedy choice of options, while learning."""

from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env

from sb3_caps import CAPS, PiecewiseLinear
from tests.paper import paper
from tests.toy_world import Corridor


def make(temperature: Any) -> CAPS:
    """A model without any exploration beside the temperature."""
    env = make_vec_env(Corridor, n_envs=50, seed=0)
    arguments = {"termination": 1.0, "gradient_steps": 0, "learning_starts": 0, "seed": 0}
    arguments |= {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0}
    return CAPS("MlpPolicy", env, **paper(exploration_kwargs={"temperature": temperature}, **arguments))


def chosen(model: CAPS, values: list[float]) -> np.ndarray:
    """How often each option was chosen, with the same values in every state and no exploration beside."""
    with th.no_grad():
        last = model.q_net.q_net[-1]
        assert isinstance(last, th.nn.Linear)
        last.weight.zero_()
        last.bias.copy_(th.tensor(values))
    model.learn(10_000, log_interval=10**9)
    options = model.replay_buffer.options[: model.replay_buffer.pos]
    return np.bincount(options.ravel(), minlength=3) / options.size


@pytest.mark.parametrize(
    ("temperature", "shares"),
    [
        (0.0, [0.0, 0.0, 1.0]),
        # e^0, e^1 and e^2 over their sum, 11.1073
        (0.1, [0.0900, 0.2447, 0.6652]),
        # Differences far below the temperature count for nothing
        (1e3, [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_options_are_chosen_by_a_softmax_of_their_values(temperature: float, shares: list[float]) -> None:
    model = make(temperature)
    np.testing.assert_allclose(chosen(model, [0.0, 0.1, 0.2]), shares, atol=0.02)


def test_a_temperature_may_fall() -> None:
    model = make(PiecewiseLinear([(5_000, 1e3), (5_050, 0.0)]))
    np.testing.assert_allclose(chosen(model, [0.0, 0.1, 0.2]), [1 / 6, 1 / 6, 4 / 6], atol=0.02)


def test_prediction_is_greedy_all_the_same() -> None:
    model = make(10.0)
    chosen(model, [0.0, 0.2, 0.1])
    observations = np.eye(10, dtype=np.float32)
    assert (model.predict(observations, deterministic=True)[0] == 1).all()


def test_a_negative_temperature_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\['temperature'\] must be a number of at least 0, not -1"):
        make(-1)
