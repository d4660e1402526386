"""Successive halving: of many sources, those that do worse are left out early."""

from collections import Counter

import numpy as np
import pytest

from sb3_caps.caps.gate import RANDOM
from sb3_caps.caps.selection import CAPSSelector, Selection
from sb3_caps.reuse.episodes import Behaviour, EpisodeResult
from sb3_caps.reuse.evidence import Evidence
from sb3_caps.reuse.survey import next_to_try


def surveyed(n_sources: int, returns: list[float]) -> Counter[int]:
    """How often each is tried, the last one being random actions."""
    evidence = [Evidence() for _ in range(n_sources + 1)]
    tries: Counter[int] = Counter()
    while (chosen := next_to_try(evidence, [0] * len(evidence), wanted=3)) is not None:
        evidence[chosen].add(returns[chosen])
        tries[chosen] += 1
    return tries


@pytest.mark.parametrize("n_sources", [0, 1, 8])
def test_few_sources_are_tried_alike(n_sources: int) -> None:
    assert surveyed(n_sources, [float(i) for i in range(n_sources + 1)]) == dict.fromkeys(range(n_sources + 1), 3)


def test_of_fifty_the_useful_ones_stay() -> None:
    useful = [7, 23, 49]
    returns = [1.0 if i in useful else 0.0 for i in range(50)] + [0.0]
    tries = surveyed(50, returns)
    assert all(tries[i] == 3 for i in [*useful, 50])
    assert sum(tries[i] for i in range(50)) == 50 + 25 + 13
    assert min(tries.values()) == 1


def test_episodes_under_way_count_and_nothing_is_known_of_them() -> None:
    evidence = [Evidence() for _ in range(3)]
    chosen, running = [], [0, 0, 0]
    for _ in range(9):
        number = next_to_try(evidence, running, wanted=3)
        assert number is not None
        chosen.append(number)
        running[number] += 1
    assert chosen == [0, 1, 2] * 3
    assert next_to_try(evidence, running, wanted=3) is None


def test_the_selector_surveys_so() -> None:
    names = [f"source{i}" for i in range(50)]
    selector = CAPSSelector(names, Selection(survey_share=1.0), np.random.default_rng(0))
    selector.begin(1000)
    counts: Counter[Behaviour] = Counter()
    while selector.surveying:
        behaviour = selector.select(0)
        counts[behaviour] += 1
        worth = 1.0 if behaviour.name in ("source3", "source30") else 0.0
        # The steps that the survey has are over with its last episode
        length = 1 if counts.total() < 50 + 25 + 13 + 3 else 1000
        selector.update(EpisodeResult(0, behaviour, worth, worth, length))
    assert counts.total() == 50 + 25 + 13 + 3
    assert counts[RANDOM] == 3
    assert counts[Behaviour("source3", True)] == counts[Behaviour("source30", True)] == 3
