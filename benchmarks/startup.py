"""How long the package takes to import, beside SB3's DQN."""

import statistics
import subprocess
import sys

from benchmarks.report import Result

CODE = "import time; begin = time.process_time(); {}; print(time.process_time() - begin)"


def measure(full: bool) -> list[Result]:
    """
    :param full: measure more often
    :return: the seconds to import either in a fresh interpreter
    """
    times: dict[str, list[float]] = {"import sb3_caps": [], "from stable_baselines3 import DQN": []}
    for _ in range(15 if full else 7):
        for statement, taken in times.items():
            command = [sys.executable, "-c", CODE.format(statement)]
            taken.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    ours, theirs = (statistics.median(taken) for taken in times.values())
    return [Result("Import, beside DQN's", ours, theirs, "s", theirs / ours)]
