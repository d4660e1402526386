"""How often each observation was seen."""

from zlib import crc32

import numpy as np

# Ten thousand observations are told apart but for one in four hundred, whatever they look like
N_COUNTS = 2**22


class VisitCounts:
    """
    Counts of observations, which are told apart by a checksum of all their bytes: of use where observations come back.

    A checksum, unlike Python's own hash, is the same in every process, so that a run can be repeated.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(N_COUNTS, dtype=np.int32)

    def add(self, observations: np.ndarray | dict[str, np.ndarray]) -> np.ndarray:
        """
        Count a batch of observations.

        :param observations: the batch
        :return: for each the place of its count
        """
        parts = list(observations.values()) if isinstance(observations, dict) else [observations]
        checksums = np.zeros(len(parts[0]), dtype=np.uint32)
        for part in parts:
            rows = np.ascontiguousarray(part).reshape(len(part), -1)
            checksums[:] = [crc32(row.data, int(before)) for row, before in zip(rows, checksums, strict=True)]
        places = checksums % N_COUNTS
        np.add.at(self.counts, places, 1)
        return places
