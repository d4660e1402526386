"""
``import sb3_caps.zoo.plugin`` in a module ``custom_envs``, which rl_zoo3 imports where it finds one: its own commands
(``python -m rl_zoo3.train --algo caps``) then have our algorithms, environments, settings and source policies.
"""

from sb3_caps.extras import require
from sb3_caps.zoo.algorithms import register

register()
exp_manager = require("rl_zoo3.exp_manager", "zoo")
# Commands that only load models import `custom_envs` by way of this module, before it has the class, and need none
if hasattr(exp_manager, "ExperimentManager"):
    from sb3_caps.zoo.manager import PolicyReuseManager

    # Where rl_zoo3's training takes it from, after it has imported `custom_envs`
    exp_manager.ExperimentManager = PolicyReuseManager
