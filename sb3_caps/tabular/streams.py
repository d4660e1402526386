"""Independent random numbers for many runs at once, a function of the run's seed and the step alone."""

from collections.abc import Sequence

import numpy as np

BLOCK = 256
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(numbers: np.ndarray) -> np.ndarray:
    """
    The output function of SplitMix64 (Steele, Lea and Flood, 2014).

    :param numbers: unsigned 64-bit integers
    :return: the same number of well-mixed ones
    """
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


class Streams:
    """
    Uniform draws from [0, 1) for runs that step together.

    What a run draws depends only on its seed and not on the other runs, so a batch of runs equals the single runs.

    :param seeds: one for each run
    :param columns: how many draws a run gets for each step
    """

    def __init__(self, seeds: Sequence[int], columns: int) -> None:
        self.columns = columns
        self.starts = mix(mix(np.array(seeds, dtype=np.uint64) + _GOLDEN))
        #: the number of the next step
        self.step = 0
        self._block: np.ndarray = np.zeros((0, len(seeds), columns))

    def next(self) -> np.ndarray:
        """Return the draws of the next step, of shape (runs, columns)."""
        index = self.step % BLOCK
        if index == 0:
            self._fill()
        self.step += 1
        return self._block[index]

    def skip(self, steps: int) -> None:
        """
        Go on as if that many steps had been drawn.

        :param steps: how many
        """
        self.step += steps
        if self.step % BLOCK:
            self._fill()

    def keep(self, runs: np.ndarray) -> None:
        """
        Drop all other runs.

        :param runs: the indices of the runs to keep
        """
        self.starts = self.starts[runs]
        self._block = self._block[:, runs]

    def _fill(self) -> None:
        first = self.step - self.step % BLOCK
        counters = np.arange(first * self.columns, (first + BLOCK) * self.columns, dtype=np.uint64)
        steps = (counters * _GOLDEN).reshape(BLOCK, 1, self.columns)
        self._block = (mix(steps + self.starts[:, None]) >> np.uint64(11)) * 2.0**-53
