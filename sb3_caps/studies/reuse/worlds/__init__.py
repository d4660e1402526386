"""The worlds of the reuse suite that no other package has, or has only in a slow form."""

from sb3_caps.studies.reuse.worlds.batched import BatchedVecEnv, World

__all__ = ["BatchedVecEnv", "World"]
