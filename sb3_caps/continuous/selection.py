"""Which behaviour acts in each episode of ContinuousCAPS, and what the finished model acts by."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sb3_caps.caps.gate import BEST, EXPLORING, OPTIONS, RANDOM
from sb3_caps.reuse.checks import check_number
from sb3_caps.reuse.episodes import Behaviour, EpisodeResult
from sb3_caps.reuse.evidence import Evidence

# What acts otherwise after more learning: the critic chooses between actor and sources, while the actor explores or
# without
CHANGING = (EXPLORING, OPTIONS)
# By how many standard errors a source must be worse than random actions to be disabled
DISABLE_ERRORS = 3.0


@dataclass(frozen=True)
class Selection:
    """
    ``selection_kwargs``: how episodes are given to behaviours.

    :param survey_share: The most of the run that sources are tried in at first
    :param trial_share: The most of the steps after that in which something is tried without exploration
    :param memory: The learner is judged by its episodes of about this share of the steps so far, the latest
    """

    survey_share: float = 0.3
    trial_share: float = 0.5
    memory: float = 0.2

    def __post_init__(self) -> None:
        for name in ("survey_share", "trial_share"):
            check_number(f"selection_kwargs[{name!r}]", getattr(self, name), at_least=0.0, at_most=1.0)
        check_number("selection_kwargs['memory']", self.memory, at_least=0.01, at_most=1.0)


class ContinuousSelector:
    """
    Whole episodes tell what policies are worth long before a critic does.

    At first every source acts alone, and random actions for comparison: the survey. Then the learner takes over what
    is known of the best source, and episodes are for learning, or they are trials without exploration. What may be best
    is drawn twice from what is known (Thompson sampling). Where both draws are the same, there is nothing to find out;
    where not, one of them is tried.

    :param source_names: the names of the sources
    :param settings: its numbers
    :param rng: random numbers
    """

    # The sources that the latest survey was for, if they were added to a model that had learned
    newcomers: frozenset[str] = frozenset()

    # Whether random actions are tried too, for comparison
    compares = True

    def __init__(self, source_names: Sequence[str], settings: Selection, rng: np.random.Generator) -> None:
        self.settings, self.rng = settings, rng
        self.sources = [Behaviour(name, is_source=True) for name in source_names]
        # By name: returns to compare, and rewards and lengths for people
        self.evidence: dict[str, Evidence] = {}
        self.rewards: dict[str, Evidence] = {}
        self.lengths: dict[str, Evidence] = {}
        self.steps = self.trial_steps = self.survey_steps = 0
        self.total_steps = 1
        # The lowest and the highest return of anybody
        self.range = np.inf, -np.inf
        self.surveying = len(source_names) > 0
        self.under_way: dict[int, Behaviour] = {}
        # How many of them each behaviour acts in
        self.running: Counter[Behaviour] = Counter()

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
        self.range = _range(evidence.values())
        self.steps = int(sum(each.n * each.mean for each in lengths.values()))
        self.surveying = any(self.of(source).n == 0 for source in self.sources)

    def begin(self, total_steps: int) -> None:
        """
        Begin a run.

        :param total_steps: how many steps it has
        """
        self.total_steps = max(total_steps, 1)

    def reset(self) -> None:
        """New episodes begin in all environments."""
        self.under_way.clear()
        self.running.clear()

    def of(self, behaviour: Behaviour) -> Evidence:
        """
        :param behaviour: one of those that are selected
        :return: what is known of it
        """
        return self.evidence.setdefault(behaviour.name, Evidence())

    @property
    def spread(self) -> float:
        """Between the lowest and the highest return that anybody ever had."""
        return max(self.range[1] - self.range[0], 0.0)

    @property
    def learner(self) -> Behaviour:
        """By what the learner is known to be worth most: without exploration, or with it, which improves nothing."""
        return max(OPTIONS, EXPLORING, key=self._worth)

    @property
    def best(self) -> Behaviour | None:
        """The source of the highest mean, None before one was tried."""
        known = [each for each in self.sources if self.of(each).n]
        return max(known, key=self._mean, default=None)

    @property
    def guide(self) -> Behaviour | None:
        """The same where random actions have less."""
        best = self.best
        return best if best is not None and self._mean(best) > self._mean(RANDOM) else None

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
        behaviour = self._to_survey() if self.surveying else self._to_try() or EXPLORING
        self._leave(env)
        self.under_way[env] = behaviour
        self.running[behaviour] += 1
        return behaviour

    def _leave(self, env: int) -> None:
        """The episode of this environment is over."""
        left = self.under_way.pop(env, None)
        if left is not None:
            self.running[left] -= 1

    @property
    def _candidates(self) -> list[Behaviour]:
        """What is tried in the survey."""
        return [*self.sources, *[RANDOM] * self.compares]

    def _to_survey(self) -> Behaviour:
        """What was not tried yet, and then what may be best."""
        candidates = self._candidates
        untried = [each for each in candidates if self.of(each).n == 0]
        if untried:
            return min(untried, key=lambda each: self.running[each])
        return self._undecided(candidates) or self._draw(candidates)

    def _to_try(self) -> Behaviour | None:
        """What it takes to know what is best, None where that is known, or where enough was tried."""
        if self.trial_steps > self.settings.trial_share * (self.steps - self.survey_steps):
            return None
        if self.of(OPTIONS).n == 0:
            return OPTIONS
        kept, disabled = BEST, self.disabled
        finished = [each for each in self.sources if each.name not in disabled] + [kept] * (self.of(kept).n > 0)
        return self._undecided([*finished, OPTIONS])

    def _draw(self, candidates: Sequence[Behaviour]) -> Behaviour:
        """:return: what may be best of these, by what is known of them (Thompson sampling)"""
        return max(candidates, key=lambda each: self.of(each).draw(self.rng, self.spread))

    def _undecided(self, candidates: Sequence[Behaviour]) -> Behaviour | None:
        """
        :param candidates: of each of them something is known
        :return: one of two draws, to tell them apart (top-two Thompson sampling); None where they agree
        """
        first, second = self._draw(candidates), self._draw(candidates)
        return None if first == second else (first, second)[self.rng.integers(2)]

    def update(self, result: EpisodeResult) -> None:
        """
        Take the result of an episode into account.

        :param result: what came of it
        """
        behaviour, value = result.behaviour, result.discounted
        self._leave(result.env)
        self.range = min(self.range[0], value), max(self.range[1], value)
        self._fade(result.length)
        told = (self.evidence, value), (self.rewards, result.reward), (self.lengths, result.length)
        for known, number in told:
            known.setdefault(behaviour.name, Evidence()).add(number)
        self.steps += result.length
        if self.surveying:
            self._go_on_with_survey(result.length)
        elif behaviour != EXPLORING:
            self.trial_steps += result.length

    def _go_on_with_survey(self, n_steps: int) -> None:
        self.survey_steps += n_steps
        candidates = self._candidates
        tried = min(self.of(each).n for each in candidates) > 0
        known = tried and self._undecided(candidates) is None
        self.surveying = not known and self.survey_steps < self.settings.survey_share * self.total_steps

    def _fade(self, n_steps: int) -> None:
        """What learns has changed in these steps: an episode counts by a power of the time that has passed since."""
        factor = (self.steps / (self.steps + n_steps)) ** (1.0 / self.settings.memory - 1.0)
        for known in (self.evidence, self.rewards, self.lengths):
            for each in CHANGING:
                if each.name in known:
                    known[each.name].fade(factor)

    def take_over(self, source: Behaviour) -> None:
        """
        The learner begins as a source: what is known of that is known of it.

        :param source: the source
        """
        for known in (self.evidence, self.rewards, self.lengths):
            known[OPTIONS.name] = known[source.name].copy()

    @property
    def improved(self) -> bool:
        """Whether the networks are worth keeping as they are: they have just come to be worth more than all else."""
        learner, kept = self.learner, BEST
        more_than_sources = all(self._mean(learner) > self._mean(each) for each in self.sources)
        return more_than_sources and self._worth(learner) > self._worth(kept)

    def keep(self) -> None:
        """Remember that the networks are kept as they are."""
        name = self.learner.name
        for known in (self.evidence, self.rewards, self.lengths):
            known[BEST.name] = known[name].copy()

    def _worth(self, behaviour: Behaviour, errors: float = 1.0) -> float:
        known = self.evidence.get(behaviour.name)
        return -np.inf if known is None or known.n == 0 else known.mean - errors * known.error(self.spread)

    def _mean(self, behaviour: Behaviour) -> float:
        return self._worth(behaviour, errors=0.0)

    def decide(self, errors: float = 1.0) -> Behaviour:
        """
        What learned on may have got worse, and few episodes tell it: the learner is that of now or as it was at its
        best, by the higher mean.

        :param errors: how many standard errors are taken off each mean: more for a learner that began with nothing
        :return: the learner or the source that is worth most
        """
        kept, learner = BEST, self.learner
        learned = OPTIONS if self._mean(learner) >= self._mean(kept) else kept
        worth = self._worth(learner if learned == OPTIONS else kept, errors)
        best = max(self.sources, key=lambda each: self._worth(each, errors), default=OPTIONS)
        return learned if worth >= self._worth(best, errors) else best


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
