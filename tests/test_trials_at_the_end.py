"""What is tried again at the end of a run, and which of it the finished model acts by: by hand."""

from collections import deque

import numpy as np
import pytest

from sb3_caps.caps.trials import CHECKING, GREEDY, KEPT, LATEST, LEARNING
from tests.test_trials import SOURCE, after, episode, with_draws


def test_at_the_end_what_may_be_the_best_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = after(2, [[1.0, 3.0], [0.0, 2.0]], learner=[4.0, 6.0, 5.0])
    with_draws(monkeypatch, 0.9, 0.99)

    def drawn(n_envs: int = 1) -> list[int]:
        trials.roles = np.full(n_envs, LEARNING)
        trials._resize(n_envs)
        trials.start_episodes(np.ones(n_envs, dtype=bool), epsilon=0.05, warm_up=False, remaining=10, steps=1000)
        return trials.roles.tolist()

    # The kept learner and the latest one in turns
    assert drawn(8) == [CHECKING, GREEDY] * 4
    # Then a source that may be better than both. Variances of 2/3 and 1, in the mean 5/6: two standard errors above
    # the means are 2 + 2 · 0.91 / √3 = 3.05 of the learners, 2 + 2 · 0.91 / √2 = 3.29 of the first source and 2.29
    trials.checked_returns = [1.0, 3.0, 2.0]
    trials.late_returns.extend([1.0, 2.0, 3.0])
    assert drawn() == [0]
    # With one of that under way, 3.05 too, it is their turn again; with one of each of theirs, 2.91, it is better again
    assert drawn(6) == [0, CHECKING, GREEDY, 0, CHECKING, GREEDY]
    trials.late_returns.extend([4.0] * 3)
    assert drawn() == [CHECKING], "it is the turn of this one, although 3 + 2 · 1.02 / √6 = 3.83 is that of the other"
    trials.checked_returns = [0.0] * 5
    trials.late_returns.extend([0.0] * 300)
    trials.source_returns = [[2.0] * 5, [0.0] * 5]
    assert drawn() == [LEARNING], "nothing more to find out"
    trials.checked_returns, trials.source_returns = [9.0, 8.0] * 150, [[1.0] * 2, [0.0] * 2]
    assert drawn() == [LEARNING], "tried three hundred times each"
    trials.checked_returns, trials.source_returns = [0.0, 1.0] * 40, [[8.0, 9.0] * 10, [0.0] * 2]
    assert drawn() == [LEARNING], "a source twenty times"
    with_draws(monkeypatch, 0.9, 0.4)
    assert drawn() == [GREEDY], "as in all of training: the latest one goes on to change"


def test_what_is_kept_does_not_change_while_it_is_checked() -> None:
    trials = after(0, learner=[1.0, 2.0, 3.0])
    trials.start_episodes(np.ones(1, dtype=bool), epsilon=0.05, warm_up=False, remaining=10, steps=1000)
    trials.roles[:] = GREEDY
    assert not trials.add_step(np.array([9.0]), np.array([True]))
    assert trials.kept_returns == [1.0, 2.0, 3.0]
    assert (list(trials.late_returns), list(trials.late_rewards)) == ([9.0], [9.0])
    assert list(trials.learner_returns) == [1.0, 2.0, 3.0, 9.0]


@pytest.mark.parametrize(
    ("kept", "checked", "late", "expected"),
    [
        # By what it was kept for, until three checks are there
        ([4.0] * 3, [1.0] * 2, [], KEPT),
        ([4.0] * 3, [1.0] * 2, [3.0] * 3, KEPT),
        ([4.0] * 3, [1.0] * 3, [3.0] * 2, KEPT),
        ([4.0] * 3, [1.0] * 3, [3.0] * 3, LATEST),
        ([4.0] * 3, [1.0] * 2, [5.0] * 3, LATEST),
        # Of equals the one that will not change any more
        ([4.0] * 3, [3.0] * 3, [3.0] * 3, KEPT),
        ([4.0] * 3, [0.1] * 3, [0.1] * 4, KEPT),
        ([4.0] * 3, [2.0, 3.0, 4.0], [3.1, 3.0, 3.0], LATEST),
    ],
)
def test_which_learner_is_acted_by_in_the_end(
    kept: list[float], checked: list[float], late: list[float], expected: int
) -> None:
    trials = after(1, [[0.0, 0.0]], learner=kept)
    trials.checked_returns = trials.checked_rewards = checked
    trials.late_returns.extend(late)
    assert trials.acts_by(finished=True) == expected
    # A source is compared with that one
    trials.source_returns = [[2.0, 2.0]]
    means = {KEPT: checked if len(checked) >= 3 else kept, LATEST: late}
    assert trials.acts_by(finished=True) == (expected if np.mean(means[expected]) > 2 else 0)
    assert trials.acts_by() == LATEST, "as long as training goes on, the latest episodes count"


def test_what_was_kept_is_tried_again_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its best episodes were partly luck: new ones decide whether it is better than the source."""
    trials = after(1, [SOURCE], [2.0] * 3)
    with_draws(monkeypatch, 0.9, 0.0)

    def role(remaining: int, n_envs: int = 1) -> int:
        trials.start_episodes(np.ones(n_envs, dtype=bool), 0.0, warm_up=False, remaining=remaining, steps=1000)
        return int(trials.roles[0])

    assert [role(200), role(101), role(100), role(0)] == [GREEDY, GREEDY, CHECKING, CHECKING]
    # Twenty episodes have to fit, two of each environment, in no more than three tenths of the run
    trials.learner_lengths = deque([8] * 5)
    assert [role(161), role(160)] == [GREEDY, CHECKING]
    assert [role(193, n_envs=12), role(192, n_envs=12)] == [GREEDY, CHECKING]
    trials.learner_lengths = deque([80] * 5)
    assert [role(301), role(300)] == [GREEDY, CHECKING]
    assert trials.checking
    trials.learner_lengths, trials.judged_steps = deque([1] * 5), 0.0
    assert trials.acts_by(finished=True) == KEPT
    assert not any(episode(trials, CHECKING, each) for each in (9.0, 0.0)), "what is kept stays"
    trials.checked_returns.clear()
    trials.roles[:] = CHECKING
    for returns, expected in (([1.0, 1.0], KEPT), ([1.0, 1.0, 1.0], 0), ([1.0, 1.0, 1.0, 9.0, 9.0, 9.0], KEPT)):
        # Two are too few to tell; the mean of the source is 1.2
        trials.checked_returns = list(returns)
        trials.checked_lengths = [1] * len(returns)
        assert trials.acts_by(finished=True) == expected
    assert trials.acts_by() == LATEST, "as long as training goes on, what it is worth now counts"
    # An episode that goes on for longer than the others, the latest of the learner included, counts as it stands
    trials.checked_returns, trials.checked_lengths = [1.0, 1.0, 1.0], [1] * 3
    for _ in range(2):
        trials.add_step(np.array([10.0]), np.zeros(1, dtype=bool))
    assert trials.acts_by(finished=True) == KEPT
    # A run that follows begins anew
    role(1000)
    assert trials.checked_returns == trials.checked_rewards == trials.checked_lengths == []


def test_nothing_to_check_where_nothing_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = after(1, [SOURCE])
    with_draws(monkeypatch, 0.9, 0.0)
    trials.start_episodes(np.ones(1, dtype=bool), epsilon=0.0, warm_up=False, remaining=5, steps=100)
    assert trials.roles.tolist() == [GREEDY]
