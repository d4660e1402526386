"""How often each observation was seen, and each action taken in it."""

from zlib import crc32

import numpy as np

# Ten thousand observations are told apart but for one in four hundred, whatever they look like
N_COUNTS = 2**22
# Spreads the actions of an observation over all counts, where each pair is then as rarely taken for another one
BETWEEN_ACTIONS = np.uint32(2654435761)


class VisitCounts:
    """
    Counts of observations, which are told apart by a checksum of all their bytes, or of actions in them:
    of use where observations come back.

    A checksum, unlike Python's own hash, is the same in every process, so that a run can be repeated.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(N_COUNTS, dtype=np.int32)

    def places(self, observations: np.ndarray | dict[str, np.ndarray], actions: np.ndarray | None = None) -> np.ndarray:
        """
        :param observations: a batch
        :param actions: for each observation an action or several, of shape (batch, ...); None to tell observations
        :return: where in ``counts`` each is counted: of the shape of the actions, or one for each observation
        """
        parts = list(observations.values()) if isinstance(observations, dict) else [observations]
        checksums = np.zeros(len(parts[0]), dtype=np.uint32)
        for part in parts:
            rows = np.ascontiguousarray(part).reshape(len(part), -1)
            checksums[:] = [crc32(row.data, int(before)) for row, before in zip(rows, checksums, strict=True)]
        if actions is not None:
            others = (1,) * (actions.ndim - 1)
            checksums = checksums.reshape(-1, *others) + actions.astype(np.uint32) * BETWEEN_ACTIONS
        return checksums % N_COUNTS

    def add(self, observations: np.ndarray | dict[str, np.ndarray], actions: np.ndarray | None = None) -> np.ndarray:
        """
        Count a batch.

        :param observations: the batch
        :param actions: the action taken in each observation, None to count observations
        :return: the place of each one's count
        """
        places = self.places(observations, actions)
        np.add.at(self.counts, places, 1)
        return places
