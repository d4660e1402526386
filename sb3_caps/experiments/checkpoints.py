"""Learning that can be killed at any moment and goes on where it was, to the last bit."""

import pickle
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.common.save_util import written_whole

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
        """:return: the checkpoint to go on from, None to start"""
        found = sorted(self.folder.glob(f"{PREFIX}*"), key=lambda path: int(path.name.removeprefix(PREFIX)))
        return found[-1] if found else None

    def save(self, model: OffPolicyAlgorithm, env: VecEnv, notes: Any) -> None:
        """
        Write a checkpoint, then forget the one before.

        :param model: what is learning
        :param env: its environment
        :param notes: anything else to keep
        """
        before = self.newest()
        # A name that does not count until all is there
        partial = self.folder / "partial_checkpoint"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        model.save(partial / "model.zip")
        model.save_replay_buffer(partial / "replay_buffer.pkl")
        state = {
            "random": (random.getstate(), np.random.get_state(), th.get_rng_state()),
            "actions": model.action_space.np_random,
            "env": {name: getattr(env.unwrapped, name) for name in self.env_state},
            "notes": notes,
        }
        (partial / "state.pkl").write_bytes(pickle.dumps(state))
        target = self.folder / f"{PREFIX}{model.num_timesteps}"
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        if before is not None and before != target:
            shutil.rmtree(before)

    def load(self, algorithm: type[OffPolicyAlgorithm], env: VecEnv) -> tuple[OffPolicyAlgorithm, Any] | None:
        """
        Bring back the newest checkpoint.

        :param algorithm: the class of the model
        :param env: an environment like the one it learned in, which is put into the state that it was in
        :return: the model and the notes, None if there is no checkpoint
        """
        newest = self.newest()
        if newest is None:
            return None
        model = algorithm.load(newest / "model.zip", env=env, device="cpu", force_reset=False)
        model.load_replay_buffer(newest / "replay_buffer.pkl")
        state = pickle.loads((newest / "state.pkl").read_bytes())
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
        evaluate: Callable[[OffPolicyAlgorithm], dict[str, float]],
        curve: Path,
        checkpoints: Checkpoints,
        seconds_between: float = 60.0,
        rows: list[dict[str, float]] | None = None,
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
        assert isinstance(self.model, OffPolicyAlgorithm)
        now = time.monotonic()
        row = {"steps": float(self.num_timesteps), "seconds": round(self._spent + now - self._started, 2)}
        self.rows.append({**row, **self.evaluate(self.model)})
        write_rows(self.curve, self.rows)
        if now - self._saved >= self.seconds_between:
            assert self.model.env is not None
            begin = time.monotonic()
            self.checkpoints.save(self.model, self.model.env, self.rows)
            self._saved = time.monotonic()
            self.seconds_between = max(self.seconds_between, TIMES_BETWEEN * (self._saved - begin))


def write_rows(file: Path, rows: list[dict[str, float]]) -> None:
    """
    Write a table as comma-separated values, whole or not at all.

    :param file: where to
    :param rows: numbers by name
    """
    lines = [",".join(rows[0]), *(",".join(f"{value:.10g}" for value in row.values()) for row in rows)]
    with written_whole(file) as opened:
        opened.write("\n".join([*lines, ""]).encode())


def read_rows(file: Path) -> list[dict[str, float]]:
    """
    :param file: what ``write_rows`` wrote
    :return: the rows
    """
    header, *lines = file.read_text().splitlines()
    names = header.split(",")
    return [dict(zip(names, map(float, line.split(",")), strict=True)) for line in lines]
