"""Source policies that act by which actions are allowed, as MaskablePPO's do."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch as th
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.env_util import make_vec_env

from sb3_caps import CAPS, PRQL, as_source
from tests.toy_world import LENGTH, Corridor, MaskableCorridor, go_left, masks_of, positions

OBSERVATIONS = np.eye(LENGTH, dtype=np.float32)


def eager_model() -> MaskablePPO:
    """It stays if it may, else moves right if it may, else left."""
    model: Any = MaskablePPO("MlpPolicy", MaskableCorridor(), seed=0)
    with th.no_grad():
        model.policy.action_net.weight.zero_()
        model.policy.action_net.bias.copy_(th.tensor([0.0, 50.0, 90.0]))
    return model


@pytest.mark.filterwarnings("error:Source policy")
@pytest.mark.parametrize("algorithm", [CAPS, PRQL])
@pytest.mark.parametrize("nested", [False, True])
def test_masks_of_the_environment_reach_the_source(algorithm: type[Any], nested: bool) -> None:
    source: Any = eager_model()
    if nested:
        source = CAPS("MlpPolicy", MaskableCorridor(), source_policies=[source], seed=0)
        with th.no_grad():
            source.policy.acting_net.q_net[-1].bias.copy_(th.tensor([9.0, 0.0, 0.0, 0.0]))
    env = make_vec_env(MaskableCorridor, n_envs=2, seed=0)
    arguments: dict[str, Any] = {"safe": False} if algorithm is CAPS else {}
    model = algorithm("MlpPolicy", env, source_policies=[source, go_left], seed=0, learning_starts=1000, **arguments)
    taken: list[np.ndarray] = []
    plain = model.options.actions

    def recorded(observations: Any, states: Any, starts: Any, masks: np.ndarray, rng: Any = None) -> Any:
        found = plain(observations, states, starts, masks, rng)
        taken.append(np.stack([positions(observations), found[0][:, 0], masks.all(axis=1)]))
        return found

    model.options.actions = recorded
    model.learn(64)
    places, actions, unknown = np.concatenate(taken, axis=1)
    # CAPS asks about the end of the run too, and about what truncated episodes ended in, where no masks are known
    assert len(places) == (66 + unknown.sum() if algorithm is CAPS else 64)
    np.testing.assert_array_equal(actions, np.where(unknown, 2, np.where(places % 2 == 0, 1, 0)))
    assert unknown.sum() == (2 * np.count_nonzero(model.replay_buffer.timeouts.any(axis=1)) if algorithm is CAPS else 0)


def test_masks_for_predict_and_a_warning_without() -> None:
    model = CAPS("MlpPolicy", MaskableCorridor(), source_policies=[eager_model()], seed=0)
    with th.no_grad():
        list(model.policy.acting_net.q_net.parameters())[-1].copy_(th.tensor([9.0, 0.0, 0.0, 0.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actions, _ = model.predict(OBSERVATIONS, deterministic=True, action_masks=masks_of(np.arange(LENGTH)))
        assert actions.tolist() == [1, 0] * (LENGTH // 2)
    with pytest.warns(UserWarning, match=r"'maskableppo' takes action masks and acts without them.*`action_masks`"):
        actions, _ = model.predict(OBSERVATIONS, deterministic=True)
    assert actions.tolist() == [2] * LENGTH
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        model.predict(OBSERVATIONS, deterministic=True)
    with pytest.raises(ValueError, match=r"action_masks are of shape \(2, 3\): expected those of 10 environments"):
        model.predict(OBSERVATIONS, deterministic=True, action_masks=np.ones((2, 3), dtype=bool))


def test_an_environment_without_masks_and_a_map_of_actions_are_named() -> None:
    model = CAPS("MlpPolicy", Corridor(), source_policies=[eager_model()], seed=0)
    with pytest.warns(UserWarning, match="the environment has no method `action_masks`"):
        model.learn(10)
    mapped = as_source(eager_model(), action_map=lambda actions: 2 - actions)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said when it matters, and once
        model = CAPS("MlpPolicy", MaskableCorridor(), source_policies=[mapped], seed=0)
    with pytest.warns(UserWarning, match="its action_map cannot be applied to them"):
        model.learn(10)


@pytest.mark.filterwarnings("error:Source policy")
def test_the_evaluation_of_sb3_contrib_passes_masks_on() -> None:
    model: Any = CAPS("MlpPolicy", MaskableCorridor(), source_policies=[eager_model()], seed=0)
    with th.no_grad():
        list(model.policy.acting_net.q_net.parameters())[-1].copy_(th.tensor([9.0, 0.0, 0.0, 0.0]))
    env = make_vec_env(MaskableCorridor, seed=0)
    # Right and left again, for ever; not from the cell next to the goal, where other seeds may start
    rewards, lengths = evaluate_policy(model, env, 2, return_episode_rewards=True, warn=False)
    assert (rewards, lengths) == ([0.0, 0.0], [30, 30])
