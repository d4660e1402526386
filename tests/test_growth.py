"""Runs of any length: an episode and a step cost at the end what they cost at first, and counts do not wrap."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from sb3_caps.caps.exploration import RandomStretches
from sb3_caps.caps.selection import CAPSSelector, Selection
from sb3_caps.continuous.selection import ContinuousSelector
from sb3_caps.continuous.selection import Selection as ContinuousSelection
from sb3_caps.jump_start.jump_start import JumpStartSelector
from sb3_caps.ops_tl.ops_tl import OPSTLSelector
from sb3_caps.prql.prql import PRQLSelector
from sb3_caps.qdagger.qdagger import QDaggerSelector
from sb3_caps.reuse.episodes import Behaviour, EpisodeTracker
from sb3_caps.reuse.evidence import Evidence
from sb3_caps.reuse.scale import ReturnScale
from sb3_caps.reuse.statistics import OptionUse
from tests.counting import all_calls, kept_bytes
from tests.soak import times

N_EPISODES = times(20_000, 10_000_000)
N_ENVS, N_OPTIONS = 40, 6
NAMES = ["good", "bad"]


def caps(rng: np.random.Generator) -> CAPSSelector:
    # The survey is a share of the run, and something else
    selector = CAPSSelector(NAMES, Selection(survey_share=0.01), rng)
    selector.begin(N_EPISODES)
    return selector


def continuous(rng: np.random.Generator) -> ContinuousSelector:
    selector = ContinuousSelector(NAMES, ContinuousSelection(survey_share=0.01), rng)
    selector.begin(N_EPISODES)
    return selector


GUIDED: dict[str, int] = {"trial_episodes": 5, "average_episodes": 10}
SELECTORS: dict[str, Callable[[np.random.Generator], Any]] = {
    "caps": caps,
    "continuous": continuous,
    "prql": lambda rng: PRQLSelector(NAMES, rng, temperature=0.0, temperature_growth=0.05),
    "ops_tl": lambda rng: OPSTLSelector(NAMES, rng, bandit_exploration=0.1),
    "jump_start": lambda rng: JumpStartSelector(NAMES, rng, curriculum_stages=5, tolerance=0.1, **GUIDED),
    "qdagger": lambda rng: QDaggerSelector(NAMES, rng, teaching=True, **GUIDED),
}


class Run:
    """All that a run keeps of its episodes, without networks: each has one step."""

    def __init__(self, selector: Any, rng: np.random.Generator) -> None:
        self.selector, self.rng = selector, rng
        self.tracker, self.scale = EpisodeTracker(N_ENVS, 0.99, 1000), ReturnScale(0.99, N_ENVS)
        self.use, self.stretches = OptionUse(N_OPTIONS), RandomStretches(N_ENVS)
        self.envs, self.dones = np.arange(N_ENVS), np.ones(N_ENVS, dtype=bool)

    def step(self) -> None:
        for env in self.tracker.waiting:
            self.tracker.start(env, self.selector.select(env))
            self.stretches.start(env)
        options = self.rng.integers(N_OPTIONS, size=N_ENVS)
        self.stretches.choose(self.envs, options, np.arange(2), [self.rng.random((N_ENVS, 2))], self.rng)
        self.use.add_step(options, self.dones, self.rng.random((N_ENVS, N_OPTIONS)) < 0.5)
        good = np.array([behaviour is not None and behaviour.name == "good" for behaviour in self.tracker.behaviours])
        rewards = good + self.rng.random(N_ENVS)
        self.scale.update(rewards, self.dones)
        for result in self.tracker.add(rewards, self.dones):
            self.selector.update(result)
        if isinstance(self.selector, CAPSSelector):
            if self.selector.improved():
                self.selector.keep()
            if not self.selector.actor_rose():
                self.selector.actor_fell()
            self.selector.source_chances()
        elif isinstance(self.selector, ContinuousSelector):
            if self.selector.improved:
                self.selector.keep()
            assert self.selector.disabled <= set(NAMES)
        else:
            self.selector.statistics()
        self.selector.decide()

    def steps(self, n_episodes: int) -> None:
        for _ in range(n_episodes // N_ENVS):
            self.step()

    def size(self) -> int:
        return kept_bytes(self.selector, self.tracker, self.scale, self.use, self.stretches)


@pytest.mark.parametrize("name", SELECTORS)
def test_an_episode_of_one_step_costs_the_same_after_any_number_of_them(name: str) -> None:
    rng = np.random.default_rng(0)
    run = Run(SELECTORS[name](rng), rng)
    run.steps(N_EPISODES // 10)
    first, small = all_calls(lambda: run.steps(800)), run.size()
    run.steps(N_EPISODES - N_EPISODES // 10)
    last, large = all_calls(lambda: run.steps(800)), run.size()
    print(
        f"{name}: {first / 800:.0f} calls an episode and {small} bytes, after {N_EPISODES:,} {last / 800:.0f}, {large}"
    )
    # Which behaviours come changes a little, and numbers have more digits
    assert last < 1.1 * first
    assert large < small + 400
    assert run.use.steps.sum() == N_EPISODES + 2 * 800


@pytest.mark.parametrize("name", SELECTORS)
def test_an_episode_costs_no_more_for_each_source_where_there_are_many(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = []
    for n_sources in (10, 100):
        monkeypatch.setattr(f"{__name__}.NAMES", [f"source_{i}" for i in range(n_sources)])
        rng = np.random.default_rng(0)
        run = Run(SELECTORS[name](rng), rng)
        run.steps(2000)
        costs.append(all_calls(partial(run.steps, 400)) / n_sources)
    few, many = costs
    assert many < 1.2 * few


@pytest.mark.parametrize("gamma", [0.99, 1.0])
def test_an_episode_that_never_ends_keeps_as_little_as_a_turn_of_a_source(gamma: float) -> None:
    """Observations that never come back, in an episode that is cut into stretches as trackers do."""
    rng, limit = np.random.default_rng(0), 1000 if gamma < 1 else 20_000
    stretches = RandomStretches(1)
    largest = 0
    for step in range(times(20_000, 200_000)):
        if step % limit == 0:
            stretches.start(0)
        stretches.choose(np.array([0]), np.array([5]), np.arange(2), [rng.random((1, 4))], rng)
        largest = max(largest, len(stretches.seen[0]))
    assert largest <= limit


def test_counts_do_not_wrap() -> None:
    many = 2**31 - 1
    use = OptionUse(2)
    use.steps[:], use.choices[:], use.agreeing = many, many, many
    use.add_step(np.array([0, 0, 1]), np.ones(3, dtype=bool), np.ones((3, 2), dtype=bool))
    assert use.steps.tolist() == use.choices.tolist() == [2**31 + 1, 2**31]
    assert use.agreeing == 2**31 + 5
    tracker = EpisodeTracker(1, 1.0)
    tracker.start(0, Behaviour("somebody"))
    tracker.lengths[0] = many
    assert not tracker.add(np.ones(1), np.zeros(1, dtype=bool))
    (result,) = tracker.add(np.ones(1), np.ones(1, dtype=bool))
    assert result.length == 2**31 + 1
    known = Evidence()
    known.n, known.mean = 2**53, 1.0
    known.add(3.0)
    assert (known.n, known.mean, known.std) == (2**53 + 1, pytest.approx(1.0), pytest.approx(0.0, abs=1e-6))
    stretches = RandomStretches(1)
    stretches.ages[0] = many
    stretches.choose(np.array([0]), np.array([0]), np.array([0]), [np.zeros((1, 1))], np.random.default_rng(0))
    assert stretches.ages[0] == 2**31
    stretches.start(0)
    assert stretches.mean_length == 2**31
