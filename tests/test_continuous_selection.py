"""Who acts in each episode of ContinuousCAPS, and what the model acts by."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from sb3_caps.caps.gate import BEST, EXPLORING, OPTIONS, RANDOM
from sb3_caps.continuous.selection import ContinuousSelector, Selection
from sb3_caps.reuse.episodes import Behaviour, EpisodeResult

GOOD, BAD = Behaviour("good", is_source=True), Behaviour("bad", is_source=True)
LENGTH = 10


def make(total_steps: int = 1000, **settings: Any) -> ContinuousSelector:
    selector = ContinuousSelector(["good", "bad"], Selection(**settings), np.random.default_rng(0))
    selector.begin(total_steps)
    return selector


def tell(selector: ContinuousSelector, behaviour: Behaviour, value: float, times: int = 1) -> None:
    for _ in range(times):
        selector.update(EpisodeResult(0, behaviour, value, value, LENGTH))


def surveyed(random: float = 0.0, **settings: Any) -> ContinuousSelector:
    selector = make(**settings)
    for behaviour, value in ((GOOD, 10.0), (BAD, 1.0), (RANDOM, random)):
        tell(selector, behaviour, value, 3)
    # Whenever draws agreed
    selector.surveying, selector.trial_steps, selector.survey_steps = False, 0, selector.steps
    return selector


def surveyed_steps(selector: ContinuousSelector, good: float, bad: float, random: float) -> list[str]:
    seen = []
    while selector.surveying:
        behaviour = selector.select(0)
        seen.append(behaviour.name)
        tell(selector, behaviour, {GOOD: good, BAD: bad, RANDOM: random}[behaviour])
    return seen


def test_the_survey_tries_each_and_ends_where_it_is_clear_what_is_best() -> None:
    # All returns are alike: there is nothing to find out
    assert surveyed_steps(make(), 0.0, 0.0, 0.0) == ["good", "bad", "random"]
    # Means of 10, 9 and 0 that are off by √12.5 each are best with 57, 41 and 2%: two draws agree in half of all cases
    lengths = []
    for seed in range(400):
        selector = make()
        selector.rng = np.random.default_rng(seed)
        seen = surveyed_steps(selector, 10.0, 9.0, 0.0)
        assert seen[:3] == ["good", "bad", "random"]
        lengths.append(len(seen))
    assert np.mean(np.array(lengths) == 3) == pytest.approx(0.57**2 + 0.41**2, abs=0.07)
    assert max(lengths) <= 0.3 * 1000 / LENGTH


def test_the_survey_takes_no_more_than_its_share_where_episodes_are_long() -> None:
    assert surveyed_steps(make(total_steps=66), 0.0, 0.0, 0.0) == ["good", "bad"]


def test_the_guide_is_better_than_random_actions() -> None:
    assert surveyed().guide == GOOD
    assert surveyed(random=10.0).guide is None
    assert surveyed(random=10.0).lead == 0.0


def test_what_takes_over_a_source_is_known_as_that() -> None:
    selector = surveyed()
    selector.take_over(GOOD)
    assert (selector.of(OPTIONS).n, selector.of(OPTIONS).mean) == (3, 10.0)
    # It learns: at 90 steps of a memory of a fifth, (90 / 100)^4 of an episode is left of each
    tell(selector, EXPLORING, 0.0)
    assert selector.of(OPTIONS).n == pytest.approx(3 * 0.9**4)
    assert selector.of(GOOD).n == 3
    # As good as the source is not worth to be kept
    assert not selector.improved


def test_the_lead_fades_as_the_learner_catches_up_and_comes_back() -> None:
    selector = surveyed(memory=0.05)
    assert selector.lead == 1.0
    tell(selector, EXPLORING, 2.0, 3)
    behind = selector.lead
    tell(selector, OPTIONS, 10.0, 3)
    level = selector.lead
    assert behind > 0.8
    assert level == pytest.approx(0.5, abs=0.05)
    tell(selector, OPTIONS, 20.0, 3)
    assert selector.lead < 0.25
    # Collapsed
    tell(selector, OPTIONS, 1.0, 9)
    tell(selector, EXPLORING, 1.0, 9)
    assert selector.lead > 0.7


def test_the_learner_is_tried_first_when_nothing_is_known_of_it() -> None:
    assert surveyed().select(0) == OPTIONS


def test_something_is_tried_as_often_as_two_draws_differ() -> None:
    selector = surveyed()
    tell(selector, OPTIONS, 6.0)
    tell(selector, BAD, -1.0, 40)
    selector.survey_steps, selector.trial_steps = selector.steps, 0
    # By hand: returns go from -1 to 10; three episodes of 10, and what is left of one of 6 after 400 steps
    spread, left = 11.0, (100 / 500) ** 4
    assert selector.of(OPTIONS).n == pytest.approx(left)
    errors = math.sqrt(spread**2 / 4 / 4 / 3), spread
    better = 0.5 * (1 + math.erf((10 - 6) / math.hypot(*errors) / math.sqrt(2)))
    seen = Counter(selector.select(0).name for _ in range(20_000))
    trials = seen["good"] + seen["options"]
    assert trials / 20_000 == pytest.approx(2 * better * (1 - better), abs=0.015)
    assert seen["good"] / trials == pytest.approx(0.5, abs=0.02)
    # Nothing is gained by trying what is known to be bad
    assert seen["bad"] < 10


def test_no_more_than_a_share_of_the_steps_is_for_trials() -> None:
    selector = surveyed(trial_share=0.25)
    selector.take_over(GOOD)
    seen = []
    for _ in range(400):
        seen.append(selector.select(0))
        tell(selector, seen[-1], {BAD: 1.0}.get(seen[-1], 10.0))
    trials = sum(each != EXPLORING for each in seen)
    assert trials / 400 == pytest.approx(0.25, abs=0.01)


def test_the_model_acts_by_what_is_worth_most_with_confidence() -> None:
    selector = surveyed()
    assert selector.decide() == GOOD
    # Better, but of one episode
    tell(selector, OPTIONS, 10.5)
    assert selector.decide() == GOOD
    tell(selector, OPTIONS, 14.0, 3)
    assert selector.decide() == OPTIONS


def test_what_it_does_while_it_explores_counts_for_it() -> None:
    selector = surveyed()
    tell(selector, OPTIONS, 1.0, 3)
    assert selector.decide() == GOOD
    tell(selector, EXPLORING, 14.0, 3)
    assert selector.decide() == OPTIONS


def test_nothing_known_is_the_learner() -> None:
    assert make().decide() == OPTIONS


def test_what_was_kept_takes_over_after_a_collapse() -> None:
    selector = surveyed()
    tell(selector, EXPLORING, 20.0, 3)
    assert selector.improved
    selector.keep()
    assert not selector.improved
    # As long as they are alike, what has learned since acts
    assert selector.decide() == OPTIONS
    tell(selector, EXPLORING, 0.0, 3)
    assert selector.decide() == BEST


def test_a_worse_mean_is_enough_to_act_by_what_was_kept() -> None:
    selector = surveyed()
    tell(selector, EXPLORING, 30.0, 4)
    selector.keep()
    tell(selector, EXPLORING, 25.0)
    assert selector.decide() == BEST
    # What was kept had been lucky
    tell(selector, BEST, 20.0, 4)
    assert selector.decide() == OPTIONS


def test_old_episodes_are_forgotten() -> None:
    selector = surveyed()
    tell(selector, OPTIONS, 5.0, 3)
    before = selector.of(OPTIONS).n
    tell(selector, GOOD, 10.0, 12)
    # After 120 steps, and 120 more
    assert selector.of(OPTIONS).n == pytest.approx(before / 2**4)
    assert selector.of(OPTIONS).mean == 5.0


def test_a_source_that_is_worse_than_random_actions_is_no_option() -> None:
    selector = make()
    for behaviour, value in ((GOOD, 10.0), (BAD, 1.0), (RANDOM, 10.0)):
        tell(selector, behaviour, value)
    assert selector.disabled == set()
    tell(selector, RANDOM, 10.0, 20)
    tell(selector, BAD, 1.0, 20)
    assert selector.disabled == {"bad"}


@pytest.mark.parametrize("settings", [{"survey_share": 2.0}, {"trial_share": -1.0}, {"memory": 0.0}])
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="selection_kwargs"):
        Selection(**settings)
