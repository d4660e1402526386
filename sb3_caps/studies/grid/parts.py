"""The parts of the grid study: what each runs, and how often."""

from collections.abc import Sequence
from typing import NamedTuple

from sb3_caps.studies.grid.batches import BATCHES
from sb3_caps.studies.grid.designs import SURFACE, TARGETS, THEOREMS, TUNING


class Part(NamedTuple):
    """
    A part of the study.

    :param batches: what it runs
    :param runs: how many runs of each variant
    :param help: a few words
    """

    batches: Sequence[str]
    runs: int
    help: str


PARTS = {
    "figures": Part(list(BATCHES), 10, "the paper's Figures 1 to 7"),
    "surface": Part(list(SURFACE), 30, "every method at five rewards and three schedules of ε"),
    "tuning": Part(list(TUNING), 30, "settings chosen on the source tasks, as many for every method"),
    "targets": Part(list(TARGETS), 10, "thirty random targets on both maps"),
    "theorems": Part(list(THEOREMS), 10, "Theorems 1 and 2 on long runs"),
}
