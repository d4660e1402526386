"""IBRL with any number of source policies."""

from sb3_caps.ibrl.ibrl import IBRL

__all__ = ["IBRL"]
