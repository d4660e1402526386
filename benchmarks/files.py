"""
How long the way of one step is: the files that it passes through, for whoever has to read them, ours and SB3's for
every algorithm: ``python -m benchmarks.files``.
"""

import statistics
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import stable_baselines3
import torch as th
from stable_baselines3 import DQN

import sb3_caps
from sb3_caps import CAPS
from sb3_caps.studies.shared.tables import markdown

OURS, THEIRS = (str(Path(str(package.__file__)).parent) for package in (sb3_caps, stable_baselines3))
# Of which the median counts: a step that ends an episode takes a longer way
N_STEPS = 101
HEADER = ["algorithm", "", "our files", "SB3's files", "calls from file to file", "functions called so"]


class Way:
    """Follows calls from file to file, those by way of torch or Gymnasium as well."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.calls: set[tuple[str, str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """For ``sys.setprofile``."""
        called = frame.f_code
        if event != "call" or not called.co_filename.startswith((OURS, THEIRS)):
            return
        self.files.add(called.co_filename)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith((OURS, THEIRS)):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != called.co_filename:
            self.calls.add((caller.f_code.co_filename, called.co_filename, called.co_qualname))


def measure(do: Callable[[], Any]) -> list[str]:
    """
    :param do: does one step
    :return: numbers of our files, of SB3's, of pairs of files of which one calls the other, and of functions called so
    """
    counts = []
    for _ in range(N_STEPS):
        way = Way()
        sys.setprofile(way)
        try:
            do()
        finally:
            sys.setprofile(None)
        ours = sum(file.startswith(OURS) for file in way.files)
        pairs = {(caller, called) for caller, called, _ in way.calls}
        counts.append((ours, len(way.files) - ours, len(pairs), len(way.calls)))
    return [f"{statistics.median(column)}" for column in zip(*counts, strict=True)]


def rows(model: DQN) -> list[list[str]]:
    """
    :param model: it learns for a while first
    :return: of one environment step and of one gradient step
    """
    model.learn(2000)
    env = model.get_env()
    assert env is not None
    _, callback = model._setup_learn(10**6, reset_num_timesteps=False)
    ways = {
        "step": lambda: model.collect_rollouts(env, callback, model.train_freq, model.replay_buffer),  # type: ignore[arg-type]
        "gradient step": lambda: model.train(1, 32),
    }
    return [[type(model).__name__, name, *measure(do)] for name, do in ways.items()]


def main() -> None:
    """Print those of DQN and of CAPS."""
    warnings.simplefilter("ignore")
    th.set_num_threads(1)
    arguments: dict[str, Any] = {"learning_starts": 100, "train_freq": 1, "seed": 0, "device": "cpu"}
    source = DQN("MlpPolicy", "CartPole-v1", buffer_size=1)
    models = [
        DQN("MlpPolicy", "CartPole-v1", buffer_size=5000, **arguments),
        CAPS("MlpPolicy", "CartPole-v1", buffer_size=5000, source_policies=[source], **arguments),
    ]
    table = [row for model in models for row in rows(model)]
    print(markdown(HEADER, table))


if __name__ == "__main__":
    main()
