"""What sources and learner are worth in whole episodes: the record of it, by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
from gymnasium import spaces

from sb3_caps.caps.summary import UseOfOptions, summarize
from sb3_caps.caps.trials import CHECKING, GREEDY, KEPT, LATEST, LEARNING, Trials, mean
from sb3_caps.reuse.options import OptionSet


def episode(trials: Trials, role: int, *rewards: float, mixed: bool = False) -> bool:
    """One episode of one environment, and whether it made the learner worth keeping."""
    trials.start_episodes(np.ones(1, dtype=bool), epsilon=1.0, warm_up=True)
    trials.roles[:] = role
    better = False
    for step, reward in enumerate(rewards, start=1):
        better = trials.add_step(np.array([reward]), np.array([step == len(rewards)]), np.array([mixed]))
    return better


def after(
    n_sources: int, sources: Sequence[Sequence[float]] = (), learner: Sequence[float] = (), gamma: float = 0.99
) -> Trials:
    """Trials after episodes of one step, with these returns of each source and of the learner."""
    trials = Trials(n_sources, gamma)
    for source, returns in enumerate(sources):
        for each in returns:
            episode(trials, source, each)
    for each in learner:
        episode(trials, GREEDY, each)
    return trials


def with_draws(monkeypatch: pytest.MonkeyPatch, *draws: float) -> None:
    """Who acts is drawn by these numbers: the first for a source, the second for the learner without exploration."""
    monkeypatch.setattr(np.random, "random", lambda size: np.array(draws))


def test_returns_are_discounted_a_tenth_as_much_as_in_learning() -> None:
    trials = Trials(1, gamma=0.9)
    episode(trials, 0, 1.0, 1.0, 1.0)
    # 1 + 0.99 + 0.99²
    assert trials.source_returns == [[pytest.approx(2.9701)]]
    assert trials.source_rewards == [[3.0]]
    episode(trials, 0, 0.0, 1.0)
    assert trials.source_returns[0][1] == pytest.approx(0.99)
    assert (trials.source_steps, trials.steps) == (5, 5)
    # An episode that learns is no trial
    episode(trials, LEARNING, 9.0, 9.0)
    assert (trials.source_steps, trials.steps) == (5, 7)
    assert len(trials.learner_returns) == 0


def test_every_source_is_tried_twice_in_half_of_the_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    trials, roles = Trials(3, 0.99), []
    for draw in (0.0, 0.5, 0.49, 0.0, 0.9, 0.0, 0.0, 0.0, 0.0):
        with_draws(monkeypatch, draw, 0.99)
        trials.start_episodes(np.ones(1, dtype=bool), epsilon=1.0, warm_up=True)
        roles.append(int(trials.roles[0]))
        trials.add_step(np.zeros(1), np.ones(1, dtype=bool))
    # The last one finds all of them tried, and no steps to spare for more
    assert roles == [0, LEARNING, 1, 2, LEARNING, 0, 1, 2, LEARNING]


def test_trials_that_are_under_way_count(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(2, 0.99)
    with_draws(monkeypatch, 0.0, 0.99)
    trials.start_episodes(np.ones(6, dtype=bool), epsilon=1.0, warm_up=True)
    assert trials.roles.tolist() == [0, 1, 0, 1, LEARNING, LEARNING]
    # Only the environments that start are drawn anew; another number of them starts from nothing
    trials.add_step(np.zeros(6), np.array([True, False, False, False, True, False]))
    trials.start_episodes(np.array([True, False, False, False, True, False]), epsilon=1.0, warm_up=True)
    assert trials.roles.tolist() == [LEARNING, 1, 0, 1, LEARNING, LEARNING]
    assert trials.ages.tolist() == [0, 1, 1, 1, 0, 1]
    trials.start_episodes(np.ones(2, dtype=bool), epsilon=1.0, warm_up=True)
    assert trials.roles.tolist() == [1, 0]


def test_more_trials_are_for_what_may_be_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    # Variances of 0.01 and 0.81, in the mean 0.41: both are taken to vary by 0.64. Two standard errors above the means
    # of 1 and 0.9 are 1 + 2 · 0.64 / √2 = 1.91 and 1.81, and after four returns of the first 1 + 2 · 0.64 / √4 = 1.64
    trials = after(2, [[0.9, 1.1], [0.0, 1.8]])
    with_draws(monkeypatch, 0.9, 0.99)

    def drawn(steps: int) -> int:
        trials.steps = steps
        trials.roles[:] = LEARNING
        trials.start_episodes(np.ones(1, dtype=bool), epsilon=1.0, warm_up=True)
        return int(trials.roles[0])

    # The four steps so far may be 15% of all, since a source is what to act by
    assert trials.acts_by() == 0
    assert trials.source_steps == 4
    assert drawn(26) == LEARNING
    assert drawn(27) == 0
    trials.source_returns[0] = [0.9, 1.1, 0.9, 1.1]
    assert drawn(27) == 1
    # With a learner that is better than the sources they may be 5%
    trials.learner_returns.extend([5.0] * 3)
    trials.learner_lengths.extend([1] * 3)
    trials.kept_returns = [5.0] * 3
    assert trials.acts_by() == LATEST
    assert drawn(80) == LEARNING
    assert drawn(81) == 1
    trials.source_returns[1] = [0.0, 1.8] * 10
    assert drawn(10**6) == 0, "twenty times are 0.9 + 2 · 0.64 / √20 = 1.19 at most"
    trials.source_returns[0] = [0.9, 1.1] * 10
    assert drawn(10**6) == LEARNING, "tried twenty times"
    trials.source_returns = [[1.0] * 4, [0.0] * 2]
    assert drawn(10**6) == 0, "too few to tell"
    trials.source_returns[0] = [1.0] * 5
    assert drawn(10**6) == LEARNING, "always the same, so that there is nothing to find out"


def test_no_more_trials_as_long_as_nothing_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = after(1, [[0.0, 0.0]])
    with_draws(monkeypatch, 0.9, 0.99)
    trials.exploring_returns, trials.extremes = [0.0] * 5, [0.0, 0.0]
    trials.steps = 10**6
    trials.start_episodes(np.ones(1, dtype=bool), epsilon=1.0, warm_up=True)
    assert trials.roles.tolist() == [LEARNING]
    trials.extremes = [0.0, 1.0]
    trials.start_episodes(np.ones(1, dtype=bool), epsilon=1.0, warm_up=True)
    assert trials.roles.tolist() == [0]


def test_a_trial_that_is_under_way_takes_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = after(1, [[0.9, 1.1]])
    with_draws(monkeypatch, 0.9, 0.99)
    trials.steps = 100
    trials.start_episodes(np.ones(2, dtype=bool), epsilon=1.0, warm_up=True)
    assert trials.roles.tolist() == [0, 0]
    for _ in range(14):
        trials.add_step(np.zeros(2), np.zeros(2, dtype=bool))
    # 2 steps of before and 14 of the first environment are not below 15% of 106
    second = np.array([False, True])
    trials.steps = 106
    trials.start_episodes(second, epsilon=1.0, warm_up=True)
    assert trials.roles.tolist() == [0, LEARNING]
    trials.steps = 107
    trials.start_episodes(second, epsilon=1.0, warm_up=True)
    assert trials.roles.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("draw", "epsilon", "warm_up", "role"),
    [
        (0.49, 0.0, False, GREEDY),
        (0.5, 0.0, False, LEARNING),
        (0.24, 0.5, False, GREEDY),
        (0.25, 0.5, False, LEARNING),
        (0.0, 1.0, False, LEARNING),
        (0.0, 0.0, True, LEARNING),
    ],
)
@pytest.mark.parametrize("n_sources", [0, 1])
def test_when_the_learner_is_judged(
    draw: float, epsilon: float, warm_up: bool, role: int, n_sources: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In half of the episodes when exploration is over, in none as long as all actions are random."""
    trials = Trials(n_sources, 0.99)
    with_draws(monkeypatch, 0.9, draw)
    trials.start_episodes(np.ones(1, dtype=bool), epsilon, warm_up)
    assert trials.roles.tolist() == [role]


def test_short_episodes_are_judged_by_a_hundredth_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an episode is a step of luck, three or five of them tell nothing."""
    trials = Trials(1, 0.99)

    def play(role: int, *rewards: float) -> bool:
        trials.start_episodes(np.ones(1, dtype=bool), epsilon=0.0, warm_up=False, remaining=1000, steps=1000)
        trials.roles[:] = role
        return [trials.add_step(np.array([each]), np.array([i == len(rewards)])) for i, each in enumerate(rewards, 1)][
            -1
        ]

    for _ in range(2):
        play(0, 0.5)
    # Ten steps are a hundredth: nine lucky ones are not enough
    assert not any(play(GREEDY, 1.0) for _ in range(9))
    assert not trials.learner_is_known
    assert trials.acts_by() == 0
    assert play(GREEDY, 0.0), "the first that is judged is the best so far"
    assert mean(trials.kept_returns) == 0.9
    assert trials.acts_by() == LATEST
    # The oldest is forgotten as soon as those after it are enough, but for the latest five
    assert play(GREEDY, 1.0) is False
    assert list(trials.learner_returns) == [1.0] * 8 + [0.0, 1.0]
    for _ in range(4):
        play(GREEDY, *[0.0] * 9, 2.0)
    assert len(trials.learner_returns) == len(trials.learner_rewards) == len(trials.learner_lengths) == 5
    # Two trials of the source were two steps: beyond twenty trials it goes on up to ten
    with_draws(monkeypatch, 0.9, 0.99)
    trials.steps, trials.source_returns = 10**6, [[0.0, 9.0] * 10]
    for source_steps, expected in ((9, 0), (10, LEARNING)):
        trials.source_steps = source_steps
        trials.roles[:] = LEARNING
        trials.start_episodes(np.ones(1, dtype=bool), epsilon=1.0, warm_up=True, remaining=1000, steps=1000)
        assert trials.roles.tolist() == [expected]


def test_the_mean_of_equal_returns_is_that_return() -> None:
    assert {mean([0.1] * n) for n in range(1, 50)} == {0.1}
    assert mean([0.1, 0.2, 0.6]) == pytest.approx(0.3)


def test_when_the_learner_is_kept() -> None:
    trials = Trials(0, 0.99)
    # Three episodes, then the mean of up to the five latest has to be as high as ever
    assert [episode(trials, GREEDY, each) for each in (1.0, 2.0, 3.0)] == [False, False, True]
    assert trials.kept_returns == [1.0, 2.0, 3.0]
    assert not episode(trials, GREEDY, 0.0)
    assert not episode(trials, LEARNING, 99.0)
    assert trials.kept_returns == [1.0, 2.0, 3.0]
    assert episode(trials, GREEDY, 6.0)
    assert trials.kept_returns == trials.kept_rewards == [1.0, 2.0, 3.0, 0.0, 6.0]
    assert not episode(trials, GREEDY, 1.0), "2.4 again: the first one stays, a later one may be about to forget"
    assert trials.kept_returns == [1.0, 2.0, 3.0, 0.0, 6.0]
    assert episode(trials, GREEDY, 2.5)
    assert trials.kept_returns == [3.0, 0.0, 6.0, 1.0, 2.5]


def test_the_summary_is_of_the_learner_that_acts() -> None:
    trials = Trials(0, 0.99)
    for reward in (1.0, 2.0, 3.0, 0.0, 1.0):
        episode(trials, GREEDY, reward)
    options = OptionSet(None, spaces.Box(0, 1), spaces.Discrete(2))

    def told(acts_by: int) -> tuple[float | None, int]:
        (learner,) = summarize(options, trials, UseOfOptions(0, 2), acts_by).policies
        return learner.mean_reward, learner.episodes

    assert told(LATEST) == (1.4, 5)
    assert told(KEPT) == (2.0, 3)
    episode(trials, CHECKING, 5.0)
    assert told(KEPT) == (5.0, 1)
    trials.start_episodes(np.ones(1, dtype=bool), epsilon=0.05, warm_up=False, remaining=10, steps=1000)
    trials.roles[:] = GREEDY
    trials.add_step(np.array([7.0]), np.array([True]))
    assert told(LATEST) == (7.0, 1)


# A mean of 1.2 and a standard error of 0.2 / √2 = 0.141
SOURCE = [1.0, 1.4]


@pytest.mark.parametrize(
    ("sources", "learner", "expected"),
    [
        # Nothing is known
        ([], [], LATEST),
        ([[], []], [], LATEST),
        ([[9.0], [1.0]], [], LATEST),
        # The best source, of those that were tried twice, until the learner is known
        ([[0.5, 0.5], SOURCE], [], 1),
        ([SOURCE, [0.5, 0.5]], [9.0, 9.0], 0),
        ([[1.0], SOURCE, [9.0]], [], 1),
        ([[1.0], SOURCE, [9.0]], [0.0, 0.0, 0.0], 1),
        # No source: the learner
        ([], [1.0, 1.0, 1.0], LATEST),
        ([[9.0]], [1.0, 1.0, 1.0], LATEST),
        # Above the best source by less than a standard error of 0.141, and by more
        ([SOURCE, [0.5, 0.5]], [1.3, 1.3, 1.3], 0),
        ([SOURCE, [0.5, 0.5]], [1.35, 1.35, 1.35], LATEST),
        # Both errors are 0.141, so that of the difference is 0.2, which 0.1 is below and 0.3 above
        ([SOURCE], [1.0, 1.3, 1.6], 0),
        ([SOURCE], [1.2, 1.5, 1.8], LATEST),
        # As good as a source that always gets the same: the source
        ([[1.0, 1.0]], [1.0, 1.0, 1.0], 0),
        # A learner that was at 2 for five episodes and falls: means of 1.8, 1.6 and 1.4, two standard errors are
        # 0.36, 0.44 and 0.44
        ([[0.0, 0.0]], [2.0] * 5 + [1.0], LATEST),
        ([[0.0, 0.0]], [2.0] * 5 + [1.0] * 2, LATEST),
        ([[0.0, 0.0]], [2.0] * 5 + [1.0] * 3, KEPT),
        ([], [2.0] * 5 + [1.0] * 5, KEPT),
        # What is kept has to be above the best source too
        ([[1.5, 1.5]], [2.0] * 5 + [1.0] * 5, KEPT),
        ([[2.0, 2.0]], [2.0] * 5 + [1.0] * 5, 0),
        ([[0.0, 0.0], [3.0, 3.0]], [2.0] * 5 + [1.0] * 5, 1),
        # It comes back
        ([[0.0, 0.0]], [2.0] * 5 + [1.0] * 3 + [2.0] * 5, LATEST),
    ],
)
def test_what_to_act_by(sources: list[list[float]], learner: list[float], expected: int) -> None:
    assert after(len(sources), sources, learner).acts_by() == expected
