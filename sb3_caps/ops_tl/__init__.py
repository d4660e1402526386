from sb3_caps.ops_tl.ops_tl import OPSTL

__all__ = ["OPSTL"]
