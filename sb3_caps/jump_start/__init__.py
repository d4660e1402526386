from sb3_caps.jump_start.continuous import ContinuousJumpStart
from sb3_caps.jump_start.jump_start import JumpStart

__all__ = ["ContinuousJumpStart", "JumpStart"]
