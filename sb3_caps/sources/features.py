"""What source models have learned to see, as observations for a new task."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn
from torch import nn

from sb3_caps.files.save_util import read_pickle, write_pickle
from sb3_caps.sources import SourcePolicy, as_source
from sb3_caps.sources.evaluate import CACHE_SIZE, NetworkStack, ObservationCache, layers_of

# Of each feature over the given observations: as wide as what networks are usually given
DEVIATION = 0.3


class SourceFeatures:
    """
    The last hidden layers of source models, reduced to what tells observations apart.

    Networks that were trained for other tasks of a world have learned to see it. With what they see in place of images
    a new task needs a small network only, which learns many times faster on a CPU than a convolutional one.

    Features are the first principal components of all hidden layers, and after them the action of each source as zeros
    and a one, by which the sources act in a world of features.

    :param models: what ``as_source`` takes and is a plain network: models of DQN, PPO or A2C, or the files of them
    :param observations: from anywhere in the new task, a few hundred, for example of random steps
    :param n_components: number of principal components, or fewer if the observations do not have as many
    :param capacity: of how many observations to remember the features, which never change
    """

    def __init__(
        self,
        models: Sequence[Any],
        observations: np.ndarray,
        n_components: int = 128,
        capacity: int = CACHE_SIZE,
    ) -> None:
        if len(models) == 0:
            raise ValueError("SourceFeatures needs at least one model whose features to take.")
        if len(observations) < 2:
            raise ValueError(f"SourceFeatures needs at least two observations to tell apart, not {len(observations)}.")
        self.sources = [as_source(model) for model in models]
        self._capacity = capacity
        self._take_networks()
        self._mean, self._components = _principal_components(self._hidden(observations), n_components)
        self._make_policies()

    def _take_networks(self) -> None:
        self._networks, self._heads = zip(*[_hidden_and_head(source) for source in self.sources], strict=True)

    def _make_policies(self) -> None:
        self._cache = ObservationCache(self._evaluate, self._capacity)
        self.policies: list[SourcePolicy] = []
        """The sources, for ``source_policies``: they act on features as they do on observations"""
        self.n_features = self._components.shape[1]
        for source, head in zip(self.sources, self._heads, strict=True):
            policy = as_source(_ActionOf(self.n_features, head.out_features))
            policy.name, policy.explicit_name, policy.action_space = (
                source.name,
                source.explicit_name,
                source.action_space,
            )
            self.policies.append(policy)
            self.n_features += head.out_features

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """
        :param observations: a batch, as the environment emits them
        :return: their features, of shape (observations, ``n_features``)
        """
        return self._cache(observations)

    def save(self, path: str | os.PathLike[str]) -> None:
        """
        Save the features: a model that learned from them needs these very ones.

        :param path: the file, a pickle
        """
        write_pickle(Path(path), self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SourceFeatures":
        """
        Load saved features. A pickle may run any code: load only what you trust.

        :param path: what ``save`` wrote
        :return: the features
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"There are no source features at {path}: pass the file that their `save` wrote.")
        features = read_pickle(Path(path))
        if not isinstance(features, cls):
            raise ValueError(f"{path} holds no SourceFeatures, but {type(features).__name__}.")
        return features

    def __getstate__(self) -> dict[str, Any]:
        # The rest is made of these
        return {name: vars(self)[name] for name in ("sources", "_mean", "_components", "_capacity")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._take_networks()
        self._make_policies()

    def _hidden(self, observations: np.ndarray) -> np.ndarray:
        """The last hidden layers, side by side."""
        # One by one: in a batch, rounding would depend on the other observations, and the same one not be the same
        return np.concatenate(
            [
                np.concatenate([network.outputs(observation[None])[0] for network in self._networks], axis=1)
                for observation in observations
            ]
        )

    def _evaluate(self, observations: np.ndarray) -> np.ndarray:
        return np.concatenate([self._features_of(hidden[None]) for hidden in self._hidden(observations)])

    def _features_of(self, hidden: np.ndarray) -> np.ndarray:
        features, first = [(hidden - self._mean) @ self._components], 0
        for head in self._heads:
            weight, bias = (parameter.detach().cpu().numpy() for parameter in head.parameters())
            values = hidden[:, first : first + head.in_features] @ weight.T + bias
            features.append(np.eye(head.out_features, dtype=np.float32)[values.argmax(axis=1)])
            first += head.in_features
        return np.concatenate(features, axis=1)


class VecSourceFeatures(VecEnvWrapper):
    """
    Observe the features of source models in place of the environments' observations.

    .. code-block:: python

        features = SourceFeatures([model_1, model_2], observations)
        model = CAPS("MlpPolicy", VecSourceFeatures(env, features), source_policies=features.policies)

    As with SB3's own wrappers, a trained model is used with environments that are wrapped in the same way.

    :param venv: the environments, which emit what the models observe
    :param features: of the models, or the file that their ``save`` wrote; environments that share the object share
        what it remembers
    """

    def __init__(self, venv: VecEnv, features: SourceFeatures | str | os.PathLike[str]) -> None:
        assert isinstance(venv.action_space, spaces.Discrete)
        if not isinstance(features, SourceFeatures):
            features = SourceFeatures.load(features)
        for source in features.sources:
            source.check_fits(venv.observation_space, venv.action_space)
        space = spaces.Box(-np.inf, np.inf, (features.n_features,), np.float32)
        super().__init__(venv, observation_space=space)
        self.features = features

    def reset(self) -> VecEnvObs:
        """:return: the features of the first observations"""
        observations = self.venv.reset()
        assert isinstance(observations, np.ndarray)
        return self.features(observations)

    def step_wait(self) -> VecEnvStepReturn:
        """:return: the features of the next observations, and the rest"""
        observations, rewards, dones, infos = self.venv.step_wait()
        assert isinstance(observations, np.ndarray)
        for env in np.flatnonzero(dones):
            terminal = self.features(infos[env]["terminal_observation"][None])[0]
            infos[env] = {**infos[env], "terminal_observation": terminal}
        return self.features(observations), rewards, dones, infos


class _ActionOf:
    """
    The action of a source, as it stands in the features.

    :param first: where
    :param n_actions: how many there are
    """

    def __init__(self, first: int, n_actions: int) -> None:
        self.own = slice(first, first + n_actions)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        return features[:, self.own].argmax(axis=1)


def _hidden_and_head(source: SourcePolicy) -> tuple[NetworkStack, nn.Linear]:
    network = source.network
    layers = None if network is None else layers_of(network)
    if network is None or layers is None or not isinstance(layers[-1], nn.Linear) or len(layers) < 3:
        raise ValueError(
            f"Source policy '{source.name}' has no hidden layer to take features from: pass a plain network of DQN, "
            "PPO or A2C, without observation_map, action_map and VecNormalize."
        )
    return NetworkStack([layers[:-1]], network.observation_space, network.normalize_images), layers[-1]


def _principal_components(samples: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """
    :param samples: of shape (samples, dimensions)
    :param number: how many at most
    :return: the mean, and a matrix that takes what differs from it to components of the same deviation
    """
    mean = samples.mean(axis=0)
    _, sizes, directions = np.linalg.svd(samples - mean, full_matrices=False)
    deviations = sizes / np.sqrt(len(samples))
    # The rest is rounding
    least = max(1e-4 * deviations[0], 1e-5 * np.abs(samples).max())
    number = min(number, int((deviations > least).sum()))
    if number == 0:
        raise ValueError("The models see no difference between the observations: pass some that differ.")
    return mean, (directions[:number].T * (DEVIATION / deviations[:number])).astype(np.float32)
