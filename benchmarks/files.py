"""How long the way of one step is: the files that it passes through, for whoever has to read them."""

import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import stable_baselines3
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm

import sb3_caps
from sb3_caps import CAPS


class Way:
    """
    Follows calls.

    :param package: the files that count are in its folder
    """

    def __init__(self, package: Any) -> None:
        self.root = str(Path(package.__file__).parent)
        self.files: set[str] = set()
        self.calls: set[tuple[str, str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """For ``sys.setprofile``."""
        called = frame.f_code
        if event != "call" or not called.co_filename.startswith(self.root):
            return
        self.files.add(called.co_filename)
        caller = frame.f_back
        # By way of torch or SB3: whoever called those
        while caller is not None and not caller.f_code.co_filename.startswith(self.root):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != called.co_filename:
            self.calls.add((caller.f_code.co_filename, called.co_filename, called.co_qualname))


def measure(model: BaseAlgorithm, package: Any) -> tuple[int, int]:
    """
    :param model: it learns for a while, then for one step and one gradient step
    :param package: whose files count
    :return: number of files, and of functions that one file calls in another
    """
    model.learn(200)
    way = Way(package)
    env = model.get_env()
    assert env is not None
    _, callback = model._setup_learn(10**6, reset_num_timesteps=False)
    sys.setprofile(way)
    try:
        model.collect_rollouts(env, callback, model.train_freq, model.replay_buffer)  # type: ignore[attr-defined]
        model.train(1, 32)  # type: ignore[attr-defined]
    finally:
        sys.setprofile(None)
    return len(way.files), len(way.calls)


def main() -> None:
    """Print those of DQN and of CAPS."""
    warnings.simplefilter("ignore")
    th.set_num_threads(1)
    arguments: dict[str, Any] = {
        "learning_starts": 10,
        "train_freq": 1,
        "seed": 0,
        "buffer_size": 1000,
        "device": "cpu",
    }
    source = DQN("MlpPolicy", "CartPole-v1")
    print(
        "DQN: {} files, {} calls from one to another".format(
            *measure(DQN("MlpPolicy", "CartPole-v1", **arguments), stable_baselines3)
        )
    )
    model = CAPS("MlpPolicy", "CartPole-v1", source_policies=[source], **arguments)
    print("CAPS: {} files, {} calls from one to another".format(*measure(model, sb3_caps)))


if __name__ == "__main__":
    main()
