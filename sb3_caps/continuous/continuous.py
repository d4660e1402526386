"""Context-aware policy reuse for continuous actions."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs, Schedule

from sb3_caps.caps.gate import ACTOR, BEST, EXPLORING, OPTIONS, RANDOM
from sb3_caps.caps.reports import ReuseReports
from sb3_caps.continuous import losses
from sb3_caps.continuous.base import ActorSample, ContinuousReuseAlgorithm
from sb3_caps.continuous.buffers import SourceReplayBufferSamples
from sb3_caps.continuous.policies import ContinuousCAPSPolicy
from sb3_caps.continuous.selection import ContinuousSelector, Selection
from sb3_caps.continuous.start import clone, fits, take_over
from sb3_caps.replay.batches import moved, rows_of
from sb3_caps.reuse.checks import check_number
from sb3_caps.reuse.episodes import Behaviour, EpisodeTracker, judging_discount, longest_trial
from sb3_caps.reuse.growth import GrowingSources
from sb3_caps.reuse.options import OptionSet

# The entropy coefficient that a copy of a source starts with, in units of the spread of values: it explores around it
STARTING_ENT_COEF = 0.01
# Of so many batches β learns from one: it is classified, and does not have to be right to a decimal
TERMINATION_INTERVAL = 4


class ContinuousCAPS(GrowingSources, ReuseReports, ContinuousReuseAlgorithm):
    """
    Context-Aware Policy Reuse (CAPS) for continuous actions

    Learns a new task from the policies that one has: SB3's SAC, with options that are the source policies and the
    actor. Whole episodes tell which source is best; the actor and, where it has one, the critic begin as that source's.
    From then on the critic chooses in each state between what the actor and the sources would do, to act and in the
    targets, and β of each option says how likely something else is better there. ``predict`` acts by what whole
    episodes say is best with confidence: a source, the critic's choice, or that as it was at its best.

    The paper of CAPS (https://arxiv.org/abs/1806.03793) is about discrete actions. Choosing by the critic to act and in
    the targets is IBRL's (https://arxiv.org/abs/2311.02198), for more than one source. Without sources it is SAC.

    :param policy: The policy model to use (MlpPolicy, CnnPolicy, MultiInputPolicy)
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: learning rate of all networks, or a function of the remaining progress (1 to 0)
    :param buffer_size: size of the replay buffer
    :param learning_starts: how many steps of the model to collect transitions for before learning starts
    :param batch_size: Minibatch size for each gradient update
    :param tau: the soft update coefficient ("Polyak update", between 0 and 1)
    :param gamma: the discount factor
    :param train_freq: Update the model every so many steps, or a tuple like ``(5, "step")`` or ``(2, "episode")``
    :param gradient_steps: How many gradient steps to do after each rollout (see ``train_freq``);
        ``-1`` for as many as steps were done in the environment
    :param action_noise: the action noise type (None by default), added to what the actor explores by
    :param replay_buffer_class: Replay buffer class to use, a subclass of ``SourceReplayBuffer``
    :param replay_buffer_kwargs: Keyword arguments to pass to the replay buffer on creation
    :param optimize_memory_usage: Enable a memory efficient variant of the replay buffer
    :param n_steps: Must be 1
    :param ent_coef: Entropy regularization coefficient, see SAC
    :param target_update_interval: update the target network every ``target_update_interval`` gradient steps
    :param target_entropy: target entropy when learning ``ent_coef``
    :param use_sde: Whether to use generalized State Dependent Exploration
    :param sde_sample_freq: Sample a new noise matrix every n steps when using gSDE
    :param use_sde_at_warmup: Whether to use gSDE instead of uniform sampling before learning starts
    :param stats_window_size: Number of episodes to average success rate, length and reward over when logging
    :param tensorboard_log: the log location for tensorboard (if None, no logging)
    :param policy_kwargs: additional arguments to be passed to the policy on creation, see ``ContinuousCAPSPolicy`` for
        ``execution``
    :param verbose: Verbosity level: 0 for no output, 1 for info messages (such as device), 2 for debug messages
    :param seed: Seed for the pseudo random generators
    :param device: Device (cpu, cuda, ...) on which the code should be run; auto for the GPU if possible
    :param source_policies: The policies to reuse: a list of anything that ``as_source`` takes, or a dictionary of them
        by name
    :param pull: How hard an actor that is cloned is pulled to the best source at first; it fades as what is learned
        comes to be better
    :param selection_kwargs: How episodes are given to sources and learners, see ``Selection``
    :param safe: Whether whole episodes of training tell what to act by. Without, ``predict`` acts by the critic's
        choice between the actor and the sources
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    """

    def __init__(
        self,
        policy: str | type[ContinuousCAPSPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        buffer_size: int = 1_000_000,  # 1e6
        learning_starts: int = 100,
        batch_size: int = 256,
        tau: float = 0.005,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        action_noise: ActionNoise | None = None,
        replay_buffer_class: type[ReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        ent_coef: str | float = "auto",
        target_update_interval: int = 1,
        target_entropy: str | float = "auto",
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        use_sde_at_warmup: bool = False,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        source_policies: Iterable[Any] | Mapping[str, Any] | None = None,
        pull: float = 5.0,
        selection_kwargs: dict[str, Any] | None = None,
        safe: bool = True,
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(
            policy,
            env,
            learning_rate,
            buffer_size,
            learning_starts,
            batch_size,
            tau,
            gamma,
            train_freq,
            gradient_steps,
            action_noise,
            replay_buffer_class,
            replay_buffer_kwargs,
            optimize_memory_usage,
            n_steps,
            ent_coef,
            target_update_interval,
            target_entropy,
            use_sde,
            sde_sample_freq,
            use_sde_at_warmup,
            stats_window_size,
            tensorboard_log,
            policy_kwargs,
            verbose,
            seed,
            device,
            source_policies=source_policies,
            _init_setup_model=False,
        )
        self.pull = pull
        self.selection_kwargs = selection_kwargs or {}
        self.safe = safe
        self.selector: ContinuousSelector
        self._selector_made_for: list[Any] | None = None
        self._tracker = EpisodeTracker(0, 1.0)
        # Gradient steps that the survey put off, whether they are due, and batches whose targets were made
        self._owed_steps, self._is_starting, self._n_batches = 0, False, 0
        # Whether what is learned began as a source, but for its critics
        self._is_cloned = False

        if _init_setup_model:
            self._setup_model()

    def _check_arguments(self) -> None:
        super()._check_arguments()
        check_number("pull", self.pull, at_least=0.0)
        given, known = self.selection_kwargs, list(Selection.__dataclass_fields__)
        if not isinstance(given, dict) or given.keys() - set(known):
            raise ValueError(f"selection_kwargs must be a dict with some of {', '.join(known)}, not {given!r}.")
        self._selection = Selection(**given)

    def _setup_model(self) -> None:
        super()._setup_model()
        self._setup_selector()

    def _setup_selector(self) -> None:
        """Make the selector, or bring the one that is there up to date."""
        made_for, before = [judging_discount(self.gamma), self.safe], self._selector_made_for
        self._selector_made_for = made_for
        if before is None or made_for[0] != before[0]:
            # What is known by another discount says nothing
            self.selector = ContinuousSelector(self.source_names, self._selection, self.rng)
        self.selector.rng, self.selector.settings = self.rng, self._selection
        if self.selector.source_names != self.source_names:
            self.selector.set_sources(self.source_names)
            made_for = []
        # A function may have nothing that is worth to begin with
        self.selector.compares = not all(fits(self._network(each), self.policy)[0] for each in self.selector.sources)
        if made_for != before:
            self._decide()

    def _map_options(self, places: np.ndarray, before: OptionSet) -> None:
        n_sources, n_envs = self.options.n_sources, len(self._last_options)
        numbers = moved(places, len(before))
        self.policy.set_options(self.options, places)
        # Where the last option is gone, the actor goes on
        self._last_options = np.where(numbers < 0, n_sources, numbers)[self._last_options]
        states = dict(zip(before.source_names, self._last_source_states, strict=False))
        self._last_source_states = tuple(states.get(name) for name in self.options.source_names)
        answers = np.zeros((n_envs, n_sources, self.options.dimensions), dtype=np.float32)
        kept = np.flatnonzero(places[:-1] >= 0)
        if n_envs:
            answers[:, kept] = self._last_source_actions[:, places[kept]]
        self._last_source_actions = answers
        if n_envs and self.env is not None and self._last_obs is not None:
            self._ask_newcomers(np.flatnonzero(places < 0).tolist())
        self.selector.set_sources(self.source_names)
        if n_sources:
            self._decide()
        else:
            self.gate.controller, self.gate.disabled = ACTOR, set()
        cut = self._tracker.leave(self.source_names)
        # Nobody was told to act where there were no sources
        cut += self._tracker.waiting if before.n_sources == 0 else []
        self._start_episodes()
        self._tracker.counts[cut] = False

    def _ask_newcomers(self, sources: list[int]) -> None:
        """Let new sources see the last observations."""
        states, starts = list(self._last_source_states), np.ones(self.n_envs, dtype=bool)
        rng = np.random.default_rng(self.seed)
        for i in sources:
            self._last_source_actions[:, i], states[i] = self.options.ask(
                i, self._emitted_observations(), None, starts, None, rng
            )
        self._last_source_states = tuple(states)

    def _start_run(self) -> None:
        discount, limit = judging_discount(self.gamma), longest_trial(self.gamma)
        if self._tracker.gamma != discount:
            self._tracker.change_discount(discount, limit)
        self._setup_selector()
        self.selector.begin(self._total_timesteps - self._num_timesteps_at_start)
        super()._start_run()

    def _start_episodes(self, new: bool = False) -> None:
        if new:
            self._tracker = EpisodeTracker(self.n_envs, judging_discount(self.gamma), longest_trial(self.gamma))
            self.selector.reset()
        for env in self._tracker.waiting:
            self._tracker.start(env, self.selector.select(env) if self.options.n_sources else EXPLORING)

    def _act(self, warm_up: bool, action_noise: ActionNoise | None) -> tuple[np.ndarray, np.ndarray]:
        """Let the behaviour of each environment act."""
        n_sources = self.options.n_sources
        options, actions = np.full(self.n_envs, n_sources), np.zeros((self.n_envs, self.options.dimensions))
        cast: dict[Behaviour, list[int]] = {}
        for env, behaviour in enumerate(self._tracker.behaviours):
            assert behaviour is not None
            cast.setdefault(behaviour, []).append(env)
        for behaviour, places in cast.items():
            envs = np.array(places)
            if behaviour.is_source:
                options[envs] = self.options.names.index(behaviour.name)
            elif behaviour == RANDOM:
                actions[envs] = self.rng.uniform(-1.0, 1.0, size=(len(envs), self.options.dimensions))
            elif behaviour == EXPLORING:
                options[envs], actions[envs] = self._choose(envs, self._actor_draws(warm_up, action_noise)[envs])
            else:
                options[envs], actions[envs] = self._choose(envs, None, best=behaviour == BEST)
        followed = options < n_sources
        actions[followed] = self._last_source_actions[followed, options[followed]]
        return options, actions.astype(np.float32)

    def _choose(
        self, envs: np.ndarray, own_actions: np.ndarray | None, best: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """:return: the options and actions that the critic chooses in these environments"""
        assert self._last_episode_starts is not None
        observations, _ = self.policy.obs_to_tensor(rows_of(self._last_obs, envs))
        if own_actions is None:
            with th.no_grad():
                actor = self.policy.actor_best if best else self.actor
                own_actions = actor(observations, deterministic=True).cpu().numpy()
        active, starts = self._last_options[envs], self._last_episode_starts[envs]
        return self.policy.choose(observations, self._last_source_actions[envs], own_actions, active, starts, best)

    def _tell(self, rewards: np.ndarray, dones: np.ndarray) -> None:
        """Tell the ledger of episodes what was paid, and the selector what came of those that ended."""
        if not self.options.n_sources:
            return
        results, surveying = self._tracker.add(self._paid(rewards), dones), self.selector.surveying
        for result in results:
            self.selector.update(result)
        if results:
            self._is_starting |= surveying and not self.selector.surveying
            if self._is_starting:
                self._start_learning()
            if self.selector.improved:
                self.policy.keep_best()
                self.selector.keep()
            self._decide()
        self._start_episodes()

    def _decide(self) -> None:
        """What ``predict`` acts by while training goes on, and which sources are disabled."""
        if self.options.n_sources:
            # What began with the critics of a source has nothing to prove: it was as good
            errors = 1.0 if self._is_cloned or self.selector.surveying else 0.0
            self.gate.controller = self.selector.decide(errors) if self.safe else OPTIONS
            self.gate.disabled = self.selector.disabled

    def _network(self, source: Behaviour) -> BasePolicy | None:
        """:return: the network of a source, None where it sees other observations than the learner"""
        known = self.options.sources[self.options.names.index(source.name)]
        return known.network if self._vec_normalize_env is None else None

    def _start_learning(self) -> None:
        """The survey is over: what is learned begins as the best source, and catches up with the survey."""
        # What was learned before, with other sources, is not given up for another beginning
        best = self.selector.best if self._n_updates == 0 else None
        if best is not None:
            has_actor, has_critics = take_over(self._network(best), self.policy)
            # What a network knows is worth more than what it is paid; a function has to be better than random actions
            self._is_cloned = not has_critics and (has_actor or self.selector.guide is not None)
            source = self.options.names.index(best.name)
            if has_actor:
                self.selector.take_over(best)
            elif self._is_cloned:
                data = self.replay_buffer.everything(self._vec_normalize_env)
                clone(self.actor, data.observations, data.source_actions[:, source], self.rng)
            if has_critics:
                self._lower_ent_coef(self.options.sources[source].ent_coef)
        super().train(self._owed_steps, self.batch_size)
        self._owed_steps, self._is_starting = 0, False
        if best is not None and self._is_cloned:
            self._lower_ent_coef()

    @th.no_grad()
    def _lower_ent_coef(self, known: float | None = None) -> None:
        """
        Let entropy count for no more than it did for a source, or for little beside the values where that is not known:
        an actor that is good has something to lose.
        """
        if self.log_ent_coef is None:
            return
        if known is None:
            data = self.replay_buffer.sample(self.batch_size, env=self._vec_normalize_env)
            values = self.policy.values_of(self.critic, data.observations, data.actions[:, None])
            known = STARTING_ENT_COEF * values.std().item()
        self.log_ent_coef.clamp_(max=float(np.log(known + 1e-8)))

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        if self.selector.surveying:
            # There is no actor to learn about yet: these steps are done when the survey is over
            self._owed_steps += gradient_steps
            return
        if self._is_starting:
            # Somebody pressed Ctrl-C in the start
            self._start_learning()
        super().train(gradient_steps, batch_size)

    @property
    def _moves_actor(self) -> bool:
        # What is copied without a critic waits for one
        return self._owed_steps == 0 or not self._is_cloned or self._n_updates > 0

    def _next_values(self, data: SourceReplayBufferSamples, ent_coef: th.Tensor) -> th.Tensor:
        """The value of the best candidate; β of all options is learned from the same values."""
        if not self.options.n_sources:
            return super()._next_values(data, ent_coef)
        candidates = self._next_candidates(data, ent_coef).masked_fill(self.policy.disabled(), -th.inf)
        self._n_batches += 1
        if self._n_batches % TERMINATION_INTERVAL == 0:
            self._learn_terminations(data.next_observations, candidates)
        return losses.bootstrap_values(candidates)

    @th.enable_grad()
    def _learn_terminations(self, observations: PyTorchObs, candidates: th.Tensor) -> None:
        """One gradient step of β: how likely something else is better than what an option does."""
        loss = losses.termination_loss(self.policy.termination_logits(observations), candidates)
        self.policy.termination_optimizer.zero_grad()
        loss.backward()
        self.policy.termination_optimizer.step()
        self.logger.record("train/termination_loss", loss.item())

    def _reuse_loss(self, data: SourceReplayBufferSamples, sample: ActorSample) -> th.Tensor | float:
        """The pull to the best source, as long as there is no critic to trust."""
        weight, guide = self.pull * self.selector.lead, self.selector.guide
        self.logger.record("reuse/pull", weight)
        if weight == 0 or guide is None or not self._is_cloned:
            return 0.0
        answers = data.source_actions[:, self.options.names.index(guide.name)]
        return weight * losses.pull_loss(sample.means, answers, sample.values)
