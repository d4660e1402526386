"""Source policies: ``load`` makes them of anything that acts, ``act`` acts, ``evaluate`` evaluates many at once."""

from sb3_caps.sources.act import ObservationNormalizer, Observations, SourcePolicy, SourceState, each
from sb3_caps.sources.load import IMPORT_STRING, as_source

__all__ = [
    "IMPORT_STRING",
    "ObservationNormalizer",
    "Observations",
    "SourcePolicy",
    "SourceState",
    "as_source",
    "each",
]
