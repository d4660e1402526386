"""
Source policies: ``load`` makes them of anything that acts, ``act`` acts, ``evaluate`` evaluates many networks at once,
``worth`` says what they are worth on a task.
"""

from sb3_caps.sources.act import (
    ObservationNormalizer,
    Observations,
    SourcePolicy,
    SourceState,
    each,
    unwrapped,
)
from sb3_caps.sources.load import IMPORT_STRING, as_source, as_sources
from sb3_caps.sources.masks import with_masks
from sb3_caps.sources.worth import SourceWorth, evaluate_sources

__all__ = [
    "IMPORT_STRING",
    "ObservationNormalizer",
    "Observations",
    "SourcePolicy",
    "SourceState",
    "SourceWorth",
    "as_source",
    "as_sources",
    "each",
    "evaluate_sources",
    "unwrapped",
    "with_masks",
]
