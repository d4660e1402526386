"""Who acts in each episode of ContinuousCAPS, and what the model acts by."""

from typing import Any

import numpy as np
import pytest

from sb3_caps.caps.gate import BEST, EXPLORING, MIXING, OPTIONS, RANDOM
from sb3_caps.continuous.selection import LEARNING, ContinuousSelector, Selection
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
    for _ in range(3):
        for behaviour, value in ((GOOD, 10.0), (BAD, 1.0), (RANDOM, random)):
            tell(selector, behaviour, value)
    assert not selector.surveying
    return selector


def test_the_survey_tries_each_in_turn_and_ends() -> None:
    selector = make()
    seen = []
    while selector.surveying:
        behaviour = selector.select(0)
        seen.append(behaviour.name)
        tell(selector, behaviour, 0.0)
    # Three times each, in a twentieth of the run or a bit more
    assert seen == ["good", "bad", "random"] * 3


def test_each_source_is_tried_once_where_episodes_are_long() -> None:
    selector = make(total_steps=200)
    seen = []
    while selector.surveying:
        behaviour = selector.select(0)
        seen.append(behaviour.name)
        tell(selector, behaviour, 0.0)
    assert seen == ["good", "bad", "random"]


def test_the_guide_is_better_than_random_actions() -> None:
    assert surveyed().guide == GOOD
    assert surveyed(random=10.0).guide is None
    assert surveyed(random=10.0).lead == 0.0


def test_the_lead_fades_as_the_learner_catches_up_and_comes_back() -> None:
    selector = surveyed()
    assert selector.lead == 1.0
    tell(selector, EXPLORING, 2.0, 3)
    behind = selector.lead
    tell(selector, OPTIONS, 10.0, 3)
    level = selector.lead
    assert behind > 0.9
    assert level == pytest.approx(0.5, abs=0.05)
    tell(selector, OPTIONS, 20.0, 3)
    assert selector.lead < 0.1
    # Collapsed
    tell(selector, OPTIONS, 1.0, 3)
    tell(selector, EXPLORING, 1.0, 3)
    assert selector.lead > 0.8


def test_the_learner_is_tried_first_when_nothing_is_known_of_it() -> None:
    assert surveyed().select(0) == OPTIONS


def test_the_shares_of_steps() -> None:
    selector = surveyed()
    seen = []
    for _ in range(600):
        seen.append(selector.select(0))
        tell(selector, seen[-1], {GOOD: 10.0, BAD: 1.0}.get(seen[-1], 5.0))
    trials = [each for each in seen if each not in LEARNING]
    assert len(trials) / 600 == pytest.approx(selector.settings.trial_share, abs=0.02)
    # Nothing is gained by trying what is known to be bad
    assert trials.count(BAD) < 0.1 * len(trials)
    assert seen.count(MIXING) / seen.count(EXPLORING) == pytest.approx(0.4 / 0.6, abs=0.2)


def test_without_a_guide_there_are_few_trials_and_no_mixing() -> None:
    selector = surveyed(random=10.0)
    seen = []
    for _ in range(300):
        seen.append(selector.select(0))
        tell(selector, seen[-1], 1.0)
    trials = sum(each not in LEARNING for each in seen)
    assert trials / 300 == pytest.approx(selector.settings.trial_share / 3, abs=0.02)
    assert MIXING not in seen


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
    assert selector.decide() == BEST[OPTIONS]


def test_one_worse_episode_is_enough_to_act_by_what_was_kept() -> None:
    selector = surveyed()
    # Long enough that three episodes of it are remembered
    tell(selector, EXPLORING, 5.0, 100)
    tell(selector, EXPLORING, 20.0, 3)
    selector.keep()
    tell(selector, EXPLORING, 8.0)
    assert selector.decide() == BEST[OPTIONS]
    # What was kept had been lucky
    tell(selector, BEST[OPTIONS], 10.0, 3)
    assert selector.decide() == OPTIONS


def test_old_episodes_are_forgotten_but_one() -> None:
    selector = surveyed()
    tell(selector, OPTIONS, 5.0, 3)
    tell(selector, GOOD, 10.0, 100)
    assert selector.of(OPTIONS).n == 1


def test_a_source_that_is_worse_than_random_actions_is_no_option() -> None:
    selector = make()
    for behaviour, value in ((GOOD, 10.0), (BAD, 1.0), (RANDOM, 10.0)):
        tell(selector, behaviour, value)
    assert selector.disabled == set()
    tell(selector, RANDOM, 10.0, 20)
    tell(selector, BAD, 1.0, 20)
    assert selector.disabled == {"bad"}


@pytest.mark.parametrize("settings", [{"survey_share": 2.0}, {"fewest": 0}, {"trial_share": -1.0}, {"latest": 1.5}])
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="selection_kwargs"):
        Selection(**settings)
