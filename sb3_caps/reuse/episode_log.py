"""Who acted in each episode of training, in a file: ``sb3-caps plot`` draws it."""

import csv
import time
from pathlib import Path
from typing import Any, TextIO

from stable_baselines3.common.callbacks import BaseCallback

EPISODES = "episodes.csv"
# As in the files of SB3's Monitor: the return, the length and the time, here since 1970; then what is ours
COLUMNS = ("r", "l", "t", "is_success", "step", "env", "acted", "is_source")


class EpisodeLog(BaseCallback):
    """
    Writes to ``episodes.csv`` who acted in each episode of training, and its return. The environments need SB3's
    ``Monitor``. Runs of the zoo have one by themselves. It appends to a file that exists.

    :param folder: where to
    :param verbose: Verbosity level: 0 for no output, 1 for info messages
    """

    def __init__(self, folder: str | Path, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.path = Path(folder) / EPISODES
        self._file: TextIO | None = None

    def _init_callback(self) -> None:
        if not hasattr(self.model, "learner"):
            raise ValueError(f"EpisodeLog is for CAPS, not {type(self.model).__name__}.")

    def _on_training_start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self.path.exists()
        self._file = self.path.open("a", newline="")
        self._writer = csv.writer(self._file)
        if is_new:
            self._writer.writerow(COLUMNS)

    def _on_step(self) -> bool:
        assert self._file is not None
        tracker: Any = self.model._tracker  # type: ignore[attr-defined]
        for env, info in enumerate(self.locals["infos"]):
            episode, behaviour = info.get("episode"), tracker.behaviours[env]
            if episode is not None and behaviour is not None:
                success = info.get("is_success", "")
                acted = (behaviour.name, int(behaviour.is_source))
                self._writer.writerow(
                    (episode["r"], episode["l"], round(time.time(), 3), success, self.num_timesteps, env, *acted)
                )
                # A run that is killed keeps what was written
                self._file.flush()
        return True

    def _on_training_end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
