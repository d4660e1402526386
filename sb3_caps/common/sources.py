"""Source policies: anything that acts, behind one interface."""

import copy
import importlib
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.vec_env import VecNormalize

Observations: TypeAlias = np.ndarray | dict[str, np.ndarray]
ActionFunction: TypeAlias = Callable[[Any], Any]
SourceState: TypeAlias = tuple[np.ndarray, ...] | None

IMPORT_STRING = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


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
        otherwise) and which environments start an episode; returns a batch of actions and its next state
    :param name: the name in logs, figures and ``model.options.names``
    :param explicit_name: whether the user gave the name, so that it may not be altered to be unique
    :param observation_space: the observations that it expects, None when that is not known
    :param action_space: the actions that it returns, None when that is not known
    :param observation_map: applied to each batch of observations before ``act``
    :param action_map: applied to each batch of actions after ``act``
    """

    def __init__(
        self,
        act: Callable[[Any, SourceState, np.ndarray], tuple[Any, SourceState]],
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

    def __repr__(self) -> str:
        return f"SourcePolicy({self.name!r})"

    @property
    def policy(self) -> BasePolicy | None:
        """The network behind this source, None for a callable."""
        return self.act.policy if isinstance(self.act, _PolicyAct) else None

    @property
    def network(self) -> BasePolicy | None:
        """The network behind this source if it sees observations and gives actions just as they are."""
        mapped = self.observation_map is not None or self.action_map is not None
        return None if mapped or getattr(self.act, "normalizer", None) is not None else self.policy

    def actions(
        self, observations: Observations, state: SourceState, episode_starts: np.ndarray
    ) -> tuple[np.ndarray, SourceState]:
        """
        Act on a batch of observations.

        :param observations: one for each environment, in the layout that the environment emits
        :param state: what the last call returned, None at first
        :param episode_starts: which environments start an episode with this observation
        :return: an action for each environment, and the next state
        """
        try:
            if self.observation_map is not None:
                observations = self.observation_map(observations)
            actions, state = self.act(observations, state, episode_starts)
            if self.action_map is not None:
                actions = self.action_map(actions)
        except Exception as error:
            raise RuntimeError(f"Source policy '{self.name}' failed: {type(error).__name__}: {error}") from error
        return np.asarray(actions), state

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


class _PolicyAct:
    """Act with an SB3 policy, deterministically, on observations normalised as it knows them."""

    def __init__(self, policy: BasePolicy, normalizer: VecNormalize | None = None) -> None:
        # A copy: the user's model may go on training, and its optimizer is no part of acting.
        self.policy = copy.deepcopy(policy)
        for module in self.policy.modules():
            if hasattr(module, "optimizer"):
                del module.optimizer
        self.policy.set_training_mode(False)
        self.policy.requires_grad_(False)
        self.normalizer = None if normalizer is None else copy.deepcopy(ObservationNormalizer(normalizer))

    def __call__(
        self, observations: Any, state: SourceState, episode_starts: np.ndarray
    ) -> tuple[np.ndarray, SourceState]:
        if self.normalizer is not None:
            observations = self.normalizer.statistics.normalize_obs(observations)
        return self.policy.predict(observations, state, episode_starts, deterministic=True)


class _FunctionAct:
    """Act with a plain function of a batch of observations."""

    def __init__(self, function: ActionFunction) -> None:
        self.function = function

    def __call__(self, observations: Any, state: SourceState, episode_starts: np.ndarray) -> tuple[Any, SourceState]:
        return self.function(observations), state


def as_source(
    source: Any,
    name: str | None = None,
    observation_map: ActionFunction | None = None,
    action_map: ActionFunction | None = None,
) -> SourcePolicy:
    """
    Make a source policy of anything that acts.

    :param source: an SB3 or sb3-contrib algorithm or policy, the path of a saved model or of a folder that
        rl_zoo3 wrote, an import string ``package.module:function``, or a callable from a batch of
        observations to a batch of actions (see ``each`` for a function of one observation)
    :param name: its name in logs and figures, by default that of the file, function or class
    :param observation_map: converts a batch of the target's observations to the source's
    :param action_map: converts a batch of the source's actions to the target's
    :return: the source policy
    """
    if isinstance(source, SourcePolicy):
        result = copy.copy(source)
    elif isinstance(source, (str, os.PathLike)):
        result = _from_string(str(source)) if _is_import_string(source) else _from_file(Path(source))
    elif isinstance(source, BaseAlgorithm):
        result = _from_policy(source.policy, type(source).__name__.lower(), source.get_vec_normalize_env())
    elif isinstance(source, BasePolicy):
        result = _from_policy(source, type(source).__name__)
    elif callable(source):
        result = SourcePolicy(_FunctionAct(source), getattr(source, "__name__", type(source).__name__))
    else:
        raise ValueError(
            f"{source!r} is no source policy: pass an SB3 algorithm or policy, the path of a saved model, "
            "an import string 'package.module:function', or a callable from observations to actions."
        )
    if name is not None:
        result.name, result.explicit_name = name, True
    result.observation_map = observation_map or result.observation_map
    result.action_map = action_map or result.action_map
    return result


def _from_policy(policy: BasePolicy, name: str, normalizer: VecNormalize | None = None) -> SourcePolicy:
    return SourcePolicy(
        _PolicyAct(policy, normalizer),
        name,
        observation_space=policy.observation_space,
        action_space=policy.action_space,
    )


def _is_import_string(source: Any) -> bool:
    return isinstance(source, str) and IMPORT_STRING.fullmatch(source) is not None and not Path(source).exists()


def _from_string(source: str) -> SourcePolicy:
    module_name, _, path = source.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"The source policy '{source}' cannot be imported: {error}") from error
    return as_source(found)


def _from_file(path: Path) -> SourcePolicy:
    """Only the policy is built, not the algorithm: its class is read from the file."""
    path = _model_file(path)
    try:
        data, params, _ = load_from_zip_file(path, device="cpu")
        assert data is not None
        assert params is not None
        policy_kwargs = {k: v for k, v in data.get("policy_kwargs", {}).items() if k != "device"}
        if "options" in data:  # a CAPS model: its policy acts through its own options
            policy_kwargs["options"] = data["options"]
        policy = data["policy_class"](data["observation_space"], data["action_space"], lambda _: 0.0, **policy_kwargs)
        policy.load_state_dict(params["policy"])
    except (KeyError, AssertionError, zipfile.BadZipFile, ValueError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{path} is no usable saved SB3 model ({type(error).__name__}: {error}): pass the .zip file that "
            "`model.save` wrote."
        ) from error
    # Names like `best_model` say nothing: the folder of the run does.
    name = path.parent.name if path.stem in ("best_model", "model", "rl_model") and path.parent.name else path.stem
    return _from_policy(policy, name, _vec_normalize_beside(path))


def _model_file(path: Path) -> Path:
    """The saved model that a user's path means: a file, with or without ``.zip``, or a folder that rl_zoo3 wrote."""
    if path.is_dir():
        found = [path / "best_model.zip"] if (path / "best_model.zip").is_file() else sorted(path.glob("*.zip"))
        if len(found) != 1:
            raise ValueError(f"The folder {path} holds {len(found)} saved models: pass the path of one .zip file.")
        return found[0]
    if not path.exists() and path.suffix != ".zip":
        path = path.with_name(path.name + ".zip")
    if not path.is_file():
        raise FileNotFoundError(f"There is no saved model at {path}.")
    return path


def _vec_normalize_beside(path: Path) -> VecNormalize | None:
    """rl_zoo3 keeps ``vecnormalize.pkl`` in a folder with the environment's name, beside the model."""
    found = [path.parent / "vecnormalize.pkl", *sorted(path.parent.glob("*/vecnormalize.pkl"))]
    for file in found:
        if file.is_file():
            with file.open("rb") as opened:
                return pickle.load(opened)
    return None


def _same_observations(source: spaces.Space, target: spaces.Space) -> bool:
    """Bounds may differ, what the network needs may not; a source takes images with channels first or last."""
    if isinstance(source, spaces.Dict) and isinstance(target, spaces.Dict):
        return source.keys() == target.keys() and all(_same_observations(source[key], target[key]) for key in source)
    if isinstance(source, spaces.Box) and isinstance(target, spaces.Box):
        layouts = [target.shape]
        if len(target.shape) == 3:
            layouts.append((target.shape[2], *target.shape[:2]))
        return source.shape in layouts and th.is_floating_point(_zero(source)) == th.is_floating_point(_zero(target))
    return source == target


def _zero(space: spaces.Box) -> th.Tensor:
    return th.from_numpy(np.zeros(1, dtype=space.dtype))
