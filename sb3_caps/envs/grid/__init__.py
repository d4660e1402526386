"""The grid-navigation world of the paper's Figures 1 to 7."""

import gymnasium as gym

from sb3_caps.envs.grid.batched import BatchedGrid, GridTask
from sb3_caps.envs.grid.env import GridEnv
from sb3_caps.envs.grid.maps import GridMap
from sb3_caps.envs.grid.planner import Plan, TablePolicy, optimal_policy, plan

# name: (map, goal)
PAPER_TASKS = {
    "G1": ("rooms", "G1"),
    "G2": ("rooms", "G2"),
    "G3": ("rooms", "G3"),
    "G4": ("rooms", "G4"),
    "Target": ("rooms", "g"),
    "TargetPrime": ("rooms", "g'"),
    "Changed": ("rooms_changed", "g"),
}

__all__ = [
    "PAPER_TASKS",
    "BatchedGrid",
    "GridEnv",
    "GridMap",
    "GridTask",
    "Plan",
    "TablePolicy",
    "optimal_policy",
    "plan",
    "register_envs",
]


def register_envs() -> None:
    """Register ``sb3_caps/Grid-v0`` and one id for each task of the paper."""
    entry_point = "sb3_caps.envs.grid.env:GridEnv"
    gym.register(id="sb3_caps/Grid-v0", entry_point=entry_point)
    for name, (map_name, goal) in PAPER_TASKS.items():
        gym.register(id=f"sb3_caps/Grid{name}-v0", entry_point=entry_point, kwargs={"map": map_name, "goal": goal})
