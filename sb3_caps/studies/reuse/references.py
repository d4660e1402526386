"""What counts as 0 and as 1 on each task, and what the sources are worth alone."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.reuse.evaluation import discounted_returns
from sb3_caps.settings import settings
from sb3_caps.sources import SourcePolicy, SourceState
from sb3_caps.sources.masks import only_allowed, random_actions
from sb3_caps.studies.reuse.catalogue import load_trained
from sb3_caps.studies.reuse.sources import make_sources
from sb3_caps.studies.reuse.tasks import REFERENCES, Task, references
from sb3_caps.studies.shared.runs import write_json

EPISODES, SEED = 100, 3_000_000


class Alone:
    """
    A source that acts by itself, to be evaluated as a model is.

    :param source: the source
    """

    def __init__(self, source: SourcePolicy) -> None:
        self.source, self.rng = source, np.random.default_rng(SEED)

    def predict(
        self,
        observation: Any,
        state: SourceState = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, SourceState]:
        """As SB3's models do; the source says itself whether it draws its actions."""
        actions, state = self.source.actions(observation, state, episode_start, action_masks, self.rng)
        return only_allowed(actions, action_masks, self.rng), state


class Random:
    """
    Random actions.

    :param space: of actions
    """

    def __init__(self, space: spaces.Discrete) -> None:
        self.n_actions = int(space.n)
        self.generator = np.random.default_rng(SEED)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any]:
        """As SB3's models do."""
        return random_actions(len(observation), self.n_actions, self.generator, action_masks), state


def n_episodes(task: Task) -> int:
    """Return how many episodes to evaluate a policy for, at least as many as for a finished model."""
    return max(EPISODES, task.settings["final_episodes"])


def mean_return(policy: Any, task: Task, env: VecEnv, episodes: int | None = None) -> float:
    """
    Evaluate a policy.

    :param policy: anything with ``predict``
    :param task: the task
    :param env: environments of it
    :param episodes: how many episodes, by default ``n_episodes``
    :return: the mean return
    """
    return float(returns_of(policy, task, env, episodes).mean())


def returns_of(policy: Any, task: Task, env: VecEnv, episodes: int | None = None) -> np.ndarray:
    """The return of each episode, see ``mean_return``."""
    env.seed(SEED)
    return discounted_returns(policy, env, task.discount, episodes or n_episodes(task))


def source_returns(task: Task, condition: str, folder: Path) -> dict[str, list[float]]:
    """
    What each source gets alone, found once and kept beside the trained ones.

    :param task: the task
    :param condition: which sources; random networks are none that a user would want to compare with
    :param folder: with the trained sources
    :return: the mean return of each source and its standard error, by name
    """
    if condition in ("none", "useless"):
        return {}
    file = folder / "returns" / f"{task.name}_{condition}.json".replace(":", "_")
    if not file.is_file():
        kind = task.settings
        env = task.make_env(kind["episodes"], SEED)
        sources = make_sources(task, condition, folder, kind["net_arch"])
        named = [source for source in sources if not source.name.startswith("useless_")]
        found = {source.name: returns_of(Alone(source), task, env) for source in named}
        write_json(file, {name: [r.mean(), r.std() / np.sqrt(len(r))] for name, r in found.items()})
    return json.loads(file.read_text())


def find_references(tasks: Iterable[Task], folder: Path) -> None:
    """
    Evaluate random actions, and the policies trained on each task and its sources; the best is the reference.

    :param tasks: of which to find them; written to ``references.json``
    :param folder: with all trained networks
    """
    for task in tasks:
        env = task.make_env(task.settings["episodes"], SEED)
        assert isinstance(env.action_space, spaces.Discrete)
        found: dict[str, Any] = {"random": mean_return(Random(env.action_space), task, env)}
        if task.optimum is not None:
            found |= {"reference": task.optimum(), "policy": "planner"}
        else:
            trained = [name for name, entry in settings("reuse", "references").items() if entry["env"] == task.name]
            policies = [*load_trained(folder, *trained), *task.helpful(folder)]
            returns = {policy.name: mean_return(Alone(policy), task, env) for policy in policies}
            best = max(returns, key=lambda name: returns[name])
            found |= {"reference": returns[best], "policy": best, "returns": returns}
        print(task.name, found)
        write_json(REFERENCES, references() | {task.name: {**found, "episodes": n_episodes(task), "seed": SEED}})
