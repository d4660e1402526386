"""Sources beside exploring: what is better than it, what stretches of them bring, and when nothing was found."""

import numpy as np
import pytest

from sb3_caps.caps.trials import GREEDY, LATEST, LEARNING, Trials
from tests.test_trials import SOURCE, after, episode


def test_sources_beside_exploring() -> None:
    trials = after(3, [[1.0, 1.4], [0.0, 0.0], [9.0]])
    assert trials.standings.tolist() == [0, 0, 0], "exploring is not known yet"
    for each in (1.0, 1.0, 1.1, 0.9):
        episode(trials, LEARNING, each)
    assert trials.standings.tolist() == [0, 0, 0]
    episode(trials, LEARNING, 1.0)
    # 1.2 and 1 differ by less than one and a half standard errors of 0.144; of the third one trial is too few
    assert trials.standings.tolist() == [0, -1, 0]
    episode(trials, 0, 1.4)
    # 1.267 and 1 by more than one and a half of 0.113
    assert trials.standings.tolist() == [1, -1, 0]
    for each in (1.2, 1.3, 1.2, 1.3) * 4:
        episode(trials, LEARNING, each)
    assert len(trials.exploring_returns) == 20
    # The mean of the first twenty is 1.1875
    assert trials.standings.tolist() == [0, -1, 0]


@pytest.mark.parametrize("trials_of_it", [2, 5, 20])
def test_one_success_by_luck_is_no_standing(trials_of_it: int) -> None:
    """A mean of 1 / n is one standard error above nothing, however often the source was tried."""
    trials = after(1, [[1.0] + [0.0] * (trials_of_it - 1)])
    for _ in range(5):
        episode(trials, LEARNING, 0.0)
    assert trials.standings.tolist() == [0]
    assert trials.nothing_found()


@pytest.mark.parametrize(
    ("source", "learner", "expected"),
    [
        # No more than exploring, which gets 1: whatever has the higher mean; the learner has 1 until it is known
        ([0.8, 1.2], [], LATEST),
        ([0.85, 1.25], [], 0),
        ([0.85, 1.25], [1.1], 0),
        ([0.8, 1.2], [0.95] * 3, 0),
        ([0.8, 1.2], [1.0] * 3, LATEST),
        ([0.8, 1.2], [1.05] * 3, LATEST),
        # More than exploring, by less than the noise: the source, unless the learner has more by a standard error
        ([0.85, 1.25], [1.15] * 3, 0),
        ([0.85, 1.25], [1.2] * 3, LATEST),
        # The same where it is known to be better
        ([1.8, 2.2], [], 0),
        ([1.8, 2.2], [2.1] * 3, 0),
        ([1.8, 2.2], [2.2] * 3, LATEST),
    ],
)
def test_what_to_act_by_where_exploring_is_known(source: list[float], learner: list[float], expected: int) -> None:
    """A source has a standard error of 0.2 / √2 = 0.14."""
    trials = after(1, [source], learner)
    for _ in range(5):
        episode(trials, LEARNING, 1.0)
    assert trials.acts_by() == expected


def test_what_stretches_of_sources_bring() -> None:
    trials = after(1, [SOURCE])
    for each in (0.0, 0.0, 1.0, 1.0, 2.0):
        assert trials.gain_of_mixing() == 0.5, "not known yet"
        episode(trials, LEARNING, each)
        episode(trials, GREEDY, 9.0)
    for each in (1.0, 1.0, 1.0, 3.0):
        episode(trials, LEARNING, each, mixed=True)
    assert trials.gain_of_mixing() == 0.5
    episode(trials, LEARNING, 1.0, mixed=True)
    # Four of five are above two, like two and below one: 2 + 2 / 2 = 3 of 5; the fifth is above all
    assert trials.gain_of_mixing() == pytest.approx((4 * 3 / 5 + 1) / 5)
    assert trials.exploring_returns == [0.0, 0.0, 1.0, 1.0, 2.0], "what exploring is worth without any source"
    # The latest twenty count
    for _ in range(20):
        episode(trials, LEARNING, 9.0)
    assert trials.gain_of_mixing() == 0.0


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_unit_of_the_rewards_changes_nothing(scale: float) -> None:
    for learner in ([1.3] * 3, [1.35] * 3, [2.0] * 5 + [1.0] * 5):
        plain, scaled = (
            after(1, [[unit * each for each in SOURCE]], [unit * each for each in learner]) for unit in (1.0, scale)
        )
        assert plain.acts_by() == scaled.acts_by()


def test_random_actions_until_something_is_found() -> None:
    trials = after(1, [[0.0, 0.0]])
    for _ in range(5):
        assert not trials.nothing_found(), "too few to tell"
        episode(trials, LEARNING, 0.0)
    assert trials.nothing_found()
    for role, mixed in ((LEARNING, True), (LEARNING, False), (GREEDY, False)):
        found = after(1, [[0.0, 0.0]])
        for _ in range(5):
            episode(found, LEARNING, 0.0)
        episode(found, role, 1.0, mixed=mixed)
        assert not found.nothing_found()
    # A source that is known to do better is something to learn from
    found = after(1, [[1.0, 1.0]])
    for _ in range(5):
        episode(found, LEARNING, 0.0)
    assert not found.nothing_found()
    # Once is enough, however long ago: where it is rare, it has to be tried what was learned from it
    episode(trials, LEARNING, 1.0)
    for _ in range(100):
        episode(trials, LEARNING, 0.0)
    assert not trials.nothing_found()
    # The first episode of all may be the one that found something, and one with stretches of sources
    lucky = after(1, [[0.0, 0.0]])
    episode(lucky, LEARNING, 1.0, mixed=True)
    for _ in range(5):
        episode(lucky, LEARNING, 0.0)
    assert not lucky.nothing_found()
    # Where everything goes well all returns are alike, too
    perfect = after(0, [])
    for each in [0.0] + [1.0] * 100:
        episode(perfect, LEARNING, each)
        episode(perfect, GREEDY, each)
    assert not perfect.nothing_found()


def test_what_was_found_and_lost_is_looked_for_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    trials, start = after(1, [[0.0, 0.0]]), np.ones(1, dtype=bool)
    for _ in range(20):
        episode(trials, LEARNING, 0.0)
    assert not trials.lost(), "nothing was found yet"
    episode(trials, LEARNING, 1.0)
    assert not trials.lost(), "it was found lately"
    for _ in range(20):
        episode(trials, LEARNING, 0.0)
    assert trials.lost()
    # The third draw is for it
    for draw, at_random in ((0.49, True), (0.5, False)):
        monkeypatch.setattr(np.random, "random", lambda size=None, draw=draw: draw if size is None else np.ones(size))
        trials.start_episodes(start, epsilon=0.05, warm_up=False)
        assert trials.random.tolist() == [at_random]
    # Another round that found it, or a source that is known to do better
    episode(trials, LEARNING, 1.0, mixed=True)
    assert not trials.lost()
    for _ in range(20):
        episode(trials, LEARNING, 0.0, mixed=True)
    assert trials.lost()
    episode(trials, 0, 5.0)
    trials.standings[:] = 1
    assert not trials.lost()
    trials.start_episodes(start, epsilon=0.05, warm_up=False)
    assert trials.random.tolist() == [False]


def test_what_goes_well_is_not_lost() -> None:
    trials = Trials(0, 0.99)
    for each in [0.0] + [1.0] * 30:
        episode(trials, LEARNING, each)
        episode(trials, GREEDY, each)
    assert not trials.lost()


def test_the_latest_episodes_are_a_round_of_all_environments() -> None:
    trials, dones = Trials(0, 0.99), np.ones(32, dtype=bool)
    for reward in (1.0, 0.0):
        trials.start_episodes(dones, epsilon=1.0, warm_up=True)
        rewards = np.zeros(32)
        rewards[0] = reward
        trials.add_step(rewards, dones)
        assert sorted(trials.plain_returns) == [0.0] * 31 + [reward]
        assert trials.lost() == (reward == 0.0)
        assert not trials.nothing_found()
