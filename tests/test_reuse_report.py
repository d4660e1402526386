"""The numbers of the reuse suite's report, by hand."""

import numpy as np
import pytest

from sb3_caps.studies.reuse import get_task
from sb3_caps.studies.reuse.report import ablation_table, by_label, is_below, overall_table, wide_table
from sb3_caps.studies.reuse.results import Result
from sb3_caps.studies.reuse.statistics import (
    interquartile_mean,
    mean_difference,
    mean_score,
    performance_profile,
    probability_of_improvement,
    ratio_of_means,
    stratified_interval,
)


def test_interquartile_mean_by_hand() -> None:
    # The middle half of 1 to 8 is 3, 4, 5, 6
    assert interquartile_mean([np.arange(1.0, 5), np.arange(5.0, 9)]) == pytest.approx(4.5)
    # A task with twice the seeds counts no more: 0 (twice a quarter), then 1 with half of all weight
    assert interquartile_mean([np.array([0.0, 0.0]), np.array([1.0])]) == pytest.approx(0.5)
    # Outliers do not matter
    assert interquartile_mean([np.array([-1e9, 1.0, 1.0, 1e9])]) == pytest.approx(1.0)


def test_probability_of_improvement_by_hand() -> None:
    # First task: 2 > 1, 2 = 2, 3 > 1, 3 > 2 make 3.5 of 4; second task: never
    better, worse = [np.array([2.0, 3.0]), np.array([0.0])], [np.array([1.0, 2.0]), np.array([1.0])]
    assert probability_of_improvement(better, worse) == pytest.approx(3.5 / 4 / 2)


def test_mean_difference_by_hand() -> None:
    # 3 - 1 on the first task, 0 - 1 on the second
    assert mean_difference([np.array([2.0, 4.0]), np.array([0.0])], [np.array([1.0]), np.array([1.0])]) == 0.5


def test_mean_score_by_hand() -> None:
    # Every task counts the same, whatever its seeds
    assert mean_score([np.array([2.0, 4.0]), np.array([0.0])]) == 1.5


def test_ratio_of_means_by_hand() -> None:
    """Means of (1 + 3) / 2 = 2 and 1, in the mean 1.5, and of 2 and 4, in the mean 3."""
    scores, others = [np.array([1.0, 3.0]), np.array([1.0])], [np.array([2.0]), np.array([3.0, 5.0])]
    assert ratio_of_means(scores, others) == 0.5


def test_performance_profile_by_hand() -> None:
    profile = performance_profile([np.array([0.2, 0.6]), np.array([1.0])], np.array([0.0, 0.5, 0.9]))
    assert profile.tolist() == [1.0, 0.75, 0.5]


def test_stratified_interval_draws_seeds_within_tasks() -> None:
    """Tasks whose seeds agree have no interval however much they differ; with two values it spans them."""
    assert stratified_interval(interquartile_mean, [np.full(5, 0.0), np.full(5, 1.0)]) == (0.5, 0.5)
    low, high = stratified_interval(interquartile_mean, [np.array([0.0, 1.0])])
    assert (low, high) == (0.0, 1.0)


def _result(finals: list[float], best: tuple[float, float], curves: list[list[float]], method: str = "caps") -> Result:
    steps = np.arange(1, len(curves[0]) + 1) * 10.0
    return Result(get_task("key-door"), method, "helpful", steps, np.array(curves), np.array(finals), best)


def test_result_by_hand() -> None:
    result = _result([0.5, 0.7], (0.6, 0.0), [[0.0, 0.5, 0.9, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.5]])
    assert result.areas.tolist() == pytest.approx([0.68, 0.1])
    assert result.ends.tolist() == [1.0, 0.5]
    assert result.reached.tolist() == [30.0, np.inf]
    assert not is_below(result)
    assert is_below(_result([0.5, 0.55], (0.6, 0.02), [[0.0], [0.0]]))
    assert not is_below(_result([0.5, 0.55], (0.6, 0.03), [[0.0], [0.0]]))
    table = overall_table({"CAPS": [result]})
    assert "0 of 1" in table
    control = _result([0.5], (0.6, 0.0), [[0.5, 1.0]], "caps-none")
    table = overall_table({"CAPS": [result], "CAPS, no sources": [control]})
    # Areas of 0.68 and 0.1, in the mean 0.39, beside 0.75
    assert "| 0.52 (" in table
    assert wide_table([result, control], lambda each: str(len(each.finals))).splitlines()[2] == "| key-door | 2 | 1 |"
    assert ablation_table(by_label([result])) is None


def test_the_table_of_ablations() -> None:
    whole = _result([1.0], (0.0, 0.0), [[0.5, 1.0]])
    without = _result([1.0], (0.0, 0.0), [[0.0, 0.75]], "no-trials")
    table = ablation_table(by_label([whole, without]))
    assert table is not None
    (row,) = [line for line in table.splitlines() if "safe=False" in line]
    columns = [each.strip() for each in row.strip("|").split("|")]
    assert columns[1:] == ["-0.38 (-0.38 to -0.38)", "-0.25 (-0.25 to -0.25)", "key-door, -0.38"]


def test_means_are_over_tasks_that_all_methods_have() -> None:
    def result(task: str, method: str) -> Result:
        return Result(get_task(task), method, "helpful", np.arange(16), np.zeros((1, 16)), np.zeros(1), None)

    ran = {"dqn": ("grid-g", "key-door"), "prql": ("key-door", "grid-changed")}
    results = [result(task, method) for method, tasks in ran.items() for task in tasks]
    found = {label: [each.task.name for each in group] for label, group in by_label(results).items()}
    assert found == {"DQN": ["key-door"], "PRQL": ["key-door"]}
    assert by_label([results[0], results[2]]) == {}
