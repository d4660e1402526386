"""How often the tests try that try at random: a few times, or with ``make soak`` very often."""

import os

# 1 for all of it
SHARE = float(os.environ.get("SB3_CAPS_SOAK", "0"))


def times(usual: int, soak: int) -> int:
    """
    :param usual: how often with ``make test``
    :param soak: how often with ``make soak``
    :return: how often now
    """
    return max(usual, round(SHARE * soak))
