"""A model that tries its sources and itself, and acts by the best of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_caps import CAPS, as_source
from sb3_caps.caps.networks import OptionQNetwork
from sb3_caps.caps.trials import KEPT, LATEST, Trials
from tests.hand_walk import LEFT, RIGHT, Walk, go_left, go_right

CELLS = np.eye(5, dtype=np.float32)


def always(network: OptionQNetwork, action: int) -> None:
    """Let a network of the model below prefer one action everywhere."""
    last = network.q_net[-1]
    assert isinstance(last, th.nn.Linear)
    with th.no_grad():
        last.weight.zero_()
        # Two sources, whose values are those of their actions, and two actions
        last.bias.copy_(th.tensor([0.0, 0.0, float(action == LEFT), float(action == RIGHT)]))


def walks(n_envs: int = 2) -> VecEnv:
    return make_vec_env(Walk, n_envs, seed=0)


def make(**kwargs: Any) -> CAPS:
    """A model that goes left and learns too slowly to change that, with a useless source and a perfect one."""
    arguments: dict[str, Any] = {"learning_starts": 20, "exploration_fraction": 0.1, "buffer_size": 1000, "seed": 0}
    arguments |= {"learning_rate": 1e-12, "train_freq": 50, "normalize_returns": False, "device": "cpu"}
    model = CAPS("MlpPolicy", walks(), **{"source_policies": [go_left, go_right], **arguments, **kwargs})
    for network in model.policy.networks():
        always(network, LEFT)
    return model


@pytest.mark.filterwarnings("ignore:The learner is not known to be better")
def test_a_learner_that_fails_acts_as_its_best_source(tmp_path: Path) -> None:
    model = make().learn(3000)
    trials = model._trials
    assert trials is not None
    assert set(trials.learner_rewards) == {0.0}
    assert set(trials.source_rewards[0]) == {0.0}
    assert set(trials.source_rewards[1]) == {1.0}
    assert model.policy.acts_by.item() == trials.best_source == 1
    model.save(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model", env=walks())
    for each in (model, loaded):
        for deterministic in (True, False):
            actions, state = each.predict(CELLS, deterministic=deterministic)
            assert actions.tolist() == [RIGHT] * 5
            assert state[0].tolist() == [1] * 5, "the source is the active option"
            actions, _ = each.predict(CELLS, state, np.zeros(5, dtype=bool), deterministic=deterministic)
            assert actions.tolist() == [RIGHT] * 5
        assert evaluate_policy(each, walks(), 4, warn=False) == (1.0, 0.0)
    for given in (model, tmp_path / "model"):
        assert as_source(given).actions(CELLS, None, np.ones(5, dtype=bool))[0].tolist() == [RIGHT] * 5
    # What was tried goes on as well
    assert loaded._trials is not None
    assert loaded._trials.source_returns == trials.source_returns
    loaded.learn(200, reset_num_timesteps=False)
    assert loaded._trials.steps == loaded.num_timesteps
    assert loaded.policy.acts_by.item() == 1


@pytest.mark.filterwarnings("ignore:The learner is not known to be better")
def test_what_trials_say_of_sources_is_known_to_the_policy(tmp_path: Path) -> None:
    """A source that does no better than exploring, and one that does: both are options, with the same margin."""
    model = make(termination_kwargs={"regularization": 0.02})
    assert model.policy.standings.tolist() == [1, 1], "before anything is known, and without safety"
    model.learn(1000)
    assert model.policy.standings.tolist() == [0, 1]
    assert model.policy.execution.margins == (0.02, 0.02)
    model.save(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model")
    assert loaded.policy.standings.tolist() == [0, 1]
    assert loaded.policy.execution == model.policy.execution
    untried = make(safe=False, termination_kwargs={"regularization": 0.02}).learn(1000)
    assert untried.policy.standings.tolist() == [1, 1]
    assert untried.policy.execution.margins == (0.02, 0.02)


def with_a_kept_learner(steps: int, kept: int = RIGHT, latest: int = LEFT) -> tuple[CAPS, Trials]:
    """A run whose kept network always takes one action, with a return that was luck, and whose latest one another."""
    model = make(source_policies=[go_left, go_left], exploration_initial_eps=0.0, exploration_final_eps=0.0)
    model.learn(2)
    assert model._trials is not None
    for network in model.policy.networks():
        always(network, latest)
    always(model.policy.q_net_kept, kept)
    model._trials.kept_returns = [9.0]
    model.learn(steps, reset_num_timesteps=False)
    assert set(model._trials.learner_rewards) == {float(latest == RIGHT)}
    return model, model._trials


@pytest.mark.parametrize(("kept", "latest", "acts_by"), [(RIGHT, LEFT, KEPT), (LEFT, RIGHT, LATEST)])
def test_the_better_of_the_kept_and_the_latest_learner_acts_in_the_end(kept: int, latest: int, acts_by: int) -> None:
    """One reaches the goal, the other does not: episodes without exploration in the last tenth show which."""
    model, trials = with_a_kept_learner(2000, kept, latest)
    assert len(trials.checked_rewards) >= 5
    assert len(trials.late_rewards) >= 5
    assert set(trials.checked_rewards) == {float(kept == RIGHT)}
    assert set(trials.late_rewards) == {float(latest == RIGHT)}
    assert model.policy.acts_by.item() == acts_by
    assert evaluate_policy(model, walks(), 4, warn=False) == (1.0, 0.0)
    learner = model.reuse_summary().policies[-1]
    assert learner.mean_reward == 1.0
    assert learner.episodes == len(trials.checked_rewards if acts_by == KEPT else trials.late_rewards)


@pytest.mark.filterwarnings("ignore:The learner is not known to be better")
def test_what_is_checked_does_not_change() -> None:
    model = make(learning_rate=1e-3).learn(100)
    assert model._trials is not None

    def trained(checking: bool) -> bool:
        """Whether one more gradient step has changed the average that acts."""
        assert model._trials is not None
        model._trials.checking = checking
        before = th.nn.utils.parameters_to_vector(model.policy.acting_net.parameters())
        model.train(1, 32)
        return not th.equal(before, th.nn.utils.parameters_to_vector(model.policy.acting_net.parameters()))

    assert trained(checking=False)
    assert not trained(checking=True)
    assert trained(checking=False)


def test_a_source_that_does_worse_than_exploring_is_no_option(tmp_path: Path) -> None:
    model = make(termination_kwargs={"regularization": 0.02})
    always(model.policy.acting_net, LEFT)
    assert model.predict(CELLS, deterministic=True)[1][0].tolist() == [0] * 5, "of equal values that of a source"
    model.policy.standings.copy_(th.tensor([-1, 1]))
    assert model.policy.execution.margins == (-np.inf, 0.02)
    assert model.predict(CELLS, deterministic=True)[1][0].tolist() == [2] * 5
    # It ends where it is active, and targets are not built on it either
    state = (np.zeros(5, dtype=np.int64), model.options.initial_states())
    assert model.predict(CELLS, state, deterministic=True)[1][0].tolist() == [2] * 5
    values = th.tensor([[9.0, 1.0, 0.0, 2.0], [9.0, 3.0, 0.0, 2.0]])
    assert model.policy.greedy_options(values).tolist() == [3, 1]
    assert model.policy.given_up().tolist() == [True, False, False, False]
    model.save(tmp_path / "model")
    assert CAPS.load(tmp_path / "model").policy.execution == model.policy.execution


def test_episodes_explore_by_what_was_kept_as_long_as_it_is_better() -> None:
    """It goes right, the latest network left: the goal is reached while exploring, and not where that one is judged."""
    _, trials = with_a_kept_learner(1000)
    assert list(trials.plain_returns)[-5:] == pytest.approx([0.999**3] * 5)


def test_nothing_is_learned_of_a_source_that_is_given_up() -> None:
    model = make().learn(100)
    model.policy.standings.copy_(th.tensor([-1, 0]))
    model.policy.optimizer.zero_grad()
    model._compute_loss(model.replay_buffer.sample(64)).backward()
    gradient = dict(model.q_net.q_net.named_parameters())["4.bias"].grad
    assert gradient is not None
    assert (gradient != 0).tolist() == [False, True, True, True]


@pytest.mark.parametrize("safe", [True, False])
def test_a_run_explores_until_something_is_found(safe: bool) -> None:
    """The goal is out of reach for a learner that goes left with ε = 0, and for sources that do too."""
    arguments: dict[str, Any] = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0, "learning_starts": 0}
    model = make(source_policies=[go_left, go_left], buffer_size=5000, safe=safe, **arguments).learn(2000)
    found = model.replay_buffer.rewards.sum()
    assert found > 0 if safe else found == 0


def test_without_safety_a_model_acts_by_what_it_learned() -> None:
    model = make(safe=False).learn(1000)
    assert model.policy.acts_by.item() == LATEST
    assert model.predict(CELLS, deterministic=True)[0].tolist() == [LEFT] * 5
    assert evaluate_policy(model, walks(), 4, warn=False) == (0.0, 0.0)


@pytest.mark.filterwarnings("ignore:The learner is not known to be better")
def test_trials_are_few_and_whole() -> None:
    """A source that is tried acts alone from the first step of an episode to its last."""
    model = make(exploration_kwargs={"share": 0.0}, buffer_size=5000).learn(4000)
    trials, buffer = model._trials, model.replay_buffer
    assert trials is not None
    n_alone = 0
    for env in range(2):
        options = buffer.options[: buffer.pos, env]
        ends = np.flatnonzero(buffer.last_steps[: buffer.pos, env]) + 1
        for each in np.split(options, ends)[:-1]:
            assert (each == 1).all() or not (each == 1).any()
            n_alone += bool((each == 1).all())
    # Four steps each time, until it is known; the other one, which stays for twenty, is not tried again
    assert n_alone == len(trials.source_returns[1]) >= 5
    assert trials.source_steps == n_alone * 4 + 2 * 20
    assert trials.source_steps < 0.1 * 4000


def test_what_was_kept_is_acted_by_and_saved(tmp_path: Path) -> None:
    model = make(policy_kwargs={"net_arch": [16]})
    always(model.policy.q_net_kept, RIGHT)
    assert model.predict(CELLS, deterministic=True)[0].tolist() == [LEFT] * 5
    model.policy.acts_by.fill_(KEPT)
    model.save(tmp_path / "model")
    for each in (model, CAPS.load(tmp_path / "model")):
        assert each.predict(CELLS, deterministic=True)[0].tolist() == [RIGHT] * 5
        values, _ = each.policy.values_and_terminations(CELLS)
        assert values.tolist() == [[0.0, 1.0, 0.0, 1.0]] * 5


def test_the_network_is_kept_as_it_was_at_its_best() -> None:
    """It reaches the goal until its weights are spoilt: then what is kept still does."""
    model = make(source_policies=[go_left, go_left], exploration_initial_eps=0.0, exploration_final_eps=0.0)
    for network in model.policy.networks():
        always(network, RIGHT)
    model.learn(600)
    assert model._trials is not None
    assert model._trials.acts_by() == LATEST
    assert model.policy.acts_by.item() == KEPT, "when training is over"
    for network in (model.q_net, model.q_net_target, model.policy.acting_net):
        always(network, LEFT)
    model.learn(2000, reset_num_timesteps=False)
    assert model.policy.acts_by.item() == KEPT
    assert model.predict(CELLS, deterministic=True)[0].tolist() == [RIGHT] * 5
    assert evaluate_policy(model, walks(), 4, warn=False) == (1.0, 0.0)


@pytest.mark.filterwarnings("ignore:The learner is not known to be better")
def test_what_the_task_pays_counts_and_not_what_is_made_of_it() -> None:
    env = VecNormalize(walks())
    model = CAPS("MlpPolicy", env, source_policies=[go_right], learning_starts=10**6, seed=0).learn(200)
    assert env.normalize_reward(np.ones(1)).item() != pytest.approx(1.0)
    assert model._trials is not None
    assert set(model._trials.source_rewards[0]) == {1.0}


@pytest.mark.filterwarnings("ignore:The learner is not known to be better")
def test_a_run_says_what_it_was_given_and_what_it_reused(capsys: pytest.CaptureFixture[str]) -> None:
    make(verbose=1).learn(500)
    told = capsys.readouterr().out
    assert "Options: go_left (function), go_right (function), 2 actions" in told
    assert "predict acts by: go_right" in told
