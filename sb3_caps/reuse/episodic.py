"""What the deep baselines share: one behaviour is chosen for each episode, and a source is reused within it."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.type_aliases import ReplayBufferSamples, Schedule
from stable_baselines3.dqn.dqn import DQN
from torch.nn import functional as F

from sb3_caps.replay.batches import part
from sb3_caps.replay.buffers import OptionReplayBuffer
from sb3_caps.replay.draws import drawing_from
from sb3_caps.replay.type_aliases import OptionReplayBufferSamples
from sb3_caps.reuse.base import PolicyReuseAlgorithm
from sb3_caps.reuse.episodes import EpisodeTracker, longest_trial
from sb3_caps.reuse.options import SourceStates
from sb3_caps.reuse.selectors import RANDOM, EvidenceSelector
from sb3_caps.reuse.statistics import NOT_ON_SCREEN
from sb3_caps.sources.masks import check_action_masks, random_actions

SelfEpisodicReuse = TypeVar("SelfEpisodicReuse", bound="EpisodicReuseAlgorithm")


class EpisodicReuseAlgorithm(PolicyReuseAlgorithm):
    """
    Base of the algorithms that choose a behaviour for each episode: a source policy, or the policy being learned.

    A selector chooses, by the results of earlier episodes. A source that it chose is followed with a probability that
    a subclass gives for each step; in the other steps the learned policy acts, with some exploration. A DQN learns from
    all of it, and ``predict`` is DQN's: sources help to explore and are no part of the result. Where the environments
    have action masks, nobody does what these forbid and no target counts it. Until ``learning_starts`` the learned
    policy acts at random, and sources are reused already. Without sources and masks it is SB3's DQN. An episode that
    goes on for more than 10 / (1 - γ) steps counts as several, so that nothing acts for ever.

    :param args: The arguments of SB3's DQN, with its order and defaults
    :param source_policies: The policies to reuse: a list of anything that ``as_source`` takes
    :param exploration_schedule: The exploration rate as a function of the remaining progress,
        in place of DQN's three ``exploration_*`` numbers
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    :param kwargs: The arguments of SB3's DQN by name
    """

    # Its fields are attributes of the algorithm
    selector_class: type[EvidenceSelector]
    selector: EvidenceSelector
    _tracker: EpisodeTracker

    def __init__(
        self,
        *args: Any,
        source_policies: Iterable[Any] | Mapping[str, Any] | None = None,
        exploration_schedule: Schedule | None = None,
        _init_setup_model: bool = True,
        **kwargs: Any,
    ) -> None:
        # By position, as the base takes them; the last one is `_init_setup_model`
        given = inspect.signature(DQN).bind(*args, **kwargs)
        given.apply_defaults()
        super().__init__(*given.args[:-1], source_policies=source_policies, exploration_schedule=exploration_schedule)
        self._tracker = EpisodeTracker(0, self.gamma)
        # The sources and the discount that the selector knows of
        self._selector_made_for: list[Any] = [None, None]
        # The source of each environment's episode, their number where it has none
        self._sources = np.zeros(0, dtype=np.int64)
        # What recurrent sources remember, and the option that each environment followed in the last step
        self._source_states: SourceStates = ()
        self._last_options = np.zeros(0, dtype=np.int64)

        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        super()._setup_model()
        self._configure_selector()

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self._has_action_masks:
            self.replay_buffer_class = self.replay_buffer_class or OptionReplayBuffer
            if self.n_steps != 1 or not issubclass(self.replay_buffer_class, OptionReplayBuffer):
                raise ValueError(
                    "The environments have action masks, which OptionReplayBuffer keeps, for one step: pass n_steps=1 "
                    f"and replay_buffer_class=None, not {self.n_steps} and {self.replay_buffer_class.__name__}."
                )

    def _buffer_arguments(self) -> dict[str, Any]:
        if not issubclass(self.replay_buffer_class or ReplayBuffer, OptionReplayBuffer):
            return {}
        return {"n_sources": self.options.n_sources, "sequence_length": 1, "prioritized_share": 0.0}

    def _configure_selector(self) -> None:
        """Make the selector, or bring it up to date: arguments and random numbers are the algorithm's."""
        settings = {field.name: getattr(self, field.name) for field in fields(self.selector_class) if field.init}
        made_for, before = [list(self.source_names), self._tracker.gamma], self._selector_made_for
        if made_for != before:
            # What is known of other sources, or by another discount, says nothing about these
            self.selector, self._selector_made_for = self.selector_class(**settings), made_for
            if made_for[0] != before[0]:
                self._sources = np.zeros(0, dtype=np.int64)
        else:
            vars(self.selector).update(settings)

    def _reuse_probabilities(self, steps: np.ndarray) -> np.ndarray:
        """
        :param steps: how many steps each environment's episode has had
        :return: how likely the source of each episode takes the next step
        """
        raise NotImplementedError()

    def _random_probabilities(self, epsilon: float, steps: np.ndarray) -> np.ndarray:
        """
        :param epsilon: the exploration rate
        :param steps: how many steps each environment's episode has had
        :return: how likely a step is random where no source takes it
        """
        return np.where([each == RANDOM for each in self._tracker.behaviours], 1.0, epsilon)

    def _start_run(self) -> None:
        super()._start_run()
        if self._has_action_masks and not isinstance(self.replay_buffer, OptionReplayBuffer):
            raise ValueError(
                "The environments have action masks, and those that the model was made for had none: make a new model, "
                "or load this one with env and replay_buffer_class=None."
            )
        self._last_action_masks = self._action_masks()
        assert self._last_episode_starts is not None
        if self._tracker.gamma != self.gamma:
            self._tracker.change_discount(self.gamma, longest_trial(self.gamma))
        self._configure_selector()
        # Where the environments were reset, what was paid before no longer belongs to an episode
        if len(self._sources) != self.n_envs or self._last_episode_starts.all():
            self._tracker = EpisodeTracker(self.n_envs, self.gamma, longest_trial(self.gamma))
            self._sources, self._last_options = np.zeros((2, self.n_envs), dtype=np.int64)
            self._source_states = self.options.initial_states()
            self.selector.begin(self._total_timesteps)

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Follow the source that was chosen for the episode, or the learned policy; see SB3."""
        if not self.source_names and not self._has_action_masks:
            # The very random numbers of SB3's DQN
            return super()._sample_action(learning_starts, action_noise, n_envs)
        assert self._last_obs is not None
        starts = self._last_episode_starts
        assert starts is not None
        if self.source_names and self._tracker.waiting:
            self._start_episodes()
        masks = self._last_action_masks
        option_actions, self._source_states = self.options.actions(
            self._emitted_observations(), self._source_states, starts, masks, self.rng
        )
        steps, n_sources = self._tracker.lengths, self.options.n_sources
        epsilon = 1.0 if self.num_timesteps < learning_starts else self.exploration_rate
        reused = (self._sources < n_sources) & (self.rng.random(n_envs) < self._reuse_probabilities(steps))
        if masks is not None:
            reused &= option_actions[np.arange(n_envs), self._sources] >= 0
        random = self._random_probabilities(epsilon, steps) if self.source_names else epsilon
        explores = self.rng.random(n_envs) < random
        actions = self._greedy_actions(self._last_obs, masks)
        actions = np.where(explores, random_actions(n_envs, self.options.n_actions, self.rng, masks), actions)
        # A step of the learned policy is one of the primitive option of its action
        options = np.where(reused, self._sources, n_sources + actions)
        actions = option_actions[np.arange(n_envs), options]
        self._use.add_step(options, starts | (options != self._last_options), option_actions == actions[:, None])
        self._last_options = options
        self._steps_before = self.num_timesteps
        return actions, actions

    def _greedy_actions(
        self, observations: np.ndarray | dict[str, np.ndarray], action_masks: np.ndarray | None
    ) -> np.ndarray:
        """:return: DQN's actions, the best ones that are allowed"""
        if action_masks is None:
            return self.policy.predict(observations, deterministic=True)[0]
        self.policy.set_training_mode(False)
        with th.no_grad():
            values = self.q_net(self.policy.obs_to_tensor(observations)[0])
            allowed = th.as_tensor(action_masks, device=self.device)
            return values.masked_fill(~allowed, -th.inf).argmax(dim=1).cpu().numpy()

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """
        Act as DQN does.

        :param observation: the input observation
        :param state: not used
        :param episode_start: not used
        :param deterministic: Whether to act without exploration
        :param action_masks: Which actions the environments allow, of shape (environments, actions); None for all
        :return: the actions, and the state as it was
        """
        if action_masks is None:
            return super().predict(observation, state, episode_start, deterministic)
        vectorized = self.policy.is_vectorized_observation(observation)
        masks = np.atleast_2d(np.asarray(action_masks, dtype=bool))
        masks = check_action_masks(masks, len(masks), self.options.n_actions)
        actions = self._greedy_actions(observation, masks)
        if not deterministic:
            explores = np.random.rand(len(masks)) < self.exploration_rate
            actions = np.where(explores, random_actions(len(masks), self.options.n_actions, self.rng, masks), actions)
        return (actions if vectorized else actions[0]), state

    def _start_episodes(self) -> None:
        """Let the selector choose in the environments where nobody acts yet."""
        self._configure_selector()
        for env in self._tracker.waiting:
            behaviour = self.selector.select(env)
            self._tracker.start(env, behaviour)
            names = self.options.names
            self._sources[env] = names.index(behaviour.name) if behaviour.is_source else self.options.n_sources

    def _tell(self, rewards: np.ndarray, dones: np.ndarray) -> None:
        for result in self._tracker.add(self._paid(rewards), dones):
            self.selector.update(result)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        if not self.source_names and not self._has_action_masks:
            # The very random numbers of SB3's DQN
            super().train(gradient_steps, batch_size)
            return
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = []
        with drawing_from(self.rng):
            for _ in range(gradient_steps):
                replay_data, masks, next_masks = self._sample(batch_size)
                targets = self._targets(replay_data, next_masks)
                q_values = self.q_net(replay_data.observations)
                loss = F.smooth_l1_loss(q_values.gather(1, replay_data.actions.long()), targets)
                losses.append(loss.item())

                self.policy.optimizer.zero_grad()
                (loss + self._guide_loss(replay_data, q_values, masks)).backward()
                th.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
                self.policy.optimizer.step()

        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))

    def _sample(self, batch_size: int) -> tuple[ReplayBufferSamples, th.Tensor | None, th.Tensor | None]:
        """
        :param batch_size: how many transitions
        :return: transitions as SB3's buffers give them, which actions are allowed before and which after; None for all
        """
        assert self.replay_buffer is not None
        found: Any = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
        if not isinstance(found, OptionReplayBufferSamples):
            return found, None, None
        n, masks = found.actions.numel(), found.action_masks
        before: Any = part(found.observations, 0, n)
        after: Any = part(found.observations, n)
        # Sequences of one step each
        actions, dones, rewards = (each.reshape(-1, 1) for each in (found.actions, found.dones.float(), found.rewards))
        transitions = ReplayBufferSamples(before, actions, after, dones, rewards)
        return (transitions, None, None) if masks is None else (transitions, masks[:n], masks[n:])

    def _targets(self, replay_data: ReplayBufferSamples, next_masks: th.Tensor | None) -> th.Tensor:
        """
        :param replay_data: transitions
        :param next_masks: which actions are allowed after them; None for all
        :return: DQN's targets, by the best action that is allowed
        """
        discounts = replay_data.discounts if replay_data.discounts is not None else self.gamma
        with th.no_grad():
            next_values = self.q_net_target(replay_data.next_observations)
            if next_masks is not None:
                next_values = next_values.masked_fill(~next_masks, -th.inf)
            return replay_data.rewards + (1 - replay_data.dones) * discounts * next_values.amax(dim=1, keepdim=True)

    def _guide_loss(
        self, replay_data: ReplayBufferSamples, q_values: th.Tensor, action_masks: th.Tensor | None
    ) -> th.Tensor | float:
        """
        :param replay_data: transitions
        :param q_values: what the network says of their actions
        :param action_masks: which actions are allowed; None for all
        :return: what is learned from a source beside DQN's loss, here nothing
        """
        return 0.0

    def dump_logs(self) -> None:
        """Write log data."""
        for tag, value in self.selector.statistics().items():
            if isinstance(value, dict):
                for behaviour, each in value.items():
                    self.logger.record(f"reuse/{tag}/{behaviour.name}", each, exclude=NOT_ON_SCREEN)
            else:
                self.logger.record(f"reuse/{tag}", value)
        super().dump_logs()
