"""Tasks as a user would bring them, for CAPS with no argument set."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.envs.grid import TablePolicy
from sb3_caps.sources import as_source
from sb3_caps.studies.reuse.tasks import UNSET, EnvMaker, Task, register_task
from sb3_caps.studies.reuse.worlds.errands import worst_actions
from sb3_caps.studies.reuse.worlds.minatar import MinAtar

STEPS, HORIZON, GAMMA = 50_000, 200, 0.99
# Steps of value iteration after which nothing changes
N_BACKUPS = 500
N_HARMFUL = 3
TORQUES = np.linspace(-2.0, 2.0, 5, dtype=np.float32)
UP, DOWN = 1, 2


class ToyPlan:
    """
    What is best in an environment of Gymnasium's toy_text, from its table of transitions.

    :param name: its id
    :param kwargs: of the environment
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        env: Any = gym.make(name, **kwargs).unwrapped
        n_states, n_actions = len(env.P), len(env.P[0])
        self.start = np.asarray(env.initial_state_distrib)
        self.rewards = np.zeros((n_states, n_actions))
        self.successors = np.zeros((n_states, n_actions, n_states))
        for state, action in np.ndindex(n_states, n_actions):
            for probability, successor, reward, over in env.P[state][action]:
                self.rewards[state, action] += probability * reward
                self.successors[state, action, successor] += probability * (not over)

    def action_values(self, n_steps: int, gamma: float) -> np.ndarray:
        """
        Compute optimal action values.

        :param n_steps: how many steps there are to go
        :param gamma: the discount factor
        :return: the largest return from each state by each action
        """
        values = np.zeros_like(self.rewards)
        for _ in range(n_steps):
            values = self.rewards + gamma * self.successors @ values.max(axis=1)
        return values

    def optimum(self) -> float:
        """Return the largest mean return of an episode."""
        return float(self.start @ self.action_values(HORIZON, gamma=1.0).max(axis=1))

    def policy(self) -> TablePolicy:
        """Return an optimal policy."""
        return TablePolicy(self.action_values(N_BACKUPS, GAMMA).argmax(axis=1))

    def worst_policies(self) -> list[TablePolicy]:
        """Return policies that do the opposite."""
        values = self.action_values(N_BACKUPS, GAMMA)
        return [TablePolicy(worst_actions(values, seed)) for seed in range(N_HARMFUL)]


def along_the_top(observations: np.ndarray) -> np.ndarray:
    """
    Walk along the top of the cliff.

    :param observations: cells of the cliff's map, 4 rows of 12
    :return: up to the first row, along it, and down to the goal
    """
    rows, columns = np.divmod(observations, 12)
    return np.where(columns == 11, 2, np.where(rows > 0, 0, 1))


def always(action: int, observations: np.ndarray) -> np.ndarray:
    """
    Take the same action everywhere.

    :param action: an action
    :param observations: any
    :return: that action
    """
    return np.full(len(observations), action)


def as_the_dealer(observations: np.ndarray, below: int = 17) -> np.ndarray:
    """
    Play Blackjack as the dealer does.

    :param observations: hands of Blackjack: the sum of one's own in the first 32 places
    :param below: the sum to stop at
    :return: another card below it
    """
    return (observations[:, :32].argmax(axis=1) < below).astype(np.int64)


def swing_up(observations: np.ndarray, gravity: float = 10.0, sign: float = 1.0) -> np.ndarray:
    """
    Swing the pendulum up by its energy.

    :param observations: of the pendulum: cosine and sine of its angle, and its speed
    :param gravity: that the rule was made for
    :param sign: -1 for the opposite
    :return: which torque adds the energy that is missing, or near the top holds it
    """
    cosine, sine, speed = observations.T
    missing = 1.5 * gravity * (1 - cosine) - speed**2 / 2
    torque = np.where(cosine > 0.9, -10.0 * sine - 2.0 * speed, np.sign(speed + 1e-6) * missing)
    return np.abs(sign * torque[:, None] - TORQUES).argmin(axis=1)


def pendulum(n_envs: int, seed: int) -> VecEnv:
    """Return Gymnasium's pendulum in stronger gravity, with five torques."""

    def few_torques(env: gym.Env) -> gym.Env:
        return gym.wrappers.TransformAction(env, lambda i: TORQUES[i : i + 1], gym.spaces.Discrete(len(TORQUES)))

    return make_vec_env("Pendulum-v1", n_envs, seed, wrapper_class=few_torques, env_kwargs={"g": 13.0})


def _register(
    name: str,
    make_env: EnvMaker,
    helpful: Callable[[], dict[str, Any]],
    harmful: Callable[[], list[Any]],
    plan: Callable[[], ToyPlan] | None = None,
    **kwargs: Any,
) -> None:
    """With sources by their names, and where there is a planner its policy as the best one."""

    def named(_: Path) -> list[Any]:
        return [as_source(policy, name=name) for name, policy in helpful().items()]

    def unnamed(_: Path) -> list[Any]:
        return [as_source(policy, name=f"harmful_{i}") for i, policy in enumerate(harmful())]

    best = named if plan is None else lambda _: [as_source(plan().policy(), name="optimal")]
    optimum = None if plan is None else lambda: plan().optimum()
    register_task(Task(name, "unset", make_env, STEPS, named, unnamed, best, optimum, group=UNSET, **kwargs))


# Every run of a worker asks for the same ones
toy_plan = cache(ToyPlan)


def _register_toy(name: str, env_id: str, helpful: Callable[[], dict[str, Any]], **kwargs: Any) -> None:
    plan = partial(toy_plan, env_id, **kwargs)
    make_env = partial(make_vec_env, env_id, env_kwargs={**kwargs, "max_episode_steps": HORIZON})
    _register(name, make_env, helpful, lambda: plan().worst_policies(), plan)


_register_toy("taxi-rainy", "Taxi-v4", lambda: {"dry": toy_plan("Taxi-v4").policy()}, is_rainy=True)
_register_toy(
    "cliff-slippery",
    "CliffWalking-v1",
    lambda: {"dry": toy_plan("CliffWalking-v1").policy(), "along_the_top": along_the_top},
    is_slippery=True,
)
_register_toy(
    "lake-slippery",
    "FrozenLake-v1",
    lambda: {"dry": toy_plan("FrozenLake-v1", map_name="8x8", is_slippery=False).policy()},
    map_name="8x8",
)
_register(
    "freeway-sticky",
    partial(make_vec_env, MinAtar, env_kwargs={"game": "freeway"}),
    lambda: {"up": partial(always, UP)},
    lambda: [partial(always, DOWN)],
)
_register("pendulum-heavy", pendulum, lambda: {"swing_up": swing_up}, lambda: [partial(swing_up, sign=-1.0)])
_register(
    "blackjack",
    partial(make_vec_env, "Blackjack-v1", wrapper_class=gym.wrappers.FlattenObservation),
    lambda: {"as_the_dealer": as_the_dealer},
    lambda: [partial(as_the_dealer, below=22)],
    # Luck is most of a game
    arguments={"episodes": 200, "final_episodes": 4_000},
)
