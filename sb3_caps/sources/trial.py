"""A first call of each source, before a run depends on it."""

import copy
import io
import pickle
import warnings
from typing import Any

import cloudpickle
import numpy as np
from gymnasium import spaces

from sb3_caps.sources.act import Observations, PolicyAct, SourcePolicy, check_box_form, check_form

# More than one tells a function of one observation from one of a batch
N_SAMPLES = 2
# Where a space has no bounds that anybody comes near
LARGEST = 10.0
# A function that takes more to save has taken a whole model with it, or its environment
MOST_BYTES = 2**28


def try_source(
    source: SourcePolicy, observation_space: spaces.Space, action_space: spaces.Discrete | spaces.Box
) -> None:
    """
    Call a source on observations of a space, and refuse what it returns if that cannot be actions.

    A copy is called, as it would come back from a saved model: what a source remembers stays as it is. A warning tells
    of a source that cannot be saved. What a function raises is left to the first observation of an environment: those
    of here are random, and many functions know only what the environment emits.

    :param source: the source
    :param observation_space: the environment's observations, as it emits them
    :param action_space: the environment's actions
    """
    observations = sampled(observation_space, N_SAMPLES)
    if observations is None:
        return
    mapped = source.observation_map is not None or source.action_map is not None
    tried = _copied(source) if mapped or not isinstance(source.act, PolicyAct) else source
    n_actions = int(action_space.n) if isinstance(action_space, spaces.Discrete) else 0
    starts = np.ones(N_SAMPLES, dtype=bool)
    masks = np.ones((N_SAMPLES, n_actions), dtype=bool) if n_actions else None
    try:
        with warnings.catch_warnings():
            # Of nonsense, and of masks: they are told in a run
            warnings.simplefilter("ignore")
            actions, _ = tried.actions(observations, None, starts, masks)
    except RuntimeError:
        if mapped or not getattr(source.act, "is_network", False):
            return
        raise
    if isinstance(action_space, spaces.Box):
        check_box_form(actions, source.name, N_SAMPLES, action_space)
        return
    n_scores = getattr(tried.act, "n_scores", None)
    if n_scores not in (None, n_actions) and source.action_map is None:
        raise ValueError(
            f"Source policy '{source.name}' returns {n_scores} numbers for an observation, but the environment takes "
            f"{action_space}: expected one for each action."
        )
    check_form(actions, source.name, N_SAMPLES, n_actions)


def sampled(space: spaces.Space, number: int) -> Observations | None:
    """
    :param space: of observations
    :param number: how many
    :return: random ones, always the same; None for a space of another kind than those of SB3
    """
    space = copy.deepcopy(space)
    space.seed(0)
    if isinstance(space, spaces.Dict):
        parts: dict[str, Any] = {key: sampled(part, number) for key, part in space.items()}
        return None if any(part is None for part in parts.values()) else parts
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return None
    found = np.stack([np.asarray(space.sample()) for _ in range(number)])
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        found = found.clip(-LARGEST, LARGEST).clip(space.low, space.high)
    return found


def check_picklable(source: SourcePolicy, consequence: str = "nothing was saved") -> None:
    """
    Refuse a source that cannot be saved.

    :param source: the source
    :param consequence: what follows from it
    """
    try:
        cloudpickle.dump(source, io.BytesIO())
    except Exception as error:  # what an object of the user's raises is anybody's guess
        raise ValueError(_not_picklable(source, error, consequence)) from error


def _copied(source: SourcePolicy) -> SourcePolicy:
    """:return: the source as it comes back from a saved model; as it is, with a warning, where it would not"""
    file = _SmallFile()
    try:
        cloudpickle.dump(source, file)
        copied: SourcePolicy = pickle.loads(file.getvalue())
        return copied
    except _TooLargeError:
        warning = f"Source policy '{source.name}' takes more than {MOST_BYTES >> 20} MB in each saved model."
    except Exception as error:  # what an object of the user's raises is anybody's guess
        warning = _not_picklable(source, error, "the model cannot be saved as it is")
    warnings.warn(warning, stacklevel=5)
    return copy.copy(source)


def _not_picklable(source: SourcePolicy, error: Exception, consequence: str) -> str:
    return (
        f"Source policy '{source.name}' cannot be pickled ({error}), so {consequence}: give it as a function of a "
        "module or as an import string 'package.module:function', or save with exclude=['options'] and pass "
        "source_policies to load."
    )


class _TooLargeError(Exception):
    """A pickle takes more than it may."""


class _SmallFile(io.BytesIO):
    """A file in memory that does not grow beyond ``MOST_BYTES``."""

    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_BYTES:
            raise _TooLargeError
        return super().write(data)
