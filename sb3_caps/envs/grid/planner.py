"""
The optimum of a grid task.

The agent sees its cell, not its position, so the task is partially observed, and "the optimum" needs care. On the model
of ``model.py``,

- a policy of the cell is evaluated exactly over a whole horizon, whatever positions it leads to inside the cells;
- the best such policy is searched for: first the action that is best on average over the cell for an agent that sees
  its position, then changes of the cells with most to gain, judged by the positions at which the policy arrives
  there, for as long as the exact value rises. This has no guarantee, since the best policy under partial observation
  is hard to find, so
- the optimum of an agent that sees its position and the time left bounds what any policy could gain.

``Plan.value`` is the value of that policy, ``Plan.upper_bound`` the bound; on the paper's tasks they are 1 to 2% apart.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sb3_caps.envs.grid.dynamics import HORIZON, NOISE
from sb3_caps.envs.grid.maps import Goal, GridMap
from sb3_caps.envs.grid.model import GAMMA, N_ACTIONS, RESOLUTION, Evaluator, GridModel

MAX_ROUNDS = 20


@dataclass(frozen=True)
class Plan:
    """
    The best policy found for a task, and what it is worth.

    :param policy: the action in each cell (0 in walls and in the goal)
    :param values: the expected discounted return from each cell, the position being uniform inside it
    :param action_values: the same for each first action, of shape (cells, actions)
    :param value: the expected discounted return from the start of an episode
    :param upper_bound: the same for an agent that sees its position: no policy can have more
    """

    policy: np.ndarray
    values: np.ndarray
    action_values: np.ndarray
    value: float
    upper_bound: float


class TablePolicy:
    """
    A source policy from a table; it can be pickled.

    :param actions: the action in each cell
    """

    def __init__(self, actions: np.ndarray) -> None:
        self.actions = np.asarray(actions)

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """
        :param observations: cells, of any shape
        :return: the action in each
        """
        return self.actions[np.asarray(observations)]


@lru_cache(maxsize=8)
def _model(grid_map: GridMap, noise: float, resolution: int) -> GridModel:
    return GridModel(grid_map, noise, resolution)


@lru_cache(maxsize=2)
def _built_in(name: str) -> GridMap:
    """The same object each time, so that what is cached for it is found again."""
    return GridMap.load(name)


def evaluator(
    grid_map: GridMap | str,
    goal: Goal,
    gamma: float = GAMMA,
    horizon: int = HORIZON,
    noise: float = NOISE,
    resolution: int = RESOLUTION,
) -> Evaluator:
    """
    Make what evaluates policies of a task.

    :param grid_map: a map or the name of a built-in one
    :param goal: the name of a goal, a cell number, or (row, column)
    :param gamma: the discount factor
    :param horizon: the number of steps in an episode
    :param noise: the largest deviation of a move in each coordinate
    :param resolution: each cell is cut into this many parts in each direction
    :return: what evaluates policies on this task
    """
    grid_map = _built_in(grid_map) if isinstance(grid_map, str) else grid_map
    return Evaluator(_model(grid_map, noise, resolution), grid_map.goal_cell(goal), gamma, horizon)


def plan(
    grid_map: GridMap | str,
    goal: Goal,
    gamma: float = GAMMA,
    horizon: int = HORIZON,
    noise: float = NOISE,
    resolution: int = RESOLUTION,
) -> Plan:
    """
    Find the best policy of the cell for a task.

    :param grid_map: a map or the name of a built-in one
    :param goal: the name of a goal, a cell number, or (row, column)
    :param gamma: the discount factor
    :param horizon: the number of steps in an episode
    :param noise: the largest deviation of a move in each coordinate
    :param resolution: each cell is cut into this many parts in each direction
    :return: the policy and its value
    """
    task = evaluator(grid_map, goal, gamma, horizon, noise, resolution)
    seeing = task.optimal_values()
    policy = _by_cell(task, task.q_values(seeing), np.ones(len(seeing))).argmax(axis=0)
    values = task.policy_values(policy)
    for _ in range(MAX_ROUNDS):
        better = _improve(task, policy, values)
        if better is None:
            break
        policy, values = better
    action_values = _by_cell(task, task.q_values(values), np.ones(len(values))).T / task.model.parts_per_cell
    action_values[task.goal] = 0.0
    return Plan(
        policy=np.where(task.model.map.walls.ravel() | (np.arange(len(policy)) == task.goal), 0, policy),
        values=action_values[np.arange(len(policy)), policy],
        action_values=action_values,
        value=float(task.start @ values),
        upper_bound=float(task.start @ seeing),
    )


def optimal_policy(grid_map: GridMap | str, goal: Goal, gamma: float = GAMMA) -> TablePolicy:
    """
    Make the planner's policy for a task.

    :param grid_map: a map or the name of a built-in one
    :param goal: the name of a goal, a cell number, or (row, column)
    :param gamma: the discount factor
    :return: the planner's policy, which takes an array of observations and returns an array of actions
    """
    return TablePolicy(plan(grid_map, goal, gamma).policy)


def _by_cell(task: Evaluator, action_values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted sum over the parts of each cell, of shape (actions, cells)."""
    return (action_values * weights).reshape(N_ACTIONS, -1, task.model.parts_per_cell).sum(axis=2)


def _improve(task: Evaluator, policy: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Change as many cells at once as improve the policy: those with most to gain, fewer and fewer of them."""
    by_cell = _by_cell(task, task.q_values(values), task.occupancy(policy))
    gain = by_cell.max(axis=0) - by_cell[policy, np.arange(len(policy))]
    order = np.argsort(-gain, kind="stable")
    count = int((gain > 1e-9).sum())
    while count:
        candidate = policy.copy()
        candidate[order[:count]] = by_cell.argmax(axis=0)[order[:count]]
        candidate_values = task.policy_values(candidate)
        if task.start @ candidate_values > task.start @ values + 1e-9:
            return candidate, candidate_values
        count //= 2
    return None
