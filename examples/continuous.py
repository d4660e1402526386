"""
A robot that has changed: two policies of SAC for a pendulum, and gravity that is a third stronger.

python examples/continuous.py
"""

import argparse

import gymnasium as gym
import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from sb3_caps import ContinuousCAPS

SETTINGS = {"learning_rate": 1e-3, "policy_kwargs": {"net_arch": [64, 64]}, "device": "cpu"}


def pendulum(gravity: float, mass: float = 1.0) -> gym.Env:
    """:return: a pendulum that has to be swung up and held"""
    env = gym.make("Pendulum-v1", g=gravity)
    env.unwrapped.m = mass  # type: ignore[attr-defined]
    return env


def main(arguments: list[str] | None = None) -> ContinuousCAPS:
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=3000)
    parser.add_argument("--source-timesteps", type=int, default=4000)
    parser.add_argument("--episodes", type=int, default=20)
    given = parser.parse_args(arguments)

    # Networks as small as these are faster with one thread
    th.set_num_threads(1)
    known = SAC("MlpPolicy", pendulum(10.0), seed=100, **SETTINGS).learn(given.source_timesteps)  # type: ignore[arg-type]
    light = SAC("MlpPolicy", pendulum(10.0, 0.7), seed=100, **SETTINGS).learn(given.source_timesteps)  # type: ignore[arg-type]
    ours = ContinuousCAPS(
        "MlpPolicy",
        pendulum(13.0),
        source_policies={"known": known, "light": light},
        seed=0,
        **SETTINGS,  # type: ignore[arg-type]
    ).learn(given.timesteps)
    sac = SAC("MlpPolicy", pendulum(13.0), seed=0, **SETTINGS).learn(given.timesteps)  # type: ignore[arg-type]

    print(ours.reuse_summary())
    for name, model in {"known": known, "light": light, "SAC": sac, "ContinuousCAPS": ours}.items():
        mean, error = evaluate_policy(model, Monitor(pendulum(13.0)), given.episodes)
        print(f"{name}: mean return {mean:.0f} ± {error:.0f}")
    return ours


if __name__ == "__main__":
    main()
