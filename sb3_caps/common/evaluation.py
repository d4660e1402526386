"""Discounted returns, which the paper measures and SB3's ``evaluate_policy`` does not."""

from typing import Any

import numpy as np
from stable_baselines3.common.type_aliases import PolicyPredictor
from stable_baselines3.common.vec_env import VecEnv


def discounted_returns(
    model: PolicyPredictor, env: VecEnv, gamma: float, n_episodes: int = 100, deterministic: bool = True
) -> np.ndarray:
    """
    Act for a number of episodes, as ``evaluate_policy`` does, and sum up discounted rewards.

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
    observations: Any = env.reset()
    state, starts = None, np.ones(env.num_envs, dtype=bool)
    while (finished < wanted).any():
        actions, state = model.predict(observations, state=state, episode_start=starts, deterministic=deterministic)
        observations, rewards, starts, _ = env.step(actions)
        sums += discounts * rewards
        discounts *= gamma
        counted = starts & (finished < wanted)
        returns.extend(sums[counted].tolist())
        finished[counted] += 1
        sums[starts], discounts[starts] = 0.0, 1.0
    return np.array(returns)
