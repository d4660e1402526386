"""Discounted returns, which the paper measures and SB3's ``evaluate_policy`` does not."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from stable_baselines3.common.type_aliases import PolicyPredictor
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.sources.masks import with_masks


def play(model: PolicyPredictor, env: VecEnv, deterministic: bool = True) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """
    Act without end, as ``evaluate_policy`` does.

    :param model: the policy; a state that it returns is passed back to it, and action masks that there are
    :param env: the environments to act in, reset first
    :param deterministic: whether to act deterministically
    :return: the rewards of each step, and which environments ended an episode with it
    """
    model = with_masks(model, env)
    observations: Any = env.reset()
    state, starts = None, np.ones(env.num_envs, dtype=bool)
    while True:
        actions, state = model.predict(observations, state=state, episode_start=starts, deterministic=deterministic)
        observations, rewards, starts, _ = env.step(actions)
        yield rewards, starts


def discounted_returns(
    model: PolicyPredictor, env: VecEnv, gamma: float, n_episodes: int = 100, deterministic: bool = True
) -> np.ndarray:
    """
    Act for a number of episodes and sum up discounted rewards.

    :param model: the policy to evaluate; a state that it returns is passed back to it
    :param env: the environments to act in, reset first; each contributes its share of the episodes,
        so that short episodes are not preferred
    :param gamma: the discount factor
    :param n_episodes: number of episodes
    :param deterministic: whether to act deterministically
    :return: the discounted return of each episode
    """
    wanted = (n_episodes + np.arange(env.num_envs)) // env.num_envs
    returns: list[float] = []
    sums, discounts = np.zeros(env.num_envs), np.ones(env.num_envs)
    finished = np.zeros(env.num_envs, dtype=np.int64)
    for rewards, dones in play(model, env, deterministic):
        sums += discounts * rewards
        discounts *= gamma
        counted = dones & (finished < wanted)
        returns.extend(sums[counted].tolist())
        finished[counted] += 1
        sums[dones], discounts[dones] = 0.0, 1.0
        if (finished >= wanted).all():
            break
    return np.array(returns)
