"""Sources that draw their actions: which ones do, with what, and how often each action comes."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import ARS, QRDQN, TRPO, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.distributions import CategoricalDistribution
from torch import nn

from sb3_caps import CAPS, as_source
from sb3_caps.reuse.options import OptionSet
from sb3_caps.sources.act import SourcePolicy, draw
from sb3_caps.sources.evaluate import MOST_REMEMBERED
from tests.toy_world import LENGTH, Corridor, MaskableCorridor, go_right, masks_of

OBSERVATIONS = np.eye(LENGTH, dtype=np.float32)
STARTS = np.ones(LENGTH, dtype=bool)
N_DRAWS = 400
DRAWING = (PPO, A2C, MaskablePPO, RecurrentPPO)


def unsure(model: Any, scale: float = 3.0) -> Any:
    """The same model with probabilities that differ from state to state."""
    generator = th.Generator().manual_seed(0)
    with th.no_grad():
        model.policy.action_net.weight.normal_(0.0, scale, generator=generator)
    return model


def ppo(**arguments: Any) -> PPO:
    return unsure(PPO("MlpPolicy", Corridor(), seed=0, n_steps=8, batch_size=8, **arguments))


def options_of(*sources: Any) -> OptionSet:
    """Models that have probabilities draw."""
    drawing = [as_source(each, deterministic=False) if isinstance(each, DRAWING) else each for each in sources]
    return OptionSet(drawing, Corridor().observation_space, spaces.Discrete(3))


def probabilities_of(model: Any) -> np.ndarray:
    with th.no_grad():
        found: np.ndarray = model.policy.get_distribution(th.as_tensor(OBSERVATIONS)).distribution.probs.numpy()
    return found


def drawn(options: OptionSet, rng: np.random.Generator | None, times: int = N_DRAWS) -> np.ndarray:
    """Actions of the first source, of shape (times, observations)."""
    return np.stack(
        [options.actions(OBSERVATIONS, options.initial_states(), STARTS, rng=rng)[0][:, 0] for _ in range(times)]
    )


def as_it_is(anything: Any) -> Any:
    return anything


def alone(model: Any) -> SourcePolicy:
    """A source that a stack does not take."""
    return as_source(model, action_map=as_it_is, deterministic=False if isinstance(model, DRAWING) else None)


@pytest.mark.parametrize(
    ("algorithm", "policy", "stochastic"),
    [
        (PPO, "MlpPolicy", True),
        (A2C, "MlpPolicy", True),
        (TRPO, "MlpPolicy", True),
        (MaskablePPO, "MlpPolicy", True),
        (RecurrentPPO, "MlpLstmPolicy", True),
        (DQN, "MlpPolicy", False),
        (QRDQN, "MlpPolicy", False),
        (ARS, "MlpPolicy", False),
        (CAPS, "MlpPolicy", False),
    ],
)
def test_which_sources_can_draw(algorithm: type[Any], policy: str, stochastic: bool) -> None:
    model = algorithm(policy, MaskableCorridor())
    assert as_source(model).deterministic is True
    if not stochastic:
        return
    source = as_source(model, deterministic=False)
    assert source.deterministic is False
    assert as_source(source, name="again").deterministic is False


def test_what_has_no_probabilities_is_not_drawn_from() -> None:
    for source in (go_right, "tests.toy_world:go_right", DQN("MlpPolicy", Corridor()), QRDQN("MlpPolicy", Corridor())):
        assert as_source(source).deterministic is True
        assert as_source(source, deterministic=True).deterministic is True
        with pytest.raises(ValueError, match=r"Source policy '\w+' has no probabilities .* deterministic=False is not"):
            as_source(source, deterministic=False)
    wrong: Any = "no"
    with pytest.raises(ValueError, match="deterministic must be True or False, not 'no'"):
        as_source(ppo(), deterministic=wrong)


@pytest.mark.parametrize("make", [as_it_is, alone])
def test_each_action_comes_as_often_as_the_policy_says(make: Any) -> None:
    model = ppo()
    options, expected = options_of(make(model)), probabilities_of(model)
    assert bool(options._stacks) is (make is as_it_is)
    assert ((expected > 0.1) & (expected < 0.9)).sum() > 5
    found = drawn(options, np.random.default_rng(1))
    shares = np.stack([(found == action).mean(axis=0) for action in range(3)], axis=1)
    # Five standard errors
    errors = np.sqrt(expected * (1 - expected) / N_DRAWS)
    assert (np.abs(shares - expected) <= 5 * errors + 1e-6).all()


@pytest.mark.parametrize("make", [as_it_is, alone])
def test_without_a_generator_the_likeliest_action_is_taken(make: Any) -> None:
    model = ppo()
    expected = model.predict(OBSERVATIONS, deterministic=True)[0]
    for rng, options in (
        (None, options_of(make(model))),
        (np.random.default_rng(0), options_of(as_source(make(model), deterministic=True))),
    ):
        np.testing.assert_array_equal(drawn(options, rng, times=3), [expected] * 3)


@pytest.mark.parametrize("make", [as_it_is, alone])
def test_draws_follow_from_the_generator_and_move_nothing_else(make: Any) -> None:
    options = options_of(make(ppo()))
    before = th.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    first, again, other = (drawn(options, np.random.default_rng(seed), times=20) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert len(np.unique(first, axis=0)) > 1
    assert th.equal(th.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # type: ignore[index]


def test_what_is_remembered_is_drawn_anew() -> None:
    options = options_of(ppo(policy_kwargs={"net_arch": [256, 256]}))
    first = drawn(options, np.random.default_rng(0), times=50)
    (stack,) = options._stacks
    assert stack.cache is not None
    assert len(stack.cache.places) == LENGTH
    assert len(np.unique(first, axis=0)) > 3
    stack.cache = None
    np.testing.assert_array_equal(drawn(options, np.random.default_rng(0), times=50), first)


def test_scores_of_many_actions_do_not_fill_the_memory() -> None:
    env = Corridor()
    env.action_space = spaces.Discrete(10_000)
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8)
    options = OptionSet([model], env.observation_space, env.action_space)
    options.actions(OBSERVATIONS, options.initial_states(), STARTS, rng=np.random.default_rng(0))
    (stack,) = options._stacks
    assert stack.cache is not None
    assert stack.cache.answers is not None
    assert stack.cache.answers.nbytes <= MOST_REMEMBERED


def test_of_a_stack_only_those_that_draw_are_drawn() -> None:
    network = {"net_arch": [64, 64], "activation_fn": nn.Tanh}
    dqn, first, second = DQN("MlpPolicy", Corridor(), policy_kwargs=network, buffer_size=1), ppo(), ppo()
    options = options_of(dqn, first, as_source(second, name="fixed", deterministic=True))
    (stack,) = options._stacks
    assert (stack.members, stack.drawn.tolist()) == ([0, 1, 2], [1])
    rng = np.random.default_rng(0)
    found = np.stack([options.actions(OBSERVATIONS, (), STARTS, rng=rng)[0] for _ in range(20)])
    for place, model in ((0, dqn), (2, second)):
        expected = model.predict(OBSERVATIONS, deterministic=True)[0]
        np.testing.assert_array_equal(found[:, :, place], [expected] * 20)
    assert len(np.unique(found[:, :, 1], axis=0)) > 1


def test_masks_hold_for_draws() -> None:
    model = unsure(MaskablePPO("MlpPolicy", MaskableCorridor(), seed=0))
    options, masks = options_of(model), masks_of(np.arange(LENGTH))
    rng = np.random.default_rng(0)
    found = np.stack(
        [options.actions(OBSERVATIONS, options.initial_states(), STARTS, masks, rng)[0][:, 0] for _ in range(50)]
    )
    assert masks[np.arange(LENGTH), found].all()
    assert len(np.unique(found[:, 0])) == 2


def test_what_is_remembered_of_an_episode_is_that_of_predict() -> None:
    model: Any = RecurrentPPO("MlpLstmPolicy", Corridor(), seed=0, n_steps=8, policy_kwargs={"lstm_hidden_size": 8})
    source, rng = as_source(unsure(model), deterministic=False), np.random.default_rng(0)
    state, expected = None, None
    actions = []
    for step in range(20):
        starts = np.full(LENGTH, step in (0, 7))
        found, state = source.actions(OBSERVATIONS, state, starts, rng=rng)
        _, expected = model.predict(OBSERVATIONS, expected, starts)
        actions.append(found)
    assert state is not None
    assert expected is not None
    np.testing.assert_allclose(state[0], expected[0])
    assert len(np.unique(actions, axis=0)) > 1


def test_probabilities() -> None:
    model = ppo()
    expected = probabilities_of(model)
    shifted = as_source(model, None, lambda observations: np.roll(observations, 1, axis=1), deterministic=False)
    for source, rows in ((as_source(model, deterministic=False), expected), (shifted, np.roll(expected, -1, axis=0))):
        found = source.probabilities(OBSERVATIONS)
        assert found is not None
        np.testing.assert_allclose(found, rows, atol=1e-6)
    assert isinstance(model.policy.action_dist, CategoricalDistribution)
    without: list[Any] = [
        as_source(model, deterministic=True),
        alone(model),
        as_source(go_right),
        as_source(DQN("MlpPolicy", Corridor(), buffer_size=1)),
        as_source(RecurrentPPO("MlpLstmPolicy", Corridor(), n_steps=8)),
    ]
    assert [each.probabilities(OBSERVATIONS) for each in without] == [None] * 5


def test_it_is_saved_whether_a_source_draws() -> None:
    options = options_of(ppo(), as_source(ppo(), deterministic=True))
    again = pickle.loads(pickle.dumps(options))
    assert [source.deterministic for source in again.sources] == [False, True]
    np.testing.assert_array_equal(
        drawn(again, np.random.default_rng(0), 5), drawn(options, np.random.default_rng(0), 5)
    )


def test_draw_by_hand() -> None:
    never = -np.inf
    scores = np.array([[never, np.log(0.25), never, np.log(0.75)], [0.0, never, never, never]])
    scores = np.stack([scores] * 4000, axis=1)
    found = draw(scores, np.random.default_rng(0))
    assert found.shape == (2, 4000)
    assert set(np.unique(found[0])) == {1, 3}
    assert (found[0] == 3).mean() == pytest.approx(0.75, abs=0.03)
    assert (found[1] == 0).all()
    # Large logits do not overflow, and each draw takes one number
    rng, twin = np.random.default_rng(5), np.random.default_rng(5)
    assert draw(np.array([[1e4, -1e4], [-1e4, 1e4]], dtype=np.float32), rng).tolist() == [0, 1]
    twin.random(2)
    assert rng.random() == twin.random()
