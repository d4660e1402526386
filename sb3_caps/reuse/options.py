"""The option set: source policies first, in the order given, then one primitive option for each action."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from sb3_caps.sources import ObservationNormalizer, Observations, SourceState, as_sources
from sb3_caps.sources.act import check_actions
from sb3_caps.sources.evaluate import SourceStack, stack_sources
from sb3_caps.sources.names import unique_names
from sb3_caps.sources.trial import check_picklable, try_source

SourceStates: TypeAlias = tuple[SourceState, ...]


class OptionSet:
    """
    All options of a run.

    :param source_policies: a list of anything that ``as_source`` takes, or a dictionary of them by name
    :param observation_space: the environment's observations, as it emits them
    :param action_space: the environment's actions
    """

    def __init__(
        self,
        source_policies: Iterable[Any] | Mapping[str, Any] | None,
        observation_space: spaces.Space,
        action_space: spaces.Discrete | spaces.Box,
    ) -> None:
        _check_numbered_from_zero(observation_space)
        self.observation_space = observation_space
        own = self._own_options(action_space)
        # Of a library, those that fit
        fitting = getattr(source_policies, "fitting", None)
        self.sources = as_sources(source_policies if fitting is None else fitting(observation_space, action_space))
        self.names = [*unique_names(self.sources, own), *own]
        for source, name in zip(self.sources, self.names, strict=False):
            source.name = name
            source.check_fits(observation_space, action_space)
            try_source(source, observation_space, action_space)
        # The learner's normalisation, undone for the sources: they know the environment's own observations.
        self.normalizer: ObservationNormalizer | None = None

    def _own_options(self, action_space: spaces.Space) -> list[str]:
        """
        :param action_space: the environment's actions
        :return: the names of the options that are no sources
        """
        assert isinstance(action_space, spaces.Discrete)
        if action_space.start != 0:
            raise ValueError(f"Actions must be numbered from 0, but the environment takes {action_space}.")
        self.n_actions = int(action_space.n)
        return [f"action_{action}" for action in range(self.n_actions)]

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

    def actions(
        self,
        observations: Observations,
        states: SourceStates,
        episode_starts: np.ndarray,
        action_masks: np.ndarray | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[np.ndarray, SourceStates]:
        """
        The action that each option would take: sources are evaluated once each, primitives cost nothing.

        :param observations: one for each environment, as the environment emits them
        :param states: what the last call returned, ``initial_states()`` at first
        :param episode_starts: which environments start an episode with this observation
        :param action_masks: which actions the environments allow, of shape (environments, actions); None for all
        :param rng: what sources that are not ``deterministic`` draw their actions with; None for their likeliest ones
        :return: actions of shape (environments, options), -1 for those that are not allowed, and the next states
        """
        n_envs = len(episode_starts)
        actions = np.empty((n_envs, len(self)), dtype=np.int64)
        actions[:, self.n_sources :] = np.arange(self.n_actions)
        for stack in self._stacks:
            assert isinstance(observations, np.ndarray)
            actions[:, stack.members] = stack.actions(observations, rng)
        if self._alone:
            next_states = list(states)
            for i in self._alone:
                actions[:, i], next_states[i] = self.ask(i, observations, states[i], episode_starts, action_masks, rng)
            states = tuple(next_states)
        if action_masks is not None:
            actions[~np.take_along_axis(action_masks, actions, axis=1)] = -1
        return actions, states

    def ask(
        self,
        source: int,
        observations: Observations,
        state: SourceState,
        episode_starts: np.ndarray,
        action_masks: np.ndarray | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[np.ndarray, SourceState]:
        """
        The actions of one source.

        :param source: its number
        :param observations: see ``actions``
        :param state: what it remembers, None at first
        :param episode_starts: see ``actions``
        :param action_masks: see ``actions``
        :param rng: see ``actions``
        :return: its actions, of shape (environments,), and its next state
        """
        taken, state = self.sources[source].actions(observations, state, episode_starts, action_masks, rng)
        return check_actions(taken, self.names[source], len(episode_starts), self.n_actions), state

    @cached_property
    def _stacks(self) -> list[SourceStack]:
        """The sources that are plain networks."""
        return stack_sources(self.sources)

    @cached_property
    def _alone(self) -> list[int]:
        """The sources that act by themselves."""
        stacked = {member for stack in self._stacks for member in stack.members}
        return [i for i in range(self.n_sources) if i not in stacked]

    def __getstate__(self) -> dict[str, Any]:
        # The stacks hold the sources' parameters a second time
        return {key: value for key, value in vars(self).items() if key != "_stacks"}

    def as_emitted(self, observations: Observations, normalized: bool = False) -> Observations:
        """
        Undo what SB3's wrappers did to a batch of observations: sources see what the environment emits.

        :param observations: as the learner sees them
        :param normalized: whether they went through the learner's VecNormalize, the outermost one if there are more
        :return: the same observations in the environment's own layout and scale
        """
        undone = self.normalizer is not None and (normalized or len(self.normalizer.inner) > 0)
        if self.normalizer is not None and undone:
            observations = self.normalizer.unnormalize(observations, outermost=normalized)
        if isinstance(observations, dict):
            assert isinstance(self.observation_space, spaces.Dict)
            return {key: _emitted(value, self.observation_space[key], undone) for key, value in observations.items()}
        return _emitted(observations, self.observation_space, undone)

    def check_picklable(self) -> None:
        """Refuse, by name, a source that could not be saved."""
        for source in self.sources:
            check_picklable(source)


def _check_numbered_from_zero(space: spaces.Space) -> None:
    """SB3 one-hot encodes numbers as if they started at 0, for the learner and for sources alike."""
    for part in space.values() if isinstance(space, spaces.Dict) else [space]:
        if isinstance(part, (spaces.Discrete, spaces.MultiDiscrete)) and np.any(part.start != 0):
            raise ValueError(
                f"Observations must be numbered from 0, but the environment emits {part}: subtract its start, for "
                "example with gymnasium.wrappers.TransformObservation."
            )


def _emitted(observations: np.ndarray, space: spaces.Space, undone: bool) -> np.ndarray:
    """A view with channels last where the environment emits them so and SB3 has transposed them."""
    if undone and isinstance(space, spaces.Box) and observations.dtype != space.dtype:
        # Whole numbers come back from a normalisation almost as they were
        whole = np.issubdtype(space.dtype, np.integer)
        observations = (np.rint(observations) if whole else observations).astype(space.dtype)
    if space.shape is not None and len(space.shape) == 3 and observations.shape[1:] != space.shape:
        return np.moveaxis(observations, 1, -1)
    return observations
