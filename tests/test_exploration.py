"""Random options, stretches of source policies whose lengths are drawn, and how a run explores by them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env

from sb3_caps import CAPS
from sb3_caps.caps.acting import draw
from sb3_caps.caps.exploration import RandomStretches, epsilon_greedy
from sb3_caps.caps.gate import EXPLORING, MIXING, RANDOM, SAMPLED_ACTOR
from sb3_caps.reuse.episodes import Behaviour
from sb3_caps.reuse.selectors import Selector
from tests.toy_world import Corridor, go_left, go_right

N_ENVS = 20_000
ALL = np.arange(N_ENVS)
# Every environment is somewhere else in every step
NOWHERE: list[np.ndarray] = []


def shares(options: np.ndarray, n_options: int) -> np.ndarray:
    return np.bincount(options, minlength=n_options) / len(options)


def test_options_are_random_with_probability_epsilon() -> None:
    rng, values = np.random.default_rng(0), np.tile([0.0, 3.0, 1.0, 2.0], (N_ENVS, 1))
    np.testing.assert_allclose(shares(epsilon_greedy(values, 0.4, rng), 4), [0.1, 0.7, 0.1, 0.1], atol=0.015)
    np.testing.assert_allclose(shares(epsilon_greedy(values, 1.0, rng), 4), 0.25, atol=0.015)
    # Without it nothing is drawn at all
    before = rng.bit_generator.state
    np.testing.assert_array_equal(epsilon_greedy(values, 0.0, rng), 1)
    assert rng.bit_generator.state == before
    # What is greedy may be told
    np.testing.assert_array_equal(epsilon_greedy(values, 0.0, rng, greedy=np.full(N_ENVS, 2)), 2)
    found = epsilon_greedy(values, 0.4, rng, greedy=np.full(N_ENVS, 2))
    np.testing.assert_allclose(shares(found, 4), [0.1, 0.1, 0.7, 0.1], atol=0.015)


def test_draws_by_weight() -> None:
    # The ends are 1, 1, 4 and 5; 0.2, 0.8 and 1 of all
    uniform = np.array([0.0, 0.19, 0.21, 0.79, 0.81, 0.999])
    assert draw(np.tile([1.0, 0.0, 3.0, 1.0], (6, 1)), uniform).tolist() == [0, 0, 2, 2, 3, 3]
    # Each draw has weights of its own
    assert draw(np.eye(3), np.array([0.0, 0.5, 0.99])).tolist() == [0, 1, 2]
    # 1 - 2^-53 is the highest number that a generator draws
    assert draw(np.full((1, 7), 1 / 7), np.array([np.nextafter(1.0, 0.0)])).tolist() == [6]


def started(mean_length: float = 1.0) -> tuple[RandomStretches, np.random.Generator]:
    """At the start of episodes in many environments."""
    stretches = RandomStretches(N_ENVS)
    stretches.mean_length = mean_length
    return stretches, np.random.default_rng(0)


def step(
    stretches: RandomStretches, rng: np.random.Generator, sources: tuple[int, ...] = (0, 1), other: int = 4
) -> np.ndarray:
    """One step of all environments, each of which is where it never was."""
    here = rng.random((N_ENVS, 1))
    return stretches.choose(ALL, np.full(N_ENVS, other), np.array(sources, dtype=int), [here], rng)


def test_an_episode_starts_with_a_source_or_with_the_learner() -> None:
    """Each as likely, and each source too."""
    stretches, rng = started()
    options = step(stretches, rng)
    np.testing.assert_allclose(shares(options, 5), [0.25, 0.25, 0, 0, 0.5], atol=0.015)
    np.testing.assert_array_equal(stretches.has_turn, options < 2)


def test_sources_that_are_of_no_use_are_not_drawn() -> None:
    stretches, rng = started()
    options = step(stretches, rng, sources=(0, 2))
    np.testing.assert_allclose(shares(options, 5), [0.25, 0, 0.25, 0, 0.5], atol=0.015)
    # None is left: turns that have begun go on, and the learner has all that follow
    before, over = options, stretches.left == 0
    options = step(stretches, rng, sources=())
    np.testing.assert_array_equal(options, np.where(over, 4, before))
    assert not stretches.has_turn[over].any()


def test_turns_are_drawn_one_by_one() -> None:
    """After a turn of a source comes one of the learner or of any source, as at the start."""
    stretches, rng = started(mean_length=20.0)
    first = step(stretches, rng)
    over = stretches.left == 0
    assert over.sum() > 3000
    second = step(stretches, rng)
    np.testing.assert_array_equal(second[~over], first[~over])
    for before in (0, 1, 4):
        found = shares(second[over & (first == before)], 5)
        np.testing.assert_allclose(found, [0.25, 0.25, 0, 0, 0.5], atol=0.04)


def test_the_logarithm_of_a_duration_is_uniform() -> None:
    stretches, rng = started(mean_length=100.0)
    step(stretches, rng)
    durations = stretches.left + 1
    # From 1 to 99: 1 is as likely as 2 to 3, 4 to 7, ..., each ln 2 / ln 100, and the rest is ln (100 / 64) / ln 100
    found = np.histogram(durations, bins=[1, 2, 4, 8, 16, 32, 64, 100])[0] / N_ENVS
    np.testing.assert_allclose(found, [*[np.log(2) / np.log(100)] * 6, np.log(100 / 64) / np.log(100)], atol=0.01)
    # Sources and learner have the same
    for turn in (stretches.has_turn, ~stretches.has_turn):
        np.testing.assert_allclose(np.log(durations[turn]).mean(), np.log(durations).mean(), rtol=0.02)


def test_a_turn_lasts_for_its_duration() -> None:
    stretches, rng = started(mean_length=100.0)
    first = step(stretches, rng)
    durations = stretches.left + 1
    for number in range(2, 100):
        options = step(stretches, rng)
        lasts = number <= durations
        np.testing.assert_array_equal(options[lasts], first[lasts])


@pytest.mark.parametrize(
    ("is_source", "way", "steps"),
    [
        (True, [5, 5, 5, 5, 5], 1),  # into a wall
        (True, [5, 6, 7, 6, 7], 3),  # to and fro
        (True, [5, 6, 7, 8, 9], 5),
        (False, [5, 5, 5, 5, 5], 5),  # the learner may come back to where it was
    ],
)
def test_a_turn_of_a_source_ends_where_it_goes_in_a_circle(is_source: bool, way: list[int], steps: int) -> None:
    stretches, rng = RandomStretches(2), np.random.default_rng(0)
    stretches.has_turn[1], stretches.left[1] = is_source, 100
    left = []
    for cell in way:
        # The other half of the observation is always the same. No source is left for another turn
        here = [np.array([cell]), np.zeros((1, 2))]
        stretches.choose(np.array([1]), np.array([2]), np.array([], dtype=int), here, rng)
        left.append(int(stretches.left[1]))
    assert left[:steps] == [99, 98, 97, 96, 95][:steps]
    assert all(each < 10 for each in left[steps:])
    assert stretches.has_turn[1] == (is_source and steps == len(way))
    # Nothing happened in the other environment
    assert (stretches.left[0], stretches.ages[0], stretches.seen[0]) == (0, 0, set())


def test_durations_go_up_to_the_length_of_an_episode() -> None:
    """The mean of all so far, and then the latest ones count for more; none is known at first."""
    stretches, rng = RandomStretches(1), np.random.default_rng(0)

    def episode(length: int) -> float:
        for number in range(length):
            stretches.choose(np.array([0]), np.array([1]), np.array([0]), [np.array([number])], rng)
        stretches.start(0)
        return stretches.mean_length

    assert [stretches.mean_length, *map(episode, (10, 20, 60))] == pytest.approx([1.0, 10.0, 15.0, 30.0])
    stretches.n_episodes = 1000
    assert episode(80) == pytest.approx(31.0), "a fiftieth of the way"
    # An episode in which somebody else acted says nothing
    stretches.start(0)
    assert (stretches.mean_length, stretches.n_episodes) == (pytest.approx(31.0), 1001)
    # One that is longer than any before has longer turns as well
    many, rng = started()
    many.ages[:] = 100
    step(many, rng)
    assert many.left.max() > 90


def test_only_the_episode_that_starts_is_forgotten() -> None:
    stretches, rng = started(mean_length=20.0)
    step(stretches, rng)
    left = stretches.left.copy()
    stretches.start(7)
    assert (stretches.has_turn[7], stretches.left[7], stretches.ages[7], stretches.seen[7]) == (False, 0, 0, set())
    np.testing.assert_array_equal(np.delete(stretches.left, 7), np.delete(left, 7))
    assert (np.delete(stretches.ages, 7) == 1).all()


class Always(Selector):
    """A run in which one behaviour acts in every episode."""

    behaviour = EXPLORING

    def select(self, env: int) -> Behaviour:
        return self.behaviour

    def decide(self) -> Behaviour:
        return self.behaviour


class Mixing(Always):
    behaviour = MIXING


def make(selector: type[Selector] = Always, **kwargs: Any) -> CAPS:
    env = make_vec_env(Corridor, n_envs=4, seed=0)
    arguments: dict[str, Any] = {"learning_starts": 0, "gradient_steps": 0, "buffer_size": 10_000, "seed": 0}
    arguments |= {"source_policies": [go_right, go_left], "selector_class": selector}
    return CAPS("MlpPolicy", env, **{**arguments, **kwargs})


def taken(model: CAPS) -> np.ndarray:
    return np.bincount(model.replay_buffer.options[: model.replay_buffer.pos].ravel(), minlength=5) / 4000


def test_random_actions_in_a_run() -> None:
    """Random actions are primitives, also where the greedy option is a source."""
    model = make(exploration_initial_eps=0.6, exploration_final_eps=0.6)
    last = model.policy.acting_net.q_net[-1]
    assert isinstance(last, th.nn.Linear)
    with th.no_grad():
        last.weight.zero_()
        last.bias.copy_(th.tensor([0.0, 1.0, 0.0, 0.0, 0.0]))
    np.testing.assert_allclose(taken(model.learn(4000)), [0, 0.4, 0.2, 0.2, 0.2], atol=0.03)


def test_stretches_of_sources_in_a_run() -> None:
    options = taken(make(Mixing, exploration_initial_eps=1.0, exploration_final_eps=1.0).learn(4000))
    # About half of the steps are in the turn of a source
    assert 0.35 < options[:2].sum() < 0.65
    assert options.min() > 0.05


class WithoutLeft(Mixing):
    @property
    def disabled(self) -> set[str]:
        return {"go_left"}


def test_a_disabled_source_has_no_turn() -> None:
    model = make(WithoutLeft, exploration_initial_eps=1.0, exploration_final_eps=1.0)
    options = taken(model.learn(4000))
    assert options[0] > 0.2
    assert options[1] == 0


class Sampling(Always):
    behaviour = SAMPLED_ACTOR


class Drawing(Always):
    behaviour = RANDOM


class FirstSource(Always):
    behaviour = Behaviour("go_right", is_source=True)


@pytest.mark.parametrize("selector", [Always, Mixing, Sampling, Drawing, FirstSource])
def test_how_likely_each_action_was_is_stored(selector: type[Always]) -> None:
    """What the actor is to learn from: its own steps and those of sources, which act for certain."""
    model = make(selector).learn(400)
    buffer = model.replay_buffer
    found = np.exp(buffer.log_probs[: buffer.pos]).ravel()
    if selector is Sampling:
        rows, envs = (each.ravel() for each in np.indices((buffer.pos, 4)))
        features = model.policy.acting_net.features(th.as_tensor(buffer.stores[None].get(rows, envs)))
        sources = th.as_tensor(buffer.option_actions[rows, envs].astype(np.int64))
        with th.no_grad():
            expected = model.policy.actor(features, sources)[1].exp().numpy()
        np.testing.assert_allclose(found, expected[np.arange(len(rows)), buffer.actions[rows, envs]], rtol=1e-4)
    elif selector is FirstSource:
        np.testing.assert_array_equal(found, 1.0)
    else:
        assert np.isnan(found).all()


def test_before_learning_starts_all_actions_are_random() -> None:
    model = make(exploration_initial_eps=0.0, exploration_final_eps=0.0, learning_starts=2000).learn(4000)
    first, second = np.split(model.replay_buffer.options[:1000], 2)
    np.testing.assert_allclose(shares(first.ravel(), 5), [0, 0, 1 / 3, 1 / 3, 1 / 3], atol=0.04)
    assert len(np.unique(second)) <= 2


def test_a_loaded_model_goes_on_with_its_turns(tmp_path: Path) -> None:
    model = make(Mixing, exploration_final_eps=1.0).learn(202)
    model.save(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model", env=model.get_env())
    ours, theirs = model._stretches, loaded._stretches
    assert ours.n_episodes == theirs.n_episodes > 0
    assert ours.mean_length == theirs.mean_length
    for name in ("has_turn", "sources", "left", "ages"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_a_run_that_goes_on_knows_how_long_episodes_are() -> None:
    model = make(Mixing, exploration_final_eps=1.0).learn(400)
    n_episodes = model._stretches.n_episodes
    assert n_episodes > 0
    model.learn(40)
    assert model._stretches.n_episodes >= n_episodes


def test_without_sources_a_run_explores_too() -> None:
    for selector in (Always, Mixing):
        model = make(selector, source_policies=None, exploration_final_eps=1.0).learn(4000)
        np.testing.assert_allclose(taken(model)[:3], 1 / 3, atol=0.03)
