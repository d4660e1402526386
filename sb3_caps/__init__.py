"""Context-Aware Policy Reuse for Stable-Baselines3."""

import sb3_caps.envs  # noqa: F401 registers the environments
from sb3_caps.caps import CAPS
from sb3_caps.common.schedules import PiecewiseLinear
from sb3_caps.common.source_features import SourceFeatures, VecSourceFeatures
from sb3_caps.common.sources import SourcePolicy, as_source, each
from sb3_caps.jump_start import JumpStart
from sb3_caps.ops_tl import OPSTL
from sb3_caps.prql import PRQL
from sb3_caps.qdagger import QDagger

__version__ = "0.1.0"

__all__ = [
    "CAPS",
    "OPSTL",
    "PRQL",
    "JumpStart",
    "PiecewiseLinear",
    "QDagger",
    "SourceFeatures",
    "SourcePolicy",
    "VecSourceFeatures",
    "as_source",
    "each",
]
