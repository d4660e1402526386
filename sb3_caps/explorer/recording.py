"""What happens in episodes of a CAPS model, as plain numbers and texts."""

from typing import Any, SupportsFloat, TypeAlias

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper

from sb3_caps.caps import CAPS
from sb3_caps.caps.gate import BEST, OPTIONS
from sb3_caps.colours import option_colour
from sb3_caps.continuous import ContinuousCAPS
from sb3_caps.envs.grid import GridMap
from sb3_caps.explorer.pictures import Pictures
from sb3_caps.reuse.action_names import action_names, option_labels
from sb3_caps.reuse.callbacks import Episode, run_episode
from sb3_caps.studies.shared.options import option_table, simplest_options

Explorable: TypeAlias = CAPS | ContinuousCAPS


class Camera(gym.Wrapper):
    """
    Takes a picture of every state, the last one of an episode included: a ``VecEnv`` would show the next episode.

    :param env: one environment; without ``render_mode="rgb_array"`` there are no pictures
    :ivar frames: for each episode the numbers of its pictures
    :ivar places: for each episode where the agent was, (row, column), on the grid
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.pictures = Pictures()
        self.frames: list[list[int]] = []
        self.places: list[list[list[float]]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        self.frames.append([])
        self.places.append([])
        self._look()
        return result

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        result = super().step(action)
        self._look()
        return result

    def _look(self) -> None:
        if self.render_mode == "rgb_array":
            picture: Any = self.render()
            self.frames[-1].append(self.pictures.add(picture))
        if grid_map_of(self) is not None:
            self.places[-1].append(_rounded(self.get_wrapper_attr("position")))


def camera_on(env: gym.Env | VecEnv) -> tuple[VecEnv, Camera]:
    """
    :param env: one environment, or a ``DummyVecEnv`` of one with any wrappers around it
    :return: the same with a camera in it, and the camera
    """
    if not isinstance(env, VecEnv):
        camera = Camera(env)
        return DummyVecEnv([lambda: camera]), camera
    inner: VecEnv = env
    while isinstance(inner, VecEnvWrapper):
        inner = inner.venv
    if not isinstance(inner, DummyVecEnv) or inner.num_envs != 1:
        raise ValueError(
            f"The explorer follows one environment, not {type(inner).__name__} of {inner.num_envs}: make it with "
            "make_vec_env(..., n_envs=1)."
        )
    camera = Camera(inner.envs[0])
    inner.envs[0] = camera
    return env, camera


def record(model: Explorable, env: VecEnv, camera: Camera, episodes: int, seed: int, max_steps: int) -> dict[str, Any]:
    """
    :param model: what acts
    :param env: where, with a camera in it
    :param camera: the camera
    :param episodes: how many episodes
    :param seed: of the environment
    :param max_steps: after how many steps to leave an episode
    :return: all that the page shows, ready for JSON
    """
    options = model.options
    labels = option_labels(options.names, options.n_sources, action_names(env))
    env.seed(seed)
    recorded = []
    unit, unit_name = _unit_of_values(model)
    for _ in range(episodes):
        episode = run_episode(model, env, max_steps)
        # A VecEnv starts the next episode by itself, but `run_episode` starts one, too
        number = -2 if _is_over(episode) else -1
        episode = episode._replace(values=unit * episode.values)
        recorded.append(_plain(episode, camera.frames[number], camera.places[number]))
    return {
        "options": [
            {"name": label, "source": i < options.n_sources, "colour": option_colour(i, options.n_sources)}
            for i, label in enumerate(labels)
        ],
        "actions": labels[options.n_sources :],
        "ending": _ending(model, labels),
        "unit": unit_name,
        "frames": camera.pictures.addresses,
        "map": _map(model, camera),
        "episodes": recorded,
    }


def _unit_of_values(model: Explorable) -> tuple[float, str]:
    """What to multiply values with to have them in rewards, and what to call what comes out."""
    unit = model._scale.value if isinstance(model, CAPS) and model._scale.in_use else 0.0
    rewards = "rewards" if model.get_vec_normalize_env() is None else "rewards as VecNormalize scales them"
    return unit or 1.0, f"in {rewards}, discounted by {model.gamma:g} in each step"


def _ending(model: Explorable, labels: list[str]) -> str:
    """Why an option ends, or goes on, in these episodes."""
    controller = model.gate.controller
    if controller.is_source:
        return (
            f"Here {labels[model.options.names.index(controller.name)]} acts alone and never ends: the learner is not "
            "known to be better. Values and β are the learner's."
        )
    if controller not in (OPTIONS, BEST):
        return f"Here the {controller.name} chooses an option in every step, whatever values and β say."
    if model.policy.execution.mode == "call-and-return":
        return "Here an option ends from 0.5 on."
    if not isinstance(model, CAPS):
        return "Here an option ends where the critic values what another one does more."
    margin = f" by {model.policy.margin:g}" if model.policy.margin else ""
    return f"Here a single action ends after each step, a source where another option's value is higher{margin}."


def _is_over(episode: Episode) -> bool:
    return "terminal_observation" in episode.infos[-1]


def _plain(episode: Episode, frames: list[int], places: list[list[float]]) -> dict[str, Any]:
    """One row for each step; pictures and places are of the states, and have one more."""
    end = "truncated" if episode.infos[-1].get("TimeLimit.truncated") else "terminated"
    return {
        "end": end if _is_over(episode) else "cut",
        "options": episode.options.tolist(),
        "actions": episode.actions.tolist(),
        "values": [_rounded(row) for row in episode.values],
        "terminations": [_rounded(row) for row in episode.terminations],
        "rewards": _rounded(episode.rewards),
        "frames": frames,
        "places": places,
    }


def grid_map_of(env: gym.Env) -> GridMap | None:
    """
    :param env: any environment
    :return: its map, if it is of the grid world
    """
    found = getattr(env.unwrapped, "map", None)
    return found if isinstance(found, GridMap) and hasattr(env.unwrapped, "position") else None


def _map(model: Explorable, camera: Camera) -> dict[str, Any] | None:
    """The map of the grid, with what the model does in each cell, where it sees cells."""
    grid_map = grid_map_of(camera)
    if (
        grid_map is None
        or not isinstance(model, CAPS)
        or model.observation_space != gym.spaces.Discrete(grid_map.n_cells)
    ):
        return None
    table = option_table(model, np.arange(grid_map.n_cells))
    best = table.values.argmax(axis=1)
    return {
        "walls": grid_map.walls.astype(int).tolist(),
        "goal": camera.get_wrapper_attr("goal"),
        "best": best.tolist(),
        "taken": table.taken.tolist(),
        "simplest": simplest_options(table.taken, table.actions, model.options.n_sources).tolist(),
        "actions": table.actions.tolist(),
    }


def _rounded(values: Any) -> list[float]:
    """Four digits: enough for a picture, in a page that is small."""
    return [float(f"{value:.4g}") for value in values]
