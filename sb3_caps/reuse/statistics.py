"""How much options were used."""

import numpy as np
from stable_baselines3.common.logger import Logger

# The table on the screen cuts keys off and refuses two that end up alike; option names may be long.
NOT_ON_SCREEN = ("stdout", "log")


class OptionUse:
    """
    Counts over the steps of all environments.

    :param n_options: number of options
    """

    def __init__(self, n_options: int) -> None:
        # Of the whole training
        self.steps, self.choices = np.zeros(n_options, dtype=np.int64), np.zeros(n_options, dtype=np.int64)
        self.agreeing = 0
        self.termination_loss, self.termination_steps = 0.0, 0
        self._logged = (self.steps.copy(), 0, 0)

    def add_step(self, options: np.ndarray, chosen: np.ndarray, agreements: np.ndarray) -> None:
        """
        Count one step of all environments.

        :param options: the option that each environment followed
        :param chosen: where it was not followed in the step before
        :param agreements: of shape (environments, options), which options agree with the action taken
        """
        self.steps += np.bincount(options, minlength=len(self.steps))
        self.choices += np.bincount(options[chosen], minlength=len(self.steps))
        self.agreeing += int(np.count_nonzero(agreements))

    def add_termination_loss(self, loss: float) -> None:
        """
        Count one step of β.

        :param loss: its loss
        """
        self.termination_loss += loss
        self.termination_steps += 1

    def map(self, places: np.ndarray) -> None:
        """
        Count other options from now on.

        :param places: for each option where it was, -1 for one that was not there
        """
        steps, choices, agreeing = self._logged
        gone = np.setdiff1d(np.arange(len(self.steps)), places)
        choices -= int(self.choices[gone].sum())
        self.steps, self.choices, steps = (
            np.where(places < 0, 0, counts[places]) for counts in (self.steps, self.choices, steps)
        )
        self._logged = (steps, choices, agreeing)

    def of(self, options: slice) -> tuple[float, float]:
        """
        :param options: some of the options
        :return: their share of the steps, and for how many steps they were followed at a time
        """
        steps = int(self.steps[options].sum())
        return steps / max(int(self.steps.sum()), 1), steps / max(int(self.choices[options].sum()), 1)

    def record(self, logger: Logger, names: list[str], n_sources: int) -> None:
        """
        Write what was counted since the last call to the logger.

        :param logger: where to
        :param names: the names of all options
        :param n_sources: how many of them are source policies
        """
        steps_before, choices_before, agreeing_before = self._logged
        steps, choices = self.steps - steps_before, int(self.choices.sum()) - choices_before
        total = int(steps.sum())
        if total == 0:
            return
        logger.record("options/source_share", steps[:n_sources].sum() / total)
        logger.record("options/mean_length", total / max(choices, 1))
        logger.record("options/mean_agreement", (self.agreeing - agreeing_before) / total)
        if self.termination_steps:
            logger.record("train/termination_loss", self.termination_loss / self.termination_steps)
        for name, count in zip(names, steps, strict=True):
            logger.record(f"per_option/share/{name}", count / total, exclude=NOT_ON_SCREEN)
        self.termination_loss, self.termination_steps = 0.0, 0
        self._logged = (self.steps.copy(), int(self.choices.sum()), self.agreeing)
