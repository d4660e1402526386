"""Numbers of the grid study: learning curves, tables and what was learned compared with the planner's solution."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from sb3_caps.envs.grid.planner import evaluator
from sb3_caps.studies.grid.batches import SOURCE_TASKS, optimum, task
from sb3_caps.studies.grid.designs import ALL
from sb3_caps.studies.grid.results import Results
from sb3_caps.studies.shared.statistics import Interval, first_reached, median_reached, running_mean

WINDOW = 100
# An action is optimal when its value is within 1% of the best one: with ties all over a corridor, less is noise.
TOLERANCE = 0.01


def episodes_to(returns: np.ndarray, level: float) -> np.ndarray:
    """
    Count the episodes until a return is reached.

    :param returns: the return of each episode, of shape (runs, episodes)
    :param level: a return
    :return: for each run, after how many episodes the mean of the last ``WINDOW`` was first at that level; infinite if
        it never was
    """
    means = running_mean(returns, WINDOW)
    episodes = np.arange(returns.shape[1] - means.shape[1], returns.shape[1]) + 1
    return first_reached(episodes, means, level)


class Study:
    """
    Finished results by variant and task.

    :param results: where they are
    :param batches: the batches to look in
    """

    def __init__(self, results: Results, batches: Sequence[str]) -> None:
        self.results, self.batches = results, batches
        self._loaded: dict[str, dict[str, np.ndarray]] = {}

    @cached_property
    def _rows(self) -> dict[tuple[str, str], tuple[str, list[int]]]:
        rows: dict[tuple[str, str], tuple[str, list[int]]] = {}
        for batch in self.batches:
            for row, trial in enumerate(ALL[batch].trials(self.results.n_runs)):
                key = (batch, trial.task) if trial.variant == "source" else (trial.variant, trial.task)
                rows.setdefault(key, (batch, []))[1].append(row)
        return rows

    def array(self, variant: str, task_name: str, name: str) -> np.ndarray:
        """
        Get an array of the results of a variant on a task.

        :param variant: a method or ablation; for source tasks the name of their batch
        :param task_name: the task
        :param name: an array of the result
        :return: its rows for this variant and task, one for each seed (for snapshots the runs are the second axis)
        """
        batch, rows = self._rows[variant, task_name]
        if batch not in self._loaded:
            self._loaded[batch] = self.results.load(batch)
        array = self._loaded[batch][name]
        return array[:, rows] if name.startswith("snapshot") else array[rows]

    def has(self, variant: str, task_name: str) -> bool:
        """
        Tell whether a variant has finished a task.

        :param variant: a method or ablation
        :param task_name: the task
        :return: whether it is finished
        """
        return self.results.is_finished(self._rows[variant, task_name][0])

    def average_from_start(self, variant: str, task_name: str) -> np.ndarray:
        """
        Compute the paper's curves.

        :param variant: a method or ablation
        :param task_name: the task
        :return: the paper's curves: the mean return of all episodes so far, of shape (runs, episodes)
        """
        returns = self.array(variant, task_name, "returns").astype(float)
        return returns.cumsum(axis=1) / np.arange(1, returns.shape[1] + 1)

    def moving_average(self, variant: str, task_name: str) -> np.ndarray:
        """
        Compute curves of the latest episodes.

        :param variant: a method or ablation
        :param task_name: the task
        :return: the mean return of the last ``WINDOW`` episodes, of shape (runs, episodes)
        """
        return running_mean(self.array(variant, task_name, "returns"), WINDOW)

    def area(self, variant: str, task_name: str) -> np.ndarray:
        """
        Compute the area under the curve.

        :param variant: a method or ablation
        :param task_name: the task
        :return: the mean return of all episodes as a share of the optimum, for each run: the area under the curve
        """
        return self.array(variant, task_name, "returns").mean(axis=1, dtype=float) / optimum(task_name).value

    def last_tenth(self, variant: str, task_name: str) -> np.ndarray:
        """
        Compute the mean return at the end of the runs.

        :param variant: a method or ablation
        :param task_name: the task
        :return: the mean return of the last tenth of the episodes as a share of the optimum, for each run
        """
        returns = self.array(variant, task_name, "returns")
        return returns[:, -max(1, returns.shape[1] // 10) :].mean(axis=1, dtype=float) / optimum(task_name).value

    def final(self, variant: str, task_name: str) -> np.ndarray:
        """
        Compute the value of the greedy options.

        :param variant: a method or ablation
        :param task_name: the task
        :return: the value of the greedy options as they are executed, as a share of the optimum, for each run
        """
        return self.array(variant, task_name, "greedy_values") / optimum(task_name).value

    def flat(self, variant: str, task_name: str) -> np.ndarray:
        """
        Compute the value of the greedy options where every option ends after each step.

        :param variant: a method or ablation
        :param task_name: the task
        :return: the same when every option ends after each step, which the planner's model evaluates exactly
        """
        on = evaluator(*task(task_name))
        policies = self.array(variant, task_name, "greedy_actions").astype(int)
        values = [on.start @ on.policy_values(policy) for policy in policies]
        return np.array(values) / optimum(task_name).value

    def row(self, variant: str, task_name: str) -> list[str]:
        """
        Make a row of a table.

        :param variant: a method or ablation
        :param task_name: the task
        :return: its row of a table: name, episodes until 90% of the optimum, area under the curve, final greedy value
        """
        reached = episodes_to(self.array(variant, task_name, "returns"), 0.9 * optimum(task_name).value)
        return [
            variant,
            median_reached(reached),
            str(Interval.of(self.area(variant, task_name))),
            str(Interval.of(self.final(variant, task_name))),
        ]

    def consistency(self, variant: str, task_name: str) -> tuple[np.ndarray, np.ndarray]:
        """
        How often the greedy option's action is optimal.

        :param variant: a method or ablation
        :param task_name: the task
        :return: for each run, the share of states in which it is, and the same weighted by how often the planner's
            policy visits them
        """
        actions = self.array(variant, task_name, "greedy_actions")
        on, visits = task(task_name), visits_of_plan(task_name)
        cells = on.map.start_cells(on.map.goal_cell(on.goal))
        right = optimal_actions(task_name)[cells, actions[:, cells]]
        return right.mean(axis=1), right @ (visits[cells] / visits[cells].sum())


def optimal_actions(task_name: str) -> np.ndarray:
    """
    Find the optimal actions of a task.

    :param task_name: the task
    :return: whether each action is optimal in each cell, within ``TOLERANCE``
    """
    values = optimum(task_name).action_values
    return values >= (1.0 - TOLERANCE) * values.max(axis=1, keepdims=True)


def visits_of_plan(task_name: str) -> np.ndarray:
    """
    Compute how often the planner's policy visits each cell.

    :param task_name: the task
    :return: the expected discounted number of visits of the planner's policy to each cell
    """
    on = evaluator(*task(task_name))
    occupancy = on.occupancy(optimum(task_name).policy)
    return np.bincount(on.model.cell_of_part, occupancy, minlength=on.model.map.n_cells)


def source_agreement(task_name: str) -> np.ndarray:
    """
    Find the cells in which the actions of sources are optimal.

    :param task_name: the task
    :return: for each planned source and each cell, whether its action is optimal for the task
    """
    right = optimal_actions(task_name)
    return np.stack([right[np.arange(len(right)), optimum(name).policy] for name in SOURCE_TASKS])
