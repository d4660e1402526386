"""What the algorithms for continuous actions share: a SAC that has source policies."""

import io
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from stable_baselines3.sac.sac import SAC

from sb3_caps.caps.gate import ACTOR, OPTIONS, Gate
from sb3_caps.continuous import losses
from sb3_caps.continuous.buffers import SourceDictReplayBuffer, SourceReplayBuffer, SourceReplayBufferSamples
from sb3_caps.continuous.options import BoxOptionSet
from sb3_caps.continuous.policies import BoxState, CnnPolicy, ContinuousCAPSPolicy, MlpPolicy, MultiInputPolicy
from sb3_caps.files.save_util import atomic_write, read_pickle, write_pickle
from sb3_caps.files.saved_models import check_saved_model
from sb3_caps.reuse import checks
from sb3_caps.reuse.options import SourceStates
from sb3_caps.reuse.statistics import OptionUse
from sb3_caps.sources import ObservationNormalizer, SourcePolicy, unwrapped

SelfContinuousReuse = TypeVar("SelfContinuousReuse", bound="ContinuousReuseAlgorithm")


class ActorSample(NamedTuple):
    """
    What the actor does in a batch.

    :param means: without noise, of shape (batch, dimensions)
    :param values: the lowest Q(s, a) of all critics for an action that is drawn, of shape (batch, 1)
    """

    means: th.Tensor
    values: th.Tensor


class ContinuousReuseAlgorithm(SAC):
    """
    Base of the algorithms that learn a new task with continuous actions with the help of source policies.

    What each source would do is asked once for each observation and kept in the replay buffer. Without sources it is
    SB3's SAC, with the same random numbers.

    :param args: The arguments of SB3's SAC, in its order
    :param source_policies: The policies to reuse: a list of anything that ``as_source`` takes
    :param kwargs: The arguments of SB3's SAC by name
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    # Whether `predict` acts by the critic's choice between actor and sources, and not by the actor
    critic_chooses: ClassVar[bool] = False
    options: BoxOptionSet
    policy: ContinuousCAPSPolicy
    replay_buffer: SourceReplayBuffer
    action_space: spaces.Box

    def __init__(
        self,
        *args: Any,
        source_policies: Sequence[Any] | Mapping[str, Any] | None = None,
        _init_setup_model: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **{**kwargs, "_init_setup_model": False})
        # Under the name under which `load` puts it there
        vars(self)["source_policies"] = source_policies
        # What `predict` acts by
        self.gate = Gate(ACTOR)
        # What each source does in the last observations, of shape (environments, sources, dimensions)
        self._last_source_actions = np.zeros((0, 0, 0), dtype=np.float32)
        self._last_source_states: SourceStates = ()
        self._last_options = np.zeros(0, dtype=np.int64)
        # How many steps there were before the one that is under way, None once that is stored
        self._steps_before: int | None = None
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        checks.check_numbers(self)
        self._setup_options()
        self._check_arguments()
        policy_kwargs, replay_buffer_kwargs = self.policy_kwargs, self.replay_buffer_kwargs
        policy_arguments, buffer_arguments = self._policy_arguments(), self._buffer_arguments()
        checks.check_not_ours("policy_kwargs", policy_kwargs, policy_arguments)
        checks.check_not_ours("replay_buffer_kwargs", replay_buffer_kwargs, buffer_arguments)
        self.policy_kwargs = {**policy_kwargs, **policy_arguments}
        self.replay_buffer_kwargs = {**replay_buffer_kwargs, **buffer_arguments}
        rng: np.random.Generator | None = vars(self).get("rng")
        try:
            super()._setup_model()
        finally:
            self.policy_kwargs, self.replay_buffer_kwargs = policy_kwargs, replay_buffer_kwargs
        used: OptionUse | None = vars(self).get("_use")
        self._use = used if used is not None and len(used.steps) == len(self.options) else OptionUse(len(self.options))
        # A loaded model goes on where its random numbers were
        self.rng = rng or np.random.default_rng(self.seed)

    def _check_arguments(self) -> None:
        """Refuse what cannot work, before anything is built."""
        name = type(self).__name__
        buffer_class = self.replay_buffer_class
        if buffer_class is not None and issubclass(buffer_class, HerReplayBuffer):
            raise ValueError(f"{name} does not learn from goals afterwards: HerReplayBuffer is not for it.")
        needed = SourceDictReplayBuffer if isinstance(self.observation_space, spaces.Dict) else SourceReplayBuffer
        if not issubclass(buffer_class or needed, needed):
            raise ValueError(f"replay_buffer_class must be a {needed.__name__}, not {buffer_class}.")
        self.replay_buffer_class = buffer_class or needed
        if self.n_steps != 1:
            raise ValueError(f"n_steps must be 1, not {self.n_steps}: {name} has no longer backups.")

    def _policy_arguments(self) -> dict[str, Any]:
        """:return: arguments for the policy, beside the user's ``policy_kwargs``"""
        return {"options": self.options, "gate": self.gate}

    def _buffer_arguments(self) -> dict[str, Any]:
        """:return: arguments for the replay buffer, beside the user's ``replay_buffer_kwargs``"""
        return {"n_sources": self.options.n_sources}

    def _setup_options(self) -> None:
        """Build the option set, or check the one that was loaded."""
        # The user's models are not kept: they would keep their replay buffers alive
        given = self.__dict__.pop("source_policies", None)
        stored_names: list[str] | None = self.__dict__.get("source_names")
        if given is not None or stored_names is None:
            emitted = self.observation_space if self.env is None else unwrapped(self.env)[0].observation_space
            self.options = BoxOptionSet(given, emitted, self.action_space)
        elif "options" not in vars(self):
            raise ValueError(f"The source policies {stored_names} were not saved with the model: pass source_policies.")
        if stored_names is not None and len(stored_names) != self.options.n_sources:
            raise ValueError(
                f"The saved model has {len(stored_names)} source policies, {stored_names}, but "
                f"{self.options.n_sources} were passed, {self.options.source_names}: pass as many, in the same order."
            )
        self.source_names = self.options.source_names
        if stored_names is None and self.critic_chooses and self.source_names:
            self.gate.controller = OPTIONS
        # By which a saved model can be a source policy
        self.algorithm_class = f"{type(self).__module__}:{type(self).__qualname__}"
        self._adapt_options()

    @property
    def source_policies(self) -> list[SourcePolicy]:
        """The policies to reuse, in the order given."""
        return self.options.sources

    def set_random_seed(self, seed: int | None = None) -> None:
        """
        Set the seed of all that draws, see SB3.

        :param seed: the seed, None to leave all as it is
        """
        super().set_random_seed(seed)
        if seed is not None:
            self.rng = np.random.default_rng(seed)

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """
        Set the environment to learn in, see SB3's ``BaseAlgorithm.set_env``.

        :param env: The environment for learning a policy
        :param force_reset: Force call to ``reset()`` before training to avoid unexpected behavior
        """
        super().set_env(env, force_reset)
        self._adapt_options()

    def _adapt_options(self) -> None:
        """Let sources see what the environments emit."""
        normalizer = self._vec_normalize_env
        self.options.normalizer = None if normalizer is None else ObservationNormalizer(normalizer)

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        checks.check_buffer_size(self.buffer_size, self.batch_size, self.n_envs)
        setup = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        self._start_run()
        return setup

    def _start_run(self) -> None:
        """Prepare what depends on the environments of a run, once they were reset or go on."""
        assert self._last_episode_starts is not None
        # Where the environments were reset, new episodes begin
        if len(self._last_options) != self.n_envs or self._last_episode_starts.all():
            self._last_options = np.zeros(self.n_envs, dtype=np.int64)
            self._last_source_states = self.options.initial_states()
            self._last_source_actions = self._query_sources(self._original_observations(), self._last_episode_starts)
            self._start_episodes(new=True)

    def _start_episodes(self, new: bool = False) -> None:
        """
        Decide who acts in the environments where nobody does yet.

        :param new: whether the environments were reset
        """

    def _original_observations(self) -> Any:
        """:return: the last observations before they were normalized, as the replay buffer gets them"""
        return self._last_obs if self._vec_normalize_env is None else self._last_original_obs

    def _query_sources(self, observations: Any, starts: np.ndarray) -> np.ndarray:
        """:return: what each source does in observations that the environments have just emitted"""
        if not self.options.n_sources:
            return np.zeros((self.n_envs, 0, self.options.dimensions), dtype=np.float32)
        found, self._last_source_states = self.options.actions(
            self.options.as_emitted(observations), self._last_source_states, starts, rng=self.rng
        )
        return found

    def collect_rollouts(self, env: VecEnv, callback: BaseCallback, *args: Any, **kwargs: Any) -> RolloutReturn:
        """
        Collect experience, see SB3. A step at which a callback ends the run is stored too: SB3 would leave it out, and
        what follows would be counted to an episode that may be over.
        """
        try:
            return super().collect_rollouts(env, callback, *args, **kwargs)
        finally:
            if self._steps_before is not None and self._steps_before < self.num_timesteps:
                names = ("replay_buffer", "buffer_actions", "new_obs", "rewards", "dones", "infos")
                self._store_transition(*(callback.locals[name] for name in names))

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Let who acts in each environment act; see SB3."""
        self._steps_before = self.num_timesteps
        if not self.options.n_sources:
            # The very random numbers of SB3's SAC
            return super()._sample_action(learning_starts, action_noise, n_envs)
        assert self._last_episode_starts is not None
        options, actions = self._act(self.num_timesteps < learning_starts, action_noise)
        agrees = np.zeros((n_envs, len(self.options)), dtype=bool)
        agrees[:, :-1] = (self._last_source_actions == actions[:, None]).all(axis=2)
        agrees[np.arange(n_envs), options] = True
        self._use.add_step(options, self._last_episode_starts | (options != self._last_options), agrees)
        self._last_options = options
        return self.options.unscaled(actions), actions

    def _act(self, warm_up: bool, action_noise: ActionNoise | None) -> tuple[np.ndarray, np.ndarray]:
        """
        :param warm_up: whether learning has not begun, so that what explores is random
        :param action_noise: to add to what explores
        :return: the option that each environment follows, and its action, each number from -1 to 1
        """
        return np.full(self.n_envs, self.options.n_sources), self._actor_draws(warm_up, action_noise)

    def _actor_draws(self, warm_up: bool, action_noise: ActionNoise | None) -> np.ndarray:
        """:return: what the actor does with its exploration, as SB3's SAC has it, for all environments"""
        if warm_up and not (self.use_sde and self.use_sde_at_warmup):
            actions = self.rng.uniform(-1.0, 1.0, size=(self.n_envs, self.options.dimensions)).astype(np.float32)
        else:
            actions = self._actor_actions(deterministic=False)
        return actions if action_noise is None else np.clip(actions + action_noise(), -1, 1).astype(np.float32)

    def _actor_actions(self, deterministic: bool) -> np.ndarray:
        """:return: what the actor does in the last observations of all environments"""
        assert self._last_obs is not None
        tensors, _ = self.policy.obs_to_tensor(self._last_obs)
        with th.no_grad():
            found: np.ndarray = self.actor(tensors, deterministic).cpu().numpy()
        return found

    def _store_transition(
        self,
        replay_buffer: ReplayBuffer,
        buffer_action: np.ndarray,
        new_obs: np.ndarray | dict[str, np.ndarray],
        reward: np.ndarray,
        dones: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """Ask the sources about what came, and store the whole step with one call."""
        self._steps_before = None
        self._check_step(new_obs, reward, dones, infos)
        original: Any = new_obs if self._vec_normalize_env is None else self._vec_normalize_env.get_original_obs()
        states = self._last_source_states
        after = self._query_sources(original, dones)

        def add(observations: Any, next_observations: Any, *args: Any) -> None:
            following = after
            if dones.any() and self.options.n_sources:
                # Where an episode was cut off, sources go on from its last observation, and not from the next one
                emitted = self.options.as_emitted(next_observations)
                last, _ = self.options.actions(emitted, states, np.zeros_like(dones), rng=self.rng)
                following = np.where(dones[:, None, None], last, after)
            replay_buffer.add(
                observations,
                next_observations,
                *args,
                source_actions=self._last_source_actions,  # type: ignore[call-arg]
                next_source_actions=following,
            )

        # SB3 knows the observations that episodes ended in, and those before normalisation
        super()._store_transition(SimpleNamespace(add=add), buffer_action, new_obs, reward, dones, infos)  # type: ignore[arg-type]
        self._last_episode_starts, self._last_source_actions = dones, after
        if self.options.n_sources:
            normalizer = self._vec_normalize_env
            # Compared by what the task pays, whatever the learner's rewards are scaled to
            self._tell(reward if normalizer is None else normalizer.get_original_reward(), dones)

    def _tell(self, rewards: np.ndarray, dones: np.ndarray) -> None:
        """
        Take note of what was paid.

        :param rewards: as the task pays them
        :param dones: which episodes ended
        """

    def _check_step(self, new_obs: Any, reward: np.ndarray, dones: np.ndarray, infos: list[dict[str, Any]]) -> None:
        """Refuse a step with numbers that are not finite, before anything of it is kept."""
        if self._vec_normalize_env is not None:
            # Clipped, an infinite number would look like any other
            new_obs, reward = self._vec_normalize_env.get_original_obs(), self._vec_normalize_env.get_original_reward()
        checks.check_rewards(reward, self.num_timesteps)
        checks.check_observations(new_obs, self.num_timesteps)
        if dones.any():
            checks.check_terminal_observations(dones, infos, self.num_timesteps)

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        # Switch to train mode (this affects batch norm / dropout)
        self.policy.set_training_mode(True)
        optimizers = [self.actor.optimizer, self.critic.optimizer]
        if self.ent_coef_optimizer is not None:
            optimizers += [self.ent_coef_optimizer]
        # Update learning rate according to lr schedule
        self._update_learning_rate(optimizers)

        logged: dict[str, list[float]] = {}
        for gradient_step in range(gradient_steps):
            data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            for name, value in self._train_step(data).items():
                logged.setdefault(name, []).append(value)
            # Update target networks
            if gradient_step % self.target_update_interval == 0:
                polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
                # Copy running stats, see SB3's issue #996
                polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)

        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, values in logged.items():
            self.logger.record(f"train/{name}", np.mean(values))

    @property
    def _moves_actor(self) -> bool:
        """Whether actor and entropy coefficient learn too, or the critic alone."""
        return True

    def _train_step(self, data: SourceReplayBufferSamples) -> dict[str, float]:
        """
        One gradient step of entropy coefficient, critic and actor, in SAC's order.

        :param data: a batch
        :return: what to log
        """
        # We need to sample because `log_std` may have changed between two gradient steps
        if self.use_sde:
            self.actor.reset_noise()
        # Action by the current actor for the sampled state
        actions, log_probs = self.actor.action_log_prob(data.observations)
        log_probs, means = log_probs.reshape(-1, 1), self.actor.action_dist.mode()
        logged, moves_actor = {}, self._moves_actor
        if self.ent_coef_optimizer is None or self.log_ent_coef is None:
            ent_coef = self.ent_coef_tensor
        else:
            ent_coef = th.exp(self.log_ent_coef.detach())
            if moves_actor:
                assert isinstance(self.target_entropy, float)
                entropy_loss = losses.entropy_loss(self.log_ent_coef, log_probs, self.target_entropy)
                logged["ent_coef_loss"] = _step(self.ent_coef_optimizer, entropy_loss)
        logged["ent_coef"] = ent_coef.item()

        with th.no_grad():
            targets = losses.td_targets(data.rewards, data.dones, self.gamma, self._next_values(data, ent_coef))
        # Q-values estimates for each critic network using action from the replay buffer
        critic_loss = losses.critic_loss(self.critic(data.observations, data.actions), targets)
        logged["critic_loss"] = _step(self.critic.optimizer, critic_loss)
        if not moves_actor:
            return logged

        # Min over all critic networks
        values, _ = th.min(th.cat(self.critic(data.observations, actions), dim=1), dim=1, keepdim=True)
        actor_loss = losses.actor_loss(ent_coef, log_probs, values)
        if self.options.n_sources:
            actor_loss = actor_loss + self._reuse_loss(data, ActorSample(means, values))
        logged["actor_loss"] = _step(self.actor.optimizer, actor_loss)
        return logged

    def _next_values(self, data: SourceReplayBufferSamples, ent_coef: th.Tensor) -> th.Tensor:
        """
        The value of the next states by the target critics: here SAC's, that of what the actor does.

        :param data: a batch
        :param ent_coef: α
        :return: of shape (batch, 1)
        """
        # Select action according to policy
        actions, log_probs = self.actor.action_log_prob(data.next_observations)
        # Compute the next Q values: min over all critics targets
        values, _ = th.min(th.cat(self.critic_target(data.next_observations, actions), dim=1), dim=1, keepdim=True)
        # Add entropy term
        return values - ent_coef * log_probs.reshape(-1, 1)

    def _next_candidates(self, data: SourceReplayBufferSamples, ent_coef: th.Tensor) -> th.Tensor:
        """
        What the sources and the actor would do in the next states is worth, by the target critics.

        :param data: a batch
        :param ent_coef: α
        :return: of shape (batch, sources + 1), the actor's with its entropy
        """
        actions, log_probs = self.actor.action_log_prob(data.next_observations)
        candidates = th.cat([data.next_source_actions, actions[:, None]], dim=1)
        values = self.policy.values_of(self.critic_target, data.next_observations, candidates)
        values[:, -1] -= ent_coef * log_probs
        return values

    def _reuse_loss(self, data: SourceReplayBufferSamples, sample: ActorSample) -> th.Tensor | float:
        """
        What the sources add to the loss of the actor.

        :param data: a batch
        :param sample: what the actor does in its states
        :return: the loss
        """
        return 0.0

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: BoxState | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, BoxState | None]:
        """
        Act by what the gate says.

        :param observation: the input observation
        :param state: The state that the last call returned, None to begin anew
        :param episode_start: Which environments start an episode
        :param deterministic: Whether the actor takes its likeliest action
        :return: the actions and the next state
        """
        return self.policy.predict(observation, state, episode_start, deterministic)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, variables = super()._get_torch_save_params()
        return [*state_dicts, *["policy.termination_optimizer"] * (self.options.n_sources > 0)], variables

    def learn(
        self: SelfContinuousReuse,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfContinuousReuse:
        name = tb_log_name or type(self).__name__
        return super().learn(total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar)

    def dump_logs(self) -> None:
        """Write log data."""
        self._use.record(self.logger, self.options.names, self.options.n_sources)
        super().dump_logs()

    @classmethod
    def load(
        cls: type[SelfContinuousReuse],
        path: str | pathlib.Path | io.BufferedIOBase,
        *args: Any,
        **kwargs: Any,
    ) -> SelfContinuousReuse:
        """
        Load the model from a zip-file, see SB3. An argument that the algorithm does not have is refused, and so is the
        model of another algorithm. Loading runs code that the file holds, as it does in SB3: load only what you trust.

        :param path: path to the file (or a file-like) where to load the agent from
        :param args: see SB3
        :param kwargs: see SB3; other arguments of the constructor are changed when loading
        :return: new model instance with loaded parameters
        """
        theirs = ("env", "device", "custom_objects", "print_system_info", "force_reset")
        checks.check_names(cls, [name for name in kwargs if name not in theirs])
        check_saved_model(path, cls)
        return super().load(path, *args, **kwargs)

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """
        Save all the attributes of the object, the sources and the model parameters in a zip-file.
        A file that is there already is replaced only when the new one is complete.

        :param path: path to the file where the rl agent should be saved
        :param exclude: name of parameters that should be excluded in addition to the default ones;
            without ``"options"`` the source policies have to be passed to ``load``
        :param include: name of parameters that might be excluded but should be included anyway
        """
        if "options" not in (exclude or []):
            self.options.check_picklable()
        with atomic_write(path, suffix="zip") as file:
            super().save(file, exclude, include)

    def save_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase) -> None:
        """
        Save the replay buffer as a pickle file with a checksum.
        A file that is there already is replaced only when the new one is complete.

        :param path: Path to the file where the replay buffer should be saved
        """
        self.replay_buffer.option_names = self.options.names
        write_pickle(path, self.replay_buffer)

    def load_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True) -> None:
        """
        Load a replay buffer from a pickle file, which runs code that the file holds. One that this model cannot learn
        from is refused, and the model keeps the buffer that it has.

        :param path: Path to the pickled replay buffer
        :param truncate_last_traj: For ``HerReplayBuffer``, see SB3
        """
        found = read_pickle(path)
        checks.check_replay_buffer(found, self, self.options.names, self._buffer_arguments(), str(path))
        found.device = self.device
        self.replay_buffer = found


def _step(optimizer: th.optim.Optimizer, loss: th.Tensor) -> float:
    """
    :param optimizer: of the parameters to move
    :param loss: by which to move them
    :return: the loss
    """
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
