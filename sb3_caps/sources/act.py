"""Acting with a source policy, be it an SB3 policy or a function."""

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecNormalize
from torch.overrides import TorchFunctionMode

Observations: TypeAlias = np.ndarray | dict[str, np.ndarray]
ActionFunction: TypeAlias = Callable[[Any], Any]
SourceState: TypeAlias = tuple[np.ndarray, ...] | None

BATCHES = (
    "A source takes a batch of observations and returns an action for each: "
    "pass each(function) for a function of one observation."
)


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


class ObservationNormalizer:
    """
    The normalisation of a VecNormalize, which can be copied: copies leave its environments behind.

    :param statistics: the VecNormalize
    """

    def __init__(self, statistics: VecNormalize) -> None:
        self.statistics = statistics

    def __getstate__(self) -> dict[str, Any]:
        # VecNormalize's own way works once only: it fails without environments
        left_behind = ("venv", "class_attributes", "returns")
        return {key: value for key, value in vars(self.statistics).items() if key not in left_behind}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.statistics = VecNormalize.__new__(VecNormalize)
        self.statistics.__setstate__(state)


class SourcePolicy:
    """
    A policy that the user already has. It is never trained or changed.

    :param act: takes a batch of observations, its own state (None at the start; what it returned last
        otherwise) and which environments start an episode; returns a batch of actions and its next state.
        With a true attribute ``takes_action_masks`` it also takes the keyword argument ``action_masks``.
    :param name: the name in logs, figures and ``model.options.names``
    :param explicit_name: whether the user gave the name, so that it may not be altered to be unique
    :param observation_space: the observations that it expects, None when that is not known
    :param action_space: the actions that it returns, None when that is not known
    :param observation_map: applied to each batch of observations before ``act``
    :param action_map: applied to each batch of actions after ``act``
    """

    def __init__(
        self,
        act: Callable[..., tuple[Any, SourceState]],
        name: str,
        explicit_name: bool = False,
        observation_space: spaces.Space | None = None,
        action_space: spaces.Space | None = None,
        observation_map: ActionFunction | None = None,
        action_map: ActionFunction | None = None,
    ) -> None:
        self.act = act
        self.name = name
        self.explicit_name = explicit_name
        self.observation_space = observation_space
        self.action_space = action_space
        self.observation_map = observation_map
        self.action_map = action_map
        self._warned_of_masks = False

    def __repr__(self) -> str:
        return f"SourcePolicy({self.name!r})"

    @property
    def policy(self) -> BasePolicy | None:
        """The network behind this source, None for a callable."""
        return self.act.policy if isinstance(self.act, PolicyAct) else None

    @property
    def kind(self) -> str:
        """What it is, for people: the class of its policy, or "function"."""
        return "function" if self.policy is None else type(self.policy).__name__

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
    ) -> tuple[np.ndarray, SourceState]:
        """
        Act on a batch of observations.

        :param observations: one for each environment, in the layout that the environment emits
        :param state: what the last call returned, None at first
        :param episode_starts: which environments start an episode with this observation
        :param action_masks: which actions each environment allows, None where that is not known
        :return: an action for each environment, and the next state
        """
        arguments = self._mask_arguments(action_masks) if self.takes_action_masks else {}
        try:
            # A copy of its own: what a source does with it is nobody else's concern
            observations = copy.deepcopy(observations)
            if self.observation_map is not None:
                observations = self.observation_map(observations)
            actions, state = self.act(observations, state, episode_starts, **arguments)
            if self.action_map is not None:
                actions = self.action_map(_as_array(actions))
        except Exception as error:
            hint = f" {BATCHES}" if getattr(self.act, "takes_batches", False) else ""
            raise RuntimeError(f"Source policy '{self.name}' failed: {type(error).__name__}: {error}{hint}") from error
        try:
            return _as_array(actions), state
        except Exception as error:
            raise ValueError(f"Source policy '{self.name}' returned no batch of actions: {error} {BATCHES}") from error

    def _mask_arguments(self, action_masks: np.ndarray | None) -> dict[str, np.ndarray]:
        if action_masks is not None and self.action_map is None:
            return {"action_masks": action_masks}
        if not self._warned_of_masks:
            self._warned_of_masks = True
            reason = "none are known: the environment has no method `action_masks`, or `predict` got no such argument"
            if self.action_map is not None:
                reason = "its action_map cannot be applied to them"
            warnings.warn(
                f"Source policy '{self.name}' takes action masks and acts without them: {reason}.", stacklevel=3
            )
        return {}

    def check_fits(self, observation_space: spaces.Space, action_space: spaces.Discrete) -> None:
        """
        Refuse a source whose spaces are known and differ from the environment's.

        :param observation_space: the environment's observations, as it emits them
        :param action_space: the environment's actions
        """
        known = self.observation_space if self.observation_map is None else None
        if known is not None and not _same_observations(known, observation_space):
            raise ValueError(
                f"Source policy '{self.name}' expects observations of {known}, but the environment emits "
                f"{observation_space}: pass as_source(..., observation_map=...) to convert them."
            )
        if self.action_map is None and self.action_space is not None and self.action_space != action_space:
            raise ValueError(
                f"Source policy '{self.name}' acts in {self.action_space}, but the environment takes {action_space}: "
                "pass as_source(..., action_map=...) to convert its actions."
            )


class PolicyAct:
    """
    Act with an SB3 policy, deterministically, on observations normalised as it knows them.

    :param policy: the policy, of which a copy is made: the user's model may go on training
    :param normalizer: the VecNormalize that it was trained with
    """

    def __init__(self, policy: BasePolicy, normalizer: VecNormalize | None = None) -> None:
        # Optimizers are no part of acting
        left_behind = {
            id(value): None
            for module in policy.modules()
            for value in vars(module).values()
            if isinstance(value, th.optim.Optimizer)
        }
        with _DetachedCopies():
            self.policy = copy.deepcopy(policy, left_behind)
        self.policy.set_training_mode(False)
        self.policy.requires_grad_(False)
        self.normalizer = None if normalizer is None else copy.deepcopy(ObservationNormalizer(normalizer))
        # As MaskablePPO does, and a policy that acts through sources one of which does
        sources_do = getattr(getattr(policy, "options", None), "takes_action_masks", True)
        self.takes_action_masks = sources_do and "action_masks" in inspect.signature(policy.predict).parameters

    def __call__(
        self, observations: Any, state: SourceState, episode_starts: np.ndarray, **action_masks: np.ndarray
    ) -> tuple[np.ndarray, SourceState]:
        if self.normalizer is not None:
            observations = self.normalizer.statistics.normalize_obs(observations)
        return self.policy.predict(observations, state, episode_starts, deterministic=True, **action_masks)


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


class _DetachedCopies(TorchFunctionMode):
    """Copies results of computations too, which torch refuses: a policy may keep some of its last training pass."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is th.Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, memo = args
            return memo.setdefault(id(tensor), tensor.detach().clone())
        return func(*args, **(kwargs or {}))


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


def _is_float(space: spaces.Box) -> bool:
    return np.issubdtype(space.dtype, np.floating)
