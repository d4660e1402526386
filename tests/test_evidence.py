"""What is known of a behaviour's worth, against numbers worked out by hand and NumPy's own."""

import json
import pickle
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_caps.reuse.evidence import Evidence, chances

RETURNS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


def evidence(*returns: float, latest: int | None = None) -> Evidence:
    found = Evidence(latest)
    for each in returns:
        found.add(each)
    return found


@given(returns=RETURNS)
def test_moments_are_those_of_numpy(returns: list[float]) -> None:
    found = evidence(*returns)
    assert found.n == len(returns)
    assert found.mean == pytest.approx(np.mean(returns), rel=1e-9, abs=1e-6)
    assert found.std == pytest.approx(np.std(returns), rel=1e-6, abs=1e-4)


@given(returns=RETURNS, latest=st.integers(1, 6))
def test_of_what_changes_the_latest_episodes_count(returns: list[float], latest: int) -> None:
    found, alone = evidence(*returns, latest=latest), evidence(*returns[-latest:])
    assert (found.n, found.mean, found.std) == (alone.n, alone.mean, alone.std)
    assert found.error(3.0) == alone.error(3.0)


def test_the_mean_of_equal_returns_is_that_return() -> None:
    for n in range(1, 50):
        found = evidence(*[0.1] * n)
        assert (found.mean, found.std) == (0.1, 0.0)


def test_small_differences_of_large_returns_are_not_lost() -> None:
    assert evidence(1e9, 1e9 + 1, 1e9 + 2).std == pytest.approx(np.sqrt(2 / 3))


def test_the_error_by_hand() -> None:
    # Squares of 1 + 1, and one more episode that is 2 off: the mean square of 3 is 2, and √(2 / 2) is 1
    assert evidence(1.0, 3.0).error(spread=4.0) == pytest.approx(1.0)
    # One episode alone says little, two that are alike a bit more: √(4 / 2 / 1) and √(4 / 3 / 2)
    assert evidence(5.0).error(spread=4.0) == pytest.approx(np.sqrt(2))
    assert evidence(5.0, 5.0).error(spread=4.0) == pytest.approx(np.sqrt(2 / 3))
    # Where everything ever paid the same, nothing is uncertain
    assert evidence(5.0).error(spread=0.0) == 0.0


@given(returns=RETURNS, spread=st.floats(0.0, 1e6))
def test_an_error_is_the_usual_one_in_the_end(returns: list[float], spread: float) -> None:
    found = evidence(*returns * 100)
    n, usual = found.n, found.std / np.sqrt(found.n)
    assert found.error(spread) >= usual * np.sqrt(n / (n + 1)) - 1e-9
    assert found.error(spread) <= usual + spread / 2 / n + 1e-9


def test_without_an_episode_anything_is_possible() -> None:
    nothing, something = Evidence(), evidence(1.0, 1.0)
    assert (nothing.n, nothing.std) == (0, 0.0)
    assert nothing.error(1.0) == nothing.draw(np.random.default_rng(0), 1.0) == np.inf
    assert not nothing.beats(something, 1.0, 1.0)
    assert not something.beats(nothing, 1.0, 1.0)


def test_better_and_not_by_luck() -> None:
    # Errors of 1 and √(2 / 3): that of the difference is √(5 / 3) = 1.29
    better, worse = evidence(4.0, 6.0), evidence(3.0, 3.0)
    for errors, expected in ((1.5, True), (1.6, False)):
        # The means differ by 2, which is 1.55 errors
        assert better.beats(worse, spread=4.0, errors=errors) == expected
    assert not worse.beats(better, spread=4.0, errors=0.0)
    # Equals do not beat each other, whatever is asked for
    assert not evidence(1.0, 1.0).beats(evidence(1.0), spread=0.0, errors=1.0)
    # A coin toss that failed twice is not known to fail always
    assert not evidence(1.0).beats(evidence(0.0, 0.0), spread=1.0, errors=3.0)
    assert evidence(*[1.0] * 20).beats(evidence(*[0.0] * 20), spread=1.0, errors=3.0)


@given(returns=RETURNS, factor=st.sampled_from([2.0**-10, 2.0**10]))
def test_the_unit_of_the_rewards_changes_nothing(returns: list[float], factor: float) -> None:
    plain, scaled = evidence(*returns), evidence(*(factor * each for each in returns))
    assert scaled.mean == factor * plain.mean
    assert scaled.error(factor * 8.0) == pytest.approx(factor * plain.error(8.0))


def test_draws_are_as_wide_as_the_error() -> None:
    found, rng = evidence(1.0, 3.0), np.random.default_rng(0)
    drawn = np.array([found.draw(rng, spread=4.0) for _ in range(20_000)])
    assert drawn.mean() == pytest.approx(2.0, abs=0.03)
    assert drawn.std() == pytest.approx(1.0, abs=0.03)
    assert evidence(1.0).draw(rng, spread=0.0) == 1.0


def test_a_copy_goes_its_own_way_and_all_counts_in_it() -> None:
    found = evidence(9.0, 1.0, 2.0, latest=2)
    copy = found.copy()
    assert (copy.n, copy.mean, copy.std) == (2, 1.5, 0.5)
    copy.add(6.0)
    assert (copy.n, copy.mean) == (3, 3.0)
    assert copy.std == pytest.approx(np.std([1.0, 2.0, 6.0]))
    assert (found.n, found.mean) == (2, 1.5)
    found.add(4.0)
    assert (found.n, found.mean) == (2, 3.0)


@pytest.mark.parametrize("latest", [None, 2])
def test_what_is_known_can_be_written_down(latest: int | None) -> None:
    found = evidence(9.0, 1.0, 2.0, latest=latest)
    again = Evidence.from_state(json.loads(json.dumps(found.state())))
    for _ in range(2):
        assert (again.n, again.mean, again.std, again.latest) == (found.n, found.mean, found.std, latest)
        found.add(7.0)
        again.add(7.0)


@pytest.mark.parametrize("latest", [None, 5])
def test_another_episode_costs_the_same_however_many_there_were(latest: int | None) -> None:
    found, rng = Evidence(latest), np.random.default_rng(0)
    sizes = []
    for _ in range(2):
        for each in rng.normal(size=5000):
            found.add(each)
        sizes.append(len(pickle.dumps(found)))
        containers = [value for value in vars(found).values() if hasattr(value, "__len__")]
        assert [len(each) for each in containers] == ([] if latest is None else [latest])
    assert sizes[0] == sizes[1]


def test_how_likely_each_is_the_best() -> None:
    rng = np.random.default_rng(0)
    first, second = evidence(4.0, 6.0), evidence(3.0, 3.0)
    # The difference of both is normal, with a mean of 2 and a deviation of √(5 / 3)
    expected = NormalDist().cdf(2.0 / np.sqrt(5 / 3))
    found = chances([first, second], 4.0, rng, n_draws=50_000)
    np.testing.assert_allclose(found, [expected, 1 - expected], atol=0.01)
    three = chances([first, second, first], 4.0, rng, n_draws=50_000)
    assert three.sum() == pytest.approx(1.0)
    assert three[0] == pytest.approx(three[2], abs=0.01)
    assert three[1] < found[1]


def test_where_nothing_was_ever_paid_all_are_alike() -> None:
    nothing = [evidence(0.0, 0.0) for _ in range(4)]
    np.testing.assert_array_equal(chances(nothing, 0.0, np.random.default_rng(0)), [0.25] * 4)
    # and what pays without a doubt is the best
    found = chances([*nothing, evidence(1.0)], 0.0, np.random.default_rng(0))
    np.testing.assert_array_equal(found, [0.0, 0.0, 0.0, 0.0, 1.0])


def test_what_fades_is_known_less_and_never_worse_than_not_at_all() -> None:
    found = evidence(1.0, 3.0)
    found.fade(0.5)
    # One episode is left, with the mean of both and half of their squares
    assert (found.n, found.mean, found.std) == (1.0, 2.0, 1.0)
    found.add(5.0)
    assert (found.n, found.mean) == (2.0, 3.5)
    assert found.error(4.0) < evidence(2.0).error(4.0)
    found.fade(1e-9)
    assert found.mean == 3.5
    # As far as returns are from each other, and no farther
    assert found.error(4.0) == 4.0
