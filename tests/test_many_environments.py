"""A thousand environments: what one of them costs is the same as among ten."""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_caps import CAPS, CUP, IBRL, OPSTL, PRQL, ContinuousCAPS, JumpStart, QDagger
from sb3_caps.caps.gate import RANDOM
from sb3_caps.caps.selection import CAPSSelector, Selection
from sb3_caps.continuous.selection import ContinuousSelector
from sb3_caps.continuous.selection import Selection as ContinuousSelection
from sb3_caps.reuse.episodes import EpisodeResult
from tests.counting import all_calls
from tests.hand_walk import Stroll, go_left, go_right, stroll_left, stroll_right
from tests.test_resume import SMALL, Payments

SELECTORS: list[Any] = [(CAPSSelector, Selection()), (ContinuousSelector, ContinuousSelection())]


def started(n_envs: int, which: tuple[Any, Any]) -> Any:
    """Where all episodes begin at once, as in the first step of a run."""
    selector_class, settings = which
    selector = selector_class(["left", "right"], settings, np.random.default_rng(0))
    selector.begin(10**6)
    for env in range(n_envs):
        selector.select(env)
    return selector


@pytest.mark.parametrize("which", SELECTORS)
def test_a_start_looks_at_no_other_environment(which: tuple[Any, Any]) -> None:
    """A loop in C over all of them is one call, so reads are counted and not calls."""
    selector, n_read = started(300, which), 0

    class Read(dict[int, Any]):
        def values(self) -> Any:
            nonlocal n_read
            n_read += 1
            return super().values()

    selector.under_way = Read(selector.under_way)
    for env in range(5):
        selector.select(env)
    assert n_read == 0


@pytest.mark.parametrize("which", SELECTORS)
def test_the_first_episodes_of_many_environments_cost_no_more_each(which: tuple[Any, Any]) -> None:
    few, many = (all_calls(partial(started, n_envs, which)) / n_envs for n_envs in (50, 1000))
    assert many < 1.5 * few


@pytest.mark.parametrize("which", SELECTORS)
def test_sources_are_surveyed_evenly_over_all_environments(which: tuple[Any, Any]) -> None:
    selector = started(300, which)
    for env in range(0, 300, 2):
        selector.update(EpisodeResult(env, selector.under_way[env], 1.0, 1.0, 1))
        selector.select(env)
    running = list(selector.under_way.values())
    # Those that are over count, and so do those that have just begun
    tries = {each.name: selector.of(each).n + running.count(each) for each in (*selector.sources, RANDOM)}
    assert min(tries.values()) >= 95
    assert max(tries.values()) - min(tries.values()) <= 15
    # Those that a reset of the environments ended do not
    selector.reset()
    # With continuous actions returns that are all alike end it: nothing is in doubt
    selector.surveying = True
    for env in range(6):
        selector.select(env)
    assert len(selector.under_way) == 6
    known = {each.name: selector.of(each).n for each in (*selector.sources, RANDOM)}
    assert [each.name for each in selector.under_way.values()].count(min(known, key=known.__getitem__)) >= 2


@pytest.mark.parametrize("algorithm", [CAPS, PRQL, OPSTL, JumpStart, QDagger, ContinuousCAPS, CUP, IBRL])
def test_a_step_of_many_environments_costs_no_more_each(algorithm: type[Any]) -> None:
    continuous, costs = algorithm in (ContinuousCAPS, CUP, IBRL), []
    sources = [stroll_left, stroll_right] if continuous else [go_left, go_right]
    for n_envs in (20, 400):
        env = DummyVecEnv([lambda: Stroll(horizon=3) if continuous else Payments(3)] * n_envs)
        arguments: dict[str, Any] = {"source_policies": sources, "gradient_steps": 0, "seed": 0}
        model = algorithm("MlpPolicy", env, buffer_size=10_000, train_freq=1, **(copy.deepcopy(SMALL) | arguments))
        costs.append(all_calls(partial(model.learn, 6 * n_envs, log_interval=None)) / n_envs)
    few, many = costs
    assert many < 1.2 * few
