"""The source policies of the Monster Kong study."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.dqn import DQN

from sb3_caps.envs.monster_kong.env import HORIZON
from sb3_caps.envs.monster_kong.level import GOALS, load_level
from sb3_caps.envs.monster_kong.observations import observer
from sb3_caps.envs.monster_kong.physics import ACTIONS
from sb3_caps.envs.monster_kong.planner import UNREACHABLE, Plan, plan
from sb3_caps.envs.monster_kong.sources import optimal_policy
from sb3_caps.envs.monster_kong.vec_env import MonsterKongVecEnv
from sb3_caps.files.save_util import atomic_write
from sb3_caps.sources import SourcePolicy, as_source
from sb3_caps.studies.shared.runs import check_file, set_aside

REQUIRED_SUCCESS = 0.95
# Of the training of a source network: at first, and what is left of it after each pass
LEARNING_RATE, LEARNING_RATE_KEPT = 5e-4, 0.96
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
    List the goals of the source tasks.

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
    Find the file of a source network.

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
    passes: int = 100,
    batch_size: int = 64,
    report: Callable[[str], None] = print,
) -> None:
    """
    Train a network for each source task to imitate its shortest paths, where there is none yet.

    :param setting: the map
    :param goals: the objects of the source tasks
    :param observation: what the networks observe
    :param folder: of the study
    :param passes: over what there is to imitate at most; training ends before when the success rate is reached
    :param batch_size: number of states in a gradient step
    :param report: takes a line about each network
    """
    for goal in goals:
        file = network_file(folder, setting, goal, observation)
        if file.is_file():
            error = check_file(file)
            if error is None:
                continue
            report(f"{file} is damaged ({error}): kept as {set_aside(file).name}, and trained again")
        model, success = _imitate(setting, goal, observation, passes, batch_size)
        report(f"source network {file.stem}: reaches its goal in {success:.1%} of its episodes")
        if success < REQUIRED_SUCCESS:
            raise ValueError(
                f"The source network for {goal!r} succeeds in {success:.1%} of its episodes, less "
                f"than {REQUIRED_SUCCESS:.0%}: train it longer, or take the planner's policies (--sources planner)."
            )
        with atomic_write(file) as opened:
            model.save(opened)


class Episodes(NamedTuple):
    """
    One episode of a policy from every start.

    :param before: with ``after``, all pairs of states in a row that it came through, each once
    :param after: the state that it acted in
    :param actions: what it did there
    :param successes: the share of episodes that reached the goal
    """

    before: np.ndarray
    after: np.ndarray
    actions: np.ndarray
    successes: float


def _imitate(setting: str, goal: str, observation: str, passes: int, batch_size: int) -> tuple[DQN, float]:
    """
    A DQN's network, trained as a classifier of the actions on shortest paths.

    It begins with the paths from all starts. After each pass it plays from all starts itself, and what it did wrong on
    its way is added (DAgger): a single wrong state that many paths lead through would end them all.
    """
    generator = np.random.default_rng(0)
    env = MonsterKongVecEnv(1, setting, goal, observation)
    policy: Any = "CnnPolicy" if observation == "pixels" else "MlpPolicy"
    model = DQN(policy, env, buffer_size=1, seed=0, device="cpu")
    solution, draw = plan(setting, goal), observer(setting, observation).many

    def examples_of(before: np.ndarray, after: np.ndarray) -> tuple[th.Tensor, th.Tensor]:
        """Observations, as the network takes them, and which actions are right."""
        observations = draw(before, after)
        good = solution.optimal[after]
        # Different states can look the same: there the best for all of them is right, or no action would ever be
        best = optimal_policy(setting, goal, observation)(observations)
        doubtful = np.flatnonzero(~good[np.arange(len(good)), best])
        good[doubtful] = np.eye(len(ACTIONS), dtype=bool)[best[doubtful]]
        return _as_network_input(observations, env.observation_space, model), th.from_numpy(good)

    shown = follow(solution, lambda before, after: solution.actions[after])
    inputs, right = examples_of(shown.before, shown.after)
    if observation == "pixels":
        standardize(model, inputs[generator.permutation(len(inputs))[:500]])
    optimizer = th.optim.Adam(model.q_net.parameters())
    successes = 0.0
    for number in range(passes):
        # Small steps at the end make the classifier exact where neighbouring pictures look almost the same
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * LEARNING_RATE_KEPT**number
        for batch in np.array_split(generator.permutation(len(inputs)), max(len(inputs) // batch_size, 1)):
            logits, good = model.q_net(inputs[batch]), right[batch]
            # The probability of all actions that are right
            loss = -(th.logsumexp(logits.masked_fill(~good, -th.inf), 1) - th.logsumexp(logits, 1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        played = follow(solution, lambda before, after: model.predict(draw(before, after), deterministic=True)[0])
        successes = played.successes
        if successes > 0.5 * (1 + REQUIRED_SUCCESS):
            break
        # Where all is lost there is nothing to imitate
        hopeful = solution.steps[played.after] < UNREACHABLE
        met, good = examples_of(played.before[hopeful], played.after[hopeful])
        # A mistake that is made again counts once more
        wrong = ~good[th.arange(len(good)), th.from_numpy(played.actions[hopeful])]
        inputs, right = th.cat([inputs, met[wrong]]), th.cat([right, good[wrong]])
    return model, successes


def follow(solution: Plan, act: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Episodes:
    """
    Play an episode from every start, without stepping an environment.

    The game is deterministic and an observation shows the last two states, so a policy is asked once about each pair.
    Unlike in a fixed number of steps, no episode is cut off: that would count as a failure even of an optimal policy.

    :param solution: of the task
    :param act: a deterministic policy: takes the states before and the states now, returns an action for each
    :return: the episodes
    """
    table, n_states = solution.table, len(solution.table)
    reached = table.reached(solution.goal)
    won, lost = -1, -2
    # A number for each pair; an episode starts with the same state twice
    starts = solution.starts.astype(np.int64) * (n_states + 1)
    pairs, actions, next_pairs = (np.empty(0, dtype=np.int64) for _ in range(3))
    new = np.unique(starts)
    while len(new):
        before, after = np.divmod(new, n_states)
        taken = act(before, after)
        states = table.successors[after, taken]
        following = np.where(reached[states], won, np.where(table.spiked[states], lost, after * n_states + states))
        pairs, actions = np.append(pairs, new), np.append(actions, taken)
        next_pairs = np.append(next_pairs, following)
        new = np.setdiff1d(following[following >= 0], pairs)
    order = np.argsort(pairs)
    pairs, actions, next_pairs = pairs[order], actions[order], next_pairs[order]
    for _ in range(HORIZON):
        running = starts >= 0
        starts[running] = next_pairs[np.searchsorted(pairs, starts[running])]
    return Episodes(*np.divmod(pairs, n_states), actions, float((starts == won).mean()))


@th.no_grad()
def standardize(model: DQN, inputs: th.Tensor) -> None:
    """
    Scale the layers of a fresh NatureCNN so that all outputs have mean 0 and tell pictures apart.

    The pictures of a map differ in a few pixels of the agent alone. Behind a layer's usual first weights, that is lost
    in what the background gives, and the network learns no more than the most frequent action.

    :param model: with a CnnPolicy, or a CAPS, which is a DQN as well
    :param inputs: pictures, channels first
    """
    extractor: Any = model.q_net.features_extractor
    values = inputs.float() / 255
    for layer in [*extractor.cnn, extractor.linear[0]]:
        if isinstance(layer, th.nn.Conv2d | th.nn.Linear):
            outputs = layer(values).transpose(0, 1)
            # What differs from picture to picture at the same place
            differences = outputs - outputs.mean(1, keepdim=True)
            deviation = differences.flatten(1).square().mean(1).sqrt() + 1e-6
            layer.weight.div_(deviation.reshape(-1, *[1] * (layer.weight.dim() - 1)))
            assert layer.bias is not None
            layer.bias.sub_(outputs.flatten(1).mean(1)).div_(deviation)
        values = layer(values)
    for copy in (model.q_net_target, getattr(model.policy, "q_net_average", None)):
        if copy is not None:
            copy.load_state_dict(model.q_net.state_dict())


def pictures_of_starts(setting: str | Path, goal: str) -> th.Tensor:
    """
    Draw the first picture of an episode from every start.

    :param setting: the map
    :param goal: the object to reach
    :return: the first picture of an episode from every start, channels first
    """
    starts = plan(setting, goal).starts
    return th.from_numpy(np.moveaxis(observer(setting, "pixels").many(starts, starts), -1, 1).copy())


def _as_network_input(observations: np.ndarray, space: spaces.Space, model: DQN) -> Any:
    assert isinstance(space, spaces.Box)
    if len(space.shape) == 3:
        observations = np.moveaxis(observations, -1, 1)
    return th.as_tensor(observations, device=model.device)
