"""The worlds of the paper as Gymnasium environments, registered under the namespace ``sb3_caps``."""

from sb3_caps.envs import monster_kong, ple

monster_kong.register_envs()
ple.register_envs()
