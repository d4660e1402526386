"""What sources and learner are worth in whole episodes, and which of them to act by."""

from collections import deque
from math import fsum

import numpy as np

# Who acts in an episode: the learner, the learner without exploration, the learner that was kept. From 0 on: a source.
LEARNING, GREEDY, CHECKING = -3, -1, -2
# What `predict` acts by, beside the sources
LATEST, KEPT = -1, -2

# A source is tried so often before anything is concluded, and so often at the most
FEWEST_TRIALS, MOST_TRIALS = 2, 20
# Share of all steps that more trials of the best source may take, and the same as long as it is what to act by
TRIAL_SHARE, ACTING_TRIAL_SHARE = 0.05, 0.15
# That which may be the best one: so many standard errors above its mean
BOUND = 2.0
# Share of the episodes in which the learner does not explore, when exploration is over
GREEDY_SHARE = 0.5
# The learner is judged by so many of its latest episodes without exploration
RECENT, FEWEST_RECENT = 5, 3
# ... and where episodes are short, and mostly luck, by as many as take this share of the run; sources are tried beyond
# MOST_TRIALS as far as it goes
JUDGED_SHARE = 0.01
# Over the last steps of a run the learner that was kept is tried again, since its best episodes were partly luck,
# beside the latest one and sources that may be better: a share of the run, or as long as so many episodes take, of each
# environment and of all, and no more than another share. Either learner is tried so often at the most.
CHECKED_SHARE, LARGEST_CHECKED_SHARE = 0.1, 0.3
CHECKED_EPISODES, FEWEST_CHECKED_EPISODES, MOST_CHECKS = 2, 20, 300
# Share of the episodes that explore in which every action is random, where the learner has lost what it once found
RANDOM_SHARE = 0.5
# What exploring is worth is told by its first episodes
EXPLORING, FEWEST_EXPLORING = 20, 5
# By how many standard errors the learner has to be above the best source, below what it once was to be replaced,
# and a source above or below exploring: a part of a task may be worth nothing alone
ABOVE_SOURCE, BELOW_KEPT, ABOVE_EXPLORING, BELOW_EXPLORING = 1.0, 2.0, 1.5, 3.0


def greedy_share(epsilon: float) -> float:
    """
    :param epsilon: the exploration rate
    :return: the share of the episodes in which the learner does not explore
    """
    return GREEDY_SHARE * (1.0 - epsilon)


class Trials:
    """
    Some of the episodes of training try something: a source alone, or the learner without exploration.

    Their returns tell what to act by: the learner as it is, the learner as it was at its best, or a source; and which
    sources are no option any more: those that do worse than exploring does. Returns are discounted a tenth as much as
    in learning: nearly what the task pays, but of two policies that reach a goal the faster one has more.

    :param n_sources: number of source policies
    :param gamma: the discount factor of learning
    """

    def __init__(self, n_sources: int, gamma: float) -> None:
        self.n_sources = n_sources
        self.gamma = 1.0 - (1.0 - gamma) / 10.0
        self.source_returns: list[list[float]] = [[] for _ in range(n_sources)]
        self.learner_returns: deque[float] = deque()
        self.learner_lengths: deque[int] = deque()
        self.kept_returns: list[float] = []
        self.checked_returns: list[float] = []
        self.checked_rewards: list[float] = []
        self.checked_lengths: list[int] = []
        # Whether the end of a run has come, and what the latest learner has in it
        self.checking = False
        self.late_returns: deque[float] = deque(maxlen=MOST_CHECKS)
        self.late_rewards: deque[float] = deque(maxlen=MOST_CHECKS)
        self.exploring_returns: list[float] = []
        # The lowest and the highest return that the learner ever had, exploring or not
        self.extremes: list[float] = []
        # The latest episodes of exploring, without and with stretches of sources
        self.plain_returns: deque[float] = deque()
        self.mixed_returns: deque[float] = deque()
        # What the task paid in them, not discounted: for people
        self.source_rewards: list[list[float]] = [[] for _ in range(n_sources)]
        self.learner_rewards: deque[float] = deque()
        self.kept_rewards: list[float] = []
        # Of each source: 1 where it does better than exploring, -1 where it does worse, 0 where neither is known
        self.standings = np.zeros(n_sources, dtype=np.int8)
        self.source_steps, self.steps = 0, 0
        # As many as tell what somebody is worth
        self.judged_steps = 0.0
        self._resize(0)

    def _resize(self, n_envs: int) -> None:
        self.roles = np.full(n_envs, LEARNING)
        self.returns, self.rewards = np.zeros(n_envs), np.zeros(n_envs)
        self.discounts, self.ages = np.ones(n_envs), np.zeros(n_envs, dtype=np.int64)
        # Which episodes explore at random, whatever the exploration rate
        self.random = np.zeros(n_envs, dtype=bool)
        # One round of all environments at the least
        latest = max(EXPLORING, n_envs)
        self.plain_returns = deque(self.plain_returns, maxlen=latest)
        self.mixed_returns = deque(self.mixed_returns, maxlen=latest)

    def start_episodes(
        self, starts: np.ndarray, epsilon: float, warm_up: bool, remaining: int = 1, steps: int = 1
    ) -> None:
        """
        Draw who acts in the episodes that start now.

        :param starts: which environments start an episode
        :param epsilon: the exploration rate
        :param warm_up: whether learning has not begun
        :param remaining: how many steps of the run are to come
        :param steps: how many it has
        """
        episodes = max(CHECKED_EPISODES * len(starts), FEWEST_CHECKED_EPISODES)
        needed = episodes * float(np.mean(self.learner_lengths or [0]))
        share = min(max(CHECKED_SHARE, needed / max(steps, 1)), LARGEST_CHECKED_SHARE)
        self.checking = remaining <= share * steps and len(self.kept_returns) > 0 and not self.nothing_found()
        if not self.checking:
            # Of a run before this one
            self._forget_checks()
        self.judged_steps = JUDGED_SHARE * steps
        if len(self.roles) != len(starts):
            self._resize(len(starts))
        for i in np.flatnonzero(starts):
            self.roles[i] = LEARNING
            self.returns[i], self.rewards[i], self.discounts[i], self.ages[i] = 0.0, 0.0, 1.0, 0
            draws = np.random.random(2)
            role = self._to_check() if self.checking else self._source_to_try(draws[0])
            if role is not None:
                self.roles[i] = role
            elif not warm_up and draws[1] < greedy_share(epsilon):
                self.roles[i] = GREEDY
            self.random[i] = self.lost() and np.random.random() < RANDOM_SHARE

    def _source_to_try(self, draw: float) -> int | None:
        """Every source first, in half of the episodes; then that which may be the best, as far as steps allow."""
        if self.n_sources == 0:
            return None
        running = np.bincount(self.roles[self.roles >= 0], minlength=self.n_sources)
        tries = running + [len(returns) for returns in self.source_returns]
        if tries.min() < FEWEST_TRIALS:
            return int(tries.argmin()) if draw < 0.5 else None
        # Those that are under way will take as long as others did
        length = self.source_steps / max(sum(map(len, self.source_returns)), 1)
        under_way = np.maximum(self.ages[self.roles >= 0], length).sum()
        share = TRIAL_SHARE if self.acts_by() < 0 else ACTING_TRIAL_SHARE
        if not all(self.source_returns) or self.source_steps + under_way >= share * self.steps or self.nothing_found():
            return None
        promising = int(np.argmax(_bounds(self.source_returns, tries)))
        # More of the same tells nothing
        known = _always_the_same(self.source_returns[promising])
        few = tries[promising] < MOST_TRIALS or self.source_steps < self.judged_steps
        return promising if few and not known else None

    def _to_check(self) -> int | None:
        """
        The kept learner and the latest one in turns, and a source where that may be better than both: one of them is
        what to act by at last.
        """
        rivals = [CHECKING, GREEDY, *range(self.n_sources)]
        checked = [self.checked_returns, list(self.late_returns), *self.source_returns]
        tries = np.array([np.count_nonzero(self.roles == role) for role in rivals])
        tries += [len(returns) for returns in checked]
        chosen, most = int(tries[:2].argmin()), MOST_CHECKS
        if tries[chosen] >= FEWEST_RECENT and all(checked):
            best = int(np.argmax(_bounds(checked, tries)))
            if best >= 2:
                chosen, most = best, MOST_TRIALS
        return None if tries[chosen] >= most or _always_the_same(checked[chosen]) else rivals[chosen]

    def add_step(self, rewards: np.ndarray, dones: np.ndarray, mixed: np.ndarray | None = None) -> bool:
        """
        Count one step of all environments.

        :param rewards: of the step
        :param dones: which episodes ended with it
        :param mixed: which episodes have stretches of sources, if they explore; None for none
        :return: whether the learner has just done better than ever, so that it is worth keeping as it is
        """
        self.steps += len(rewards)
        self.returns += self.discounts * rewards
        self.rewards += rewards
        self.discounts *= self.gamma
        self.ages += 1
        better = False
        for i in np.flatnonzero(dones):
            role, of_return, of_reward, length = self.roles[i], self.returns[i], self.rewards[i], self.ages[i]
            # The environment's next episode is not drawn yet
            self.roles[i] = LEARNING
            if role in (LEARNING, GREEDY):
                returns = [*self.extremes, float(of_return)]
                self.extremes = [min(returns), max(returns)]
            if role == LEARNING and mixed is not None and mixed[i]:
                self.mixed_returns.append(float(of_return))
            elif role == LEARNING:
                self.plain_returns.append(float(of_return))
                if len(self.exploring_returns) < EXPLORING:
                    self.exploring_returns.append(float(of_return))
                    self._update_standings()
            elif role == CHECKING:
                self.checked_returns.append(float(of_return))
                self.checked_rewards.append(float(of_reward))
                self.checked_lengths.append(int(length))
            elif role == GREEDY:
                self.learner_returns.append(float(of_return))
                self.learner_rewards.append(float(of_reward))
                self.learner_lengths.append(int(length))
                self._forget_old_episodes()
                if self.checking:
                    self.late_returns.append(float(of_return))
                    self.late_rewards.append(float(of_reward))
                else:
                    better |= self._keep()
            else:
                self.source_returns[role].append(float(of_return))
                self.source_rewards[role].append(float(of_reward))
                self.source_steps += int(length)
                self._update_standings()
        return better

    def _forget_old_episodes(self) -> None:
        steps = sum(self.learner_lengths)
        while len(self.learner_lengths) > RECENT and steps - self.learner_lengths[0] >= self.judged_steps:
            steps -= self.learner_lengths.popleft()
            self.learner_returns.popleft()
            self.learner_rewards.popleft()

    @property
    def learner_is_known(self) -> bool:
        """Whether there are enough episodes of the learner to judge it by."""
        return len(self.learner_returns) >= FEWEST_RECENT and sum(self.learner_lengths) >= self.judged_steps

    def _keep(self) -> bool:
        """
        Remember the latest episodes of the learner if they are better than any before. As good as before is not enough:
        where all returns are alike, that would keep the last learner before it forgets.
        """
        returns = self.recent_returns()
        if not self.learner_is_known:
            return False
        if self.kept_returns and mean(returns) <= mean(self.kept_returns):
            return False
        self.kept_returns, self.kept_rewards = returns, list(self.learner_rewards)
        return True

    def _forget_checks(self) -> None:
        self.checked_returns, self.checked_lengths, self.checked_rewards = [], [], []
        self.late_returns.clear()
        self.late_rewards.clear()

    def overdue(self, role: int = GREEDY) -> np.ndarray:
        """
        :param role: who acts, ``GREEDY`` or ``CHECKING``
        :return: the environments in which that has gone on for longer than in any of its latest episodes
        """
        lengths = [*self.learner_lengths, *(self.checked_lengths if role == CHECKING else ())]
        return np.flatnonzero((self.roles == role) & (self.ages > max(lengths, default=0)))

    def recent_returns(self) -> list[float]:
        """
        :return: the returns of the learner's latest episodes, and of those that have gone on for longer than these
            what they have so far: else short episodes alone would count where the learner has just got better, or worse
        """
        return [*self.learner_returns, *self.returns[self.overdue()].tolist()]

    def _update_standings(self) -> None:
        exploring = self.exploring_returns
        for i, returns in enumerate(self.source_returns):
            if len(exploring) >= FEWEST_EXPLORING and len(returns) >= FEWEST_TRIALS:
                better = _above(returns, exploring, ABOVE_EXPLORING)
                self.standings[i] = int(better) - int(_above(exploring, returns, BELOW_EXPLORING))

    def gain_of_mixing(self) -> float:
        """
        :return: how likely an episode with stretches of sources does better than one without, of the latest that
            explore; 0.5 where that is not known
        """
        if min(len(self.mixed_returns), len(self.plain_returns)) < FEWEST_EXPLORING:
            return 0.5
        mixed, plain = np.array(self.mixed_returns)[:, None], np.array(self.plain_returns)
        return float(np.mean((mixed > plain) + 0.5 * (mixed == plain)))

    def nothing_found(self) -> bool:
        """
        :return: whether all that the learner ever did had the same return, and no source is known to do better, so that
            there is nothing to learn from yet. What a source got once by luck does not count; what the learner got once
            does, for where that is rare it has to be tried what was learned from it.
        """
        alike = len(self.exploring_returns) >= FEWEST_EXPLORING and len(set(self.extremes)) == 1
        return alike and not (self.standings > 0).any()

    def lost(self) -> bool:
        """
        :return: whether all that the learner did lately had the same return, which is lower than what it once had, and
            no source is known to do better: exploring may have to find it again
        """
        returns = [*self.plain_returns, *self.mixed_returns, *self.learner_returns]
        alike = len(self.plain_returns) >= FEWEST_EXPLORING and min(returns) == max(returns)
        return alike and returns[0] < self.extremes[1] and not (self.standings > 0).any()

    @property
    def best_source(self) -> int | None:
        """The source with the highest mean return, of those that were tried often enough; None where none was."""
        means = {i: np.mean(each) for i, each in enumerate(self.source_returns) if len(each) >= FEWEST_TRIALS}
        return max(means, key=means.__getitem__, default=None)

    def finished_learner(self) -> tuple[int, list[float]]:
        """
        :return: which learner to act by when training is over, and its returns: the one that was kept, unless the
            latest one did better beside it, whose average has not changed since the checks began
        """
        checked = [*self.checked_returns, *self.returns[self.overdue(CHECKING)].tolist()]
        kept = checked if len(checked) >= FEWEST_RECENT else self.kept_returns
        late = [*self.late_returns, *self.returns[self.overdue()].tolist()]
        if len(self.late_returns) >= FEWEST_RECENT and mean(late) > mean(kept):
            return LATEST, late
        return KEPT, kept

    def acts_by(self, finished: bool = False) -> int:
        """
        :param finished: whether training is over, see ``finished_learner``
        :return: what to act by: ``LATEST`` for the learner as it is, ``KEPT`` for the learner at its best, which is
            kept, or a source
        """
        best = self.best_source
        explored = len(self.exploring_returns) >= FEWEST_EXPLORING
        known = self.learner_is_known
        # Until it is known, the learner is taken for no better than exploring
        learner, returns = LATEST, self.recent_returns() if known else self.exploring_returns
        if known and finished:
            learner, returns = self.finished_learner()
        elif known and _above(self.kept_returns, returns, BELOW_KEPT):
            learner, returns = KEPT, self.kept_returns
        if best is None:
            return learner
        if not (known or explored):
            return best
        rival = self.source_returns[best]
        # What has more than exploring is left for a gain that exceeds the noise, any other source for any gain
        if not explored or mean(rival) > mean(self.exploring_returns):
            return learner if _above(returns, rival, ABOVE_SOURCE) else best
        return best if _above(rival, returns, errors=0.0) else learner


def _bounds(returns: list[list[float]], tries: np.ndarray) -> list[float]:
    """What each may be worth. Few returns may be alike by luck, so all are taken to vary as much as each other."""
    spread = np.sqrt(np.mean([np.var(each) for each in returns]))
    return [float(np.mean(each) + BOUND * spread / np.sqrt(n)) for each, n in zip(returns, tries, strict=True)]


def _always_the_same(returns: list[float]) -> bool:
    return len(returns) >= RECENT and len(set(returns)) == 1


def mean(returns: list[float]) -> float:
    """:return: the mean, which for equal returns is that return to the last bit, however many there are"""
    lowest = min(returns)
    return lowest if lowest == max(returns) else fsum(returns) / len(returns)


def _error(returns: list[float]) -> float:
    return float(np.std(returns) / np.sqrt(len(returns)))


def _above(returns: list[float], others: list[float], errors: float) -> bool:
    """Whether the mean is higher, by more than so many standard errors of the difference."""
    # No `hypot`: it need not round alike for other units of the rewards
    noise = errors * np.sqrt(_error(returns) ** 2 + _error(others) ** 2)
    return bool(mean(returns) - mean(others) > noise)
