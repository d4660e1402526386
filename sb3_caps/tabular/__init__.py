"""The paper's Algorithms 1 and 2 and every method that it compares with, on tables and batched over runs."""

from sb3_caps.tabular.base import Greedy, Learner, Steps
from sb3_caps.tabular.caps import CAPSConfig, TabularCAPS
from sb3_caps.tabular.ops_tl import OPSTL, OPSTLConfig
from sb3_caps.tabular.option_critic import OptionCritic, OptionCriticConfig
from sb3_caps.tabular.prql import PRQL, PRQLConfig
from sb3_caps.tabular.q_learning import QConfig, QLearning
from sb3_caps.tabular.runner import Experiment

__all__ = [
    "OPSTL",
    "PRQL",
    "CAPSConfig",
    "Experiment",
    "Greedy",
    "Learner",
    "OPSTLConfig",
    "OptionCritic",
    "OptionCriticConfig",
    "PRQLConfig",
    "QConfig",
    "QLearning",
    "Steps",
    "TabularCAPS",
]
