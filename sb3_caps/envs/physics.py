"""Gymnasium's classic control with other physics: a new task for policies that were trained on the original."""

from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


class ChangedPhysics(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """
    Change numbers of an environment, such as gravity.

    :param env: any environment that keeps them as attributes, as CartPole, MountainCar and Acrobot do
    :param numbers: new values by the name of the attribute, for instance ``gravity=15.0``
    """

    def __init__(self, env: gym.Env[Any, Any], **numbers: float) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, **numbers)  # type: ignore[arg-type]
        gym.Wrapper.__init__(self, env)
        world = env.unwrapped
        for name, value in numbers.items():
            if not isinstance(getattr(world, name, None), (int, float)):
                known = sorted(key for key in dir(world) if isinstance(getattr(world, key, None), float))
                raise ValueError(f"{type(world).__name__} has no number {name!r}: it has {', '.join(known)}.")
            setattr(world, name, value)
        if isinstance(world, CartPoleEnv):
            # What it computes of the others beforehand
            world.total_mass = world.masspole + world.masscart
            world.polemass_length = world.masspole * world.length
