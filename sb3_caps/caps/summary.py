"""What a run reused, as a table to read."""

from dataclasses import dataclass

import numpy as np

from sb3_caps.caps.gate import ACTOR, BEST, EXPLORING, MIXING, OPTIONS, SAMPLED_ACTOR
from sb3_caps.reuse.episodes import Behaviour
from sb3_caps.reuse.evidence import Evidence
from sb3_caps.reuse.options import OptionSet
from sb3_caps.reuse.statistics import OptionUse

# What the learner's ways of acting are, for whoever reads a summary alone
MEANINGS = {
    OPTIONS.name: "the learner: in each state the option of the highest value",
    ACTOR.name: "the learner: the likeliest action of its actor",
    SAMPLED_ACTOR.name: "the learner: actions drawn from its actor",
}
MEANINGS |= {BEST.name: f"{MEANINGS[OPTIONS.name]}, with its best networks"}


@dataclass(frozen=True)
class PolicySummary:
    """
    What is known about a source, or about a form of the learner.

    :param name: what it is called
    :param mean_reward: mean return of the episodes in which it acted alone, as SB3's ``evaluate_policy`` counts it;
        None without such an episode
    :param error: how far off that mean may be, as far as its episodes tell
    :param episodes: how many there were; of what learns, the latest
    :param share: share of the steps of training that a source decided, None for the learner
    :param length: mean number of steps for which a source was followed, None for the learner
    """

    name: str
    mean_reward: float | None
    error: float
    episodes: int
    share: float | None = None
    length: float | None = None


@dataclass(frozen=True)
class ReuseSummary:
    """
    What a run reused. Printed, it is a table.

    :param policies: the sources in their order, then the learner
    :param acts_by: the name of what ``predict`` acts by
    """

    policies: list[PolicySummary]
    acts_by: str

    def __str__(self) -> str:
        width = max([len(policy.name) for policy in self.policies], default=0)
        lines = [f"{'':{width}}  mean reward          episodes  share of steps  mean length"]
        for policy in self.policies:
            reward = "–" if policy.mean_reward is None else f"{policy.mean_reward:.4g} ± {policy.error:.3g}"
            line = f"{policy.name:{width}}  {reward:<19}  {policy.episodes:8}"
            if policy.share is not None:
                line += f"  {policy.share:14.1%}  {policy.length:11.1f}"
            lines.append(line)
        meaning = f" ({MEANINGS[self.acts_by]})" if self.acts_by in MEANINGS else ""
        return "\n".join([*lines, f"predict acts by: {self.acts_by}{meaning}. {self.reason}"])

    @property
    def reason(self) -> str:
        """Why ``predict`` acts by it, in one sentence."""
        known = {policy.name: policy for policy in self.policies if policy.mean_reward is not None}
        ours = known.get(self.acts_by)
        if ours is None:
            return "No whole episode of it has ended yet."
        # Nobody would want to act by what explores
        others = (policy for name, policy in known.items() if name not in (EXPLORING.name, MIXING.name, ours.name))
        rival = max(others, key=_mean, default=ours)
        if _mean(rival) <= _mean(ours):
            return "It had the highest mean return in whole episodes."
        return (
            f"{rival.name} had a higher mean return, {_mean(rival):.4g} against {_mean(ours):.4g}, but "
            f"{rival.episodes} episodes are too few to be sure that it is better."
        )


def _mean(policy: PolicySummary) -> float:
    return -np.inf if policy.mean_reward is None else policy.mean_reward


def summarize(options: OptionSet, rewards: dict[str, Evidence], use: OptionUse, acts_by: Behaviour) -> ReuseSummary:
    """
    Say what was reused.

    :param options: all options of a run
    :param rewards: what each behaviour was paid, by name
    :param use: how often options were followed
    :param acts_by: what ``predict`` acts by
    :return: the same for people
    """
    seen = [each for each in rewards.values() if each.n]
    highest = max((each.mean + each.std for each in seen), default=0.0)
    spread = highest - min((each.mean - each.std for each in seen), default=0.0)

    def of(name: str) -> tuple[float | None, float, int]:
        known = rewards.get(name, Evidence())
        return (known.mean, known.error(spread), max(round(known.n), 1)) if known.n else (None, 0.0, 0)

    policies = [PolicySummary(name, *of(name), *use.of(slice(i, i + 1))) for i, name in enumerate(options.source_names)]
    learners = dict.fromkeys([OPTIONS.name, ACTOR.name, SAMPLED_ACTOR.name, EXPLORING.name, MIXING.name, acts_by.name])
    known = [name for name in learners if name in rewards and name not in options.source_names]
    return ReuseSummary([*policies, *(PolicySummary(name, *of(name)) for name in known)], acts_by.name)
