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
    ``selection_kwargs``: how episodes are given to behaviours. Each number has a row of ablations in the docs.

    :param survey_share: Share of the run that sources are tried in at first, and as much again where episodes are long
    :param trial_share: Share of the steps after that in which something is tried: a source alone, or a learner without
        exploration
    :param other_share: Share of the episodes of learning for the learner that does not lead
    :param memory: What learns is judged by its episodes of about this share of the steps so far, the latest
    :param confidence: By how many standard errors of the difference what was learned must be better than the best
        source to be acted by
    :param disable_errors: By how many standard errors a source must be worse than random actions to be disabled
    :param fall_errors: By how many standard errors the actor must be worse than it was at its best to go back to that
    :param actor: Whether an actor learns beside the values of options
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
    """The null selector: the values of options explore in every episode, and the model acts by them."""

    def select(self, env: int) -> Behaviour:
        """:return: who acts while learning"""
        return EXPLORING

    def decide(self) -> Behaviour:
        """:return: what the model acts by"""
        return OPTIONS


class CAPSSelector(Selector):
    """
    Whole episodes tell what policies are worth long before values do.

    At first every source acts alone, and random actions for comparison: the survey. Then most episodes are for
    learning: the actor samples, or the values of options explore, with stretches of sources or without; what may pay
    most gets most of them. As long as it is in doubt what pays most, some episodes are trials: of sources, and of the
    learners without exploration. What may be the best is tried most (Thompson sampling). What learns is not what it
    was: its older episodes count for less and less.

    The model acts by a learner once that is better than the best source, and not by luck. The networks are kept where a
    learner comes to be worth more than ever, as they were at the start of the latest episode.

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
        # What the kept networks act by, None before any are kept
        self.kept: Behaviour | None = None
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
        self.kept = next((learner for learner in self.learners if BEST[learner].name in evidence), None)
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
        return self.evidence.setdefault(behaviour.name, Evidence())

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
        behaviour = self._draw([*self.sources, RANDOM]) if self.surveying else self._to_try() or self._to_learn()
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

    def _to_try(self) -> Behaviour | None:
        """
        What may be best is drawn twice. Where both draws name the same behaviour, there is nothing to find out, and the
        episode is for learning.

        :return: what to try, None for nothing
        """
        if self.trial_steps >= self.settings.trial_share * self.steps_after_survey:
            return None
        disabled = self.disabled
        candidates = [each for each in self.sources if each.name not in disabled]
        candidates += [OPTIONS] if self.no_signal else self.learners
        candidates += [] if self.kept is None else [BEST[self.kept]]
        first, second = self._draw(candidates), self._draw(candidates)
        return None if first == second and self.of(first).n else second

    def _draw(self, candidates: Sequence[Behaviour]) -> Behaviour:
        """:return: what may be best (Thompson sampling). What was never tried comes first"""
        draws = np.array([self.of(each).draw(self.rng, self.spread) for each in candidates])
        running = np.array([self.running[each] for each in candidates])
        # What was never tried is infinite, and comes in the order given: begin with what you believe in
        ties = np.where(np.isinf(draws), np.arange(len(draws)), self.rng.random(len(draws)))
        return candidates[np.lexsort((ties, running, -draws))[0]]

    def _to_learn(self) -> Behaviour:
        """Mostly the learner that leads, the other one for a share."""
        if self.settings.actor:
            actor_leads = not (self.no_signal or self._values_lead())
            # By steps: episodes of the two may be of different lengths
            share = self.settings.other_share
            wanted = 1.0 - share if actor_leads else share
            if self.actor_steps <= wanted * self.learning_steps:
                return SAMPLED_ACTOR
        values = [EXPLORING, MIXING] if len(self.sources) > len(self.disabled) else [EXPLORING]
        return values[self.rng.integers(len(values))]

    def _values_lead(self) -> bool:
        """
        Tell whether the values of options have got further than the actor and all sources. The actor gets further from
        the same steps where rewards are dense, but nowhere from rare successes.
        """
        values, others = (OPTIONS, EXPLORING), (*self.sources, ACTOR, SAMPLED_ACTOR)
        best = self.of(max(values, key=self._worth))
        return all(best.beats(known, self.spread, 1.0) for each in others if (known := self.of(each)).n)

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

    def improved(self) -> Behaviour | None:
        """
        Tell when networks are worth keeping as they are.

        :return: the learner that has just come to be worth more than what was kept, None for none
        """
        learner = max(self.learners, key=self._worth)
        before = -np.inf if self.kept is None else self._worth(BEST[self.kept])
        return learner if self._worth(learner) > before else None

    def keep(self, learner: Behaviour) -> None:
        """
        Remember that the networks are kept as they are.

        :param learner: what they act by
        """
        self.kept = learner
        for known in (self.evidence, self.rewards):
            for best in BEST.values():
                known.pop(best.name, None)
            known[BEST[learner].name] = known[learner.name].copy()

    def actor_rose(self) -> bool:
        """:return: whether the actor, as it samples, has just come to be worth more than ever; that is remembered"""
        if self._worth(SAMPLED_ACTOR) <= self._worth(PEAK):
            return False
        self._remember(SAMPLED_ACTOR, PEAK)
        return True

    def actor_fell(self) -> bool:
        """:return: whether it is worth less than it was, and not by luck, so that it goes back; that is remembered"""
        if not self.of(PEAK).beats(self.of(SAMPLED_ACTOR), self.spread, self.settings.fall_errors):
            return False
        self._remember(PEAK, SAMPLED_ACTOR)
        return True

    def _remember(self, behaviour: Behaviour, other: Behaviour) -> None:
        """What is known of one behaviour holds for the other one from now on."""
        for known in (self.evidence, self.rewards):
            known[other.name] = known[behaviour.name].copy()

    def _worth(self, behaviour: Behaviour) -> float:
        """With confidence: of many behaviours with few episodes each, that of the highest mean was lucky."""
        return self.of(behaviour).lower(self.spread)

    def decide(self) -> Behaviour:
        """
        Decide what the model acts by.

        :return: the learner that is worth most with confidence if it is better than the best source, and not by luck;
            otherwise that source. Where nothing is known, the values of options
        """
        learners = self.learners if self.kept is None else [*self.learners, BEST[self.kept]]
        learner = max(learners, key=self._worth)
        if not any(self.of(each).n for each in self.sources):
            return learner if self.of(learner).n else OPTIONS
        # What was not tried yet is no worse than what is as bad as anything
        source = max(
            self.sources,
            key=lambda each: (self._worth(each), False) if self.of(each).n else (self.lowest, True),
        )
        better = self.of(learner).beats(self.of(source), self.spread, self.settings.confidence)
        return learner if better else source

    def source_chances(self) -> np.ndarray | None:
        """
        :return: how likely each source is the best one, and at last how likely random actions are, for the actor to
            begin with; None without an actor, as long as sources are being tried, and as long as nothing was found
        """
        if self.surveying or self.no_signal or not self.settings.actor:
            return None
        known = [self.of(each) for each in [*self.sources, RANDOM]]
        if min(each.n for each in known) == 0:
            return np.full(len(known), 1.0 / len(known))
        return chances(known, self.spread, self.rng)
