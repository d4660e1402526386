"""Learning that can be killed at any moment and goes on where it was, to the last bit."""

import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.files.save_util import (
    atomic_write,
    partial_path,
    read_pickle,
    remove_leftovers,
    sync_folder,
    write_pickle,
)
from sb3_caps.studies.shared.runs import Row, set_aside, write_rows

PREFIX = "checkpoint_"
# How many times as long as a checkpoint took a run goes on before the next: replay buffers of images are large
TIMES_BETWEEN = 20


class Checkpoints:
    """
    The checkpoints of one run. There is at most one that counts: the newest that was written whole.

    :param folder: the folder of the run
    :param env_state: names of the attributes of the environment that make up its state
    """

    def __init__(self, folder: Path, env_state: tuple[str, ...]) -> None:
        self.folder, self.env_state = folder, env_state

    def newest(self) -> Path | None:
        """Return the checkpoint to go on from, None to start."""
        return max(self._all(), key=lambda path: int(_steps(path)), default=None)

    def _all(self) -> list[Path]:
        """:return: all that were written whole: a process that was killed may have left older ones"""
        return [path for path in self.folder.glob(f"{PREFIX}*") if _steps(path).isdigit()]

    def save(self, model: OffPolicyAlgorithm, env: VecEnv, notes: Any) -> None:
        """
        Write a checkpoint, then forget those before.

        :param model: what is learning
        :param env: its environment
        :param notes: anything else to keep
        """
        target = self.folder / f"{PREFIX}{model.num_timesteps}"
        # A name that does not count until all is there
        partial = partial_path(target)
        partial.mkdir(parents=True)
        remove_leftovers(self.folder)
        state = {
            "random": (random.getstate(), np.random.get_state(), th.get_rng_state()),
            "actions": model.action_space.np_random,
            "env": {name: getattr(env.unwrapped, name) for name in self.env_state},
            "notes": notes,
        }
        with atomic_write(partial / "model.zip") as file:
            model.save(file)
        with atomic_write(partial / "replay_buffer.pkl") as file:
            model.save_replay_buffer(file)
        write_pickle(partial / "state.pkl", state)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        sync_folder(self.folder)
        for before in self._all():
            if before != target:
                shutil.rmtree(before)

    def load(self, algorithm: type[OffPolicyAlgorithm], env: VecEnv) -> tuple[OffPolicyAlgorithm, Any] | None:
        """
        Bring back the newest checkpoint; one that cannot be read is set aside.

        :param algorithm: the class of the model
        :param env: an environment like the one it learned in, which is put into the state that it was in
        :return: the model and the notes, None if there is no checkpoint
        """
        newest = self.newest()
        if newest is None:
            return None
        try:
            model = algorithm.load(newest / "model.zip", env=env, device="cpu", force_reset=False)
            model.load_replay_buffer(newest / "replay_buffer.pkl")
            state = read_pickle(newest / "state.pkl")
        except Exception as error:  # there is nothing that a pickle with other bits in it may not raise
            kept = set_aside(newest)
            print(f"{newest} is damaged ({error}): kept as {kept.name}, the run starts again.", file=sys.stderr)
            return None
        for name, value in state["env"].items():
            setattr(env.unwrapped, name, value)
        # After everything that draws random numbers itself
        python_state, numpy_state, torch_state = state["random"]
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        th.set_rng_state(torch_state)
        model.action_space._np_random = state["actions"]
        return model, state["notes"]

    def clear(self) -> None:
        """Remove what is of no use to a finished run: replay buffers are large."""
        for path in self.folder.glob("*checkpoint*"):
            shutil.rmtree(path)


class EpochCallback(BaseCallback):
    """
    Evaluate after each epoch, write the curve, and save a checkpoint now and then.

    :param epoch: number of environment steps
    :param evaluate: what to know about the model, a row of numbers by name
    :param curve: the file to write the rows to
    :param checkpoints: where to save
    :param seconds_between: how long to wait before the next checkpoint, at least: one that takes long comes less often
    :param rows: the rows so far
    """

    def __init__(
        self,
        epoch: int,
        evaluate: Callable[[BaseAlgorithm], Row],
        curve: Path,
        checkpoints: Checkpoints,
        seconds_between: float = 60.0,
        rows: list[Row] | None = None,
    ) -> None:
        super().__init__()
        self.epoch, self.evaluate, self.curve = epoch, evaluate, curve
        self.checkpoints, self.seconds_between = checkpoints, seconds_between
        self.rows = list(rows or [])
        self._spent = self.rows[-1]["seconds"] if self.rows else 0.0
        self._started = self._saved = time.monotonic()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        # Between rollouts nothing is half done: after a step, its transition has been stored and learned from
        self.maybe_evaluate()

    def maybe_evaluate(self) -> None:
        """Evaluate if an epoch is over that was not evaluated yet."""
        done = int(self.rows[-1]["steps"]) // self.epoch if self.rows else 0
        if self.num_timesteps // self.epoch <= done:
            return
        now = time.monotonic()
        row = {"steps": float(self.num_timesteps), "seconds": round(self._spent + now - self._started, 2)}
        self.rows.append({**row, **self.evaluate(self.model)})
        write_rows(self.curve, self.rows)
        if now - self._saved >= self.seconds_between:
            assert isinstance(self.model, OffPolicyAlgorithm)
            assert self.model.env is not None
            begin = time.monotonic()
            self.checkpoints.save(self.model, self.model.env, self.rows)
            self._saved = time.monotonic()
            self.seconds_between = max(self.seconds_between, TIMES_BETWEEN * (self._saved - begin))


def _steps(checkpoint: Path) -> str:
    return checkpoint.name.removeprefix(PREFIX)
