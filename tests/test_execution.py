"""Call-and-return and interruption: which option is active, for how long, in training and in prediction."""

from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_caps import CAPS
from sb3_caps.caps.policies import OptionState
from sb3_caps.reuse.execution import OptionExecution
from tests.paper import paper
from tests.toy_world import LENGTH, RIGHT, Corridor, go_left, go_right, right_then_stay

# Whatever option is chosen is drawn at random, and nothing is learned
RANDOM: dict[str, Any] = {
    "exploration_initial_eps": 1.0,
    "exploration_final_eps": 1.0,
    "learning_starts": 0,
    "gradient_steps": 0,
}


def model_with(**kwargs: Any) -> CAPS:
    """The paper's, with changes."""
    return CAPS("MlpPolicy", Corridor(), source_policies=[go_right, go_left], seed=0, **paper(**kwargs))


def set_network(model: CAPS, values: list[float], beta: list[float]) -> None:
    """Option values and terminations that are the same in all states."""
    with th.no_grad():
        last = model.q_net.q_net[-1]
        assert isinstance(last, th.nn.Linear)
        for layer in (last, model.q_net.termination_net):
            layer.weight.zero_()
        last.bias.copy_(th.tensor(values))
        model.q_net.termination_net.bias.copy_(th.logit(th.tensor(beta), eps=1e-6))


def active(model: CAPS, n_envs: int) -> OptionState:
    """The state of ``predict`` where option 0 is active everywhere."""
    return np.zeros(n_envs, dtype=np.int64), model.options.initial_states(), np.random.default_rng(0)


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_lengths_follow_the_termination(beta: float) -> None:
    """Without episode ends, the length of an execution is geometric with mean 1/β, in each environment."""
    env = make_vec_env(lambda: Corridor(horizon=10**9), n_envs=8, seed=0)
    settings = paper(termination=beta, **RANDOM)
    model = CAPS("MlpPolicy", env, source_policies=[go_left] * 20, seed=1, **settings).learn(24_000)
    buffer = model.replay_buffer
    options, inside = buffer.options[: buffer.size()], ~buffer.dones[: buffer.size() - 1]
    changed = (options[1:] != options[:-1])[inside].mean()
    # A new option is drawn with probability β, and differs from the old one with probability 22/23
    assert changed == pytest.approx(beta * 22 / 23, abs=0.015)


def test_episode_start_chooses_anew_and_environments_differ() -> None:
    env = make_vec_env(lambda: Corridor(horizon=5), n_envs=16, seed=0)
    settings = paper(termination=0.0, **RANDOM)
    model = CAPS("MlpPolicy", env, source_policies=[go_left] * 40, seed=1, **settings)
    model.learn(16 * 500)
    buffer = model.replay_buffer
    options, dones = buffer.options[: buffer.size()], buffer.dones[: buffer.size()]
    changed = options[1:] != options[:-1]
    # β = 0: an option never ends but with its episode
    assert not changed[~dones[:-1]].any()
    assert changed[dones[:-1]].mean() > 0.9
    # Drawn for each environment on its own
    assert np.mean([len(set(row)) for row in options]) > 10


def test_all_options_are_as_likely_to_be_drawn() -> None:
    model = model_with(termination=1.0, **RANDOM).learn(4000)
    counts = np.bincount(model.replay_buffer.options[:4000, 0], minlength=5) / 4000
    assert counts == pytest.approx([0.2] * 5, abs=0.03)


def test_greedy_choice_with_probability_one_minus_epsilon() -> None:
    model = model_with(
        termination=1.0, learning_starts=0, exploration_initial_eps=0.2, exploration_final_eps=0.2, gradient_steps=0
    )
    set_network(model, values=[0, 1, 0, 0, 0], beta=[0.5] * 5)
    model.learn(5000)
    share = (model.replay_buffer.options[:5000, 0] == 1).mean()
    assert share == pytest.approx(0.8 + 0.2 / 5, abs=0.02)


def test_active_option_and_agreement_are_stored() -> None:
    env = make_vec_env(Corridor, n_envs=4, seed=0)
    sources = [go_right, right_then_stay]
    model = CAPS("MlpPolicy", env, source_policies=sources, buffer_size=2000, seed=0, learning_starts=10**6)
    model.learn(2000)
    buffer = model.replay_buffer
    position = buffer.stores[None].data[: buffer.size()].argmax(axis=-1)
    actions, options = buffer.actions[: buffer.size()], buffer.options[: buffer.size()]
    second = np.where(position < LENGTH // 2, RIGHT, 2)
    taken = np.stack([np.full_like(position, RIGHT), second, *(np.full_like(position, a) for a in range(3))], axis=-1)
    np.testing.assert_array_equal(actions, np.take_along_axis(taken, options[..., None], axis=-1)[..., 0])
    np.testing.assert_array_equal(buffer.agreements[: buffer.size()], taken == actions[..., None])
    np.testing.assert_array_equal(buffer.option_actions[: buffer.size()], taken[..., :2])
    # What sources do where a step led to: in the next row, but for the end of an episode
    after = buffer.stores[None].next_data[: buffer.size()].argmax(axis=-1)
    goes_on = ~buffer.dones[: buffer.size()] | buffer.timeouts[: buffer.size()]
    assert buffer.timeouts.any()
    expected = np.stack([np.full_like(after, RIGHT), np.where(after < LENGTH // 2, RIGHT, 2)], axis=-1)
    np.testing.assert_array_equal(buffer.next_option_actions[: buffer.size()][goes_on], expected[goes_on])


def test_predict_keeps_the_active_option_as_state() -> None:
    model = model_with()
    set_network(model, values=[1.0, 0.0, 0.0, 0.0, 0.0], beta=[0.2] * 5)
    observation = np.eye(LENGTH, dtype=np.float32)[:3]
    actions, state = model.predict(observation, deterministic=True)
    assert actions.tolist() == [RIGHT] * 3
    # Now going left is better, but β < 0.5: call-and-return goes on, except where an episode starts
    set_network(model, values=[0.0, 1.0, 0.0, 0.0, 0.0], beta=[0.2] * 5)
    starts = np.array([False, True, False])
    actions, state = model.predict(observation, state, episode_start=starts, deterministic=True)
    assert actions.tolist() == [1, 0, 1]
    assert state[0].tolist() == [0, 1, 0]
    # ... until β says that it ends
    set_network(model, values=[0.0, 1.0, 0.0, 0.0, 0.0], beta=[0.5] * 5)
    actions, state = model.predict(observation, state, deterministic=True)
    assert actions.tolist() == [0, 0, 0]


INTERRUPTING: dict[str, Any] = {"policy_kwargs": {"execution": "interrupting"}}


def test_interrupting_execution_ends_an_option_where_another_is_better() -> None:
    model = model_with(**INTERRUPTING)
    set_network(model, values=[1.0, 0.0, 0.0, 0.0, 0.0], beta=[0.01] * 5)
    observation = np.eye(LENGTH, dtype=np.float32)[:2]
    _, state = model.predict(observation, deterministic=True)
    set_network(model, values=[0.0, 1.0, 0.0, 0.0, 0.0], beta=[0.01] * 5)
    actions, state = model.predict(observation, state, deterministic=True)
    assert actions.tolist() == [0, 0]


def test_an_interruption_needs_its_margin() -> None:
    # Option 1 is better by 0.04, option 0 goes on at a margin of 0.05 and not at one of 0.03
    for margin, action in ((0.05, RIGHT), (0.03, 0)):
        model = model_with(termination_kwargs={"regularization": margin}, **INTERRUPTING)
        set_network(model, values=[0.96, 1.0, 0.0, 0.0, 0.0], beta=[0.01] * 5)
        observation = np.eye(LENGTH, dtype=np.float32)[:2]
        state = active(model, 2)
        assert model.predict(observation, state, deterministic=True)[0].tolist() == [action, action]
        # Negative values: -1.04 is worse than -1 by 0.04 too
        set_network(model, values=[-1.04, -1.0, -2.0, -2.0, -2.0], beta=[0.01] * 5)
        assert model.predict(observation, state, deterministic=True)[0].tolist() == [action, action]
        # The margin is in the unit of the values: 4% of 10 is more than either
        set_network(model, values=[9.6, 10.0, 0.0, 0.0, 0.0], beta=[0.01] * 5)
        assert model.predict(observation, state, deterministic=True)[0].tolist() == [0, 0]


def test_the_margin_is_for_sources() -> None:
    execution = OptionExecution("interrupting", (0.1, 0.1))
    values = np.array([[0.5, 0.95, 1.0, 0.97], [0.5, 0.85, 0.9, 1.0], [1.0, 0.95, 0.9, 0.0]])
    beta = np.zeros_like(values)
    # A source goes on where it is not worse by more than the margin, a primitive never
    assert execution.ends(values, beta).tolist() == [
        [True, False, True, True],
        [True, True, True, True],
        [False, False, True, True],
    ]
    # And it is chosen there, the best of them
    assert execution.greedy_options(values).tolist() == [1, 3, 0]
    # One that has a margin may go ahead of one that has none and a higher value
    mixed = OptionExecution("interrupting", (0.0, 0.1))
    assert mixed.greedy_options(values).tolist() == [1, 3, 1]
    assert mixed.ends(values, beta)[:, :2].tolist() == [[True, False], [True, True], [False, False]]
    # Minus infinity takes it out, in call-and-return too
    out = (-np.inf, 0.1)
    assert OptionExecution("interrupting", out).greedy_options(values).tolist() == [1, 3, 1]
    assert OptionExecution("interrupting", out).ends(values, beta)[:, 0].tolist() == [True] * 3
    assert OptionExecution("call-and-return", out).greedy_options(values).tolist() == [2, 3, 1]
    # Without a margin, and in call-and-return, values alone count
    assert OptionExecution("interrupting", (0.0, 0.0)).greedy_options(values).tolist() == [2, 3, 0]
    assert OptionExecution("call-and-return", (0.1, 0.1)).greedy_options(values).tolist() == [2, 3, 0]


def test_how_options_are_executed_by_default() -> None:
    """ρ is the margin; a fixed β is there to end options by it."""

    def execution(**kwargs: Any) -> OptionExecution:
        return CAPS("MlpPolicy", Corridor(), source_policies=[go_right, go_left], **kwargs).policy.execution

    assert execution() == OptionExecution("interrupting", (0.0, 0.0))
    assert execution(termination_kwargs={"regularization": 0.3}) == OptionExecution("interrupting", (0.3, 0.3))
    assert execution(termination=0.5) == OptionExecution("call-and-return", (0.0, 0.0))
    assert execution(termination=0.5, **INTERRUPTING) == OptionExecution("interrupting", (0.0, 0.0))
    assert execution(**paper()) == OptionExecution("call-and-return", (0.005, 0.005))


def test_predict_one_observation() -> None:
    model = model_with()
    set_network(model, values=[0.0, 0.0, 0.0, 0.0, 1.0], beta=[0.5] * 5)
    action, state = model.predict(np.eye(LENGTH, dtype=np.float32)[0], deterministic=True)
    assert action.shape == ()
    assert int(action) == 2
    assert state[0].tolist() == [4]


def test_stochastic_prediction_terminates_with_probability_beta() -> None:
    model = model_with()
    set_network(model, values=[0.0, 1.0, 0.0, 0.0, 0.0], beta=[0.3] * 5)
    model.exploration_rate = 0.0
    observations = np.tile(np.eye(LENGTH, dtype=np.float32)[:1], (4000, 1))
    state = active(model, 4000)
    _, state = model.predict(observations, state)
    assert (state[0] == 1).mean() == pytest.approx(0.3, abs=0.03)


def test_evaluate_policy_executes_options() -> None:
    model = model_with()
    set_network(model, values=[1.0, 0.0, 0.0, 0.0, 0.0], beta=[0.1] * 5)
    env = make_vec_env(Corridor, n_envs=3, seed=4)
    rewards, lengths = evaluate_policy(model, env, n_eval_episodes=12, return_episode_rewards=True)
    assert rewards == [1.0] * 12
    assert np.max(lengths) < LENGTH
