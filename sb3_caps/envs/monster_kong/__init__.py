"""Monster Kong, the platform game of the paper: rules, drawing, planner, and environments for one game or many."""

import gymnasium as gym

from sb3_caps.envs.monster_kong.level import GOALS, SETTINGS

# The paper's targets; each of the other objects of a setting is a source task.
TARGETS = {"MonsterKongG1": ("a", "princess"), "MonsterKongG2": ("b", "gem")}


def task_name(setting: str, goal: str) -> str:
    """
    Name a task as its id does.

    :param setting: ``"a"`` or ``"b"``
    :param goal: an object
    :return: the name of a task as in its id, for instance ``"MonsterKongACoin"``
    """
    return f"MonsterKong{setting.upper()}{goal.capitalize()}"


# Name of a task: its setting and goal. A target has a name as a goal of its setting too.
TASKS = {task_name(setting, goal): (setting, goal) for setting in SETTINGS for goal in GOALS} | TARGETS


def register_envs() -> None:
    """Register ``sb3_caps/MonsterKong-v0`` and every task by name; drawing and tables wait until one is made."""
    entry_point = "sb3_caps.envs.monster_kong.env:MonsterKongEnv"
    gym.register("sb3_caps/MonsterKong-v0", entry_point=entry_point)
    for name, (setting, goal) in TASKS.items():
        gym.register(f"sb3_caps/{name}-v0", entry_point=entry_point, kwargs={"setting": setting, "goal": goal})
