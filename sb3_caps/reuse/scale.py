"""The size of the returns of a task, so that nothing else has to know it."""

from typing import TypeVar

import numpy as np
import torch as th

Rewards = TypeVar("Rewards", np.ndarray, th.Tensor)


class ReturnScale:
    """
    The largest discounted sum of rewards seen so far, by its absolute value: rewards divided by it make returns of
    about 1, whatever the task pays in. A sum starts with the episode, as in SB3's ``VecNormalize``.

    The largest, because the mean square of sparse rewards tells how often a reward comes, and not how large it is.

    It is known without being used too, for whoever begins to use it later.

    :param gamma: the discount factor
    :param n_envs: number of environments
    """

    # Whether values are in this unit, and not in that of the rewards
    in_use = True

    def __init__(self, gamma: float, n_envs: int) -> None:
        self.gamma = gamma
        self.value = 0.0
        self.sums = np.zeros(n_envs)

    def reset(self, n_envs: int) -> None:
        """
        Begin new episodes in all environments.

        :param n_envs: number of environments
        """
        self.sums = np.zeros(n_envs)

    def use(self, in_use: bool) -> float:
        """
        :param in_use: whether values are to be in this unit from now on
        :return: what those of before are to be multiplied with
        """
        unit = self.value or 1.0
        factor = 1.0 if in_use == self.in_use else 1.0 / unit if in_use else unit
        self.in_use = in_use
        return factor

    def update(self, rewards: np.ndarray, dones: np.ndarray) -> float:
        """
        :param rewards: of one step of all environments
        :param dones: which episodes ended with it
        :return: what values in the old unit are to be multiplied with to be in the new one
        """
        self.sums = self.gamma * self.sums + rewards
        before, self.value = self.value, max(self.value, float(np.abs(self.sums).max()))
        self.sums[dones] = 0.0
        # Before anything was paid all values were 0, in any unit
        return before / self.value if self.in_use and before > 0 else 1.0

    def normalize(self, rewards: Rewards) -> Rewards:
        """
        :param rewards: as the task pays them, an array or a tensor
        :return: the same in the unit of values: as they are as long as nothing was paid, or the scale is not in use
        """
        return rewards / self.value if self.in_use and self.value > 0 else rewards
