"""Trying many sources at first: those that do worse are left out early."""

from collections.abc import Sequence

import numpy as np

from sb3_caps.reuse.evidence import Evidence

# No fewer than so many sources are compared by as many episodes as are wanted
ALL_COMPARED = 8


def next_to_try(evidence: Sequence[Evidence], running: Sequence[int], wanted: int) -> int | None:
    """
    Choose what to try next, by successive halving (Karnin and others 2013): all are tried once, and after each round
    the better half of those that are left is tried once more. Fifty sources take 88 episodes and not 150, three times
    each. What is left out here is not given up: trials go on later.

    :param evidence: what is known of each source, and at last of random actions, which are always compared
    :param running: in how many episodes under way each of them acts
    :param wanted: how often those that are left to the end are tried
    :return: the number of one that was tried least of those that are left, None where all were tried enough
    """
    tries = np.array([each.n for each in evidence]) + np.array(running)
    # Of what is under way nothing is known yet
    means = np.array([each.mean if each.n else np.inf for each in evidence])
    left = np.arange(len(evidence) - 1)
    for n_tries in range(1, wanted + 1):
        compared = np.append(left, len(evidence) - 1)
        if tries[compared].min() < n_tries:
            return int(compared[tries[compared].argmin()])
        if len(left) > ALL_COMPARED:
            better = np.argsort(-means[left], kind="stable")[: max(ALL_COMPARED, (len(left) + 1) // 2)]
            left = np.sort(left[better])
    return None
