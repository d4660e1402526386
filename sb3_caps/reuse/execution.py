"""What options do from one step to the next: termination, interruption, and the option that follows."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

Execution: TypeAlias = Literal["call-and-return", "interrupting"]


@dataclass(frozen=True)
class OptionExecution:
    """
    How options are executed.

    The rollout, ``predict``, the exact evaluation on a planner's table and the evaluation of tabular learners all
    follow these rules, so that an option means the same everywhere.

    :param mode: ``"call-and-return"``: an option runs until it terminates; ``"interrupting"``: it ends where another
        option has a higher value, and a primitive option after each step
    :param margins: for each source how much higher, in the unit of the values: leaving it has to be worth more than
        the noise of values. Minus infinity for a source that is not to be chosen.
    """

    mode: Execution = "call-and-return"
    margins: tuple[float, ...] = ()

    def ends(self, values: np.ndarray, terminations: np.ndarray, draws: np.ndarray | None = None) -> np.ndarray:
        """
        :param values: Q_O(s, o), of shape (states, options)
        :param terminations: β_o(s), of the same shape
        :param draws: a number from [0, 1) for each state, to end with probability β; None to end where β ≥ 0.5
        :return: whether each option ends in each state, of the same shape
        """
        if self.mode == "interrupting":
            ends = np.ones(values.shape, dtype=bool)
            n_sources = len(self.margins)
            ends[:, :n_sources] = values[:, :n_sources] + self.margins < values.max(axis=1, keepdims=True)
            return ends
        # `draw < β` never holds at β = 0 and always at β = 1
        return terminations >= 0.5 if draws is None else draws[:, None] < terminations

    def greedy_options(self, values: np.ndarray) -> np.ndarray:
        """
        :param values: Q_O(s, o), of shape (states, options)
        :return: the option to choose in each state: that with the highest value, the sources ahead by their margins
            where they could be interrupted
        """
        margins = np.array(self.margins, dtype=values.dtype)
        if self.mode == "call-and-return":
            margins = np.minimum(margins, 0.0)
        ahead = values.copy()
        ahead[:, : len(margins)] += margins
        return ahead.argmax(axis=1)

    @staticmethod
    def among(
        allowed: np.ndarray | None, values: np.ndarray, terminations: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        :param allowed: which options have an action that is allowed, of shape (states, options); None for all
        :param values: Q_O(s, o), of the same shape
        :param terminations: β_o(s), of the same shape
        :return: the same, but an option that is not allowed is never the best one, and ends
        """
        if allowed is None:
            return values, terminations
        return np.where(allowed, values, -np.inf), np.where(allowed, terminations, 1.0)

    @staticmethod
    def next_options(active: np.ndarray, starts: np.ndarray | bool, ends: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """
        :param active: the active option of each environment
        :param starts: which environments start an episode, False for none
        :param ends: whether each option ends in the state of each environment, of shape (environments, options)
        :param chosen: the option to go on with where the active one ends
        :return: the next active options
        """
        return np.where(starts | ends[np.arange(len(active)), active], chosen, active)
