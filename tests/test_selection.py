"""Which behaviour acts in each episode of CAPS."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from sb3_caps import CAPS
from sb3_caps.caps.gate import ACTOR, BEST, EXPLORING, MIXING, OPTIONS, PEAK, RANDOM, SAMPLED_ACTOR
from sb3_caps.caps.selection import CAPSSelector, Selection
from sb3_caps.reuse.episodes import Behaviour, EpisodeResult
from sb3_caps.settings import settings

ROOT = Path(__file__).resolve().parent.parent
GOOD, BAD = Behaviour("good", is_source=True), Behaviour("bad", is_source=True)
LEARNING = (EXPLORING, MIXING, SAMPLED_ACTOR)


def selector(*names: str, total_steps: int = 10_000, **settings: float) -> CAPSSelector:
    made = CAPSSelector(names, Selection(**settings), np.random.default_rng(0))  # type: ignore[arg-type]
    made.begin(total_steps)
    return made


def play(made: CAPSSelector, worth: dict[Behaviour, float], n_steps: int, length: int = 10) -> Counter[Behaviour]:
    """Episodes one after the other, each behaviour with the return that it is worth, 0 where nothing is said."""
    chosen: Counter[Behaviour] = Counter()
    for _ in range(n_steps // length):
        behaviour = made.select(0)
        chosen[behaviour] += 1
        paid = worth.get(behaviour, 0.0)
        made.update(EpisodeResult(0, behaviour, paid, paid, length))
        if made.improved():
            made.keep()
    return chosen


def known(made: CAPSSelector, behaviour: Behaviour, *returns: float) -> None:
    for each in returns:
        made.update(EpisodeResult(0, behaviour, each, each, 10))


def test_sources_and_random_actions_are_tried_first() -> None:
    made = selector("good", "bad")
    chosen = play(made, {GOOD: 1.0}, 500)
    # A twentieth of the run, most of it for what may be best
    assert set(chosen) == {GOOD, BAD, RANDOM}
    assert chosen[GOOD] > chosen[BAD]
    assert chosen[GOOD] > chosen[RANDOM]
    assert not made.surveying


def test_sources_are_tried_first_in_the_order_given() -> None:
    names = [f"source{i}" for i in range(5)]
    made = selector(*names)
    assert [made.select(env).name for env in range(6)] == [*names, "random"]
    # What is left of them when others have ended
    made = selector(*names)
    known(made, Behaviour("source1", is_source=True), 0.0)
    assert [made.select(env).name for env in range(3)] == ["source0", "source2", "source3"]
    assert made.decide().name == "source0"


def test_a_survey_of_long_episodes_ends_after_twice_its_steps() -> None:
    made = selector("good", "bad", *(f"other {i}" for i in range(10)))
    play(made, {GOOD: 1.0}, 1_200, length=300)
    assert not made.surveying
    assert sum(made.of(each).n > 0 for each in made.sources) < 12


def test_of_fifty_sources_each_is_tried_once_and_the_useful_ones_more_often() -> None:
    useful = [Behaviour(f"source{i}", is_source=True) for i in (3, 30)]
    made = selector(*(f"source{i}" for i in range(50)), survey_share=0.2)
    chosen = play(made, dict.fromkeys(useful, 1.0), 2_000)
    assert not made.surveying
    assert min(chosen[each] for each in made.sources) >= 1
    assert min(chosen[each] for each in useful) > 5 * np.median([chosen[each] for each in made.sources])


def test_episodes_under_way_count_as_tries() -> None:
    made = selector("good", "bad")
    assert {made.select(env) for env in range(3)} == {GOOD, BAD, RANDOM}


def test_without_sources_learning_begins_at_once() -> None:
    made = selector()
    chosen = play(made, {EXPLORING: 1.0}, 2_000)
    assert not made.surveying
    assert MIXING not in chosen
    assert RANDOM not in chosen


def test_what_is_in_doubt_is_tried_and_what_is_known_is_not() -> None:
    rng = np.random.default_rng(0)
    shares = {}
    for worth in (0.5, 0.95):
        made = selector("good", trial_share=0.2)
        for _ in range(1_000):
            behaviour = made.select(0)
            chance = {GOOD: 0.5, SAMPLED_ACTOR: worth, ACTOR: worth}.get(behaviour, 0.0)
            paid = float(rng.random() < chance)
            made.update(EpisodeResult(0, behaviour, paid, paid, 10))
        shares[worth] = made.trial_steps / made.steps_after_survey
    assert shares[0.95] < 0.7 * shares[0.5] < 0.2


def test_trials_never_take_more_than_their_share() -> None:
    made = selector("good", trial_share=0.02)
    rng = np.random.default_rng(0)
    for _ in range(1_000):
        behaviour, paid = made.select(0), rng.random()
        made.update(EpisodeResult(0, behaviour, paid, paid, 10))
    assert made.trial_steps / made.steps_after_survey == pytest.approx(0.02, abs=0.005)


def test_the_actor_is_kept_where_it_rises_and_goes_back_where_it_falls() -> None:
    made = selector("good")
    assert not made.actor_rose()
    assert not made.actor_fell()
    known(made, SAMPLED_ACTOR, *[0.6, 0.5] * 5)
    assert made.actor_rose()
    assert made.of(PEAK).mean == made.of(SAMPLED_ACTOR).mean
    assert not made.actor_rose()
    # One bad episode is luck, ten are not
    known(made, SAMPLED_ACTOR, 0.0)
    assert not made.actor_fell()
    known(made, SAMPLED_ACTOR, *[0.0] * 9)
    assert made.actor_fell()
    assert made.of(SAMPLED_ACTOR).mean == made.of(PEAK).mean == pytest.approx(0.55, abs=0.02)
    # It may have been luck that made it the best
    assert made.of(PEAK).n == made.of(SAMPLED_ACTOR).n == pytest.approx(1.0)
    assert not made.actor_fell()


def test_what_may_be_best_is_tried_most() -> None:
    made = selector("good", "bad")
    chosen = play(made, {GOOD: 1.0, BAD: 0.2, RANDOM: 0.1, EXPLORING: 0.1, MIXING: 0.1, SAMPLED_ACTOR: 0.1}, 10_000)
    assert chosen[GOOD] > 1.3 * chosen[BAD]


def test_the_actor_leads_until_the_values_of_options_have_got_further() -> None:
    worth = {GOOD: 0.5, SAMPLED_ACTOR: 0.3, ACTOR: 0.3, EXPLORING: 0.1, MIXING: 0.1, OPTIONS: 0.1}
    made = selector("good")
    chosen = play(made, worth, 10_000)
    share = chosen[SAMPLED_ACTOR] / sum(chosen[each] for each in LEARNING)
    assert share == pytest.approx(1.0 - made.settings.other_share, abs=0.02)

    made = selector("good")
    chosen = play(made, worth | {OPTIONS: 1.0, EXPLORING: 0.9}, 10_000)
    share = chosen[SAMPLED_ACTOR] / sum(chosen[each] for each in LEARNING)
    assert share < 0.4


def test_as_long_as_nothing_was_ever_paid_the_values_of_options_explore() -> None:
    made = selector("good")
    chosen = play(made, {}, 10_000)
    assert made.no_signal
    # The actor has nothing to begin with
    assert not {SAMPLED_ACTOR, ACTOR} & chosen.keys()


def test_shares_of_learning_are_shares_of_steps() -> None:
    made = selector("good")
    made.surveying = False
    known(made, GOOD, 1.0, 0.0)
    for _ in range(2_000):
        behaviour = made.select(0)
        made.update(EpisodeResult(0, behaviour, 0.0, 0.0, 100 if behaviour in (EXPLORING, MIXING) else 5))
    assert made.actor_steps / made.learning_steps == pytest.approx(1.0 - made.settings.other_share, abs=0.02)


def test_a_source_is_disabled_where_random_actions_are_better_and_not_by_luck() -> None:
    made = selector("good", "bad")
    known(made, RANDOM, *[0.15, 0.25] * 10)
    known(made, GOOD, *[0.55, 0.6] * 10)
    known(made, BAD, 0.0, 0.0)
    # Two failures are a coin toss
    assert made.disabled == set()
    known(made, BAD, *[0.0] * 30)
    assert made.disabled == {"bad"}
    made.surveying = False
    chosen = {made.select(0) for _ in range(300)}
    assert BAD not in chosen


def test_a_coin_toss_that_failed_twice_is_not_forgotten() -> None:
    """A source that succeeds in four of ten episodes goes on being tried, and is what the model acts by."""
    rng = np.random.default_rng(1)
    lost = 0
    for seed in range(20):
        made = CAPSSelector(["good", "bad"], Selection(), np.random.default_rng(seed))
        made.begin(20_000)
        for _ in range(400):
            behaviour = made.select(0)
            paid = float(rng.random() < 0.4) if behaviour == GOOD else 0.0
            made.update(EpisodeResult(0, behaviour, paid, paid, 50))
        lost += made.decide() != GOOD
    assert lost == 0


def test_the_model_acts_by_what_is_worth_most_and_not_by_one_lucky_episode() -> None:
    made = selector("good", "bad")
    assert made.decide() == OPTIONS
    known(made, GOOD, *[0.6, 0.5] * 5)
    known(made, BAD, 0.0)
    # One lucky episode
    known(made, OPTIONS, 0.7)
    assert made.decide() == GOOD
    known(made, OPTIONS, *[0.8] * 9)
    assert made.decide() == OPTIONS


def test_networks_are_kept_when_a_learner_is_worth_more_than_ever() -> None:
    made = selector("good")
    known(made, OPTIONS, *[0.6] * 10)
    assert made.improved()
    made.keep()
    assert made.of(BEST).mean == pytest.approx(0.6)
    assert not made.improved()
    # It gets worse, and what was kept is what to act by
    known(made, OPTIONS, *[0.1] * 10)
    assert made.decide() == BEST


def test_few_episodes_are_judged_by_the_middle_of_what_is_paid_too() -> None:
    made = selector("good")
    known(made, GOOD, *[0.0, 1.0] * 4)
    known(made, ACTOR, 1.0)
    # (8 * 0.5 + 0.5) / 9, and (1 + 0.5) / 2
    assert made.judged(GOOD).mean == pytest.approx(0.5)
    assert made.judged(ACTOR).mean == pytest.approx(0.75, abs=0.01)
    assert made.judged(ACTOR).n == made.of(ACTOR).n
    assert made.of(ACTOR).mean == 1.0
    assert made.judged(OPTIONS).n == 0
    # One success is luck
    assert made.decide() == GOOD


def test_the_actor_begins_with_what_may_be_the_best_of_what_was_tried() -> None:
    made = selector("good", "bad", "untried", survey_share=0.0)
    assert made.source_chances() is None, "nothing was found yet"
    made.surveying = False
    known(made, GOOD, *[0.5, 1.0] * 10)
    known(made, BAD, *[0.0, 0.5] * 10)
    found = made.source_chances()
    assert found is not None
    assert found[0] > 0.95
    assert found.sum() == pytest.approx(1.0)
    # Neither that source nor random actions were seen
    assert found[2:].tolist() == [0.0, 0.0]


def test_what_learns_is_judged_by_its_latest_episodes_most() -> None:
    made = selector("good", memory=0.5)
    known(made, OPTIONS, 0.0, 0.0, 1.0)
    # With a memory of a half an episode counts by its share of the steps so far: 1/3, 2/3 and 3/3
    assert made.of(OPTIONS).n == pytest.approx(1 / 3 + 2 / 3 + 1)
    assert made.of(OPTIONS).mean == pytest.approx(0.5)
    known(made, GOOD, 0.0, 1.0, 0.5)
    # Half as much by the time that there were twice as many steps, and sources do not change
    assert made.of(OPTIONS).n == pytest.approx(1.0)
    assert made.of(GOOD).n == 3


def test_a_source_is_left_for_what_is_better_and_not_by_luck() -> None:
    made = selector("good")
    known(made, GOOD, *[0.4, 0.8] * 5)
    known(made, OPTIONS, *[0.45, 0.85] * 5)
    assert made.decide() == GOOD
    known(made, OPTIONS, *[0.7, 1.0] * 20)
    assert made.decide() == OPTIONS


def test_other_sources_are_surveyed_and_those_that_stay_are_known() -> None:
    made = selector("good", "bad")
    play(made, {GOOD: 1.0}, 1_000)
    n_before = made.of(GOOD).n
    made.set_sources(["good", "new"])
    assert made.surveying
    assert made.of(GOOD).n == n_before
    assert "bad" not in made.evidence
    assert made.select(0) == Behaviour("new", is_source=True)
    made.set_sources(["good"])
    assert [each.name for each in made.sources] == ["good"]


def test_settings_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="trial_share"):
        CAPS("MlpPolicy", "CartPole-v1", selection_kwargs={"trial_share": 1.5})
    with pytest.raises(ValueError, match="selection_kwargs must be a dict with some of"):
        CAPS("MlpPolicy", "CartPole-v1", selection_kwargs={"trials": 0.5})
    with pytest.raises(ValueError, match="actor"):
        CAPS("MlpPolicy", "CartPole-v1", selection_kwargs={"actor": "no"})


def test_every_number_has_a_row_of_ablations() -> None:
    """One that is new has to be worth its place, and few are enough."""
    lines = (ROOT / "docs" / "ablations.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    assert len(rows) <= 12
    assert [(name, default) for name, default, *_ in rows] == [(k, str(v)) for k, v in asdict(Selection()).items()]
    known = {each["label"]: each["arguments"] for each in settings("reuse", "ablations").values()}
    for name, _, does, without, measured in rows:
        (given,) = known[without]["selection_kwargs"].items()
        assert given[0] == name
        assert given[1] != getattr(Selection(), name)
        Selection(**dict([given]))
        assert does
        assert measured
