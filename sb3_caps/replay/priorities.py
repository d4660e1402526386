"""How likely each step of a replay buffer is to be drawn."""

import numpy as np

# As in the paper on prioritized replay: between drawing all alike and by the error alone
EXPONENT = 0.6
# No step is never drawn again
SMALLEST_ERROR = 1e-3
# Sums over a whole buffer take longer than a sample
DRAWS_BETWEEN_SUMS = 16


class Priorities:
    """
    Priorities by error (Schaul and others 2016). A new step has the highest one there was.

    :param n_rows: time steps of the buffer
    :param n_envs: number of environments
    """

    def __init__(self, n_rows: int, n_envs: int) -> None:
        self.values = np.zeros((n_rows, n_envs), dtype=np.float32)
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.values[:] = 0.0
        self.highest = 1.0
        # Their sums up to each place, which are as old as a few draws
        self._cumulative, self._draws_left = np.zeros(0), 0

    def add(self, row: int) -> None:
        """
        Give new steps the highest priority.

        :param row: where a step of every environment was stored
        """
        self.values[row] = self.highest

    def draw(self, size: int, n_rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """
        Draw steps by their priorities.

        :param size: how many steps to draw
        :param n_rows: from the first rows, those that are filled
        :param rng: random numbers
        :return: their rows and environments
        """
        n_places = n_rows * self.values.shape[1]
        if self._draws_left == 0 or len(self._cumulative) > n_places:
            self._cumulative, self._draws_left = np.cumsum(self.values.ravel()[:n_places]), DRAWS_BETWEEN_SUMS
        self._draws_left -= 1
        drawn = rng.random(size) * self._cumulative[-1]
        places = np.minimum(np.searchsorted(self._cumulative, drawn), len(self._cumulative) - 1)
        return np.divmod(places, self.values.shape[1])

    def update(self, places: np.ndarray, errors: np.ndarray) -> None:
        """
        Set the priorities of steps by their errors.

        :param places: of steps, as indices of the flattened buffer
        :param errors: how far off the value of each was, in units of the returns
        """
        priorities = (errors + SMALLEST_ERROR) ** EXPONENT
        self.values.ravel()[places] = priorities
        self.highest = max(self.highest, float(priorities.max()))
