from sb3_caps.jump_start.jump_start import JumpStart

__all__ = ["JumpStart"]
