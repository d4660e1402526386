"""Acting with a source policy, be it an SB3 policy or a function."""

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import CategoricalDistribution
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize, VecTransposeImage
from stable_baselines3.dqn.policies import DQNPolicy
from torch import nn
from torch.overrides import TorchFunctionMode

Observations: TypeAlias = np.ndarray | dict[str, np.ndarray]
ActionFunction: TypeAlias = Callable[[Any], Any]
Module = TypeVar("Module", bound=nn.Module)
SourceState: TypeAlias = tuple[np.ndarray, ...] | None

BATCHES = (
    "A source takes a batch of observations and returns an action for each: "
    "pass each(function) for a function of one observation."
)

# What environments of goals emit, and models trained with HER expect
GOALS = {"observation", "achieved_goal", "desired_goal"}


def by_key(observations: Any) -> dict[Any, Any]:
    """
    :param observations: an array, or a Dict of arrays
    :return: its parts by their keys, None being that of an array
    """
    return observations if isinstance(observations, dict) else {None: observations}


def length_of(observations: Any) -> int:
    """
    :param observations: a batch of them
    :return: how many there are
    """
    return len(next(iter(by_key(observations).values())))


class each:  # lowercase: reads as a word where it is used, `each(function)`
    """
    Make a batched source of a function of one observation.

    :param function: takes one observation, returns one action
    """

    def __init__(self, function: ActionFunction) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, observations: Observations) -> np.ndarray:
        if isinstance(observations, dict):
            batch: Any = [dict(zip(observations, row, strict=True)) for row in zip(*observations.values(), strict=True)]
        else:
            batch = observations
        return np.array([self.function(observation) for observation in batch])


def unwrapped(env: VecEnv) -> tuple[VecEnv, list[VecNormalize]]:
    """
    Take off the wrappers of SB3 that normalise or transpose observations, and those that leave them as they are.

    :param env: wrapped environments
    :return: the environments as the user has made them, whatever they emit, and the normalisations over them, the
        outermost first
    """
    normalizers: list[VecNormalize] = []
    while isinstance(env, VecEnvWrapper):
        if isinstance(env, VecNormalize):
            normalizers.append(env)
        elif not isinstance(env, VecTransposeImage) and env.observation_space != env.venv.observation_space:
            break
        env = env.venv
    return env, normalizers


class ObservationNormalizer:
    """
    The normalisation of a VecNormalize, and of those within it. It can be copied: copies leave environments behind.

    :param statistics: the outermost VecNormalize
    """

    def __init__(self, statistics: VecNormalize) -> None:
        self.statistics = statistics
        self.inner = unwrapped(statistics)[1][1:]

    def normalize(self, observations: Observations) -> Observations:
        """
        :param observations: as the environment emits them
        :return: as the outermost VecNormalize gives them
        """
        for layer in (*reversed(self.inner), self.statistics):
            observations = layer.normalize_obs(observations)
        return observations

    def unnormalize(self, observations: Observations, outermost: bool = True) -> Observations:
        """
        :param observations: normalised observations
        :param outermost: whether by the outermost VecNormalize too
        :return: as the environment emits them, but for what was clipped
        """
        for layer in [self.statistics] * outermost + self.inner:
            observations = layer.unnormalize_obs(observations)
        return observations

    def __getstate__(self) -> dict[str, Any]:
        # VecNormalize's own way works once only: it fails without environments
        left_behind = ("venv", "class_attributes", "returns")
        state, *inner = [
            {key: value for key, value in vars(layer).items() if key not in left_behind}
            for layer in (self.statistics, *self.inner)
        ]
        return {**state, "inner": inner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        layers = []
        for part in (state, *state.pop("inner", ())):
            layer = VecNormalize.__new__(VecNormalize)
            layer.__setstate__(part)
            layers.append(layer)
        self.statistics, *self.inner = layers


class SourcePolicy:
    """
    A policy that the user already has. It is never trained or changed.

    :param act: takes a batch of observations, its own state (None at the start; what it returned last
        otherwise) and which environments start an episode; returns a batch of actions and its next state.
        With a true attribute ``takes_action_masks`` it also takes the keyword argument ``action_masks``, with a true
        ``takes_rng`` also ``rng``, a generator to draw actions with.
    :param name: the name in logs, figures and ``model.options.names``
    :param explicit_name: whether the user gave the name, so that it may not be altered to be unique
    :param observation_space: the observations that it expects, None when that is not known
    :param action_space: the actions that it returns, None when that is not known
    :param observation_map: applied to each batch of observations before ``act``
    :param action_map: applied to each batch of actions after ``act``
    :param deterministic: whether it always takes its likeliest action; where not, it draws its actions for callers with
        a generator
    :param ent_coef: what entropy counted for when its training ended, None where that is not known
    """

    # Those that were saved by earlier versions have none
    ent_coef: float | None = None

    def __init__(
        self,
        act: Callable[..., tuple[Any, SourceState]],
        name: str,
        explicit_name: bool = False,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
        observation_map: ActionFunction | None = None,
        action_map: ActionFunction | None = None,
        deterministic: bool = True,
        ent_coef: float | None = None,
    ) -> None:
        self.act = act
        self.name = name
        self.explicit_name = explicit_name
        self.observation_space = observation_space
        self.action_space = action_space
        self.observation_map = observation_map
        self.action_map = action_map
        self.deterministic = deterministic
        self.ent_coef = ent_coef
        self._warned_of_masks = False
        self._warned_of_box = False

    def __repr__(self) -> str:
        return f"SourcePolicy({self.name!r})"

    @property
    def deterministic(self) -> bool:
        """Whether it always takes its likeliest action."""
        return self._deterministic

    @deterministic.setter
    def deterministic(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise ValueError(f"deterministic must be True or False, not {value!r}.")
        if not value and not getattr(self.act, "takes_rng", False):
            raise ValueError(
                f"Source policy '{self.name}' has no probabilities to draw its actions by, as models of PPO and A2C "
                "have: deterministic=False is not for it."
            )
        self._deterministic = value

    @property
    def policy(self) -> BasePolicy | None:
        """The network behind this source, None for a callable."""
        return self.act.policy if isinstance(self.act, PolicyAct) else None

    @property
    def kind(self) -> str:
        """What it is, for people: the class of its policy, or "function"."""
        return getattr(self.act, "kind", "function") if self.policy is None else type(self.policy).__name__

    @property
    def network(self) -> BasePolicy | None:
        """The network behind this source if it sees observations and gives actions just as they are."""
        mapped = self.observation_map is not None or self.action_map is not None
        return None if mapped or getattr(self.act, "normalizer", None) is not None else self.policy

    @property
    def takes_action_masks(self) -> bool:
        """Whether this source acts by which actions are allowed."""
        return getattr(self.act, "takes_action_masks", False)

    def actions(
        self,
        observations: Observations,
        state: SourceState,
        episode_starts: np.ndarray,
        action_masks: np.ndarray | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[np.ndarray, SourceState]:
        """
        Act on a batch of observations.

        :param observations: one for each environment, in the layout that the environment emits
        :param state: what the last call returned, None at first
        :param episode_starts: which environments start an episode with this observation
        :param action_masks: which actions each environment allows, None where that is not known
        :param rng: what a source that is not ``deterministic`` draws its actions with; None for its likeliest ones
        :return: an action for each environment, and the next state
        """
        arguments: dict[str, Any] = self._mask_arguments(action_masks) if self.takes_action_masks else {}
        if rng is not None and not self.deterministic:
            arguments["rng"] = rng
        try:
            # A copy of its own: what a source does with it is nobody else's concern
            observations = copy.deepcopy(observations)
            if self.observation_map is not None:
                observations = self.observation_map(observations)
            actions, state = self.act(observations, state, episode_starts, **arguments)
            if self.action_map is not None:
                actions = self.action_map(_as_array(actions))
        except Exception as error:
            hint = f". {BATCHES}" if getattr(self.act, "takes_batches", False) else ""
            if getattr(self.act, "is_network", False):
                hint = f". It was given observations of {_described(observations)}."
            raise RuntimeError(f"Source policy '{self.name}' failed: {type(error).__name__}: {error}{hint}") from error
        try:
            return _as_array(actions), state
        except Exception as error:
            raise ValueError(f"Source policy '{self.name}' returned no batch of actions: {error} {BATCHES}") from error

    def box_actions(
        self,
        observations: Observations,
        state: SourceState,
        episode_starts: np.ndarray,
        action_space: spaces.Box,
        rng: np.random.Generator | None = None,
    ) -> tuple[np.ndarray, SourceState]:
        """
        Act on a batch of observations where actions are continuous. What lies outside the box is clipped, as SB3 does
        it, with a warning once.

        :param observations: see ``actions``
        :param state: see ``actions``
        :param episode_starts: see ``actions``
        :param action_space: the environment's actions
        :param rng: see ``actions``
        :return: actions of shape (environments, \\*action_space.shape), float32, and the next state
        """
        taken, state = self.actions(observations, state, episode_starts, rng=rng)
        taken = check_box_form(taken, self.name, len(episode_starts), action_space)
        clipped: np.ndarray = np.clip(taken, action_space.low, action_space.high).astype(np.float32)
        if not self._warned_of_box and not np.allclose(clipped, taken, atol=1e-4):
            self._warned_of_box = True
            warnings.warn(
                f"Source policy '{self.name}' answers outside {action_space}, {taken[(clipped != taken)][0]:g} for "
                "instance: such actions are clipped.",
                stacklevel=3,
            )
        return clipped, state

    def probabilities(self, observations: Observations) -> np.ndarray | None:
        """
        :param observations: a batch, in the layout that the environment emits
        :return: how likely each action is to be drawn, of shape (batch, actions); None where that is not known: of all
            but actor-critics of discrete actions without memory, without ``action_map``
        """
        policy: Any = self.policy
        categorical = isinstance(getattr(policy, "action_dist", None), CategoricalDistribution)
        if not categorical or self.deterministic or self.action_map is not None or hasattr(policy, "lstm_actor"):
            return None
        assert isinstance(self.act, PolicyAct)
        observations = copy.deepcopy(observations)
        if self.observation_map is not None:
            observations = self.observation_map(observations)
        with th.no_grad():
            tensors, _ = policy.obs_to_tensor(self.act.as_trained(observations))
            probabilities: th.Tensor = policy.get_distribution(tensors).distribution.probs
        return probabilities.cpu().numpy()

    def _mask_arguments(self, action_masks: np.ndarray | None) -> dict[str, np.ndarray]:
        if action_masks is not None and self.action_map is None:
            return {"action_masks": action_masks}
        # Where one of ours has a source that takes masks, that source warns
        ours = isinstance(self.act, PolicyAct) and not self.act.is_network
        if not self._warned_of_masks and not ours:
            self._warned_of_masks = True
            reason = "none are known: the environment has no method `action_masks`, or `predict` got no such argument"
            if self.action_map is not None:
                reason = "its action_map cannot be applied to them"
            warnings.warn(
                f"Source policy '{self.name}' takes action masks and acts without them: {reason}.", stacklevel=3
            )
        return {}

    def check_fits(self, observation_space: spaces.Space, action_space: spaces.Discrete | spaces.Box) -> None:
        """
        Refuse a source whose spaces are known and differ from the environment's.

        :param observation_space: the environment's observations, as it emits them
        :param action_space: the environment's actions
        """
        acts_in = self.action_space if self.action_map is None else None
        if isinstance(action_space, spaces.Box):
            acts_in = self._fit_box(acts_in, action_space)
        elif isinstance(acts_in, spaces.Box):
            raise ValueError(
                f"Source policy '{self.name}' has continuous actions, {acts_in}, but the environment takes "
                f"{action_space}: pass as_source(..., action_map=...) to convert its actions."
            )
        known = self.observation_space if self.observation_map is None else None
        if known is not None and not _same_observations(known, observation_space):
            trained = "expects observations of"
            if _has_goals(known) and not _has_goals(observation_space):
                trained = "was trained for goals (HER) and expects observations of"
            raise ValueError(
                f"Source policy '{self.name}' {trained} {known}, but the environment emits {observation_space}: pass "
                "as_source(..., observation_map=...) to convert them."
            )
        if acts_in is not None and acts_in != action_space:
            raise ValueError(
                f"Source policy '{self.name}' acts in {acts_in}, but the environment takes {action_space}: "
                "pass as_source(..., action_map=...) to convert its actions."
            )

    def _fit_box(self, acts_in: spaces.Space | None, action_space: spaces.Box) -> spaces.Space | None:
        """Bounds may differ: what is outside is clipped. What a network puts out are actions, and no scores of them."""
        if self.action_map is None and hasattr(self.act, "returns_scores"):
            self.act = copy.copy(self.act)
            self.act.returns_scores = False
        same_shape = isinstance(acts_in, spaces.Box) and acts_in.shape == action_space.shape
        return action_space if same_shape else acts_in


class PolicyAct:
    """
    Act with an SB3 policy on observations normalised as it knows them.

    :param policy: the policy, of which a copy is made: the user's model may go on training
    :param normalizer: the VecNormalize that it was trained with
    """

    def __init__(self, policy: BasePolicy, normalizer: VecNormalize | None = None) -> None:
        self.policy = frozen_copy(policy)
        self.normalizer = None if normalizer is None else copy.deepcopy(ObservationNormalizer(normalizer))
        # Values of actions are nothing to draw by, those of DQN and QR-DQN
        self.takes_rng = not isinstance(policy, DQNPolicy) and not hasattr(policy, "quantile_net")
        # One of ours asks its sources, which may be anything
        self.is_network = not hasattr(policy, "options")
        # As MaskablePPO and ours do
        self.takes_action_masks = "action_masks" in inspect.signature(policy.predict).parameters

    def __call__(
        self,
        observations: Any,
        state: SourceState,
        episode_starts: np.ndarray,
        rng: np.random.Generator | None = None,
        **action_masks: np.ndarray,
    ) -> tuple[np.ndarray, SourceState]:
        observations = self.as_trained(observations)
        with drawing(rng):
            return self.policy.predict(observations, state, episode_starts, deterministic=rng is None, **action_masks)

    def as_trained(self, observations: Observations) -> Observations:
        """:return: the same observations as the policy was trained on them"""
        return observations if self.normalizer is None else self.normalizer.normalize(observations)


class FunctionAct:
    """
    Act with a plain function of a batch of observations.

    :param function: the function
    """

    def __init__(self, function: ActionFunction) -> None:
        self.function = function
        self.takes_batches = not isinstance(function, each)

    def __call__(self, observations: Any, state: SourceState, episode_starts: np.ndarray) -> tuple[Any, SourceState]:
        return self.function(observations), state


def frozen_copy(module: Module) -> Module:
    """
    :param module: a policy, or any module of torch
    :return: a copy that acts and is not trained
    """
    # Optimizers are no part of acting
    left_behind = {
        id(value): None
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, th.optim.Optimizer)
    }
    with _DetachedCopies():
        copied = copy.deepcopy(module, left_behind)
    return copied.train(False).requires_grad_(False)


@contextmanager
def drawing(rng: np.random.Generator | None) -> Iterator[None]:
    """
    Let torch draw what follows from another generator, and leave its own ones as they are.

    :param rng: the generator, None if nothing will be drawn
    """
    if rng is None:
        yield
        return
    seed = int(rng.integers(2**63 - 1))
    gpus = list(range(th.cuda.device_count())) if th.cuda.is_initialized() else []
    with th.random.fork_rng(gpus):
        for generator in (th.default_generator, *(th.cuda.default_generators[gpu] for gpu in gpus)):
            generator.manual_seed(seed)
        yield


def draw(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """
    Draw actions, each as likely as a categorical distribution says.

    :param scores: its logits, of shape (..., actions)
    :param rng: random numbers, of which each draw takes one
    :return: the actions, of shape (...)
    """
    ends = np.exp(scores - scores.max(axis=-1, keepdims=True), dtype=np.float64).cumsum(axis=-1)
    uniform = rng.random((*scores.shape[:-1], 1))
    # Rounding must not lead past the last end
    drawn: np.ndarray = (uniform * ends[..., -1:] >= ends[..., :-1]).sum(axis=-1)
    return drawn


def check_form(actions: np.ndarray, name: str, n_envs: int, n_actions: int) -> np.ndarray:
    """
    Refuse what is not a whole number for each environment.

    :param actions: what a source returned
    :param name: its name
    :param n_envs: number of environments
    :param n_actions: number of actions
    :return: the actions, of shape (environments,)
    """
    if actions.shape == (n_envs, 1):
        actions = actions[:, 0]
    if actions.shape != (n_envs,):
        found = f"actions of shape {actions.shape}"
        raise ValueError(f"Source policy '{name}' returned {found}: {_expected(n_envs, n_actions)}. {BATCHES}")
    if not np.issubdtype(actions.dtype, np.integer):
        found = f"{actions.dtype} actions, {actions!r}"
        raise ValueError(f"Source policy '{name}' returned {found}: {_expected(n_envs, n_actions)}.")
    return actions


def check_box_form(actions: np.ndarray, name: str, n_envs: int, action_space: spaces.Box) -> np.ndarray:
    """
    Refuse what is not a finite action of a box for each environment.

    :param actions: what a source returned
    :param name: its name
    :param n_envs: number of environments
    :param action_space: the environment's actions
    :return: the actions, of shape (environments, \\*action_space.shape)
    """
    expected = (n_envs, *action_space.shape)
    if actions.shape == (n_envs,) and expected == (n_envs, 1):
        actions = actions[:, None]
    if actions.shape != expected:
        raise ValueError(
            f"Source policy '{name}' returned actions of shape {actions.shape}: expected {expected}. {BATCHES}"
        )
    if actions.dtype.kind not in "fiu" or not np.isfinite(actions).all():
        raise ValueError(f"Source policy '{name}' returned {actions!r}: expected finite numbers.")
    return actions


def check_actions(actions: np.ndarray, name: str, n_envs: int, n_actions: int) -> np.ndarray:
    """
    Refuse what the environments do not take as actions.

    :param actions: what a source returned
    :param name: its name
    :param n_envs: number of environments
    :param n_actions: number of actions
    :return: the actions, of shape (environments,)
    """
    actions = check_form(actions, name, n_envs, n_actions)
    if actions.min() < 0 or actions.max() >= n_actions:
        found = f"an action out of range, {actions!r}"
        raise ValueError(f"Source policy '{name}' returned {found}: {_expected(n_envs, n_actions)}.")
    return actions


def _expected(n_envs: int, n_actions: int) -> str:
    return f"expected {n_envs} integers from 0 to {n_actions - 1}"


class _DetachedCopies(TorchFunctionMode):
    """Copies results of computations too, which torch refuses: a policy may keep some of its last training pass."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is th.Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, memo = args
            return memo.setdefault(id(tensor), tensor.detach().clone())
        return func(*args, **(kwargs or {}))


def _described(observations: Observations) -> str:
    if isinstance(observations, dict):
        return ", ".join(f"{key}: {_described(values)}" for key, values in observations.items())
    return f"shape {np.shape(observations)} and type {np.asarray(observations).dtype}"


def _as_array(actions: Any) -> np.ndarray:
    if isinstance(actions, tuple) and len(actions) == 2 and (actions[1] is None or isinstance(actions[1], tuple)):
        raise ValueError(
            "they are a tuple (actions, state), as `predict` returns it; return the actions alone, or pass the model "
            "itself, which keeps its state too."
        )
    return actions.detach().cpu().numpy() if isinstance(actions, th.Tensor) else np.asarray(actions)


def _same_observations(source: spaces.Space, target: spaces.Space) -> bool:
    """Bounds may differ, what the network needs may not; a source takes images with channels first or last."""
    if isinstance(source, spaces.Dict) and isinstance(target, spaces.Dict):
        return source.keys() == target.keys() and all(_same_observations(source[key], target[key]) for key in source)
    if isinstance(source, spaces.Box) and isinstance(target, spaces.Box):
        layouts = [target.shape]
        if len(target.shape) == 3:
            layouts.append((target.shape[2], *target.shape[:2]))
        return source.shape in layouts and _is_float(source) == _is_float(target)
    return source == target


def _has_goals(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Dict) and space.keys() >= GOALS


def _is_float(space: spaces.Box) -> bool:
    return np.issubdtype(space.dtype, np.floating)
