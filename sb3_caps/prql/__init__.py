from sb3_caps.prql.prql import PRQL

__all__ = ["PRQL"]
