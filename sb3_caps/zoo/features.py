"""``source_features`` of a config: learn from what the networks of the sources see."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.sources.features import SourceFeatures, VecSourceFeatures

FILE = "source_features.pkl"
# What rl_zoo3 calls to wrap the environments of a saved run
WRAPPER = f"{VecSourceFeatures.__module__}.{VecSourceFeatures.__name__}"
KEYS = ("models", "n_observations", "n_components")
N_OBSERVATIONS = 500

Wrapper = Callable[[VecEnv], VecEnv] | None


class FeatureSettings:
    """
    What a config says of source features, and the features once they are there.

    :param given: the value of ``source_features``: true, or a mapping with any of ``models`` (by default the
        ``source_policies``), ``n_observations`` (of random steps in the task) and ``n_components``
    """

    def __init__(self, given: Any) -> None:
        settings = {} if given is True else given
        if not isinstance(settings, dict) or set(settings) - set(KEYS):
            raise ValueError(f"source_features is true or has any of {', '.join(KEYS)}, not {given}.")
        self.models: Any = settings.get("models")
        self.n_observations = int(settings.get("n_observations", N_OBSERVATIONS))
        self.arguments = {key: settings[key] for key in ("n_components",) if key in settings}
        self.features: SourceFeatures | None = None

    def fit(self, models: Sequence[Any], env: VecEnv, seed: int) -> SourceFeatures:
        """
        :param models: whose features to take
        :param env: an environment of the task
        :param seed: of the random steps in it
        :return: the features
        """
        return SourceFeatures(models, random_observations(env, self.n_observations, seed), **self.arguments)

    def wrapper(self, own: Wrapper) -> Callable[[VecEnv], VecEnv]:
        """
        :param own: the ``vec_env_wrapper`` of the config
        :return: the same, and the features around it
        """
        features = self.features
        assert features is not None
        return lambda env: VecSourceFeatures(env if own is None else own(env), features)


def random_observations(env: VecEnv, number: int, seed: int) -> np.ndarray:
    """
    :param env: any environment
    :param number: how many observations
    :param seed: of the random actions; the environment has its own
    :return: the first observations of random steps
    """
    env.action_space.seed(seed)
    found: list[Any] = [env.reset()]
    while len(found) * env.num_envs < number:
        found.append(env.step(np.array([env.action_space.sample() for _ in range(env.num_envs)]))[0])
    if not isinstance(found[0], np.ndarray):
        raise ValueError(f"source_features needs observations that are arrays, not {env.observation_space}.")
    return np.concatenate(found)


def with_features(wrappers: Any, file: Path) -> list[Any]:
    """
    :param wrappers: the ``vec_env_wrapper`` of a config
    :param file: of saved features
    :return: the same, and the features around it
    """
    given = [] if wrappers is None else wrappers if isinstance(wrappers, list) else [wrappers]
    return [*given, {WRAPPER: {"features": str(file)}}]
