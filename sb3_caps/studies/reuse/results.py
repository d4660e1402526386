"""What the runs of one method on one task came to."""

from dataclasses import dataclass

import numpy as np

from sb3_caps.studies.reuse.runs import get_method
from sb3_caps.studies.reuse.tasks import Task
from sb3_caps.studies.shared.statistics import first_reached

# Of the reference, to count the steps to
SHARE = 0.9


@dataclass(frozen=True)
class Result:
    """
    All seeds of a method on a task with one kind of sources.

    :param task: the task
    :param method: its name
    :param sources: the condition
    :param steps: of the evaluations
    :param curves: of shape (seeds, evaluations), 0 being the return of random actions and 1 the reference
    :param finals: the return at the end of each run, in the unit of the rewards
    :param best_source: that of the best source alone, with its standard error; None where there is nothing to compare
        with
    """

    task: Task
    method: str
    sources: str
    steps: np.ndarray
    curves: np.ndarray
    finals: np.ndarray
    best_source: tuple[float, float] | None

    @property
    def label(self) -> str:
        """What tables and figures call it."""
        label = get_method(self.method).label
        return label if self.sources in ("helpful", "none") else f"{label}, {self.sources}"

    @property
    def areas(self) -> np.ndarray:
        """The mean over the run, for each seed."""
        return self.curves.mean(axis=1)

    @property
    def ends(self) -> np.ndarray:
        """The mean of the last fifth of the run, for each seed."""
        return self.curves[:, -max(self.curves.shape[1] // 5, 1) :].mean(axis=1)

    @property
    def reached(self) -> np.ndarray:
        """The steps to 90% of the reference, for each seed."""
        return first_reached(self.steps, self.curves, SHARE)
