"""Schedules in absolute steps, where SB3's are in the share of a run that remains."""

import itertools
from collections.abc import Sequence

import numpy as np
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import FloatSchedule


class PiecewiseLinear:
    """
    Linear between given points, constant before the first and after the last.

    It is an SB3 schedule (a function of the remaining progress) once it knows how long the run is:
    the algorithms of this package see to it at each ``learn``, for other algorithms pass ``total_timesteps``.

    :param points: pairs of an environment step and the value there, in the order of the steps
    :param total_timesteps: the length of the run
    """

    def __init__(self, points: Sequence[tuple[float, float]], total_timesteps: int | None = None) -> None:
        steps = [step for step, _ in points]
        if not points or any(later <= earlier for earlier, later in itertools.pairwise(steps)):
            raise ValueError(f"A schedule needs points (step, value) in the order of their steps, not {points!r}.")
        if not np.isfinite(np.array(points, dtype=np.float64)).all():
            raise ValueError(f"A schedule needs finite numbers, not {points!r}.")
        self.points = [(float(step), float(value)) for step, value in points]
        self.total_timesteps = total_timesteps

    def __call__(self, progress_remaining: float) -> float:
        if self.total_timesteps is None and progress_remaining != 1.0:
            raise ValueError("A PiecewiseLinear schedule needs total_timesteps outside of learn().")
        return self.at((1.0 - progress_remaining) * (self.total_timesteps or 0))

    def at(self, step: float) -> float:
        """
        :param step: an environment step
        :return: the value there
        """
        steps, values = zip(*self.points, strict=True)
        return float(np.interp(step, steps, values))

    def over(self, total_timesteps: int) -> "PiecewiseLinear":
        """
        :param total_timesteps: the length of a run
        :return: the same schedule for that run
        """
        return PiecewiseLinear(self.points, total_timesteps)

    def __repr__(self) -> str:
        return f"PiecewiseLinear({self.points})"


def schedule_over(value: float | Schedule, total_timesteps: int) -> Schedule:
    """
    :param value: a number or a schedule
    :param total_timesteps: the length of a run
    :return: the schedule for that run
    """
    return value.over(total_timesteps) if isinstance(value, PiecewiseLinear) else FloatSchedule(value)
