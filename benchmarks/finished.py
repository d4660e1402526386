"""
By what should a finished model act? What the run has chosen, and every learner, by the latest networks and by those
that were kept, on tasks of the reuse suite: ``python -m benchmarks.finished --task grid-g key-door --seeds 20 21 22``.
Tasks with trained sources need ``sb3-caps reproduce reuse --train`` before.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch as th

from benchmarks.report import machine
from sb3_caps import CAPS
from sb3_caps.caps.gate import BEST, LEARNERS
from sb3_caps.reuse.evaluation import discounted_returns
from sb3_caps.studies.reuse.runs import build
from sb3_caps.studies.reuse.tasks import get_task
from sb3_caps.studies.shared.tables import markdown

EPISODES = 500


def measure(name: str, seed: int, trained: Path) -> dict[str, float]:
    """
    :param name: a task of the reuse suite
    :param seed: of the run
    :param trained: the folder of trained sources
    :return: the mean return by what was chosen and by each learner, on the scale of the suite
    """
    task = get_task(name)
    config = {"task": name, "method": "caps", "sources": "helpful", "seed": seed}
    model = build(config, trained).learn(task.steps, log_interval=10**9)
    assert isinstance(model, CAPS)
    env, (low, high) = task.make_env(100, seed), task.scale
    found = {}
    controllers = {"what the run chose": model.gate.controller}
    controllers |= {each.name: each for each in (*LEARNERS, BEST)}
    for label, controller in controllers.items():
        model.gate.controller = controller
        env.seed(seed)
        found[label] = (discounted_returns(model, env, task.discount, EPISODES).mean() - low) / (high - low)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.finished", description=__doc__)
    parser.add_argument("--task", nargs="+", default=["grid-g", "grid-g-prime", "grid-changed", "key-door", "delivery"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[20, 21, 22])
    parser.add_argument("--trained", type=Path, default=Path("results/reuse/sources"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    th.set_num_threads(1)
    print(f"Measured on {machine()}\n")
    rows = []
    for name in args.task:
        found = [measure(name, seed, args.trained) for seed in args.seeds]
        columns = {label: [each[label] for each in found] for label in found[0]}
        rows.append([name, *(f"{np.mean(column):.3f} (lowest {min(column):.3f})" for column in columns.values())])
    print(markdown(["task", *columns], rows))


if __name__ == "__main__":
    main()
