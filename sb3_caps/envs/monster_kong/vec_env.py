"""Many games of Monster Kong in one call, as a vectorised environment of Stable-Baselines3."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.utils import seeding
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sb3_caps.envs.monster_kong.env import HORIZON, MonsterKongEnv
from sb3_caps.envs.monster_kong.level import Setting
from sb3_caps.envs.monster_kong.physics import ACTIONS


class MonsterKongVecEnv(VecEnv):
    """
    A batch of Monster Kong games that steps with a few array operations.

    With the same seed it gives the same episodes as a ``DummyVecEnv`` of single games: game ``i`` is seeded with
    ``seed + i`` and draws its starts from a generator of its own.

    :param n_envs: the number of games
    :param setting: the map, see ``MonsterKongEnv``
    :param goal: the object to reach
    :param observation: ``"pixels"`` or ``"features"``
    :param horizon: the number of steps after which an episode is truncated
    :param render_mode: ``None`` or ``"rgb_array"``
    """

    def __init__(
        self,
        n_envs: int,
        setting: Setting = "a",
        goal: str = "princess",
        observation: str = "pixels",
        horizon: int = HORIZON,
        render_mode: str | None = None,
    ) -> None:
        if n_envs < 1:
            raise ValueError(f"n_envs must be at least 1, not {n_envs}.")
        if render_mode == "human":
            raise ValueError("A batch of games has no window: pass render_mode='rgb_array', or play a single game.")
        # One game with the same arguments checks them, and stands in for any of the batch in `env_method`.
        self._game = MonsterKongEnv(setting, goal, observation, horizon, render_mode)
        self.horizon = horizon
        table = self._game.table
        self._observer = self._game.observer
        self._successors = table.successors.ravel()
        self._reached = table.reached(goal)
        self._ended = self._reached | table.spiked
        self._starts = self._game.plan.starts
        self._generators: list[np.random.Generator | None] = [None] * n_envs
        self.states = np.full(n_envs, -1, dtype=np.int64)
        self.previous = self.states.copy()
        self.steps = np.zeros(n_envs, dtype=np.int64)
        self._actions: npt.NDArray[np.int64] | None = None
        super().__init__(n_envs, self._game.observation_space, self._game.action_space)

    def _generator(self, index: int) -> np.random.Generator:
        """The generator of one game, seeded by the system if the user gave no seed."""
        generator = self._generators[index]
        if generator is None:
            generator = self._generators[index] = seeding.np_random(None)[0]
        return generator

    def _start(self, index: int) -> int:
        """Draw a start for one game."""
        return int(self._starts[self._generator(index).integers(len(self._starts))])

    def reset(self) -> VecEnvObs:
        """Start an episode in every game."""
        for index in range(self.num_envs):
            if self._options[index]:
                self.env_method("reset", seed=self._seeds[index], options=self._options[index], indices=index)
                continue
            if self._seeds[index] is not None:
                self._generators[index] = seeding.np_random(self._seeds[index])[0]
            self.states[index] = self._start(index)
        self.previous[:] = self.states
        self.steps[:] = 0
        self.reset_infos = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return self._observer.many(self.states, self.states)

    def step_async(self, actions: npt.NDArray[Any]) -> None:
        """
        Take the actions of the next step.

        :param actions: one for each game
        """
        if self.states[0] < 0:
            raise RuntimeError("Call reset() before step().")
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or not np.issubdtype(actions.dtype, np.integer):
            raise ValueError(
                f"Expected {self.num_envs} integer actions, not an array {actions.shape} of {actions.dtype}."
            )
        if actions.min() < 0 or actions.max() >= len(ACTIONS):
            raise ValueError(f"An action is out of range: pass 0 to {len(ACTIONS) - 1} ({', '.join(ACTIONS)}).")
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step all games; those that ended start again, with their last observation in the information."""
        assert self._actions is not None, "step_wait() follows step_async()"
        previous = self.states
        states = self._successors[previous * len(ACTIONS) + self._actions].astype(np.int64)
        self.steps += 1
        rewards = self._reached[states].astype(np.float32)
        terminated = self._ended[states]
        dones = terminated | (self.steps >= self.horizon)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        ended = np.flatnonzero(dones)
        if len(ended):
            last = self._observer.many(previous[ended], states[ended])
            for row, index in enumerate(ended.tolist()):
                infos[index] = {
                    "is_success": bool(rewards[index]),
                    "terminal_observation": last[row],
                    "TimeLimit.truncated": not terminated[index],
                }
                states[index] = previous[index] = self._start(index)
                self.reset_infos[index] = {}
            self.steps[ended] = 0
        self.previous, self.states = previous, states
        return self._observer.many(previous, states), rewards, dones, infos

    def close(self) -> None:
        """Nothing is open."""

    def optimal_actions(self) -> npt.NDArray[np.int64]:
        """For each game an action on a shortest path to the goal."""
        return self._game.plan.actions[self.states]

    def get_images(self) -> Sequence[npt.NDArray[np.uint8] | None]:
        """A picture of each game at full size."""
        return self.env_method("render")

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """
        Call a method of single games.

        :param method_name: a method of ``MonsterKongEnv``
        :param method_args: its arguments
        :param indices: which games, all by default
        :param method_kwargs: its arguments by name
        :return: what it returned for each of them
        """
        return [self._with_game(i, method_name, method_args, method_kwargs) for i in self._get_indices(indices)]

    def _with_game(self, index: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Put one game into the single environment, call a method of it, and take the game back."""
        game = self._game
        game.place(int(self.states[index]), int(self.previous[index]), int(self.steps[index]))
        game.np_random = self._generator(index)
        result = getattr(game, name)(*args, **kwargs)
        self.states[index], self.previous[index], self.steps[index] = game.state, game.previous, game.steps
        self._generators[index] = game.np_random
        return result

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """
        Get an attribute of the games.

        :param attr_name: an attribute of ``MonsterKongEnv``
        :param indices: of which games, of all by default
        :return: its value for each of them
        """
        return self.env_method("__getattribute__", attr_name, indices=indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Refused: the games of a batch share everything but their states."""
        raise NotImplementedError(f"Games of a batch cannot have a {attr_name!r} of their own: make another batch.")

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        """No game of a batch is wrapped."""
        return [False for _ in self._get_indices(indices)]
