"""Context-Aware Policy Reuse for Stable-Baselines3."""

import importlib
from typing import TYPE_CHECKING, Any

import sb3_caps.envs  # noqa: F401 registers the environments

if TYPE_CHECKING:
    from sb3_caps.caps import CAPS, PAPER
    from sb3_caps.continuous import ContinuousCAPS
    from sb3_caps.cup import CUP
    from sb3_caps.files.export import export_source
    from sb3_caps.ibrl import IBRL
    from sb3_caps.jump_start import ContinuousJumpStart, JumpStart
    from sb3_caps.library import PolicyLibrary
    from sb3_caps.ops_tl import OPSTL
    from sb3_caps.prql import PRQL
    from sb3_caps.qdagger import QDagger
    from sb3_caps.reuse.schedules import PiecewiseLinear
    from sb3_caps.sources import SourcePolicy, as_source, each, with_masks
    from sb3_caps.sources.features import SourceFeatures, VecSourceFeatures

__version__ = "0.1.0"

__all__ = [
    "CAPS",
    "CUP",
    "IBRL",
    "OPSTL",
    "PAPER",
    "PRQL",
    "ContinuousCAPS",
    "ContinuousJumpStart",
    "JumpStart",
    "PiecewiseLinear",
    "PolicyLibrary",
    "QDagger",
    "SourceFeatures",
    "SourcePolicy",
    "VecSourceFeatures",
    "as_source",
    "each",
    "export_source",
    "with_masks",
]

# Imported when it is first asked for: torch takes seconds, and the help of the command line does without it
_WHERE = {
    "CAPS": "caps",
    "CUP": "cup",
    "IBRL": "ibrl",
    "ContinuousCAPS": "continuous",
    "OPSTL": "ops_tl",
    "PAPER": "caps",
    "PRQL": "prql",
    "ContinuousJumpStart": "jump_start",
    "JumpStart": "jump_start",
    "QDagger": "qdagger",
    "PiecewiseLinear": "reuse.schedules",
    "PolicyLibrary": "library",
    "SourceFeatures": "sources.features",
    "SourcePolicy": "sources",
    "VecSourceFeatures": "sources.features",
    "as_source": "sources",
    "each": "sources",
    "export_source": "files.export",
    "with_masks": "sources.masks",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
