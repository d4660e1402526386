"""What a model promises: it acts by the best of its sources and of what it learned, as whole episodes tell."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_caps import CAPS, as_source
from sb3_caps.caps.gate import ACTOR, BEST, OPTIONS, SAMPLED_ACTOR
from sb3_caps.caps.networks import OptionQNetwork
from sb3_caps.caps.selection import CAPSSelector
from sb3_caps.reuse.episodes import Behaviour, EpisodeResult
from sb3_caps.reuse.evidence import Evidence
from tests.hand_walk import LEFT, RIGHT, Walk, go_left, go_right

CELLS = np.eye(5, dtype=np.float32)
GO_RIGHT = Behaviour("go_right", is_source=True)


def always(network: OptionQNetwork, action: int) -> None:
    """Let a network of the model below prefer one action everywhere."""
    last = network.q_net[-1]
    assert isinstance(last, th.nn.Linear)
    with th.no_grad():
        last.weight.zero_()
        # Sources have the values of their actions, which come last
        last.bias.zero_()
        last.bias[-2 + action] = 1.0


def walks(n_envs: int = 2) -> VecEnv:
    return make_vec_env(Walk, n_envs, seed=0)


def make(algorithm: type[CAPS] = CAPS, n_envs: int = 2, **kwargs: Any) -> CAPS:
    """A model that goes left and learns too slowly to change that, with a useless source and a perfect one."""
    arguments: dict[str, Any] = {"learning_starts": 20, "exploration_fraction": 0.1, "buffer_size": 5000, "seed": 0}
    arguments |= {"learning_rate": 1e-12, "train_freq": 50, "normalize_returns": False, "device": "cpu"}
    arguments |= {"source_policies": [go_left, go_right], "selection_kwargs": {"actor": False}}
    model = algorithm("MlpPolicy", walks(n_envs), **{**arguments, **kwargs})
    for network in model.policy.networks():
        always(network, LEFT)
    return model


# The learner never explores
GREEDY: dict[str, Any] = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0}


def rewards(model: CAPS) -> dict[str, Evidence]:
    assert isinstance(model.selector, CAPSSelector)
    return model.selector.rewards


@pytest.mark.parametrize("n_envs", [1, 2, 8])
def test_a_learner_that_fails_acts_as_its_best_source(n_envs: int, tmp_path: Path) -> None:
    model = make(n_envs=n_envs).learn(3000)
    known = rewards(model)
    assert {name: (known[name].mean, known[name].std) for name in ("go_left", "go_right", "options")} == {
        "go_left": (0.0, 0.0),
        "go_right": (1.0, 0.0),
        "options": (0.0, 0.0),
    }
    assert model.gate.controller == GO_RIGHT
    model.save(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model", env=walks(n_envs))
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
    before = known["go_right"].n
    assert rewards(loaded)["go_right"].n == before
    loaded.learn(2000, reset_num_timesteps=False)
    assert rewards(loaded)["go_right"].n > before
    assert loaded.gate.controller == GO_RIGHT


class Gamble(Walk):
    """The way to the left wins in half of the episodes, and the way to the right in nine of ten."""

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, _, _, _, info = super().step(action)
        wins = self.np_random.random() < (0.5 if action == LEFT else 0.9)
        return observation, float(wins), True, False, info


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sources", [[go_left, go_right], [go_right], [go_left] * 6 + [go_right]])
def test_a_finished_model_is_not_below_its_best_source(sources: list[Any], seed: int) -> None:
    """By luck another one looks better for a while."""
    env = make_vec_env(Gamble, n_envs=2, seed=seed)
    model = CAPS("MlpPolicy", env, source_policies=sources, train_freq=50, device="cpu", seed=seed).learn(2000)
    assert model.predict(CELLS[:1], deterministic=True)[0].tolist() == [RIGHT]


def episodes(model: CAPS, field: str = "options") -> list[np.ndarray]:
    """The options that were followed in each episode that is over, or what else is known of its steps."""
    buffer, found = model.replay_buffer, []
    for env in range(buffer.n_envs):
        ends = np.flatnonzero(buffer.last_steps[: buffer.pos, env]) + 1
        found += np.split(getattr(buffer, field)[: buffer.pos, env], ends)[:-1]
    return found


class Recorder(CAPSSelector):
    """It remembers all that it was told."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.results: list[EpisodeResult] = []

    def update(self, result: EpisodeResult) -> None:
        super().update(result)
        self.results.append(result)


def test_bad_sources_cost_little() -> None:
    """They are tried in the survey, and then in a share of the steps at most, which others have as well."""
    model = make(selector_class=Recorder, source_policies=[go_left] * 8).learn(10_000)
    assert isinstance(model.selector, Recorder)
    alone = sum(result.length for result in model.selector.results if result.behaviour.is_source)
    assert 0.02 * 10_000 < alone < (0.1 + 0.15) * 10_000


def test_episodes_belong_to_one_behaviour_from_beginning_to_end() -> None:
    model = make(selector_class=Recorder).learn(4000)
    assert isinstance(model.selector, Recorder)
    results = sorted(model.selector.results, key=lambda result: result.env)
    followed = dict[str, set[int]]()
    for result, options, paid in zip(results, episodes(model), episodes(model, "rewards"), strict=True):
        assert (result.length, result.reward) == (len(options), paid.sum())
        followed.setdefault(result.behaviour.name, set()).update(options.tolist())
    assert (followed["go_left"], followed["go_right"], followed["random"]) == ({0}, {1}, {2, 3})
    # The learner goes left without exploration, by the source or by the action, and explores by actions
    assert followed["options"] | followed.get("best options", set()) <= {0, 2}
    assert 3 in followed["exploring"] <= {0, 2, 3}
    assert {1, 3} < followed["mixing"]


def test_a_source_that_is_disabled_is_never_followed(tmp_path: Path) -> None:
    model = make(termination_kwargs={"regularization": 0.02})
    always(model.policy.acting_net, LEFT)
    assert model.predict(CELLS, deterministic=True)[1][0].tolist() == [0] * 5, "of equal values that of a source"
    model.gate.disabled = {"go_left"}
    assert model.policy.execution.margins == (-np.inf, 0.02)
    disabled = model.policy.disabled()
    assert disabled is not None
    assert disabled.tolist() == [True, False, False, False]
    assert model.predict(CELLS, deterministic=True)[1][0].tolist() == [2] * 5
    # It ends where it is active, and targets are not built on it either
    state = (np.zeros(5, dtype=np.int64), model.options.initial_states(), np.random.default_rng(0))
    assert model.predict(CELLS, state, deterministic=True)[1][0].tolist() == [2] * 5
    values = th.tensor([[9.0, 1.0, 0.0, 2.0], [9.0, 3.0, 0.0, 2.0]])
    assert model.policy.greedy_options(values).tolist() == [3, 1]
    model.save(tmp_path / "model")
    assert CAPS.load(tmp_path / "model").policy.execution == model.policy.execution


def test_a_source_that_is_worse_than_random_actions_is_disabled() -> None:
    model = make(source_policies=[go_left, go_right]).learn(4000)
    known = rewards(model)
    # Random actions arrive now and then; to the left nobody ever does
    assert known["go_left"].mean == 0.0 < known["random"].mean < known["go_right"].mean
    assert isinstance(model.selector, CAPSSelector)
    assert model.gate.disabled == model.selector.disabled == {"go_left"}
    # From then on it has no turn and no trial
    later = [options for options in episodes(model) if (options == 0).all()]
    model.replay_buffer.reset()
    model.learn(2000, reset_num_timesteps=False)
    assert later
    assert not any((options == 0).any() for options in episodes(model))


def test_nothing_is_learned_of_a_source_that_is_disabled() -> None:
    model = make().learn(100)
    model.gate.disabled = {"go_left"}
    data = model._sample(64)
    assert data.agreements[..., 0].any()
    estimates, targets = model._estimates_and_targets(data)
    model.policy.optimizer.zero_grad()
    model._compute_loss(data, estimates, targets).backward()
    gradient = dict(model.q_net.q_net.named_parameters())["4.bias"].grad
    assert gradient is not None
    assert (gradient != 0).tolist() == [False, True, True, True]


@pytest.mark.parametrize("safe", [True, False])
def test_a_run_explores_until_something_is_found(safe: bool) -> None:
    """The goal is out of reach for a learner that goes left with ε = 0, and for sources that do too."""
    model = make(source_policies=[go_left, go_left], safe=safe, learning_starts=0, **GREEDY).learn(2000)
    found = model.replay_buffer.rewards.sum()
    assert found > 0 if safe else found == 0


def test_without_safety_a_model_acts_by_the_values_of_its_options() -> None:
    model = make(safe=False, selection_kwargs={}).learn(1000)
    assert (model.gate.controller, model.gate.disabled) == (OPTIONS, set())
    assert model.predict(CELLS, deterministic=True)[0].tolist() == [LEFT] * 5
    assert evaluate_policy(model, walks(), 4, warn=False) == (0.0, 0.0)


def test_predict_acts_by_the_gate() -> None:
    """Networks that go right as they did best, and left as they are; an actor that goes right."""
    model = make(selection_kwargs={})
    always(model.policy.q_net_best, RIGHT)
    # The second source votes for going right
    model.policy.actor.start_from(np.array([0.0, 1.0]))
    for controller, action in (
        (OPTIONS, LEFT),
        (BEST, RIGHT),
        (ACTOR, RIGHT),
        (SAMPLED_ACTOR, RIGHT),
        (Behaviour("go_left", is_source=True), LEFT),
        (GO_RIGHT, RIGHT),
    ):
        model.gate.controller = controller
        for deterministic in (True, False):
            assert model.predict(CELLS, deterministic=deterministic)[0].tolist() == [action] * 5, controller


def test_a_sampled_actor_draws_also_where_it_is_deterministic() -> None:
    """As it was judged: but the draws are the same ones each time."""
    model = make(selection_kwargs={})
    model.gate.controller = SAMPLED_ACTOR
    cells = np.tile(CELLS[:1], (1000, 1))
    actions, state = model.predict(cells, deterministic=True)
    assert actions.mean() == pytest.approx(0.5, abs=0.05)
    np.testing.assert_array_equal(model.predict(cells, deterministic=True)[0], actions)
    # In the next step it goes on to draw
    assert (model.predict(cells, state, np.zeros(1000, dtype=bool), deterministic=True)[0] != actions).any()
    assert (model.predict(cells)[0] != model.predict(cells)[0]).any()


def test_what_did_best_is_acted_by_and_saved(tmp_path: Path) -> None:
    model = make(policy_kwargs={"net_arch": [16]})
    always(model.policy.q_net_best, RIGHT)
    assert model.predict(CELLS, deterministic=True)[0].tolist() == [LEFT] * 5
    model.gate.controller = BEST
    model.save(tmp_path / "model")
    for each in (model, CAPS.load(tmp_path / "model")):
        assert each.predict(CELLS, deterministic=True)[0].tolist() == [RIGHT] * 5
        values, _ = each.policy.values_and_terminations(CELLS)
        assert values.tolist() == [[0.0, 1.0, 0.0, 1.0]] * 5


def test_the_networks_are_kept_as_they_were_at_their_best() -> None:
    """They reach the goal until the weights are spoilt: then what is kept still does."""
    model = make(source_policies=[go_left, go_left], **GREEDY)
    for network in model.policy.networks():
        always(network, RIGHT)
    model.learn(1000)
    for network in (model.q_net, model.q_net_target, model.policy.acting_net):
        always(network, LEFT)
    model.learn(3000, reset_num_timesteps=False)
    assert model.gate.controller == BEST
    assert model.predict(CELLS, deterministic=True)[0].tolist() == [RIGHT] * 5
    assert evaluate_policy(model, walks(), 4, warn=False) == (1.0, 0.0)


def test_what_the_task_pays_counts_and_not_what_is_made_of_it() -> None:
    env = VecNormalize(walks())
    model = CAPS("MlpPolicy", env, source_policies=[go_right], learning_starts=10**6, seed=0).learn(200)
    assert env.normalize_reward(np.ones(1)).item() != pytest.approx(1.0)
    known = rewards(model)["go_right"]
    assert (known.mean, known.std) == (1.0, 0.0)


def test_a_run_says_what_it_was_given_and_what_it_reused(capsys: pytest.CaptureFixture[str]) -> None:
    make(verbose=1).learn(1000)
    told = capsys.readouterr().out
    assert "Options: go_left (function), go_right (function), 2 actions" in told
    assert "predict acts by: go_right" in told
