"""Which behaviour acts in each episode of ContinuousCAPS, and what the finished model acts by."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sb3_caps.caps.gate import BEST, EXPLORING, MIXING, OPTIONS, RANDOM
from sb3_caps.reuse.checks import check_number, check_whole_number
from sb3_caps.reuse.episodes import Behaviour, EpisodeResult
from sb3_caps.reuse.evidence import Evidence

# The critic chooses between actor and sources while the actor explores, from the start or after a stretch of the best
# source
LEARNING = (EXPLORING, MIXING)
# What acts otherwise after more learning: these, and the same without exploration
CHANGING = (*LEARNING, OPTIONS)
# How likely a source has to be better than random actions to guide
BETTER = 0.7
# By how many standard errors a source must be worse than random actions to be disabled
DISABLE_ERRORS = 3.0


@dataclass(frozen=True)
class Selection:
    """
    ``selection_kwargs``: how episodes are given to behaviours.

    :param survey_share: Share of the run that sources are tried in at first, and as much again where episodes are long
    :param fewest: How often each source is tried in the survey, where its steps allow that
    :param trial_share: Share of the steps after that in which something is tried without exploration, as long as a
        source is known to be good for something; a third of it otherwise
    :param mixing_share: Share of the learning episodes that begin with the best source, as long as it leads
    :param latest: How many of its latest episodes the learner is judged by
    :param memory: In what share of the steps so far these are forgotten where no new ones come
    """

    survey_share: float = 0.05
    fewest: int = 3
    trial_share: float = 0.5
    mixing_share: float = 0.4
    latest: int = 3
    memory: float = 0.2

    def __post_init__(self) -> None:
        for name in ("survey_share", "trial_share", "mixing_share", "memory"):
            check_number(f"selection_kwargs[{name!r}]", getattr(self, name), at_least=0.0, at_most=1.0)
        for name in ("fewest", "latest"):
            check_whole_number(f"selection_kwargs[{name!r}]", getattr(self, name), at_least=1)


class ContinuousSelector:
    """
    Whole episodes tell what policies are worth long before a critic does.

    At first every source acts alone, and random actions for comparison: the survey. Then episodes are for learning, or
    they are trials without exploration: of the learner, and of what may be best among the sources and the learner as it
    was at its best (Thompson sampling).

    :param source_names: the names of the sources
    :param settings: its numbers
    :param rng: random numbers
    """

    # The sources that the latest survey was for, if they were added to a model that had learned
    newcomers: frozenset[str] = frozenset()

    def __init__(self, source_names: Sequence[str], settings: Selection, rng: np.random.Generator) -> None:
        self.settings, self.rng = settings, rng
        self.sources = [Behaviour(name, is_source=True) for name in source_names]
        # By name: returns to compare, and rewards and lengths for people
        self.evidence: dict[str, Evidence] = {}
        self.rewards: dict[str, Evidence] = {}
        self.lengths: dict[str, Evidence] = {}
        self.steps = self.trial_steps = self.survey_steps = 0
        self.total_steps = 1
        # The lowest and the highest return of anybody, and of sources and random actions alone
        self.range, self.range_tried = (np.inf, -np.inf), (np.inf, -np.inf)
        self.surveying = len(source_names) > 0
        self.under_way: dict[int, Behaviour] = {}
        # How many of them each behaviour acts in
        self.running: Counter[Behaviour] = Counter()
        # By name: the steps since the latest episode of a behaviour, or since one was forgotten
        self._ages: dict[str, int] = {}

    def set_sources(self, names: Sequence[str]) -> None:
        """
        Select among these sources from now on. What is known of those that stay is kept, others are tried first, and
        are no option until they were.

        :param names: of all sources
        """
        before = set(self.source_names)
        for known in (self.evidence, self.rewards, self.lengths):
            for gone in before - set(names):
                known.pop(gone, None)
        added = set(names) - before
        if added and not self.surveying:
            self.surveying, self.survey_steps, self.newcomers = True, 0, frozenset(added)
        elif self.newcomers:
            self.newcomers = (self.newcomers | added) & set(names)
            # A survey of those that are gone again is over
            self.surveying = self.surveying and bool(self.newcomers)
        self.surveying = self.surveying and len(names) > 0
        self.sources = [Behaviour(name, is_source=True) for name in names]

    @property
    def source_names(self) -> list[str]:
        """The names of the sources, in their order."""
        return [each.name for each in self.sources]

    def restore(
        self, evidence: dict[str, Evidence], rewards: dict[str, Evidence], lengths: dict[str, Evidence]
    ) -> None:
        """
        Go on from what is known of each behaviour.

        :param evidence: by name
        :param rewards: by name
        :param lengths: by name
        """
        self.evidence, self.rewards, self.lengths = dict(evidence), dict(rewards), dict(lengths)
        tried = {RANDOM.name, *self.source_names}
        self.range = _range(evidence.values())
        self.range_tried = _range(each for name, each in evidence.items() if name in tried)
        self.steps = int(sum(each.n * each.mean for each in lengths.values()))
        self.surveying = any(self.of(source).n == 0 for source in self.sources)

    def begin(self, total_steps: int) -> None:
        """
        Begin a run, with new episodes in all environments.

        :param total_steps: how many steps it has
        """
        self.total_steps = max(total_steps, 1)
        self.under_way.clear()
        self.running.clear()

    def of(self, behaviour: Behaviour) -> Evidence:
        """
        :param behaviour: one of those that are selected
        :return: what is known of it
        """
        known = self.evidence.get(behaviour.name)
        if known is None:
            latest = self.settings.latest if behaviour in CHANGING else None
            known = self.evidence[behaviour.name] = Evidence(latest)
        return known

    @property
    def spread(self) -> float:
        """Between the lowest and the highest return that anybody ever had."""
        return max(self.range[1] - self.range[0], 0.0)

    @property
    def learner(self) -> Behaviour:
        """By what the learner is known to be worth most: without exploration, or with it, which improves nothing."""
        return max(OPTIONS, EXPLORING, key=self._worth)

    @property
    def guide(self) -> Behaviour | None:
        """The source of the highest mean, None where none is known to be better than random actions."""
        known = [each for each in self.sources if self.of(each).n]
        if not known:
            return None
        best = max(known, key=lambda each: self.of(each).mean)
        # In the unit of their own returns: what the learner comes to says nothing of these
        spread = max(self.range_tried[1] - self.range_tried[0], 0.0)
        return best if _chance(self.of(best), self.of(RANDOM), spread) > BETTER else None

    @property
    def lead(self) -> float:
        """How likely the guide is better than what is learned so far, 0 without a guide."""
        guide = self.guide
        return 0.0 if guide is None else _chance(self.of(guide), self.of(self.learner), self.spread)

    @property
    def disabled(self) -> set[str]:
        """The names of the sources that are worse than random actions, and not by luck."""
        random = self.of(RANDOM)
        bad = {each.name for each in self.sources if random.beats(self.of(each), self.spread, DISABLE_ERRORS)}
        return bad | {each.name for each in self.sources if each.name in self.newcomers and self.of(each).n == 0}

    def select(self, env: int) -> Behaviour:
        """:return: who acts in the episode that starts in this environment"""
        behaviour = self._to_survey() if self.surveying else self._to_try() or self._to_learn()
        self._leave(env)
        self.under_way[env] = behaviour
        self.running[behaviour] += 1
        return behaviour

    def _leave(self, env: int) -> None:
        """The episode of this environment is over."""
        left = self.under_way.pop(env, None)
        if left is not None:
            self.running[left] -= 1

    def _to_survey(self) -> Behaviour:
        """Those that were tried least first."""
        candidates = [*self.sources, RANDOM]
        return candidates[int(np.argmin([self.of(each).n + self.running[each] for each in candidates]))]

    def _to_try(self) -> Behaviour | None:
        """The learner in every second trial, otherwise what may be best of all that does not change."""
        share = self.settings.trial_share / (1 if self.guide is not None else 3)
        if self.trial_steps > share * (self.steps - self.survey_steps):
            return None
        if self.of(OPTIONS).n == 0 or self.rng.random() < 0.5:
            return OPTIONS
        return max(self._finished, key=lambda each: self.of(each).draw(self.rng, self.spread))

    def _to_learn(self) -> Behaviour:
        return MIXING if self.rng.random() < self.settings.mixing_share * self.lead else EXPLORING

    @property
    def _finished(self) -> list[Behaviour]:
        """What does not change: the sources, and what was learned when it did best."""
        return [*self.sources, *[BEST[OPTIONS]] * (self.of(BEST[OPTIONS]).n > 0)]

    def update(self, result: EpisodeResult) -> None:
        """
        Take the result of an episode into account.

        :param result: what came of it
        """
        behaviour, value = result.behaviour, result.discounted
        self._leave(result.env)
        self.range = min(self.range[0], value), max(self.range[1], value)
        if behaviour.is_source or behaviour == RANDOM:
            self.range_tried = min(self.range_tried[0], value), max(self.range_tried[1], value)
        evidence = self.of(behaviour)
        evidence.add(value)
        for known, number in ((self.rewards, result.reward), (self.lengths, result.length)):
            known.setdefault(behaviour.name, Evidence(evidence.latest)).add(number)
        self.steps += result.length
        self._age(result)
        if self.surveying:
            self._go_on_with_survey(result.length)
        elif behaviour not in LEARNING:
            self.trial_steps += result.length

    def _go_on_with_survey(self, n_steps: int) -> None:
        self.survey_steps += n_steps
        tries = min(self.of(each).n for each in [*self.sources, RANDOM])
        wanted = self.settings.survey_share * self.total_steps
        enough = tries >= self.settings.fewest and self.survey_steps >= wanted
        # Where episodes are long, each is tried once at least
        self.surveying = not enough and self.survey_steps < (2.0 if tries else 6.0) * wanted

    def _age(self, result: EpisodeResult) -> None:
        """
        What learns is not what it was: all but its latest episode are forgotten by the time that a share of the run has
        passed.
        """
        self._ages[result.behaviour.name] = 0
        for each in CHANGING:
            age = self._ages.get(each.name, 0) + result.length
            if age > self.settings.memory * self.steps / self.settings.latest:
                if self.of(each).n > 1:
                    self.of(each).forget_oldest()
                age = 0
            self._ages[each.name] = age

    @property
    def improved(self) -> bool:
        """Whether the networks are worth keeping as they are: they have just come to be worth more than ever."""
        return self._worth(self.learner) > self._worth(BEST[OPTIONS])

    def keep(self) -> None:
        """Remember that the networks are kept as they are."""
        name = self.learner.name
        for known in (self.evidence, self.rewards, self.lengths):
            known[BEST[OPTIONS].name] = known[name].copy()

    def _worth(self, behaviour: Behaviour) -> float:
        known = self.evidence.get(behaviour.name)
        return -np.inf if known is None else known.lower(self.spread)

    def decide(self) -> Behaviour:
        """
        :return: the learner or the source that is worth most with confidence. The learner is that of now or as it was
            at its best, by the higher mean: what learned on may have got worse, and few episodes tell it
        """
        kept, learner = BEST[OPTIONS], self.learner
        learned = max(OPTIONS, kept, key=lambda each: self._mean(learner if each == OPTIONS else each))
        worth = self._worth(learner if learned == OPTIONS else kept)
        best = max(self.sources, key=self._worth, default=OPTIONS)
        return learned if worth >= self._worth(best) else best

    def _mean(self, behaviour: Behaviour) -> float:
        known = self.of(behaviour)
        return known.mean if known.n else -np.inf


def _range(known: Iterable[Evidence]) -> tuple[float, float]:
    """:return: about the lowest and the highest return"""
    tried = [each for each in known if each.n]
    lowest = min((each.mean - each.std for each in tried), default=np.inf)
    return lowest, max((each.mean + each.std for each in tried), default=-np.inf)


def _chance(one: Evidence, other: Evidence, spread: float) -> float:
    """:return: how likely one behaviour is better than another; 1 where nothing is known of the other one"""
    if one.n == 0 or other.n == 0:
        return float(other.n == 0)
    difference, error = one.mean - other.mean, float(np.hypot(one.error(spread), other.error(spread)))
    return 0.5 * (1.0 + math.erf(difference / error / math.sqrt(2.0))) if error > 0 else float(difference > 0)
