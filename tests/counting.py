"""What something costs, counted and not timed."""

import pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def all_calls(run: Callable[[], Any]) -> int:
    """How many functions are called, of Python and of C, of ours and of others."""
    found = 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def kept_bytes(*kept: Any) -> int:
    """How large something is, with all that it holds."""
    return len(pickle.dumps(kept))
