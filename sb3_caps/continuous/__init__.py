"""CAPS for continuous actions, on SB3's SAC."""

from sb3_caps.continuous.continuous import ContinuousCAPS

__all__ = ["ContinuousCAPS"]
