"""The collection of experience by acting through options: choose, step, store, tell the ledger."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq
from stable_baselines3.common.utils import obs_as_tensor, should_collect_more_steps
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.dqn.dqn import DQN

from sb3_caps.caps.acting import ActingNetwork
from sb3_caps.caps.exploration import Exploration, RandomStretches, epsilon_greedy
from sb3_caps.caps.gate import ACTOR, BEST, EXPLORING, LEARNERS, MIXING, OPTIONS, RANDOM, SAMPLED_ACTOR, Gate
from sb3_caps.caps.networks import OptionQNetwork
from sb3_caps.caps.policies import CAPSPolicy
from sb3_caps.caps.selection import AlwaysSelector, CAPSSelector, Selection
from sb3_caps.replay.batches import moved, rows_of
from sb3_caps.replay.buffers import OptionReplayBuffer
from sb3_caps.reuse.base import PolicyReuseAlgorithm
from sb3_caps.reuse.episodes import Behaviour, EpisodeTracker, judging_discount, longest_trial
from sb3_caps.reuse.execution import OptionExecution
from sb3_caps.reuse.growth import GrowingSources
from sb3_caps.reuse.options import OptionSet, SourceStates
from sb3_caps.reuse.scale import ReturnScale
from sb3_caps.reuse.selectors import Selector
from sb3_caps.sources.act import by_key
from sb3_caps.sources.masks import random_actions

CALL_AND_RETURN = OptionExecution("call-and-return")
# From environments, and whether learning has not begun, to the options to follow there and log μ(a|s)
Role: TypeAlias = Callable[[np.ndarray, bool], tuple[Any, Any]]


class OptionCollector(GrowingSources, PolicyReuseAlgorithm):
    """
    The half of CAPS that acts: in each step of the environments it ends options, chooses new ones, and stores what was
    done with the active options and with what each source would have done.

    Who acts in an episode is a behaviour, and the selector's to choose.

    :param args: see ``PolicyReuseAlgorithm``
    :param kwargs: see ``PolicyReuseAlgorithm``
    """

    policy: CAPSPolicy
    q_net: OptionQNetwork
    q_net_target: OptionQNetwork
    replay_buffer: OptionReplayBuffer
    exploration: Exploration
    normalize_returns: bool
    safe: bool
    selector: Selector
    selector_class: type[Selector] | None
    rng: np.random.Generator
    # There are some as soon as a run has begun
    _last_obs: Any
    _last_episode_starts: np.ndarray
    _selection: Selection
    # Those of the network and of its target, listed once
    _trained_parameters: list[th.Tensor]
    _target_parameters: list[th.Tensor]
    # ρ of β's online step, None where β is learned from replayed batches or fixed
    _online_termination: float | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gate = Gate()
        self._selector_made_for: list[Any] | None = None
        # The active option of each environment, what all options do in the last observations, and the sources' states
        self._last_options = np.zeros(0, dtype=np.int64)
        self._last_option_actions = np.zeros((0, 0), dtype=np.int64)
        self._last_source_states: SourceStates = ()
        self._tracker = EpisodeTracker(0, 1.0)
        self._stretches = RandomStretches(0)
        self._scale = ReturnScale(self.gamma, 0)
        self._actor_steps = 0
        self._actor_started = False
        # The shape of the actor's layers, as the first model had it
        self._actor_arch: dict[str, Any] | None = None

    def _setup_model(self) -> None:
        super()._setup_model()
        self._setup_selector()

    def _setup_selector(self) -> None:
        """Make the selector, or let the one that is there know of other sources."""
        selector_class = self.selector_class or (CAPSSelector if self.safe else AlwaysSelector)
        made_for, names = [selector_class, judging_discount(self.gamma)], self.options.source_names
        changed = self._selector_made_for != made_for
        if changed:
            # What another selector concluded, or from returns by another discount, says nothing here
            self._selector_made_for = made_for
            self.selector = selector_class(names, self._selection, self.rng)
            self.gate.disabled = set()
        self.selector.settings, self.selector.rng = self._selection, self.rng
        if self.selector.source_names != names:
            self.selector.set_sources(names)
            # What the model acts by stays, if it is still there
            self.gate.disabled &= set(names)
            acts_by = self.gate.controller
            changed |= acts_by.is_source and acts_by.name not in names
        if changed:
            self._decide()

    def _map_options(self, places: np.ndarray, before: OptionSet) -> None:
        n_sources, n_envs = self.options.n_sources, len(self._last_options)
        numbers = moved(places, len(before))
        self.policy.set_options(self.options, places)
        self._create_aliases()
        # Where the last option is gone, the action goes on that it would take
        actions, last = self._last_option_actions, self._last_options
        gone = numbers[last] < 0
        self._last_options = (
            np.where(gone, n_sources + actions[np.arange(n_envs), last], numbers[last]) if n_envs else last
        )
        states = dict(zip(before.source_names, self._last_source_states, strict=False))
        self._last_source_states = tuple(states.get(name) for name in self.options.source_names)
        self._last_option_actions = np.where(places < 0, 0, actions[:, places]) if n_envs else actions
        if n_envs and self.env is not None and self._last_obs is not None:
            self._ask_newcomers(np.flatnonzero(places < 0).tolist())
        self._stretches.map_sources(numbers[: before.n_sources])
        self._setup_selector()
        cut = self._tracker.leave(self.options.source_names)
        self._start_episodes()
        self._tracker.counts[cut] = False

    def _ask_newcomers(self, sources: list[int]) -> None:
        """Let new sources see the last observations."""
        states, starts, masks = list(self._last_source_states), np.ones(self.n_envs, dtype=bool), self._action_masks()
        rng = np.random.default_rng(self.seed)
        for i in sources:
            taken, states[i] = self.options.ask(i, self._emitted_observations(), None, starts, masks, rng)
            self._last_option_actions[:, i] = taken
            if masks is not None:
                self._last_option_actions[~np.take_along_axis(masks, taken[:, None], axis=1)[:, 0], i] = -1
        self._last_source_states = tuple(states)

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        # Our buffer keeps what followed the last step, so SB3 need not cut the last trajectory off
        optimize_memory_usage, self.optimize_memory_usage = self.optimize_memory_usage, False
        try:
            return super()._setup_learn(*args, **kwargs)
        finally:
            self.optimize_memory_usage = optimize_memory_usage

    def _start_run(self) -> None:
        super()._start_run()
        starts = self._last_episode_starts
        discount, limit = judging_discount(self.gamma), longest_trial(self.gamma)
        if self._tracker.gamma != discount:
            self._tracker.change_discount(discount, limit)
        self._setup_selector()
        self._scale.gamma = self.gamma
        self._rescale(self._scale.use(self.normalize_returns))
        # Where the environments were reset, new episodes begin
        if len(self._last_options) != self.n_envs or self._was_reset:
            self._last_options = np.zeros(self.n_envs, dtype=np.int64)
            self._last_source_states = self.options.initial_states()
            self._last_action_masks = self._action_masks()
            self._last_option_actions = self._query_sources(self._original_observations(), starts)
            self._tracker = EpisodeTracker(self.n_envs, discount, limit)
            self._stretches.reset(self.n_envs)
            self._scale.reset(self.n_envs)
            self.selector.reset()
        self.selector.begin(self._total_timesteps - self._num_timesteps_at_start)
        self._start_episodes()

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        train_freq: TrainFreq,
        replay_buffer: ReplayBuffer,
        action_noise: ActionNoise | None = None,
        learning_starts: int = 0,
        log_interval: int | None = None,
    ) -> RolloutReturn:
        """
        Act through options and store what they did.

        :param env: The training environment
        :param callback: Callback that will be called at each step (and at the beginning and end of the rollout)
        :param train_freq: How much experience to collect
        :param replay_buffer: Where to store it
        :param action_noise: Not for discrete actions
        :param learning_starts: Number of steps before learning for the warm-up phase.
        :param log_interval: Log data every ``log_interval`` episodes
        :return: how much was collected, and whether to go on
        """
        # Switch to eval mode (this affects batch norm / dropout)
        self.policy.set_training_mode(False)
        n_steps, n_episodes = 0, 0
        callback.on_rollout_start()
        while should_collect_more_steps(train_freq, n_steps, n_episodes):
            warm_up = self.num_timesteps < learning_starts
            if self._online_termination is not None and not warm_up:
                self._learn_terminations()
            option_set = self.options
            actions, options, log_probs = self._choose(warm_up)
            new_obs, rewards, dones, infos = env.step(actions)
            assert not isinstance(new_obs, tuple)

            self.num_timesteps += env.num_envs
            n_steps += 1
            try:
                # Give access to local variables
                callback.update_locals(locals())
                # Only stop training if return value is False, not when it is None.
                goes_on = callback.on_step()
                if self.options is not option_set:
                    # The callback has added or removed a source
                    options = self._last_options
                # Retrieve reward and episode length if using Monitor wrapper
                self._update_info_buffer(infos, dones)
                self._store(actions, options, log_probs, new_obs, rewards, dones, infos)
                self._tell(rewards, dones)
            except BaseException:
                # The environments are a step ahead of what is known: the next run has to reset them
                self._last_obs = None
                raise

            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            self._on_step()
            for _ in range(np.count_nonzero(dones)):
                n_episodes += 1
                self._episode_num += 1
                if log_interval is not None and self._episode_num % log_interval == 0:
                    self.dump_logs()
            if not goes_on:
                return RolloutReturn(n_steps * env.num_envs, n_episodes, continue_training=False)
        callback.on_rollout_end()
        return RolloutReturn(n_steps * env.num_envs, n_episodes, continue_training=True)

    def _on_step(self) -> None:
        """As in DQN, but for all parameters in one call: to walk through modules takes longer than to move them."""
        self._n_calls += 1
        if self._n_calls % max(self.target_update_interval // self.n_envs, 1) == 0:
            with th.no_grad():
                th._foreach_mul_(self._target_parameters, 1.0 - self.tau)
                th._foreach_add_(self._target_parameters, self._trained_parameters, alpha=self.tau)
                for target, own in zip(self.batch_norm_stats_target, self.batch_norm_stats, strict=True):
                    target.copy_(own)
        self.exploration_rate = self.exploration_schedule(self._current_progress_remaining)
        self.logger.record("rollout/exploration_rate", self.exploration_rate)

    def _choose(self, warm_up: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """
        Let the behaviour of each environment choose an option.

        :param warm_up: whether learning has not begun, so that what explores is random
        :return: the actions, the options that took them, and log μ(a|s), how likely that was; NaN where the actor does
            not learn from it: it learns from what its sources and itself do, and all others are too far from it
        """
        options, log_probs = np.zeros(self.n_envs, dtype=np.int64), np.zeros(self.n_envs, dtype=np.float32)
        for act, envs in self._cast.values():
            options[envs], log_probs[envs] = act(envs, warm_up)
        actions = self._last_option_actions[np.arange(self.n_envs), options]
        if self._last_action_masks is not None and (actions < 0).any():
            # A source that acts alone and does what is not allowed there
            envs = np.flatnonzero(actions < 0)
            options[envs], log_probs[envs] = self._act_at_random(envs, warm_up)
            actions = self._last_option_actions[np.arange(self.n_envs), options]
        chosen = self._last_episode_starts | (options != self._last_options)
        self._use.add_step(options, chosen, self._last_option_actions == actions[:, None])
        self._last_options = options
        return actions, options, log_probs

    def _role_of(self, behaviour: Behaviour) -> Role:
        """:return: how a behaviour chooses options"""
        if behaviour.is_source:
            # What draws nothing is certain of its action
            number = self.options.names.index(behaviour.name)
            return lambda envs, warm_up: (number, 0.0)
        if behaviour == RANDOM:
            return self._act_at_random
        if behaviour in (EXPLORING, MIXING):
            return partial(self._explore, self._acting, mixing=behaviour == MIXING)
        networks = self._acting_best if behaviour == BEST else self._acting
        if behaviour in (OPTIONS, BEST):
            return lambda envs, warm_up: (self._follow_values(*self._evaluate(networks, envs), envs), np.nan)
        return partial(self._act_by_actor, networks, draws=behaviour != ACTOR)

    def _act_at_random(self, envs: np.ndarray, warm_up: bool) -> tuple[np.ndarray, float]:
        """:return: options of random actions, from which the actor does not learn"""
        masks = self._masks(envs)
        return self.options.n_sources + random_actions(len(envs), self.options.n_actions, self.rng, masks), np.nan

    def _act_by_actor(
        self, networks: ActingNetwork, envs: np.ndarray, warm_up: bool, draws: bool
    ) -> tuple[np.ndarray, Any]:
        """:return: the options that the actor chooses, and log μ(a|s) where it draws"""
        option_actions = rows_of(self._last_option_actions, envs)
        chosen, probabilities = self.policy.actor_options(
            networks, rows_of(self._last_obs, envs), option_actions, self.rng if draws else None, self._masks(envs)
        )
        return chosen, np.log(probabilities) if draws else np.nan

    def _evaluate(self, networks: ActingNetwork, envs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """:return: the values of options and their β in these environments, among those that are allowed"""
        sources = self._last_option_actions[:, : self.options.n_sources]
        found = networks(rows_of(self._last_obs, envs), rows_of(sources, envs))
        return self._execution.among(self._allowed(envs), *found)

    def _masks(self, envs: np.ndarray) -> np.ndarray | None:
        """:return: which actions are allowed in these environments, None for all"""
        return None if self._last_action_masks is None else self._last_action_masks[envs]

    def _allowed(self, envs: np.ndarray) -> np.ndarray | None:
        """:return: which options are allowed in these environments, None for all"""
        return None if self._last_action_masks is None else self._last_option_actions[envs] >= 0

    def _follow_values(self, values: np.ndarray, beta: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """:return: the option to go on with in these environments by the values of options, without exploration"""
        execution, active, starts = self._execution, self._last_options[envs], self._last_episode_starts[envs]
        return execution.next_options(active, starts, execution.ends(values, beta), execution.greedy_options(values))

    def _explore(
        self, acting: ActingNetwork, envs: np.ndarray, warm_up: bool, mixing: bool
    ) -> tuple[np.ndarray, float]:
        """
        Explore by the values of options.

        :param acting: the latest networks
        :param envs: the environments
        :param warm_up: whether learning has not begun
        :param mixing: whether with stretches of sources
        :return: the options, from which the actor does not learn
        """
        if warm_up:
            return self._act_at_random(envs, warm_up)
        if self.exploration == "terminations":
            return self._explore_until_they_end(acting, envs), np.nan
        # As long as nothing was found there is nothing to exploit
        epsilon = 1.0 if self.selector.no_signal else self.exploration_rate
        values, beta = self._evaluate(acting, envs)
        greedy = self._follow_values(values, beta, envs)
        if callable(self.exploration):
            values = np.where(self.gate.mask(self.options.names), -np.inf, values)
            options = self.exploration(values, epsilon, self.rng, greedy)
        else:
            random = self.rng.random(len(envs)) < epsilon
            options = np.where(random, self._act_at_random(envs, warm_up)[0], greedy)
        if not mixing:
            return options, np.nan
        useful = np.flatnonzero(~self.gate.mask(self.options.source_names))
        observations = rows_of(self._original_observations(), envs)
        parts = list(observations.values()) if isinstance(observations, dict) else [observations]
        chosen = self._stretches.choose(envs, options, useful, parts, self.rng)
        has_turn = self._stretches.has_turn[envs]
        if self._last_action_masks is not None:
            # A source that does what is not allowed is left out for a step
            has_turn = has_turn & (self._last_option_actions[envs, chosen] >= 0)
        return np.where(has_turn, chosen, options), np.nan

    def _explore_until_they_end(self, acting: ActingNetwork, envs: np.ndarray) -> np.ndarray:
        """
        The paper's way: the active option until it ends with probability β, then another one, ε-greedily.

        :param acting: the latest networks
        :param envs: the environments
        :return: the options
        """
        values, beta = self._evaluate(acting, envs)
        allowed = self._allowed(envs)
        ends = CALL_AND_RETURN.ends(values, beta, draws=self.rng.random(len(values)))
        active, starts = self._last_options[envs], self._last_episode_starts[envs]
        if not (starts | ends[np.arange(len(active)), active]).any():
            return active
        chosen = epsilon_greedy(values, self.exploration_rate, self.rng, allowed=allowed)
        return CALL_AND_RETURN.next_options(active, starts, ends, chosen)

    def _store(
        self,
        actions: np.ndarray,
        options: np.ndarray,
        log_probs: np.ndarray,
        new_obs: np.ndarray | dict[str, np.ndarray],
        rewards: np.ndarray,
        dones: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """
        Ask the sources about what came, and store the whole step with one call.
        """
        self._check_step(new_obs, rewards, dones, infos)
        n_sources = self.options.n_sources
        original: Any = new_obs if self._vec_normalize_env is None else self._vec_normalize_env.get_original_obs()
        truncated = [i for i in np.flatnonzero(dones).tolist() if infos[i].get("TimeLimit.truncated", False)]
        masks, self._last_action_masks = self._last_action_masks, self._action_masks()
        next_masks = self._masks_where_steps_led(infos)
        arrived = self._actions_after_truncation(original, truncated, infos, next_masks)
        before, after = self._last_option_actions, self._query_sources(original, dones)
        # The buffer keeps what sources do where an episode was cut off, and acting goes on from the new one
        following = after.copy() if arrived else after
        for env, found in arrived.items():
            following[env] = found
        add = partial(
            self.replay_buffer.add,
            options=options,
            log_probs=log_probs,
            option_actions=before[:, :n_sources],
            next_option_actions=following[:, :n_sources],
            action_masks=masks,
            next_action_masks=next_masks,
        )
        # SB3 knows the observations that episodes ended in, and those before normalisation
        DQN._store_transition(self, SimpleNamespace(add=add), actions, new_obs, rewards, dones, infos)  # type: ignore[arg-type]
        self._last_episode_starts, self._last_option_actions = dones, after

    def _query_sources(self, observations: Any, starts: np.ndarray) -> np.ndarray:
        """:return: what each option does in observations that the environments have just emitted"""
        emitted = self.options.as_emitted(observations)
        option_actions, self._last_source_states = self.options.actions(
            emitted, self._last_source_states, starts, self._last_action_masks, self.rng
        )
        return option_actions

    def _actions_after_truncation(
        self, original: Any, truncated: list[int], infos: list[dict[str, Any]], masks: np.ndarray | None
    ) -> dict[int, np.ndarray]:
        """
        :param original: the observations that came, before normalisation
        :param truncated: which episodes were
        :param infos: with the observations that they ended in
        :param masks: which actions are allowed there
        :return: what each option does in the observations that episodes were truncated in, by environment. After a
            terminal state nothing follows.
        """
        if not truncated or not self.options.n_sources:
            return {}
        observations = {key: value.copy() for key, value in by_key(original).items()}
        for i in truncated:
            # As SB3 has it: the first observation of the next episode where none is told
            terminal = infos[i].get("terminal_observation")
            if terminal is None:
                continue
            if self._vec_normalize_env is not None:
                terminal = self._vec_normalize_env.unnormalize_obs(terminal)
            for key, value in by_key(terminal).items():
                observations[key][i] = value
        emitted = self.options.as_emitted(observations if isinstance(original, dict) else observations[None])
        starts = np.zeros(self.n_envs, dtype=bool)
        actions, _ = self.options.actions(emitted, self._last_source_states, starts, masks, self.rng)
        return {i: actions[i] for i in truncated}

    def _tell(self, rewards: np.ndarray, dones: np.ndarray) -> None:
        """
        Tell the ledger of episodes what was paid, the selector what came of those that ended, and begin new ones.
        """
        self._rescale(self._scale.update(rewards, dones))
        self._actor_steps += self._n_sampling
        results = self._tracker.add(self._paid(rewards), dones)
        for result in results:
            self.selector.update(result)
        if results:
            self._update_gate()
        if None in self._tracker.behaviours:
            self._start_episodes()

    def _rescale(self, factor: float) -> None:
        """What was learned stays what it is in another unit."""
        if factor != 1.0:
            self.policy.rescale(factor)

    def _update_gate(self) -> None:
        """What ``predict`` acts by while training goes on, and the networks to keep."""
        if self.selector.improved():
            self.policy.keep_best()
            self.selector.keep()
        if self._actor_started:
            self._follow_actor()
        if not self._actor_started and (chances := self.selector.source_chances()) is not None:
            self._start_actor(chances)
        self._decide()

    def _follow_actor(self) -> None:
        """Keep the actor where it comes to be worth more than ever, and let it go back there where it has fallen."""
        if self.selector.actor_rose():
            self.policy.keep_peak()
        elif self.selector.actor_fell():
            self.policy.return_to_peak()

    def _decide(self) -> None:
        self.gate.disabled = self.selector.disabled
        self.gate.controller = self.selector.decide()

    def _start_actor(self, source_chances: np.ndarray) -> None:
        """
        Let the actor begin.

        :param source_chances: how likely each source is the best one, and at last how likely random actions are
        """
        self._actor_started = True

    def _start_episodes(self) -> None:
        """Draw who acts in the environments where nobody does yet."""
        for env in self._tracker.waiting:
            chosen = self.selector.select(env)
            self._tracker.start(env, chosen)
            self._stretches.start(env)
            if chosen in LEARNERS:
                self.policy.begin_episode()
        cast: dict[Behaviour, list[int]] = {}
        for env, behaviour in enumerate(self._tracker.behaviours):
            assert behaviour is not None
            cast.setdefault(behaviour, []).append(env)
        # What acts is made anew here too: a user may have put other layers into the networks
        self._execution = self.policy.execution
        self._acting = self.policy.acting()
        self._acting_best = self.policy.acting(best=True) if BEST in cast else self._acting
        # Who acts where, and how: it changes with episodes alone
        self._cast = {behaviour: (self._role_of(behaviour), np.array(envs)) for behaviour, envs in cast.items()}
        self._n_sampling = len(cast.get(SAMPLED_ACTOR, ()))

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_cast", "_execution", "_acting", "_acting_best"]

    def _learn_terminations(self) -> None:
        """
        The paper's online step of β for the transitions that just arrived (Equation 2): β_o(s') goes down along its
        gradient times the advantage Q_O(s', o) - max Q_O(s', ·) + ρ of the option o that arrived.
        A terminal state has no continuation, so there is none in the first state of an episode.
        """
        arrived = th.as_tensor(~self._last_episode_starts, device=self.device)
        options = th.as_tensor(self._last_options, device=self.device)[:, None]
        allowed = None
        if self._last_action_masks is not None:
            # An option that arrives where it is not allowed ends there, whatever its β is
            allowed = th.as_tensor(self._last_option_actions >= 0, device=self.device)
            arrived &= allowed.gather(1, options)[:, 0]
        if not arrived.any():
            return
        sources = th.as_tensor(self._last_option_actions[:, : self.options.n_sources], device=self.device)
        estimates = self.policy.complete(self.q_net(obs_as_tensor(self._last_obs, self.device)), sources)
        values = estimates.values.detach()
        best = (values if allowed is None else values.masked_fill(~allowed, -th.inf)).max(dim=1).values
        advantages = values.gather(1, options)[:, 0] - best + (self._online_termination or 0.0)
        loss = (estimates.terminations.gather(1, options)[:, 0] * advantages * arrived).sum()
        self.policy.termination_optimizer.zero_grad()
        loss.backward()
        self.policy.termination_optimizer.step()
        self._use.add_termination_loss(loss.item() / int(arrived.sum()))
