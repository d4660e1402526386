"""The worlds of the paper as Gymnasium environments, registered under the namespace ``sb3_caps``."""

from sb3_caps.envs import grid, monster_kong, ple

grid.register_envs()
monster_kong.register_envs()
ple.register_envs()
