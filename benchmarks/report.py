"""How measurements are taken and told."""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import stable_baselines3 as sb3
import torch as th

CPUINFO, MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")


class Result(NamedTuple):
    """
    One line of the table.

    :param name: what was measured
    :param ours: this package's figure
    :param theirs: what it is compared with
    :param unit: of both
    :param ratio: how much better ours is
    """

    name: str
    ours: float
    theirs: float
    unit: str
    ratio: float


def clock() -> float:
    """
    Seconds. With one thread, those of this process, which other work on the machine does not count towards.
    """
    return time.process_time() if th.get_num_threads() == 1 else time.perf_counter()


def interleaved(runs: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """
    Time functions in turns, so that whatever else happens on the machine happens to all of them.

    :param runs: the functions
    :param rounds: how often each
    :return: for each its median in seconds
    """
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, taken in zip(runs, times, strict=True):
            begin = clock()
            run()
            taken.append(clock() - begin)
    return [statistics.median(taken) for taken in times]


def table(results: Sequence[Result]) -> str:
    """
    :param results: measurements
    :return: a table in Markdown
    """
    lines = ["| | sb3_caps | compared with | unit | ratio |", "| --- | ---: | ---: | --- | ---: |"]
    for result in results:
        figures = f"{result.ours:,.4g} | {result.theirs:,.4g} | {result.unit} | {result.ratio:.2f}"
        lines.append(f"| {result.name} | {figures} |")
    return "\n".join(lines)


def machine() -> str:
    """:return: what the figures were measured on, in one sentence"""
    model = platform.processor() or platform.machine()
    if CPUINFO.exists():
        names = [line.split(":", 1)[1].strip() for line in CPUINFO.read_text().splitlines() if "model name" in line]
        model = f"{len(names)} cores of {names[0]}" if names else model
    memory = f", {int(MEMINFO.read_text().split()[1]) / 2**20:.0f} GiB" if MEMINFO.exists() else ""
    versions = f"Python {platform.python_version()}, torch {th.__version__}, numpy {np.__version__}"
    threads = th.get_num_threads()
    timing = "processor time of one thread" if threads == 1 else f"wall-clock time of {threads} threads"
    return f"{model}{memory}; {versions}, stable-baselines3 {sb3.__version__}; {timing}, medians of interleaved rounds."
