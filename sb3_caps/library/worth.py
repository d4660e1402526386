"""Which policies pay: in a model, in a library, and one that may come to it."""

from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_caps.caps.gate import OPTIONS
from sb3_caps.reuse.growth import GrowingSources
from sb3_caps.reuse.options import OptionSet
from sb3_caps.sources import SourcePolicy, as_source, evaluate_sources, unwrapped
from sb3_caps.sources.act import frozen_copy, length_of

if TYPE_CHECKING:
    from sb3_caps.library.folder import PolicyLibrary

# Continuous actions agree that are this near in each dimension, each of which is from -1 to 1
NEAR = 0.1


@dataclass(frozen=True)
class WorthInModel:
    """
    What a source is worth in a model, by evaluation.

    :param name: its name
    :param share: share of the steps in which the model follows it
    :param lost: by how much the mean return goes down without it
    :param error: the standard error of that
    :param agreement: for each other source the share of the visited states in which both do the same
    """

    name: str
    share: float
    lost: float
    error: float
    agreement: dict[str, float]


@dataclass(frozen=True)
class Consideration:
    """
    Whether a policy is worth adding.

    :param add: whether it is
    :param worth: what share of its gain over random actions no policy of the library has, on its own task; beyond that
        what it adds on past tasks in the same unit, if this is more
    :param reason: why
    :param best: the best policy of the library on its task, None without one that fits
    :param difference: share of the states that it visits in which no policy of the library does the same
    """

    add: bool
    worth: float
    reason: str
    best: str | None
    difference: float

    def __str__(self) -> str:
        return f"{'add' if self.add else 'leave'} ({self.worth:.2f}): {self.reason}"


@dataclass(frozen=True)
class Pruning:
    """
    What a library could do without.

    :param names: the policies, in the order in which to remove them
    :param lost: by task, how much lower the highest mean return is without all of them
    :param tolerance: how much that may be
    """

    names: list[str]
    lost: dict[str, float]
    tolerance: float

    def __str__(self) -> str:
        if not self.names:
            return "Every policy is the best one somewhere."
        lost = ", ".join(f"{value:.3g} on {task}" for task, value in self.lost.items())
        return f"remove {', '.join(self.names)}: the best of the others is lower by {lost}"


def worth_of_sources(
    model: GrowingSources, env: GymEnv | str, n_eval_episodes: int = 20, seed: int = 0
) -> list[WorthInModel]:
    """
    Find out what each source of a model is worth: the model acts with it, and a copy without it, from the same seeds.

    :param model: a model that acts by options
    :param env: the environment, or its id; normalised as the model's, where that is normalised
    :param n_eval_episodes: how many episodes for each
    :param seed: of the environment
    :return: what each source is worth, in their order
    """
    venv = _environment(env)
    options = model.options
    watched = _Watched(frozen_copy(model.policy), options)
    returns = _returns(watched, venv, n_eval_episodes, seed)
    agreement = _agreement(_answers(options, watched.seen))
    found = []
    for i, name in enumerate(options.source_names):
        without = _returns(_without(model, name), venv, n_eval_episodes, seed)
        difference = returns - without
        found.append(
            WorthInModel(
                name,
                float(np.mean(watched.followed == i)) if len(watched.followed) else 0.0,
                float(difference.mean()),
                float(difference.std() / np.sqrt(len(difference))),
                {other: float(agreement[i, j]) for j, other in enumerate(options.source_names) if j != i},
            )
        )
    if isinstance(env, str):
        venv.close()
    return found


def _without(model: Any, name: str) -> Any:
    """:return: a copy of the policy of a model that has no such source"""
    before, policy = model.options, frozen_copy(model.policy)
    kept = [as_source(source, name=source.name) for source in before.sources if source.name != name]
    options = type(before)(kept, before.observation_space, model.action_space)
    options.normalizer = before.normalizer
    policy.set_options(options, np.array([before.names.index(each) for each in options.names]))
    policy.gate.disabled.discard(name)
    if policy.gate.controller.is_source and policy.gate.controller.name == name:
        selector, behaviour = copy(model.selector), OPTIONS
        if hasattr(selector, "sources"):
            selector.sources = [each for each in selector.sources if each.name != name]
            behaviour = selector.decide()
        policy.gate.controller = behaviour
    return policy


class _Watched:
    """
    A policy that keeps what it sees and which option it follows.

    :param policy: the policy
    :param options: its options, None for a policy without
    """

    def __init__(self, policy: Any, options: OptionSet | None = None) -> None:
        self.policy, self.options = policy, options
        self.observations: list[Any] = []
        self.options_followed: list[np.ndarray] = []

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> Any:
        """As the policy does."""
        seen = observation if self.options is None else self.options.as_emitted(observation, normalized=True)
        self.observations.append(deepcopy(seen))
        actions, state = self.policy.predict(observation, state, episode_start, deterministic=deterministic)
        if isinstance(state, tuple) and len(state) and self.options is not None:
            self.options_followed.append(np.array(state[0]))
        return actions, state

    @property
    def seen(self) -> Any:
        """All observations, as the environment emits them."""
        if isinstance(self.observations[0], dict):
            return {key: np.concatenate([each[key] for each in self.observations]) for key in self.observations[0]}
        return np.concatenate(self.observations)

    @property
    def followed(self) -> np.ndarray:
        """The options, in all steps."""
        return np.concatenate(self.options_followed) if self.options_followed else np.zeros(0, dtype=np.int64)


def _environment(env: Any) -> VecEnv:
    made = gym.make(env) if isinstance(env, str) else env
    return made if isinstance(made, VecEnv) else DummyVecEnv([lambda: Monitor(made)])


def _returns(policy: Any, env: VecEnv, n_eval_episodes: int, seed: int) -> np.ndarray:
    env.seed(seed)
    found, _ = evaluate_policy(policy, env, n_eval_episodes, return_episode_rewards=True, warn=False)
    return np.array(found)


def _answers(options: OptionSet, observations: Any) -> list[np.ndarray]:
    """:return: what each source does in single observations"""
    n = length_of(observations)
    starts, rng = np.ones(n, dtype=bool), np.random.default_rng(0)
    return [options.ask(i, observations, None, starts, rng=rng)[0] for i in range(options.n_sources)]


def _agreement(answers: list[np.ndarray]) -> np.ndarray:
    return np.array([[_same(one, other).mean() for other in answers] for one in answers])


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """In which states two policies do the same."""
    if one.ndim == 1:
        return one == other
    return np.asarray((np.abs(one - other) <= NEAR).all(axis=1))


def consider(
    library: "PolicyLibrary",
    model: Any,
    env: GymEnv | str,
    n_eval_episodes: int = 20,
    threshold: float = 0.9,
    past_tasks: Sequence[str] | None = None,
    seed: int = 0,
) -> Consideration:
    """
    Tell whether a policy is worth adding to a library.

    The rule is that of PLPR (Fernández and Veloso 2006): it is, unless some policy of the library gains more than a
    share of what it gains on its task, here over random actions. It is also if it adds that much on a past task.

    :param library: the library
    :param model: the policy, anything that ``as_source`` takes
    :param env: the task that it has learned, or its id
    :param n_eval_episodes: how many episodes for each policy
    :param threshold: that share, δ
    :param past_tasks: ids of environments to try it in; by default those that the library knows returns of
    :param seed: of the environment
    :return: a number and a reason
    """
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"threshold must be a share from 0 to 1, not {threshold}.")
    venv, source = _environment(env), as_source(model)
    emits = unwrapped(venv)[0]
    known = library.for_env(emits)
    random = as_source(_Random(emits.action_space), name="random actions")
    new, lowest, *others = evaluate_sources(
        [as_source(source, name="new policy"), random, *known], emits, n_eval_episodes, seed
    )
    best = max(others, key=lambda each: each.mean, default=None)
    difference = _difference(source, known, emits, n_eval_episodes, seed)
    gain = new.mean - lowest.mean
    if gain <= 0.0:
        reason = f"it is paid {new.mean:.4g}, and random actions are paid {lowest.mean:.4g}"
        return Consideration(False, 0.0, reason, None if best is None else best.name, difference)
    missing = 1.0 if best is None else float(np.clip(1.0 - (best.mean - lowest.mean) / gain, 0.0, 1.0))
    worth, reason = missing, "nothing in the library fits this task"
    if best is not None:
        reason = (
            f"'{best.name}' gains {1.0 - missing:.0%} of what it gains on its task, {best.mean:.4g} to {new.mean:.4g} "
            f"(random actions: {lowest.mean:.4g}); in {difference:.0%} of the states nothing else does the same"
        )
    for task in _past_tasks(library) if past_tasks is None else past_tasks:
        added = _added_on(library, source, task, n_eval_episodes, seed)
        if added > worth:
            worth, reason = added, f"it adds {added:.0%} to what the library gains on {task}"
    if isinstance(env, str):
        venv.close()
    return Consideration(worth > 1.0 - threshold, worth, reason, None if best is None else best.name, difference)


def _past_tasks(library: "PolicyLibrary") -> list[str]:
    """Those that environments are registered for."""
    tasks = dict.fromkeys(task for entry in library.entries() for task in entry.returns)
    return [task for task in tasks if task in gym.registry]


def _added_on(library: "PolicyLibrary", source: SourcePolicy, task: str, n_eval_episodes: int, seed: int) -> float:
    """:return: by what share of its gain over random actions a policy is better than the best of a library"""
    env = gym.make(task)
    try:
        if not isinstance(env.action_space, (spaces.Discrete, spaces.Box)):
            return 0.0
        source.check_fits(env.observation_space, env.action_space)
        known = library.evaluate(task, n_eval_episodes)
        random = as_source(_Random(env.action_space), name="random actions")
        new, lowest = evaluate_sources([as_source(source, name="new policy"), random], task, n_eval_episodes, seed)
    except ValueError:
        return 0.0
    finally:
        env.close()
    gain, best = new.mean - lowest.mean, max((each.mean for each in known.values()), default=lowest.mean)
    return float(np.clip((new.mean - max(best, lowest.mean)) / gain, 0.0, 1.0)) if gain > 0.0 else 0.0


def _difference(source: SourcePolicy, known: list[SourcePolicy], env: VecEnv, n_eval_episodes: int, seed: int) -> float:
    """:return: share of the states that a policy visits in which no other one does the same"""
    if not known:
        return 1.0
    from sb3_caps.continuous.options import BoxOptionSet

    options_class: Any = BoxOptionSet if isinstance(env.action_space, spaces.Box) else OptionSet
    options = options_class([as_source(source, name="new policy"), *known], env.observation_space, env.action_space)
    watched = _Watched(_Alone(options))
    _returns(watched, env, n_eval_episodes, seed)
    own, *others = _answers(options, watched.seen)
    return float(1.0 - np.any([_same(own, other) for other in others], axis=0).mean())


class _Alone:
    """
    The first source of some options, as SB3 evaluates it.

    :param options: the options
    """

    def __init__(self, options: Any) -> None:
        self.options, self.rng = options, np.random.default_rng(0)

    def predict(self, observation: Any, state: Any, episode_start: Any, deterministic: bool) -> Any:
        """As SB3's models do."""
        actions, state = self.options.ask(0, observation, state, episode_start, rng=self.rng)
        return (self.options.unscaled(actions) if actions.ndim > 1 else actions), state


class _Random:
    """
    Random actions.

    :param space: of actions
    """

    def __init__(self, space: spaces.Space) -> None:
        self.space, self.rng = space, np.random.default_rng(0)

    def __call__(self, observations: Any) -> np.ndarray:
        n = length_of(observations)
        if isinstance(self.space, spaces.Discrete):
            return self.rng.integers(int(self.space.n), size=n)
        assert isinstance(self.space, spaces.Box)
        return self.rng.uniform(self.space.low, self.space.high, size=(n, *self.space.shape)).astype(np.float32)


def prune(
    library: "PolicyLibrary", tasks: Sequence[str] | None = None, n_eval_episodes: int = 20, tolerance: float = 0.0
) -> Pruning:
    """
    Suggest what a library could do without: one policy after the other, as long as on every task the best of those
    that are left is not much worse than the best of all.

    :param library: the library
    :param tasks: ids of environments; by default those that it knows returns of
    :param n_eval_episodes: how many episodes for each policy that was not tried in one of them yet
    :param tolerance: how much lower the highest mean return may be, on any task
    :return: names, and what is lost without them
    """
    tasks = _past_tasks(library) if tasks is None else list(tasks)
    if not tasks:
        raise ValueError(f"{library} knows of no task: pass tasks, the ids of environments that matter.")
    means = {
        task: {name: each.mean for name, each in library.evaluate(task, n_eval_episodes).items()} for task in tasks
    }

    def lost(left: set[str]) -> dict[str, float]:
        found = {}
        for task, known in means.items():
            if known:
                best = max((mean for name, mean in known.items() if name in left), default=-np.inf)
                found[task] = max(known.values()) - best
        return found

    left, names = {name for known in means.values() for name in known}, []
    while candidates := {
        name: max(lost(left - {name}).values())
        for name in sorted(left)
        if max(lost(left - {name}).values()) <= tolerance
    }:
        # What is nowhere missed goes first, and of these what is paid least
        name = min(
            candidates, key=lambda each: (candidates[each], sum(known.get(each, 0.0) for known in means.values()))
        )
        names.append(name)
        left.remove(name)
    return Pruning(names, lost(left), tolerance)
