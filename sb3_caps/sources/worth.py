"""What source policies are worth on a task, before anything is learned."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_caps.sources.act import Observations, SourcePolicy, SourceState, check_actions, unwrapped
from sb3_caps.sources.load import as_sources
from sb3_caps.sources.masks import action_masks_of, has_action_masks, only_allowed
from sb3_caps.sources.names import unique_names
from sb3_caps.sources.trial import try_source


class SourceWorth(NamedTuple):
    """
    What a source is worth on a task.

    :param name: the name of the source
    :param mean: the mean return of its episodes, not discounted
    :param std: their standard deviation
    :param episodes: how many there were
    """

    name: str
    mean: float
    std: float
    episodes: int


def evaluate_sources(
    source_policies: Iterable[Any] | Mapping[str, Any], env: GymEnv | str, n_eval_episodes: int = 10, seed: int = 0
) -> list[SourceWorth]:
    """
    Let each source act alone, as it does while it is reused.

    :param source_policies: a list of anything that ``as_source`` takes, or a dictionary of them by name
    :param env: the environment, or its id
    :param n_eval_episodes: how many episodes for each source
    :param seed: of the environment, the same for each source, and of what is drawn
    :return: what each source is worth, in the order given
    """
    if not isinstance(n_eval_episodes, int) or n_eval_episodes < 1:
        raise ValueError(f"n_eval_episodes must be a whole number of at least 1, not {n_eval_episodes!r}.")
    sources = as_sources(source_policies)
    made = gym.make(env) if isinstance(env, str) else env
    # Rewards and observations as the task has them, whatever a learner makes of them
    venv = unwrapped(made)[0] if isinstance(made, VecEnv) else DummyVecEnv([lambda: Monitor(made)])
    try:
        return [_worth(source, venv, n_eval_episodes, seed) for source in _named(sources, venv)]
    finally:
        if isinstance(env, str):
            venv.close()


def _named(sources: list[SourcePolicy], env: VecEnv) -> list[SourcePolicy]:
    """:return: the same sources with names of their own, if they fit the environments"""
    if not isinstance(env.action_space, (spaces.Discrete, spaces.Box)):
        raise ValueError(
            f"Source policies choose one of several actions or act in a box, but the environment takes "
            f"{env.action_space}."
        )
    for source, name in zip(sources, unique_names(sources), strict=True):
        source.name = name
        source.check_fits(env.observation_space, env.action_space)
        try_source(source, env.observation_space, env.action_space)
    return sources


def _worth(source: SourcePolicy, env: VecEnv, n_eval_episodes: int, seed: int) -> SourceWorth:
    env.seed(seed)
    player: Any = _Player(source, env, np.random.default_rng(seed))
    returns, _ = evaluate_policy(player, env, n_eval_episodes, return_episode_rewards=True, warn=False)
    return SourceWorth(source.name, float(np.mean(returns)), float(np.std(returns)), n_eval_episodes)


class _Player:
    """
    A source as SB3 evaluates it.

    :param source: the source
    :param env: where it acts
    :param rng: what it draws its actions with
    """

    def __init__(self, source: SourcePolicy, env: VecEnv, rng: np.random.Generator) -> None:
        self.source, self.env, self.rng = source, env, rng
        self.has_masks = has_action_masks(env)

    def predict(
        self, observation: Observations, state: SourceState, episode_start: np.ndarray, deterministic: bool
    ) -> tuple[np.ndarray, SourceState]:
        """As SB3's models do."""
        space = self.env.action_space
        if isinstance(space, spaces.Box):
            return self.source.box_actions(observation, state, episode_start, space, self.rng)
        assert isinstance(space, spaces.Discrete)
        masks = action_masks_of(self.env) if self.has_masks else None
        found, state = self.source.actions(observation, state, episode_start, masks, self.rng)
        actions = check_actions(found, self.source.name, self.env.num_envs, int(space.n))
        return only_allowed(actions, masks, self.rng), state
