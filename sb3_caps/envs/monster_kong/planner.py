"""The exact optimum of every Monster Kong task, by breadth-first search backwards from the goal."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from sb3_caps.envs.monster_kong.level import Level, Setting, load_level
from sb3_caps.envs.monster_kong.physics import TILE
from sb3_caps.envs.monster_kong.table import StateTable, table_of

UNREACHABLE = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Plan:
    """
    The fewest steps to a goal from every state, and what follows from them.

    :param table: the states of the map
    :param goal: the object to reach
    :param steps: the fewest steps to the goal, 0 at the goal and ``UNREACHABLE`` on spikes
    """

    table: StateTable
    goal: str
    steps: npt.NDArray[np.int32]

    @cached_property
    def optimal(self) -> npt.NDArray[np.bool_]:
        """For each state and action, whether the action lies on a shortest path."""
        after = self.steps[self.table.successors]
        return (after == after.min(axis=1, keepdims=True)) & (after < UNREACHABLE)

    @cached_property
    def actions(self) -> npt.NDArray[np.int64]:
        """An optimal action for each state: of several the first in the order of ``ACTIONS``."""
        return np.argmax(self.optimal, axis=1)

    def values(self, gamma: float = 0.99) -> npt.NDArray[np.float64]:
        """
        Compute the optimal value of each state.

        :param gamma: the discount factor
        :return: the optimal value of each state: the reward of 1 is discounted once for each step but the last
        """
        values = gamma ** (np.minimum(self.steps, 100_000) - 1.0)
        return np.where((self.steps == UNREACHABLE) | (self.steps == 0), 0.0, values)

    @property
    def starts(self) -> npt.NDArray[np.int32]:
        """The states in which an episode may start."""
        return self.table.starts_for(self.goal)

    def optimum(self, gamma: float = 0.99) -> float:
        """
        Compute the value of an optimal policy.

        :param gamma: the discount factor
        :return: the expected discounted return of an optimal policy over the starts
        """
        return float(self.values(gamma)[self.starts].mean())

    def mean_steps(self) -> float:
        """The expected number of steps of an optimal policy over the starts."""
        return float(self.steps[self.starts].mean())


def plan(setting: Setting, goal: str) -> Plan:
    """
    Solve a task.

    :param setting: ``"a"``, ``"b"``, the path of a map or its text
    :param goal: the object to reach
    :return: the solution; an error if some start cannot reach the goal
    """
    return _plan_of(load_level(setting), goal)


@lru_cache(maxsize=16)
def _plan_of(level: Level, goal: str) -> Plan:
    level.check_goal(goal)
    table = table_of(level)
    if not len(table.starts_for(goal)):
        raise ValueError(f"Map {level.name!r} has no start away from its {goal}.")
    solution = Plan(table, goal, steps_to(table, table.reached(goal) & ~table.spiked))
    lost = solution.starts[solution.steps[solution.starts] == UNREACHABLE]
    if len(lost):
        column, row = table.x[lost[0]] // TILE, table.y[lost[0]] // TILE
        raise ValueError(
            f"Map {level.name!r}: the {goal} is out of reach from {len(lost)} of {len(solution.starts)} starts, "
            f"one of them at column {column}, row {row}."
        )
    return solution


def steps_to(table: StateTable, targets: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """
    Find the fewest steps to some states.

    :param table: the states of a map
    :param targets: the states to reach
    :return: for each state the fewest steps to any of the targets
    """
    count, actions = table.successors.shape
    # The predecessors of state s are sources[first[s]:first[s + 1]].
    successors = np.where(table.spiked[:, None], -1, table.successors).ravel()
    order = np.argsort(successors, kind="stable")
    sources = order // actions
    first = np.searchsorted(successors[order], np.arange(count + 1))

    steps = np.full(count, UNREACHABLE, dtype=np.int32)
    frontier, distance = np.flatnonzero(targets), 0
    while len(frontier):
        steps[frontier] = distance
        lengths = first[frontier + 1] - first[frontier]
        # Positions of all predecessors of the frontier, without a loop over it.
        offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        before = sources[np.repeat(first[frontier], lengths) + offsets]
        frontier = np.unique(before[steps[before] == UNREACHABLE])
        distance += 1
    return steps
