"""The option set: source policies first, in the order given, then one primitive option for each action."""

import pickle
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import cloudpickle
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy

from sb3_caps.common.networks import RememberingStack, architecture, stack_of
from sb3_caps.common.sources import ObservationNormalizer, Observations, SourcePolicy, SourceState, as_source

SourceStates: TypeAlias = tuple[SourceState, ...]


class OptionSet:
    """
    All options of a run.

    :param source_policies: anything that ``as_source`` takes
    :param observation_space: the environment's observations, as it emits them
    :param action_space: the environment's actions
    """

    def __init__(
        self, source_policies: Sequence[Any] | None, observation_space: spaces.Space, action_space: spaces.Discrete
    ) -> None:
        if source_policies is None:
            source_policies = []
        if isinstance(source_policies, (str, bytes)) or not isinstance(source_policies, Iterable):
            raise ValueError(
                f"source_policies must be a list of source policies (an empty one is fine), not {source_policies!r}."
            )
        if action_space.start != 0:
            raise ValueError(f"Actions must be numbered from 0, but the environment takes {action_space}.")
        self.n_actions = int(action_space.n)
        self.observation_space = observation_space
        self.sources = [as_source(source) for source in source_policies]
        for source in self.sources:
            source.check_fits(observation_space, action_space)
        self.names = _unique_names(self.sources, [f"action_{action}" for action in range(self.n_actions)])
        # The learner's normalisation, undone for the sources: they know the environment's own observations.
        self.normalizer: ObservationNormalizer | None = None
        self._stacks: list[tuple[list[int], RememberingStack]] | None = None
        self._alone: list[int] = []

    @property
    def n_sources(self) -> int:
        return len(self.sources)

    @property
    def source_names(self) -> list[str]:
        return self.names[: self.n_sources]

    def __len__(self) -> int:
        return self.n_sources + self.n_actions

    def initial_states(self) -> SourceStates:
        """:return: what ``actions`` takes as states at the very start"""
        return (None,) * self.n_sources

    def normalized(self, weights: float | Sequence[float] | None) -> np.ndarray | None:
        """
        :param weights: how likely each option is relative to the others, or a source relative to a primitive
        :return: probabilities, None for options that are all alike
        """
        if weights is None:
            return None
        given = np.asarray(weights, dtype=np.float64)
        each = np.repeat([given, 1.0], [self.n_sources, self.n_actions]) if given.ndim == 0 else given
        if each.shape != (len(self),) or given.min() < 0 or each.sum() <= 0:
            raise ValueError(
                f"option_weights must be {len(self)} numbers that are not negative, one for each of {self.names}, "
                f"or one number for sources beside primitives, not {weights}."
            )
        return each / each.sum()

    def actions(
        self, observations: Observations, states: SourceStates, episode_starts: np.ndarray
    ) -> tuple[np.ndarray, SourceStates]:
        """
        The action that each option would take: sources are evaluated once each, primitives cost nothing.

        :param observations: one for each environment, as the environment emits them
        :param states: what the last call returned, ``initial_states()`` at first
        :param episode_starts: which environments start an episode with this observation
        :return: actions of shape (environments, options), and the next states
        """
        n_envs = len(episode_starts)
        actions = np.empty((n_envs, len(self)), dtype=np.int64)
        actions[:, self.n_sources :] = np.arange(self.n_actions)
        if self._stacks is None:
            self._stacks = self._stacked_sources()
            stacked = {member for members, _ in self._stacks for member in members}
            self._alone = [i for i in range(self.n_sources) if i not in stacked]
        for members, stack in self._stacks:
            assert isinstance(observations, np.ndarray)
            actions[:, members] = stack.greatest(observations).T
        if not self._alone:
            return actions, states
        next_states = list(states)
        for i in self._alone:
            source_actions, next_states[i] = self.sources[i].actions(observations, states[i], episode_starts)
            actions[:, i] = self._checked(source_actions, self.names[i], n_envs)
        return actions, tuple(next_states)

    def _stacked_sources(self) -> list[tuple[list[int], RememberingStack]]:
        """The sources that are plain networks, those of one architecture together."""
        groups: dict[str, dict[int, BasePolicy]] = {}
        for i, source in enumerate(self.sources):
            network = source.network
            key = None if network is None else architecture(network)
            if network is not None and key is not None:
                groups.setdefault(key, {})[i] = network
        return [(list(group), stack_of(list(group.values()))) for group in groups.values()]

    def __getstate__(self) -> dict[str, Any]:
        # The stacks hold the sources' parameters a second time
        return {**self.__dict__, "_stacks": None}

    def as_emitted(self, observations: Observations, normalized: bool = False) -> Observations:
        """
        Undo what SB3's wrappers did to a batch of observations: sources see what the environment emits.

        :param observations: as the learner sees them
        :param normalized: whether they went through the learner's VecNormalize
        :return: the same observations in the environment's own layout and scale
        """
        if normalized and self.normalizer is not None:
            observations = self.normalizer.statistics.unnormalize_obs(observations)
        if isinstance(observations, dict):
            assert isinstance(self.observation_space, spaces.Dict)
            return {key: _with_layout(value, self.observation_space[key]) for key, value in observations.items()}
        return _with_layout(observations, self.observation_space)

    def check_picklable(self) -> None:
        """Refuse, by name, a source that could not be saved."""
        for name, source in zip(self.names, self.sources, strict=False):
            try:
                cloudpickle.dumps(source)
            except (pickle.PicklingError, TypeError, AttributeError, ValueError, RuntimeError) as error:
                raise ValueError(
                    f"Source policy '{name}' cannot be pickled ({error}), so nothing was saved: give it as a function "
                    "of a module or as an import string 'package.module:function', or save with exclude=['options'] "
                    "and pass source_policies to load."
                ) from error

    def _checked(self, actions: np.ndarray, name: str, n_envs: int) -> np.ndarray:
        expected = f"expected {n_envs} integers from 0 to {self.n_actions - 1}"
        if actions.shape == (n_envs, 1):
            actions = actions[:, 0]
        if actions.shape != (n_envs,):
            raise ValueError(f"Source policy '{name}' returned actions of shape {actions.shape}: {expected}.")
        if not np.issubdtype(actions.dtype, np.integer):
            raise ValueError(f"Source policy '{name}' returned {actions.dtype} actions, {actions!r}: {expected}.")
        if actions.min() < 0 or actions.max() >= self.n_actions:
            raise ValueError(f"Source policy '{name}' returned an action out of range, {actions!r}: {expected}.")
        return actions


def _with_layout(observations: np.ndarray, space: spaces.Space) -> np.ndarray:
    """A view with channels last where the environment emits them so and SB3 has transposed them."""
    if space.shape is not None and len(space.shape) == 3 and observations.shape[1:] != space.shape:
        return np.moveaxis(observations, 1, -1)
    return observations


def _unique_names(sources: Sequence[SourcePolicy], primitives: Sequence[str]) -> list[str]:
    """Names that the user gave stay as they are; the others get a number when they are taken."""
    taken = set(primitives)
    for source in sources:
        if source.explicit_name:
            if source.name in taken:
                raise ValueError(f"Two options are named '{source.name}': give each source policy a name of its own.")
            taken.add(source.name)
    names = []
    for source in sources:
        name, number = source.name, 2
        while not source.explicit_name and name in taken:
            name, number = f"{source.name}_{number}", number + 1
        taken.add(name)
        names.append(name)
    return [*names, *primitives]
