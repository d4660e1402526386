"""What the algorithms for continuous actions share: a SAC that has source policies."""

from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from stable_baselines3.sac.sac import SAC

from sb3_caps.caps.gate import ACTOR, OPTIONS, Gate
from sb3_caps.continuous import losses
from sb3_caps.continuous.buffers import SourceDictReplayBuffer, SourceReplayBuffer, SourceReplayBufferSamples
from sb3_caps.continuous.options import BoxOptionSet
from sb3_caps.continuous.policies import CnnPolicy, ContinuousCAPSPolicy, MlpPolicy, MultiInputPolicy
from sb3_caps.reuse import checks
from sb3_caps.reuse.base import PolicyReuse
from sb3_caps.reuse.options import SourceStates


class ActorSample(NamedTuple):
    """
    What the actor does in a batch.

    :param means: without noise, of shape (batch, dimensions)
    :param values: the lowest Q(s, a) of all critics for an action that is drawn, of shape (batch, 1)
    """

    means: th.Tensor
    values: th.Tensor


class ContinuousReuseAlgorithm(PolicyReuse, SAC):
    """
    Base of the algorithms that learn a new task with continuous actions with the help of source policies.

    What each source would do is asked once for each observation and kept in the replay buffer. Without sources it is
    SB3's SAC, with the same random numbers.

    :param args: The arguments of SB3's SAC, in its order
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    :param kwargs: see ``PolicyReuse``
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    # Whether `predict` acts by the critic's choice between actor and sources, and not by the actor
    critic_chooses: ClassVar[bool] = False
    options_class = BoxOptionSet
    options: BoxOptionSet
    policy: ContinuousCAPSPolicy
    replay_buffer: SourceReplayBuffer
    action_space: spaces.Box

    def __init__(self, *args: Any, _init_setup_model: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # What `predict` acts by
        self.gate = Gate(OPTIONS if self.critic_chooses else ACTOR)
        # What each source does in the last observations, of shape (environments, sources, dimensions)
        self._last_source_actions = np.zeros((0, 0, 0), dtype=np.float32)
        self._last_source_states: SourceStates = ()
        self._last_options = np.zeros(0, dtype=np.int64)
        if _init_setup_model:
            self._setup_model()

    def _check_arguments(self) -> None:
        """Refuse what cannot work, before anything is built."""
        name = type(self).__name__
        buffer_class = self.replay_buffer_class
        if buffer_class is not None and issubclass(buffer_class, HerReplayBuffer):
            raise ValueError(f"{name} does not relabel goals: HerReplayBuffer (HER) is not supported.")
        needed = SourceDictReplayBuffer if isinstance(self.observation_space, spaces.Dict) else SourceReplayBuffer
        if not issubclass(buffer_class or needed, needed):
            raise ValueError(f"replay_buffer_class must be a {needed.__name__}, not {buffer_class}.")
        self.replay_buffer_class = buffer_class or needed
        if self.n_steps != 1:
            raise ValueError(f"n_steps must be 1, not {self.n_steps}: {name} has no longer backups.")

    def _check_buffer_size(self) -> None:
        # A batch may hold a transition twice, as in SAC
        checks.check_buffer_size(self.buffer_size, 1, self.n_envs)

    def _policy_arguments(self) -> dict[str, Any]:
        return {"options": self.options, "gate": self.gate}

    def _buffer_arguments(self) -> dict[str, Any]:
        return {"n_sources": self.options.n_sources}

    def _start_run(self) -> None:
        super()._start_run()
        # Where the environments were reset, new episodes begin
        if len(self._last_options) != self.n_envs or self._was_reset:
            assert self._last_episode_starts is not None
            self._last_options = np.zeros(self.n_envs, dtype=np.int64)
            self._last_source_states = self.options.initial_states()
            self._last_source_actions = self._query_sources(self._original_observations(), self._last_episode_starts)
            self._start_episodes(new=True)

    def _start_episodes(self, new: bool = False) -> None:
        """
        Decide who acts in the environments where nobody does yet.

        :param new: whether the environments were reset
        """

    def _query_sources(self, observations: Any, starts: np.ndarray) -> np.ndarray:
        """:return: what each source does in observations that the environments have just emitted"""
        if not self.options.n_sources:
            return np.zeros((self.n_envs, 0, self.options.dimensions), dtype=np.float32)
        found, self._last_source_states = self.options.actions(
            self.options.as_emitted(observations), self._last_source_states, starts, rng=self.rng
        )
        return found

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
        normalizer = self._vec_normalize_env
        original: Any = new_obs if normalizer is None else normalizer.get_original_obs()

        def add(observations: Any, next_observations: Any, *args: Any) -> None:
            states, before = self._last_source_states, self._last_source_actions
            self._last_source_actions = following = self._query_sources(original, dones)
            if dones.any() and self.options.n_sources:
                # Where an episode was cut off, sources go on from its last observation, and not from the next one
                emitted = self.options.as_emitted(next_observations)
                last, _ = self.options.actions(emitted, states, np.zeros_like(dones), rng=self.rng)
                following = np.where(dones[:, None, None], last, following)
            sources: dict[str, Any] = {"source_actions": before, "next_source_actions": following}
            replay_buffer.add(observations, next_observations, *args, **sources)

        # SB3 knows the observations that episodes ended in, and those before normalisation
        super()._store_transition(SimpleNamespace(add=add), buffer_action, new_obs, reward, dones, infos)  # type: ignore[arg-type]

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

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        state_dicts, variables = super()._get_torch_save_params()
        return [*state_dicts, *["policy.termination_optimizer"] * (self.options.n_sources > 0)], variables


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
