"""Random actions and stretches of source policies, whose lengths are drawn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env

from sb3_caps import CAPS
from sb3_caps.caps.exploration import DrawnDurations
from sb3_caps.caps.trials import Trials
from tests.toy_world import Corridor, go_left, go_right

N_ENVS = 20_000
ALL = np.ones(N_ENVS, dtype=bool)


def started(n_sources: int = 2, share: float = 0.5, gain: float | None = None) -> DrawnDurations:
    """At the start of episodes in many environments, with two sources and three actions."""
    np.random.seed(0)
    exploration = DrawnDurations(n_sources, 3, share)
    if gain is not None:
        exploration.adapt(gain, np.ones(n_sources, dtype=bool))
    exploration.start_episodes(ALL)
    return exploration


def shares(options: np.ndarray, n_options: int = 5) -> np.ndarray:
    return np.bincount(options, minlength=n_options) / len(options)


@pytest.mark.parametrize(
    ("share", "gain", "expected"),
    [(0.25, None, 0.25), (0.25, 0.5, 0.25), (0.25, 1.0, 0.5), (0.25, 0.4, 0.1024), (0.25, 0.0, 0.0), (1.0, 0.8, 1.0)],
)
def test_there_are_as_many_mixed_episodes_as_they_are_good(share: float, gain: float | None, expected: float) -> None:
    np.testing.assert_allclose(started(share=share, gain=gain).mixed.mean(), expected, atol=0.015)


def test_sources_that_are_of_no_use_are_not_drawn() -> None:
    exploration = DrawnDurations(3, 2, share=1.0)
    exploration.adapt(0.5, np.array([True, False, True]))
    exploration.start_episodes(ALL)
    np.testing.assert_allclose(shares(exploration.choose(np.full(N_ENVS, 3), 0.0)), [0.25, 0, 0.25, 0.5, 0], atol=0.015)
    # None is left: turns that have begun end, the learner has all that follow, and no episode is mixed any more
    exploration.adapt(0.5, np.zeros(3, dtype=bool))
    exploration.left[:] = 0
    np.testing.assert_array_equal(exploration.choose(np.full(N_ENVS, 3), 0.0), 3)
    exploration.start_episodes(ALL)
    assert not exploration.mixed.any()


def test_only_episodes_that_start_are_drawn() -> None:
    exploration = started(share=1.0)
    exploration.choose(np.full(N_ENVS, 2), epsilon=0.0)
    sources, left = exploration.sources.copy(), exploration.left.copy()
    exploration.share = 0.0
    first_half = np.arange(N_ENVS) < N_ENVS // 2
    exploration.start_episodes(first_half)
    np.testing.assert_array_equal(exploration.mixed, ~first_half)
    np.testing.assert_array_equal(exploration.sources, np.where(first_half, -1, sources))
    np.testing.assert_array_equal(exploration.left, np.where(first_half, 0, left))
    # Another number of environments starts from nothing
    exploration.start_episodes(np.ones(3, dtype=bool))
    assert exploration.ages.tolist() == [0, 0, 0]


def test_actions_are_random_with_probability_epsilon() -> None:
    """In episodes that are not mixed: the greedy option is a source here, and random actions are primitives."""
    exploration = started(share=0.0)
    np.testing.assert_allclose(
        shares(exploration.choose(np.ones(N_ENVS, dtype=int), 0.3)), [0, 0.7, 0.1, 0.1, 0.1], atol=0.01
    )
    np.testing.assert_array_equal(exploration.choose(np.ones(N_ENVS, dtype=int), 0.0), 1)
    np.testing.assert_allclose(
        shares(exploration.choose(np.ones(N_ENVS, dtype=int), 1.0)), [0, 0, 1 / 3, 1 / 3, 1 / 3], atol=0.015
    )
    # Each environment may have its own
    epsilons = np.arange(N_ENVS) % 2
    options = exploration.choose(np.ones(N_ENVS, dtype=int), epsilons)
    np.testing.assert_array_equal(options == 1, epsilons == 0)


def test_a_mixed_episode_starts_with_a_source_or_with_the_learner() -> None:
    """Each as likely, and each source too; in the turn of a source no action is random."""
    exploration = started(share=1.0)
    options = exploration.choose(np.full(N_ENVS, 4), epsilon=0.3)
    np.testing.assert_allclose(shares(options), [0.25, 0.25, 0.05, 0.05, 0.4], atol=0.015)
    np.testing.assert_array_equal(exploration.sources, np.where(options < 2, options, -1))


def test_turns_are_drawn_one_by_one() -> None:
    """After a turn of a source comes one of the learner or of any source, as at the start."""
    exploration = started(share=1.0)
    exploration.episode_length = 20.0
    first = exploration.choose(np.full(N_ENVS, 4), epsilon=0.0)
    over = exploration.left == 0
    assert over.sum() > 3000
    second = exploration.choose(np.full(N_ENVS, 4), epsilon=0.0)
    np.testing.assert_array_equal(second[~over], first[~over])
    for before in (0, 1, 4):
        found = shares(second[over & (first == before)])
        np.testing.assert_allclose(found, [0.25, 0.25, 0, 0, 0.5], atol=0.04)


def test_the_logarithm_of_a_duration_is_uniform() -> None:
    exploration = started(share=1.0)
    exploration.episode_length = 100.0
    exploration.choose(np.full(N_ENVS, 4), epsilon=0.0)
    durations = exploration.left + 1
    # From 1 to 99: 1 is as likely as 2 to 3, 4 to 7, ..., each ln 2 / ln 100, and the rest is ln (100 / 64) / ln 100
    found = np.histogram(durations, bins=[1, 2, 4, 8, 16, 32, 64, 100])[0] / N_ENVS
    np.testing.assert_allclose(found, [*[np.log(2) / np.log(100)] * 6, np.log(100 / 64) / np.log(100)], atol=0.01)
    # Sources and learner have the same
    for turn in (exploration.sources < 0, exploration.sources >= 0):
        np.testing.assert_allclose(np.log(durations[turn]).mean(), np.log(durations).mean(), rtol=0.02)


def test_a_turn_lasts_for_its_duration() -> None:
    exploration = started(share=1.0)
    exploration.episode_length = 100.0
    first = exploration.choose(np.full(N_ENVS, 4), epsilon=0.0)
    durations = exploration.left + 1
    for step in range(2, 100):
        options = exploration.choose(np.full(N_ENVS, 4), epsilon=0.0)
        lasts = step <= durations
        np.testing.assert_array_equal(options[lasts], first[lasts])


@pytest.mark.parametrize(
    ("source", "way", "steps"),
    [
        (0, [5, 5, 5, 5, 5], 1),  # into a wall
        (0, [5, 6, 7, 6, 7], 3),  # to and fro
        (0, [5, 6, 7, 8, 9], 5),
        (-1, [5, 5, 5, 5, 5], 5),  # the learner may come back to where it was
    ],
)
def test_a_turn_of_a_source_ends_where_it_goes_in_a_circle(
    source: int, way: list[int], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exploration = DrawnDurations(1, 3, share=1.0)
    # Every episode is mixed, and the turn that follows is the learner's
    monkeypatch.setattr(np.random, "random", lambda size: np.full(size, 0.9))
    exploration.start_episodes(np.ones(1, dtype=bool))
    exploration.sources[:], exploration.left[:] = source, 100
    left = []
    for cell in way:
        # The other half of the observation is always the same
        exploration.choose(np.full(1, 2), 0.0, [np.array([cell]), np.zeros((1, 2))])
        left.append(int(exploration.left[0]))
    assert left[:steps] == [99, 98, 97, 96, 95][:steps]
    assert all(each < 10 for each in left[steps:])
    assert exploration.sources.tolist() == [source if steps == len(way) else -1]


def test_durations_go_up_to_the_length_of_an_episode() -> None:
    """The mean of all so far, and then the latest ones count for more; none is known at first."""
    exploration, one = DrawnDurations(1, 3, share=1.0), np.ones(1, dtype=bool)
    np.random.seed(0)
    lengths = []
    for length in (10, 20, 60):
        exploration.start_episodes(one)
        lengths.append(exploration.episode_length)
        for _ in range(length):
            exploration.choose(np.zeros(1, dtype=int), epsilon=1.0)
    exploration.start_episodes(one)
    assert [*lengths, exploration.episode_length] == pytest.approx([1.0, 10.0, 15.0, 30.0])
    exploration.n_episodes = 1000
    for _ in range(80):
        exploration.choose(np.zeros(1, dtype=int), epsilon=1.0)
    exploration.start_episodes(one)
    assert exploration.episode_length == pytest.approx(31.0), "a fiftieth of the way"
    # An episode that is longer than any before has longer turns as well
    many = started(share=1.0)
    many.ages[:] = 100
    many.choose(np.full(N_ENVS, 4), epsilon=0.0)
    assert many.left.max() > 90


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_without_sources_it_is_epsilon_greedy(epsilon: float) -> None:
    exploration = started(n_sources=0, share=1.0)
    assert not exploration.mixed.any()
    for _ in range(3):
        options = exploration.choose(np.full(N_ENVS, 2), epsilon)
        np.testing.assert_allclose(shares(options, 3), [epsilon / 3, epsilon / 3, 1 - 2 * epsilon / 3], atol=0.015)


def make(**kwargs: Any) -> CAPS:
    env = make_vec_env(Corridor, n_envs=4, seed=0)
    arguments: dict[str, Any] = {"learning_starts": 10**6, "buffer_size": 10_000, "seed": 0, "safe": False}
    return CAPS("MlpPolicy", env, **{"source_policies": [go_right, go_left], **arguments, **kwargs})


def test_stretches_of_sources_in_a_run() -> None:
    for share in (0.0, 1.0):
        model = make(exploration_kwargs={"share": share}).learn(4000)
        buffer = model.replay_buffer
        taken = np.bincount(buffer.options[: buffer.pos].ravel(), minlength=5) / 4000
        if share == 0:
            assert taken[:2].tolist() == [0.0, 0.0]
            np.testing.assert_allclose(taken[2:], 1 / 3, atol=0.03)
        else:
            # About half of the steps are in the turn of a source
            assert 0.35 < taken[:2].sum() < 0.65
            assert taken.min() > 0.05
    make(source_policies=None, learning_starts=20).learn(200)


def test_a_loaded_model_goes_on_with_its_turns(tmp_path: Path) -> None:
    model = make(exploration_kwargs={"share": 1.0}).learn(202)
    model.save(tmp_path / "model")
    ours, theirs = model._exploration, CAPS.load(tmp_path / "model", env=model.get_env())._exploration
    assert isinstance(ours, DrawnDurations)
    assert isinstance(theirs, DrawnDurations)
    assert ours.n_episodes == theirs.n_episodes > 0
    assert ours.episode_length == theirs.episode_length
    for name in ("mixed", "sources", "left", "ages"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_episodes_without_exploration_are_made_up_for() -> None:
    """A share of 0.5 (1 - ε) of the episodes tries the learner: ε of all steps are random all the same."""
    model = make(safe=True)
    model._trials = trials = Trials(2, 0.99)
    trials.start_episodes(np.ones(2, dtype=bool), epsilon=0.2, warm_up=True)
    for epsilon, raised in ((0.0, 0.0), (0.2, 0.2 / 0.6), (1.0, 1.0)):
        np.testing.assert_allclose(model._raised(epsilon), [raised, raised], strict=True)
    # One of them explores at random
    trials.random[1] = True
    np.testing.assert_allclose(model._raised(0.2), [0.2 / 0.6, 1.0])
    model.safe = False
    assert model._raised(0.2) == 0.2
