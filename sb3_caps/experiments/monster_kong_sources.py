"""The source policies of the Monster Kong study."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.dqn import DQN

from sb3_caps.common.sources import SourcePolicy, as_source
from sb3_caps.envs.monster_kong.level import GOALS, load_level
from sb3_caps.envs.monster_kong.observations import observer
from sb3_caps.envs.monster_kong.physics import ACTIONS
from sb3_caps.envs.monster_kong.planner import UNREACHABLE, plan
from sb3_caps.envs.monster_kong.sources import optimal_policy
from sb3_caps.envs.monster_kong.vec_env import MonsterKongVecEnv
from sb3_caps.experiments.monster_kong_evaluation import PlayedEvaluation

REQUIRED_SUCCESS = 0.95
N_USELESS = 3


class UselessPolicy:
    """
    A policy that takes an action of its own in every state, with no aim: a source that is of no use.

    :param seed: of the actions
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.name = f"useless_{seed}"

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """
        :param observations: a batch
        :return: an action for each, always the same for the same observation
        """
        flat = observations.reshape(len(observations), -1).astype(np.float64)
        weights = np.random.default_rng(self.seed).normal(size=flat.shape[1])
        return np.floor(np.abs(flat @ weights) * 1e4).astype(np.int64) % len(ACTIONS)


def source_goals(setting: str | Path, goal: str) -> list[str]:
    """
    :param setting: the map
    :param goal: the object to reach in the target task
    :return: the objects of the source tasks: all others, in the paper's order
    """
    return [other for other in GOALS if other != goal]


def make_sources(setting: str, goal: str, observation: str, kind: str, folder: Path) -> list[SourcePolicy]:
    """
    The sources of a task.

    :param setting: the map
    :param goal: the object to reach in the target task
    :param observation: ``"features"`` or ``"pixels"``
    :param kind: ``"planner"`` (shortest paths), ``"networks"`` (trained to imitate them), ``"useless"`` or ``"none"``
    :param folder: where trained networks are
    :return: the sources, named after their goals
    """
    if kind == "none":
        return []
    if kind == "useless":
        useless = [UselessPolicy(seed) for seed in range(N_USELESS)]
        return [as_source(policy, name=policy.name) for policy in useless]
    goals = source_goals(setting, goal)
    if kind == "planner":
        return [as_source(optimal_policy(setting, other, observation), name=other) for other in goals]
    return [as_source(network_file(folder, setting, other, observation), name=other) for other in goals]


def network_file(folder: Path, setting: str, goal: str, observation: str) -> Path:
    """
    :param folder: of the study
    :param setting: the map
    :param goal: the object that the network goes to
    :param observation: what it observes
    :return: where the network is kept
    """
    level = load_level(setting)
    return folder / "sources" / f"{level.name}_{level.key[:8]}_{goal}_{observation}.zip"


def train_networks(
    setting: str,
    goals: Sequence[str],
    observation: str,
    folder: Path,
    passes: int = 12,
    batch_size: int = 64,
    report: Callable[[str], None] = print,
) -> None:
    """
    Train a network for each source task to imitate its shortest paths, where there is none yet.

    :param setting: the map
    :param goals: the objects of the source tasks
    :param observation: what the networks observe
    :param folder: of the study
    :param passes: over all states of the map at most; training ends before when the success rate is reached
    :param batch_size: number of states in a gradient step
    :param report: takes a line about each network
    """
    for goal in goals:
        file = network_file(folder, setting, goal, observation)
        if file.is_file():
            continue
        model, success = _imitate(setting, goal, observation, passes, batch_size)
        report(f"source network {file.stem}: reaches its goal in {success:.1%} of its episodes")
        if success < REQUIRED_SUCCESS:
            raise ValueError(
                f"The source network for {goal!r} succeeds in {success:.1%} of its episodes, less "
                f"than {REQUIRED_SUCCESS:.0%}: train it longer, or take the planner's policies (--sources planner)."
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        model.save(file)


def _imitate(setting: str, goal: str, observation: str, passes: int, batch_size: int) -> tuple[DQN, float]:
    """A DQN's network, trained as a classifier of the actions on shortest paths."""
    generator = np.random.default_rng(0)
    env = MonsterKongVecEnv(1, setting, goal, observation)
    policy: Any = "CnnPolicy" if observation == "pixels" else "MlpPolicy"
    model = DQN(policy, env, buffer_size=1, seed=0, device="cpu")
    optimizer = th.optim.Adam(model.q_net.parameters(), lr=1e-3)
    before, after = _transitions(setting, goal)
    optimal = th.from_numpy(plan(setting, goal).optimal)
    evaluate = PlayedEvaluation(setting, goal, observation, n_steps=40_000)
    success = 0.0
    for number in range(passes):
        # Small steps at the end make the classifier exact where neighbouring pictures look almost the same
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - number / passes) ** 2
        for batch in np.array_split(generator.permutation(len(before)), len(before) // batch_size):
            observations = observer(setting, observation).many(before[batch], after[batch])
            logits = model.q_net(_as_network_input(observations, env.observation_space, model))
            good = optimal[after[batch]]
            # The probability of all actions that lie on a shortest path
            loss = -(th.logsumexp(logits.masked_fill(~good, -th.inf), 1) - th.logsumexp(logits, 1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        success = evaluate(model).successes
        if success > 0.5 * (1 + REQUIRED_SUCCESS):
            break
    return model, success


def _transitions(setting: str, goal: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of states in a row that a game can show, those on the way to the goal among them."""
    solution = plan(setting, goal)
    table = solution.table
    alive = np.flatnonzero(~table.spiked & ~table.reached(goal) & (solution.steps < UNREACHABLE))
    # A state for each action that leads to it would be six times the work: a random one and the best one
    actions = np.random.default_rng(1).integers(len(ACTIONS), size=len(alive))
    after = np.concatenate([table.successors[alive, actions], table.successors[alive, solution.actions[alive]]])
    before = np.concatenate([alive, alive])
    before, after = np.concatenate([before, solution.starts]), np.concatenate([after, solution.starts])
    going_on = ~table.spiked[after] & ~table.reached(goal)[after]
    return before[going_on], after[going_on]


def _as_network_input(observations: np.ndarray, space: spaces.Space, model: DQN) -> Any:
    assert isinstance(space, spaces.Box)
    if len(space.shape) == 3:
        observations = np.moveaxis(observations, -1, 1)
    return th.as_tensor(observations, device=model.device)
