"""CUP, critic-guided policy reuse."""

from sb3_caps.cup.cup import CUP

__all__ = ["CUP"]
