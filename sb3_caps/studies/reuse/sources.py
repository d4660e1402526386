"""The sources of a task under each condition, and the training of those that are networks."""

from pathlib import Path
from typing import Any

import torch as th
from stable_baselines3.dqn.policies import DQNPolicy

from sb3_caps.sources import SourcePolicy, as_source
from sb3_caps.studies.reuse.tasks import Task

CONDITIONS = ("helpful", "useless", "harmful", "mixed", "best", "none")
N_USELESS, N_USELESS_MIXED = 3, 5


def make_sources(task: Task, condition: str, folder: Path, net_arch: list[int], seed: int = 0) -> list[SourcePolicy]:
    """
    Make the sources of a condition.

    :param task: the task
    :param condition: ``helpful`` (made for other tasks), ``useless`` (random networks), ``harmful`` (made to do badly),
        ``mixed`` (the first helpful one among five useless), ``best`` (as good as the reference) or ``none``
    :param folder: with the trained sources
    :param net_arch: hidden layers of random networks
    :param seed: of random networks: each run has others
    :return: the sources
    """
    if condition == "none":
        return []
    if condition == "useless":
        return random_networks(task, net_arch, N_USELESS, seed)
    if condition == "mixed":
        useless = random_networks(task, net_arch, N_USELESS_MIXED, seed)
        return [*useless[:2], as_source(task.helpful(folder)[0]), *useless[2:]]
    if condition not in CONDITIONS:
        raise ValueError(f"Unknown condition {condition!r}: pass one of {', '.join(CONDITIONS)}.")
    makers = {"helpful": task.helpful, "harmful": task.harmful, "best": task.best}
    maker = makers[condition]
    if maker is None:
        raise ValueError(f"Task {task.name!r} has no {condition} sources.")
    return [as_source(source) for source in maker(folder)]


def random_networks(task: Task, net_arch: list[int], count: int, seed: int) -> list[SourcePolicy]:
    """
    Make networks with random weights.

    :param task: whose observations and actions they take and give
    :param net_arch: their hidden layers
    :param count: how many
    :param seed: of their weights
    :return: networks that have learned nothing
    """
    env = task.make_env(1, 0)
    with th.random.fork_rng(devices=[]):
        th.manual_seed(seed)
        networks: list[Any] = [
            DQNPolicy(env.observation_space, env.action_space, lambda _: 0.0, net_arch=list(net_arch))  # type: ignore[arg-type]
            for _ in range(count)
        ]
    env.close()
    return [as_source(network, name=f"useless_{i}") for i, network in enumerate(networks)]
