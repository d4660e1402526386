"""Everything that touches rl_zoo3: its commands, with our algorithms, configs, source policies and schedules."""

import sb3_caps.envs  # noqa: F401 registers our environments
from sb3_caps.zoo.algorithms import ALGORITHMS, register
from sb3_caps.zoo.configs import find_config, find_source, make_source

__all__ = ["ALGORITHMS", "find_config", "find_source", "make_source", "register"]
