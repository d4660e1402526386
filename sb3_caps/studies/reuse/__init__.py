"""The reuse suite: does reuse pay on a task that is not ours? Tasks with their sources, and methods side by side."""

from sb3_caps.studies.reuse.sources import CONDITIONS, make_sources
from sb3_caps.studies.reuse.tasks import TASKS, Task, get_task, register_task

__all__ = ["CONDITIONS", "TASKS", "Task", "get_task", "make_sources", "register_task"]
