"""Many copies of a small world stepped in one call: a Python loop over environments would cost more than learning."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sb3_caps.sources.masks import METHOD


class World(ABC):
    """
    The rules of a task on arrays: one row of numbers is the state of one copy. Where not all actions are allowed, it
    has a method ``action_masks`` that takes states and tells which ones are.

    :param observation_space: of one copy
    :param n_actions: number of actions
    :param horizon: the number of steps after which an episode is truncated
    """

    def __init__(self, observation_space: spaces.Space, n_actions: int, horizon: int) -> None:
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(n_actions)
        self.horizon = horizon

    @abstractmethod
    def start(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """
        Start episodes.

        :param generator: of random numbers
        :param count: how many episodes start
        :return: a state for each
        """

    @abstractmethod
    def step(
        self, states: np.ndarray, actions: np.ndarray, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """
        Step all copies.

        :param states: one row for each copy
        :param actions: one for each copy
        :param generator: of random numbers
        :return: the next states, the rewards, and which episodes are over (truncation is not the world's)
        """

    @abstractmethod
    def observe(self, states: np.ndarray) -> np.ndarray:
        """
        Observe all copies.

        :param states: one row for each copy
        :return: what each copy shows
        """


class BatchedVecEnv(VecEnv):
    """
    A world as a vectorised environment of Stable-Baselines3.

    :param world: the rules
    :param n_envs: the number of copies
    :param seed: of all random numbers; None draws one
    """

    render_mode = None

    def __init__(self, world: World, n_envs: int, seed: int | None = None) -> None:
        super().__init__(n_envs, world.observation_space, world.action_space)
        self.world = world
        self.generator = np.random.default_rng(seed)
        self.states = world.start(self.generator, n_envs)
        self.steps = np.zeros(n_envs, dtype=np.int64)
        self._actions = np.zeros(n_envs, dtype=np.int64)

    def reset(self) -> VecEnvObs:
        """Start an episode in every copy."""
        if self._seeds[0] is not None:
            self.generator = np.random.default_rng(self._seeds[0])
        self.states = self.world.start(self.generator, self.num_envs)
        self.steps[:] = 0
        self.reset_infos = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return self.world.observe(self.states)

    def step_async(self, actions: np.ndarray) -> None:
        """
        Take the actions of the next step.

        :param actions: one for each copy
        """
        self._actions = np.asarray(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Step all copies; those that ended start again, with their last observation in the information."""
        self.states, rewards, terminated = self.world.step(self.states, self._actions, self.generator)
        self.steps += 1
        dones = terminated | (self.steps >= self.world.horizon)
        observations = self.world.observe(self.states)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        ended = np.flatnonzero(dones)
        if len(ended):
            for index in ended.tolist():
                infos[index] = {
                    "terminal_observation": observations[index].copy(),
                    "TimeLimit.truncated": not terminated[index],
                }
            self.states[ended] = self.world.start(self.generator, len(ended))
            self.steps[ended] = 0
            observations[ended] = self.world.observe(self.states[ended])
        return observations, rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """Nothing is open."""

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """
        Get an attribute of the copies.

        :param attr_name: an attribute that all copies share
        :param indices: of which copies, of all by default
        :return: its value for each of them
        """
        owner = self.world if attr_name == METHOD else self
        return [getattr(owner, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Refused: the copies share everything but their states."""
        raise NotImplementedError(f"Copies of a world cannot have a {attr_name!r} of their own: make another batch.")

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Refused, but for action masks: there is no single environment."""
        if method_name == METHOD:
            masks = getattr(self.world, METHOD)(self.states)
            return [masks[index] for index in self._get_indices(indices)]
        raise NotImplementedError(f"There is no single environment to call {method_name!r} of: call the world's own.")

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        """No copy is wrapped."""
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """There is nothing to see."""
        return [None] * self.num_envs
