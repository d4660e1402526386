"""Action masks, by sb3-contrib's convention: the method ``action_masks`` tells which actions are allowed now."""

import inspect
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv

METHOD = "action_masks"


def has_action_masks(env: GymEnv) -> bool:
    """
    :param env: an environment, or several
    :return: whether it tells which actions are allowed
    """
    return env.has_attr(METHOD) if isinstance(env, VecEnv) else env.has_wrapper_attr(METHOD)


def action_masks_of(env: GymEnv) -> np.ndarray:
    """
    :param env: an environment, or several
    :return: which actions are allowed now, of shape (environments, actions)
    """
    masks = env.env_method(METHOD) if isinstance(env, VecEnv) else [env.get_wrapper_attr(METHOD)()]
    assert isinstance(env.action_space, gym.spaces.Discrete)
    return check_action_masks(masks, len(masks), int(env.action_space.n))


def check_action_masks(action_masks: Any, n_envs: int, n_actions: int) -> np.ndarray:
    """
    Refuse masks of another shape, and those that allow nothing.

    :param action_masks: which actions are allowed
    :param n_envs: number of environments
    :param n_actions: number of actions
    :return: the masks as flags, of shape (environments, actions)
    """
    masks = np.atleast_2d(np.asarray(action_masks, dtype=bool))
    if masks.shape != (n_envs, n_actions):
        expected = f"{n_envs} environments and {n_actions} actions"
        raise ValueError(f"action_masks are of shape {masks.shape}: expected those of {expected}.")
    nothing = ~masks.any(axis=1)
    if nothing.any():
        raise ValueError(
            f"The action mask of environment {int(nothing.argmax())} allows nothing: allow an action in every state, "
            "or end the episode before a state without any."
        )
    return masks


def random_actions(
    n_envs: int, n_actions: int, rng: np.random.Generator, action_masks: np.ndarray | None = None
) -> np.ndarray:
    """
    :param n_envs: number of environments
    :param n_actions: number of actions
    :param rng: random numbers
    :param action_masks: which actions are allowed, of shape (environments, actions); None for all
    :return: for each environment one of its actions, each as likely
    """
    if action_masks is None:
        return rng.integers(n_actions, size=n_envs)
    counts = action_masks.cumsum(axis=1)
    return (rng.random(n_envs)[:, None] * counts[:, -1:] >= counts).sum(axis=1)


def only_allowed(actions: np.ndarray, action_masks: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """
    :param actions: one for each environment
    :param action_masks: which actions are allowed, of shape (environments, actions); None for all
    :param rng: random numbers
    :return: the actions, and where one is not allowed, a random one that is
    """
    if action_masks is None:
        return actions
    n_envs, n_actions = action_masks.shape
    drawn = random_actions(n_envs, n_actions, rng, action_masks)
    return np.where(action_masks[np.arange(n_envs), actions], actions, drawn)


def with_masks(policy: Any, env: GymEnv) -> Any:
    """
    Let a policy know the masks of the environments that it is evaluated in. SB3's ``evaluate_policy`` passes none.

    :param policy: what has a ``predict``
    :param env: where it acts
    :return: the policy, with a ``predict`` that asks the environments which actions are allowed; itself where they do
        not tell, or where it does not take masks
    """
    takes = METHOD in inspect.signature(policy.predict).parameters
    return _Masked(policy, env) if takes and has_action_masks(env) else policy


class _Masked:
    def __init__(self, policy: Any, env: GymEnv) -> None:
        self._policy, self._env = policy, env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        return self._policy.predict(*args, **kwargs, action_masks=action_masks_of(self._env))
