"""The option set of continuous actions: source policies first, in the order given, then the actor."""

from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_caps.continuous.stacks import BoxStack, stack_box_sources
from sb3_caps.reuse.options import OptionSet, SourceStates
from sb3_caps.sources import Observations, SourceState

# The one option that is no source
ACTOR_OPTION = "actor"


class BoxOptionSet(OptionSet):
    """
    All options of a run with continuous actions. The actor is to them what the primitive options are to discrete
    actions: with it, whatever is best can be learned.

    :param source_policies: a list of anything that ``as_source`` takes, or a dictionary of them by name
    :param observation_space: the environment's observations, as it emits them
    :param action_space: the environment's actions
    """

    def _own_options(self, action_space: spaces.Space) -> list[str]:
        assert isinstance(action_space, spaces.Box)
        self.action_space, self.n_actions = action_space, 1
        return [ACTOR_OPTION]

    @property
    def dimensions(self) -> int:
        """How many numbers an action is."""
        return int(np.prod(self.action_space.shape))

    def actions(
        self,
        observations: Observations,
        states: SourceStates,
        episode_starts: np.ndarray,
        action_masks: np.ndarray | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[np.ndarray, SourceStates]:
        """
        What each source would do.

        :param observations: one for each environment, as the environment emits them
        :param states: what the last call returned, ``initial_states()`` at first
        :param episode_starts: which environments start an episode with this observation
        :param action_masks: nothing, for continuous actions
        :param rng: what sources that are not ``deterministic`` draw their actions with; None for their likeliest ones
        :return: actions of shape (environments, sources, dimensions), each number from -1 to 1 as replay buffers and
            networks have them, and the next states
        """
        n_envs = len(episode_starts)
        found = np.empty((n_envs, self.n_sources, self.dimensions), dtype=np.float32)
        next_states, asked = list(states), set(range(self.n_sources))
        for stack in self._box_stacks:
            assert isinstance(observations, np.ndarray)
            if stack.takes(observations):
                found[:, stack.members] = self._scaled(stack.actions(observations))
                asked -= set(stack.members)
        for i in sorted(asked):
            found[:, i], next_states[i] = self.ask(i, observations, states[i], episode_starts, None, rng)
        return found, tuple(next_states)

    def ask(
        self,
        source: int,
        observations: Observations,
        state: SourceState,
        episode_starts: np.ndarray,
        action_masks: np.ndarray | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[np.ndarray, SourceState]:
        """:return: the actions of one source, of shape (environments, dimensions), and its next state"""
        taken, state = self.sources[source].box_actions(observations, state, episode_starts, self.action_space, rng)
        return self._scaled(taken[:, None])[:, 0], state

    def _scaled(self, actions: np.ndarray) -> np.ndarray:
        """:return: actions of shape (environments, sources, dimensions), clipped, each number from -1 to 1"""
        low, high = self.action_space.low, self.action_space.high
        scaled: np.ndarray = 2.0 * (actions - low) / (high - low) - 1.0
        return np.clip(scaled.reshape(*actions.shape[:2], self.dimensions), -1.0, 1.0)

    @cached_property
    def _box_stacks(self) -> list[BoxStack]:
        """The sources that are plain networks."""
        return stack_box_sources(self.sources)

    def __getstate__(self) -> dict[str, Any]:
        # The stacks hold the sources' parameters a second time
        return {key: value for key, value in super().__getstate__().items() if key != "_box_stacks"}

    def unscaled(self, actions: np.ndarray) -> np.ndarray:
        """
        :param actions: of shape (environments, dimensions), each number from -1 to 1
        :return: the same as the environment takes them
        """
        space = self.action_space
        actions = actions.reshape(len(actions), *space.shape)
        unscaled: np.ndarray = space.low + 0.5 * (actions + 1.0) * (space.high - space.low)
        return unscaled.astype(space.dtype)
