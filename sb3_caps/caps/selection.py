"""Which behaviour acts in each episode of CAPS, and what the finished model acts by."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sb3_caps.caps.gate import ACTOR, BEST, EXPLORING, LEARNERS, MIXING, OPTIONS, PEAK, RANDOM, SAMPLED_ACTOR
from sb3_caps.reuse.checks import check_number
from sb3_caps.reuse.episodes import Behaviour, EpisodeResult
from sb3_caps.reuse.evidence import Evidence, chances
from sb3_caps.reuse.selectors import Selector

# What acts otherwise after more learning
CHANGING = (*LEARNERS, EXPLORING, MIXING)


@dataclass(frozen=True)
class Selection:
    """
    ``selection_kwargs``: how episodes are shared out between behaviours. The docs have an ablation for each number.

    :param survey_share: Share of the run in which only sources are tried, at first; up to twice that if episodes are
        long
    :param trial_share: Largest share of the later steps in which something is tried out: a source alone, or a learner
        without exploration
    :param other_share: Share of the episodes of learning that the weaker learner gets
    :param memory: A learner is judged by its latest episodes, of about this share of the steps so far
    :param confidence: ``predict`` acts by a learner once it is better than the best source by so many standard errors
    :param disable_errors: A source is disabled if it is worse than random actions by so many standard errors
    :param fall_errors: The actor goes back to its best if it is worse than that by so many standard errors
    :param actor: Whether an actor learns in addition to the option values
    """

    survey_share: float = 0.05
    trial_share: float = 0.2
    other_share: float = 0.15
    memory: float = 0.2
    confidence: float = 1.0
    disable_errors: float = 3.0
    fall_errors: float = 2.0
    actor: bool = True

    def __post_init__(self) -> None:
        for name in ("survey_share", "trial_share", "other_share"):
            check_number(f"selection_kwargs[{name!r}]", getattr(self, name), at_least=0.0, at_most=1.0)
        check_number("selection_kwargs['memory']", self.memory, at_least=0.01, at_most=1.0)
        check_number("selection_kwargs['confidence']", self.confidence, at_least=0.0)
        check_number("selection_kwargs['disable_errors']", self.disable_errors, at_least=1.0)
        check_number("selection_kwargs['fall_errors']", self.fall_errors, at_least=0.0)
        if not isinstance(self.actor, bool):
            raise ValueError(f"selection_kwargs['actor'] must be True or False, not {self.actor!r}.")


class AlwaysSelector(Selector):
    """Without selection: the option values explore in every episode, and the model acts by them."""

    def select(self, env: int) -> Behaviour:
        """:return: who acts while learning"""
        return EXPLORING

    def decide(self) -> Behaviour:
        """:return: what the model acts by"""
        return OPTIONS


class CAPSSelector(Selector):
    """
    Chooses by the returns of whole episodes, which tell what a policy is worth long before learned values do.

    A run starts with the survey: every source acts alone, and so do random actions, for comparison. Most later episodes
    are for learning: the actor samples, or the option values explore, with or without stretches of sources. The more
    promising of them gets most episodes. The others are trials, as far as one may change what the model acts by: of
    sources, and of learners without exploration. A learner changes, so its older episodes count less and less.

    The model acts by a learner once it is better than the best source, and not by luck. Whenever a learner is worth
    more than ever before, the networks of the start of its latest episode are kept.

    :param source_names: the names of the sources
    :param settings: its numbers
    :param rng: random numbers
    """

    settings: Selection
    # The sources that the latest survey was for
    newcomers: frozenset[str] = frozenset()

    def __init__(self, source_names: Sequence[str], settings: Selection, rng: np.random.Generator) -> None:
        self.source_names: list[str] = []
        actors = (ACTOR, SAMPLED_ACTOR) if settings.actor else ()
        self.learners = [OPTIONS, *actors]
        # By name: discounted returns to compare, and rewards for people
        self.evidence: dict[str, Evidence] = {}
        self.rewards: dict[str, Evidence] = {}
        self.steps = self.trial_steps = self.learning_steps = self.actor_steps = 0
        self.total_steps = 1
        self.lowest, self.highest = np.inf, -np.inf
        self.surveying, self.survey_steps = False, 0
        self.under_way: dict[int, Behaviour] = {}
        # How many of them each behaviour acts in
        self.running: Counter[Behaviour] = Counter()
        # Whether the networks of option values were kept as they were
        self.kept = False
        super().__init__(source_names, settings, rng)

    def set_sources(self, names: Sequence[str]) -> None:
        """
        Select among these sources from now on. What is known of those that stay is kept, others are tried first.

        :param names: of all sources
        """
        for gone in set(self.source_names) - set(names):
            self.evidence.pop(gone, None)
            self.rewards.pop(gone, None)
        added = set(names) - set(self.source_names)
        if added and not self.surveying:
            self.surveying, self.survey_steps, self.newcomers = True, 0, frozenset()
        self.newcomers = (self.newcomers | added) & set(names)
        # A survey of those that are gone again is over
        self.surveying = self.surveying and bool(self.newcomers)
        super().set_sources(names)

    def restore(self, evidence: dict[str, Evidence], rewards: dict[str, Evidence]) -> None:
        """
        Go on from what is known of each behaviour.

        :param evidence: by name
        :param rewards: by name
        """
        self.evidence, self.rewards = dict(evidence), dict(rewards)
        known = [each for each in evidence.values() if each.n]
        self.lowest = min((each.mean - each.std for each in known), default=np.inf)
        self.highest = max((each.mean + each.std for each in known), default=-np.inf)
        self.kept = BEST.name in evidence
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

    def judged(self, behaviour: Behaviour) -> Evidence:
        """
        :param behaviour: one of those that are selected
        :return: what is known of it, and one episode more in its mean, which pays the middle of all that was ever paid:
            a coin that fell once is not known to fall always
        """
        found = self.of(behaviour).copy()
        if found.n:
            found.mean += (0.5 * (self.lowest + self.highest) - found.mean) / (found.n + 1.0)
        return found

    @property
    def spread(self) -> float:
        """Between the lowest and the highest return that anybody ever had."""
        return max(self.highest - self.lowest, 0.0)

    @property
    def no_signal(self) -> bool:
        """Whether all episodes so far had the same return, so that there is nothing to learn from yet."""
        return self.spread == 0.0

    @property
    def disabled(self) -> set[str]:
        """The names of the sources that are worse than random actions, and not by luck."""
        random, errors = self.of(RANDOM), self.settings.disable_errors
        return {each.name for each in self.sources if random.beats(self.of(each), self.spread, errors)}

    def select(self, env: int) -> Behaviour:
        """:return: who acts in the episode that starts in this environment"""
        behaviour = self._to_survey() if self.surveying else self._to_try() or self._to_learn()
        self._leave(env)
        self.under_way[env] = behaviour
        self.running[behaviour] += 1
        return behaviour

    @property
    def steps_after_survey(self) -> int:
        """How many steps were done since the survey of the sources."""
        return self.steps - self.survey_steps

    def _leave(self, env: int) -> None:
        """The episode of this environment is over."""
        left = self.under_way.pop(env, None)
        if left is not None:
            self.running[left] -= 1

    def _to_survey(self) -> Behaviour:
        """
        What may be best, or what may be second: to tell the best one from its rivals takes enough episodes of both (top
        two Thompson sampling). What was never tried comes first.
        """
        candidates = [*self.sources, RANDOM]
        draws = self._draws(candidates)
        best = self._highest(candidates, draws)
        if not np.isinf(draws).any() and self.rng.random() < 0.5:
            candidates.remove(best)
            best = self._highest(candidates, self._draws(candidates))
        return best

    def _to_try(self) -> Behaviour | None:
        """
        Tell whether to try something rather than to learn. What each behaviour may be worth is drawn twice: by the
        second draw, another one may be better than what the first one says is best. An episode finds that out with the
        probability that this promises, as a share of all that returns have ever differed by: so nothing is tried that
        is known, or that would hardly matter.

        :return: what to try, None for nothing
        """
        if self.trial_steps >= self.settings.trial_share * self.steps_after_survey:
            return None
        disabled = self.disabled
        candidates = [each for each in self.sources if each.name not in disabled]
        candidates += [OPTIONS] if self.no_signal else self.learners
        candidates += [BEST] * self.kept
        best, promising = self._draws(candidates).argmax(), self._draws(candidates)
        if np.isinf(promising).any():
            return self._highest(candidates, promising)
        promise = promising.max() - promising[best]
        return self._highest(candidates, promising) if promise > self.rng.random() * self.spread else None

    def _draws(self, candidates: Sequence[Behaviour]) -> np.ndarray:
        """:return: what each may be worth, infinite for what was never tried"""
        return np.array([self.judged(each).draw(self.rng, self.spread) for each in candidates])

    def _highest(self, candidates: Sequence[Behaviour], draws: np.ndarray) -> Behaviour:
        """:return: what may be worth most. Where draws are alike, what fewer environments are trying"""
        running = np.array([self.running[each] for each in candidates])
        # What was never tried is infinite, and comes in the order given: begin with what you believe in
        ties = np.where(np.isinf(draws), np.arange(len(draws)), self.rng.random(len(draws)))
        return candidates[np.lexsort((ties, running, -draws))[0]]

    def _to_learn(self) -> Behaviour:
        """Mostly the learner that leads, the other one for a share of the steps."""
        if self.settings.actor and not self.no_signal:
            # By steps: episodes of the two may be of different lengths
            share = self.settings.other_share
            wanted = share if self._values_lead() else 1.0 - share
            if self.actor_steps <= wanted * self.learning_steps:
                return SAMPLED_ACTOR
        values = [EXPLORING, MIXING] if len(self.sources) > len(self.disabled) else [EXPLORING]
        return values[self.rng.integers(len(values))]

    def _values_lead(self) -> bool:
        """
        Tell whether the values of options have got further than the actor and all sources. The actor gets further from
        the same steps where rewards are dense, but nowhere from rare successes.
        """
        best, others = self.judged(self._shown_by(OPTIONS)), (*self.sources, ACTOR, SAMPLED_ACTOR)
        return all(best.beats(known, self.spread, 1.0) for each in others if (known := self.judged(each)).n)

    def update(self, result: EpisodeResult) -> None:
        """
        Take the result of an episode into account.

        :param result: what came of it
        """
        behaviour = result.behaviour
        self._leave(result.env)
        self.lowest, self.highest = min(self.lowest, result.discounted), max(self.highest, result.discounted)
        self._fade(result.length)
        for known, value in ((self.evidence, result.discounted), (self.rewards, result.reward)):
            known.setdefault(behaviour.name, Evidence()).add(value)
        self.steps += result.length
        if behaviour in (EXPLORING, MIXING, SAMPLED_ACTOR):
            self.learning_steps += result.length
            self.actor_steps += result.length * (behaviour == SAMPLED_ACTOR)
        elif not self.surveying:
            self.trial_steps += result.length
        if self.surveying:
            self.survey_steps += result.length
            wanted = self.settings.survey_share * self.total_steps
            enough = self.survey_steps >= wanted and min(self.of(each).n for each in [*self.sources, RANDOM]) > 0
            self.surveying = not enough and self.survey_steps < 2.0 * wanted

    def _fade(self, n_steps: int) -> None:
        """What learns has changed in these steps: an episode counts by a power of the time that has passed since."""
        factor = (self.steps / (self.steps + n_steps)) ** (1.0 / self.settings.memory - 1.0)
        for known in (self.evidence, self.rewards):
            for each in CHANGING:
                if each.name in known:
                    known[each.name].fade(factor)

    def improved(self) -> bool:
        """:return: whether the option values have just come to be worth more than ever"""
        return self._worth(OPTIONS) > (self._worth(BEST) if self.kept else -np.inf)

    def keep(self) -> None:
        """Remember that their networks are kept as they are."""
        self.kept = True
        self._remember(self._shown_by(OPTIONS), BEST)

    def actor_rose(self) -> bool:
        """:return: whether the actor, as it samples, has just come to be worth more than ever; that is remembered"""
        if self._worth(SAMPLED_ACTOR) <= self._worth(PEAK):
            return False
        self._remember(SAMPLED_ACTOR, PEAK)
        return True

    def actor_fell(self) -> bool:
        """:return: whether it is worth less than it was, and not by luck, so that it goes back; that is remembered"""
        if not self.judged(PEAK).beats(self.judged(SAMPLED_ACTOR), self.spread, self.settings.fall_errors):
            return False
        for known in (self.evidence, self.rewards):
            # Of all that it ever was, its best was lucky too: that counts as one episode from now on
            known[PEAK.name].fade(1.0 / max(known[PEAK.name].n, 1.0))
        self._remember(PEAK, SAMPLED_ACTOR)
        return True

    def _remember(self, behaviour: Behaviour, other: Behaviour) -> None:
        """What is known of one behaviour holds for the other one from now on."""
        for known in (self.evidence, self.rewards):
            known[other.name] = known[behaviour.name].copy()

    def _worth(self, behaviour: Behaviour) -> float:
        """With confidence: of many behaviours with few episodes each, that of the highest mean was lucky."""
        return self.judged(self._shown_by(behaviour)).lower(self.spread)

    def _shown_by(self, behaviour: Behaviour) -> Behaviour:
        """:return: what shows best what a behaviour is worth: without random actions, values are worth no less"""
        shows = (OPTIONS, EXPLORING) if behaviour == OPTIONS else (behaviour,)
        return max(shows, key=lambda each: self.judged(each).lower(self.spread))

    def decide(self) -> Behaviour:
        """
        Decide what the model acts by.

        :return: the learner that is worth most with confidence if it is better than the best source, and not by luck;
            otherwise that source. Where nothing is known, the values of options
        """
        learners = [*self.learners, *[BEST] * self.kept]
        learner = max(learners, key=self._worth)
        if not any(self.of(each).n for each in self.sources):
            return learner if self.of(self._shown_by(learner)).n else OPTIONS
        # What was not tried yet is no worse than what is as bad as anything
        source = max(
            self.sources,
            key=lambda each: (self._worth(each), False) if self.of(each).n else (self.lowest, True),
        )
        better = self.judged(self._shown_by(learner)).beats(self.judged(source), self.spread, self.settings.confidence)
        return learner if better else source

    def source_chances(self) -> np.ndarray | None:
        """
        :return: how likely each source is the best one, and at last how likely random actions are, for the actor to
            begin with; None without an actor, as long as sources are being tried, and as long as nothing was found
        """
        if self.surveying or self.no_signal or not self.settings.actor:
            return None
        candidates = [*self.sources, RANDOM]
        tried = np.array([self.of(each).n > 0 for each in candidates])
        if not tried.any():
            return np.full(len(candidates), 1.0 / len(candidates))
        found = np.zeros(len(candidates))
        found[tried] = chances([self.judged(candidates[i]) for i in np.flatnonzero(tried)], self.spread, self.rng)
        return found
