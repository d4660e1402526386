"""What a run reused, for people."""

from dataclasses import dataclass

import numpy as np

from sb3_caps.caps.trials import KEPT, LATEST, Trials
from sb3_caps.reuse.options import OptionSet

LEARNER = "learner"


@dataclass(frozen=True)
class PolicySummary:
    """
    What is known of one source, or of the learner.

    :param name: of the source, or ``"learner"``
    :param share: share of the steps of training that it decided
    :param length: mean number of steps for which it was followed
    :param mean_reward: mean return of the episodes in which it acted alone, as SB3's ``evaluate_policy`` counts it;
        None without such an episode
    :param episodes: how many there were (of the learner, the latest, or those of the learner at its best)
    """

    name: str
    share: float
    length: float
    mean_reward: float | None
    episodes: int


@dataclass(frozen=True)
class ReuseSummary:
    """
    What a run reused. Printed, it is a table.

    :param policies: the sources in their order, then the learner
    :param acts_by: what ``predict`` acts by: the name of a source, ``"learner"``, or ``"learner at its best"``
    """

    policies: list[PolicySummary]
    acts_by: str

    @property
    def learner_is_below(self) -> bool:
        """Whether ``predict`` acts by a source because the learner is not known to be better."""
        return self.acts_by in [policy.name for policy in self.policies[:-1]]

    def __str__(self) -> str:
        width = max(len(policy.name) for policy in self.policies)
        lines = [f"{'':{width}}  share of steps  mean length  mean reward  episodes"]
        for policy in self.policies:
            reward = "–" if policy.mean_reward is None else f"{policy.mean_reward:.4g}"
            lines.append(
                f"{policy.name:{width}}  {policy.share:14.1%}  {policy.length:11.1f}  {reward:>11}  {policy.episodes:8}"
            )
        return "\n".join([*lines, f"predict acts by: {self.acts_by}"])


class UseOfOptions:
    """
    How often options were chosen and followed, over all of training.

    :param n_sources: number of source policies
    :param n_options: number of options
    """

    def __init__(self, n_sources: int, n_options: int) -> None:
        self.n_sources = n_sources
        self.steps = np.zeros(n_options, dtype=np.int64)
        self.choices = np.zeros(n_options, dtype=np.int64)

    def add_step(self, options: np.ndarray, chosen: np.ndarray) -> None:
        """
        :param options: the option that each environment followed
        :param chosen: where it was not followed in the step before
        """
        self.steps += np.bincount(options, minlength=len(self.steps))
        self.choices += np.bincount(options[chosen], minlength=len(self.steps))

    def of(self, options: slice) -> tuple[float, float]:
        """
        :param options: some of the options
        :return: their share of the steps, and for how many steps they were followed at a time
        """
        steps = int(self.steps[options].sum())
        return steps / max(int(self.steps.sum()), 1), steps / max(int(self.choices[options].sum()), 1)


def summarize(options: OptionSet, trials: Trials, use: UseOfOptions, acts_by: int) -> ReuseSummary:
    """
    :param options: all options of a run
    :param trials: what sources and learner are worth
    :param use: how often options were followed
    :param acts_by: what ``predict`` acts by, see ``Trials``
    :return: the same for people
    """
    # Where a source acts, the learner is the one that would act in its place
    learner = trials.finished_learner()[0] if trials.checked_rewards and acts_by != LATEST else acts_by
    kept, late = trials.checked_rewards or trials.kept_rewards, trials.late_rewards or trials.learner_rewards
    returns = [*trials.source_rewards, kept if learner == KEPT else late]
    parts = [*(slice(i, i + 1) for i in range(options.n_sources)), slice(options.n_sources, None)]
    policies = [
        PolicySummary(name, *use.of(part), float(np.mean(each)) if each else None, len(each))
        for name, part, each in zip([*options.source_names, LEARNER], parts, returns, strict=True)
    ]
    named = {LATEST: LEARNER, KEPT: f"{LEARNER} at its best"}
    return ReuseSummary(policies, named[acts_by] if acts_by in named else options.names[acts_by])
