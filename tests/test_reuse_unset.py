"""The tasks of the reuse suite with no argument set: none is, and what is planned is right."""

import inspect
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_caps import CAPS
from sb3_caps.studies.reuse import TASKS, get_task, make_sources
from sb3_caps.studies.reuse.references import Alone, returns_of
from sb3_caps.studies.reuse.runs import build
from sb3_caps.studies.reuse.tasks import UNSET
from sb3_caps.studies.reuse.unset import TORQUES, ToyPlan, along_the_top, as_the_dealer, swing_up

get_task("grid-g")  # registers all tasks
UNPLANNED = [name for name, task in TASKS.items() if task.group == UNSET and task.optimum is None]


@pytest.mark.parametrize(("method", "algorithm"), [("caps", CAPS), ("caps-none", CAPS), ("dqn", DQN)])
def test_no_argument_is_set(method: str, algorithm: type[DQN]) -> None:
    model = build({"task": "lake-slippery", "method": method, "sources": "helpful", "seed": 0}, Path())
    unset = algorithm("MlpPolicy", DummyVecEnv([lambda: model.get_env().envs[0]]))  # type: ignore[union-attr]
    assert type(model) is algorithm
    named = [name for name in inspect.signature(algorithm).parameters if name in vars(unset)]
    assert len(named) > 10
    for name in set(named) - {"policy", "policy_kwargs", "env", "seed", "source_policies"}:
        assert str(getattr(model, name)) == str(getattr(unset, name)), name
    assert model.policy_kwargs["net_arch"] == unset.policy.net_arch


def test_planned_by_hand() -> None:
    """A lake of two cells, start and goal: right is the goal, whatever is done before."""
    plan = ToyPlan("FrozenLake-v1", desc=["SG"], is_slippery=False)
    values = plan.action_values(3, gamma=0.5)
    # Left, down and up stay: the goal is a step later
    assert values[0].tolist() == [0.5, 0.5, 1.0, 0.5]
    assert values[1].tolist() == [0.0] * 4
    assert plan.policy()(np.array([0])).tolist() == [2]
    assert plan.optimum() == 1.0
    # With slips each of three directions is as likely: right comes by down, right and up
    slippery = ToyPlan("FrozenLake-v1", desc=["SG"]).action_values(2, gamma=1.0)
    assert slippery[0] == pytest.approx([1 / 3, 1 / 3 + 2 / 9, 1 / 3 + 2 / 9, 1 / 3 + 2 / 9])


def test_rules_by_hand() -> None:
    # From the start up, along the first row, then down to the goal
    assert along_the_top(np.array([36, 12, 0, 5, 11, 23, 47])).tolist() == [0, 0, 1, 1, 2, 2, 2]
    hands = np.zeros((2, 45), dtype=np.int64)
    hands[0, 16] = hands[1, 17] = 1
    assert as_the_dealer(hands).tolist() == [1, 0]
    hanging, moving, on_top = [-1.0, 0.0, 0.0], [-1.0, 0.0, -1.0], [1.0, 0.1, 0.0]
    torques = TORQUES[swing_up(np.array([hanging, moving, on_top]))]
    # Energy is added along the movement, and on top it is held against the fall
    assert torques.tolist() == [2.0, -2.0, -1.0]
    assert TORQUES[swing_up(np.array([on_top]), sign=-1.0)].tolist() == [1.0]


@pytest.mark.parametrize("name", UNPLANNED)
def test_sources_are_what_they_are_said_to_be(name: str) -> None:
    """Where no planner tells: what counts as 1 is near, and harmful ones are no better than random actions."""
    if name == "freeway-sticky":
        pytest.importorskip("minatar")
    task = get_task(name)
    env = task.make_env(50, 0)
    helpful, harmful = (
        [returns_of(Alone(source), task, env, 100).mean() for source in make_sources(task, condition, Path(), [8])]
        for condition in ("helpful", "harmful")
    )
    low, high = task.scale
    assert max(helpful) > low + 0.5 * (high - low)
    assert max(harmful) < low + 0.1 * (high - low)
