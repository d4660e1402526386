"""What the options did since the last log."""

import numpy as np
from stable_baselines3.common.logger import Logger

# The table on the screen cuts keys off and refuses two that end up alike; option names may be long.
NOT_ON_SCREEN = ("stdout", "log")


class OptionStatistics:
    """
    Counts over the steps of all environments between two logs.

    :param n_options: number of options
    """

    def __init__(self, n_options: int) -> None:
        self.steps = np.zeros(n_options, dtype=np.int64)
        self.termination = np.zeros(n_options)
        self.choices = 0
        self.agreeing = 0
        self.termination_loss = 0.0
        self.termination_steps = 0

    def add_step(self, options: np.ndarray, chosen: int, agreements: np.ndarray, terminations: np.ndarray) -> None:
        """
        Count one step of all environments.

        :param options: the active option of each environment
        :param chosen: how many of them were chosen in this step
        :param agreements: of shape (environments, options), which options agree with the action taken
        :param terminations: of shape (environments, options), β in the state acted on
        """
        self.steps += np.bincount(options, minlength=len(self.steps))
        self.choices += chosen
        self.agreeing += int(np.count_nonzero(agreements))
        self.termination += terminations.sum(axis=0)

    def add_termination_loss(self, loss: float) -> None:
        """
        Count one step of β.

        :param loss: its loss
        """
        self.termination_loss += loss
        self.termination_steps += 1

    def record(self, logger: Logger, names: list[str], n_sources: int) -> None:
        """
        Write the counts to the logger.

        :param logger: where to
        :param names: the names of all options
        :param n_sources: how many of them are source policies
        """
        total = self.steps.sum()
        if total == 0:
            return
        logger.record("options/source_share", self.steps[:n_sources].sum() / total)
        logger.record("options/mean_length", total / max(self.choices, 1))
        logger.record("options/mean_agreement", self.agreeing / total)
        logger.record("options/mean_termination", self.termination.mean() / total)
        if self.termination_steps:
            logger.record("train/termination_loss", self.termination_loss / self.termination_steps)
        for i, name in enumerate(names):
            logger.record(f"per_option/share/{name}", self.steps[i] / total, exclude=NOT_ON_SCREEN)
            logger.record(f"per_option/termination/{name}", self.termination[i] / total, exclude=NOT_ON_SCREEN)
