"""What reuse adds, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from sb3_caps.studies.reuse.results import Result
from sb3_caps.studies.reuse.synergy import synergy, synergy_table
from sb3_caps.studies.reuse.tasks import PARTIAL, get_task


def result(method: str, *curves: list[float], task: str = "pole-long") -> Result:
    found = replace(get_task(task), random=0.0, reference=1.0, group=PARTIAL)
    condition = "none" if method in ("dqn-tuned", "caps-none") else "helpful"
    best = (0.5, 0.01) if condition == "helpful" else None
    return Result(found, method, condition, np.arange(2), np.array(curves), np.zeros(len(curves)), best)


def test_synergy_is_what_is_above_the_best_of_all_others_on_each_task() -> None:
    ours = [np.array([0.9, 0.7]), np.array([0.4, 0.4])]
    fine_tuning, dqn = [np.array([0.6]), np.array([-np.inf])], [np.array([0.1]), np.array([0.7, 0.5])]
    # 0.8 - 0.6 where fine-tuning is best, and 0.4 - 0.6 where DQN is; the best sources are worth 0.5 and 0.3
    assert synergy(np.array([0.5, 0.3]))(ours, fine_tuning, dqn) == pytest.approx(0.0)
    assert synergy(np.array([0.9, 0.3]))(ours, fine_tuning, dqn) == pytest.approx((-0.1 - 0.2) / 2)


def test_the_table() -> None:
    found = [
        result("caps", [0.6, 1.0], [0.8, 0.8]),
        result("fine-tune", [0.5, 0.7]),
        result("dqn-tuned", [0.1, 0.9]),
        result("caps-none", [0.0, 0.2]),
        result("dqn", [9.0, 9.0]),
    ]
    table = synergy_table(found, lambda result: result.areas)
    assert table is not None
    row = table.splitlines()[2]
    # The portfolio acts by the source, 0.5, until DQN has 0.9
    assert row == "| `pole-long` | 0.50 | 0.60 | 0.50 | 0.10 | 0.70 | **0.80** | +0.20 (+0.20 to +0.20) |"
    assert synergy_table(found[1:], lambda result: result.areas) is None
    # Without a model there is nothing to go on with
    rules = synergy_table([result("caps", [0.6, 0.6], task="errand-paid")], lambda result: result.ends)
    assert rules is not None
    assert "| `errand-paid` | 0.50 | – | – | – | – | **0.60** | +0.10" in rules
