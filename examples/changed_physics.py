"""Reuse PPO models on changed physics: a cart that knows its pole gets a longer one, in stronger gravity."""

import argparse
from collections.abc import Sequence

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from sb3_caps import CAPS


def long_pole() -> gym.Env:
    """
    :return: CartPole with a pole of three times the length, in gravity of 15 m/s²
    """
    env = gym.make("CartPole-v1")
    cart = env.unwrapped
    assert isinstance(cart, CartPoleEnv)
    cart.gravity, cart.length = 15.0, 1.5
    cart.polemass_length = cart.masspole * cart.length
    return Monitor(env)


def main(argv: Sequence[str] | None = None) -> CAPS:
    """
    :param argv: the arguments, those of the process by default
    :return: the trained model
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=20_000, help="steps of CAPS on the new physics")
    parser.add_argument("--source-timesteps", type=int, default=10_000, help="steps of each PPO model on the old one")
    parser.add_argument("--episodes", type=int, default=20, help="episodes of each evaluation")
    args = parser.parse_args(argv)

    # Models that you have already: PPO on the original CartPole
    sources = [PPO("MlpPolicy", "CartPole-v1", seed=seed).learn(args.source_timesteps) for seed in (0, 1)]

    model = CAPS("MlpPolicy", long_pole(), source_policies=sources, verbose=1, seed=0)
    model.learn(args.timesteps)

    # The same steps without sources
    dqn = DQN("MlpPolicy", long_pole(), seed=0).learn(args.timesteps)

    names = ("PPO, seed 0", "PPO, seed 1", "DQN", "CAPS")
    for name, policy in zip(names, (*sources, dqn, model), strict=True):
        mean, _ = evaluate_policy(policy, long_pole(), args.episodes)
        print(f"{name}: mean return {mean:.1f}")
    return model


if __name__ == "__main__":
    main()
