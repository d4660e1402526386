"""What all algorithms with source policies share, and a DQN that has them."""

import io
import pathlib
from collections.abc import Iterable, Mapping
from copy import copy
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn, Schedule
from stable_baselines3.common.utils import get_system_info
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.dqn.dqn import DQN
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_caps.files.export import is_export, model_from_export
from sb3_caps.files.save_util import atomic_write, read_pickle, write_pickle
from sb3_caps.files.saved_models import check_saved_model
from sb3_caps.reuse import checks
from sb3_caps.reuse.action_names import action_names, option_labels
from sb3_caps.reuse.options import OptionSet
from sb3_caps.reuse.schedules import PiecewiseLinear, schedule_over
from sb3_caps.reuse.statistics import OptionUse
from sb3_caps.sources import ObservationNormalizer, Observations, SourcePolicy, as_sources, unwrapped
from sb3_caps.sources.load import check_trust, refusal
from sb3_caps.sources.masks import action_masks_of, check_action_masks, has_action_masks

SelfPolicyReuse = TypeVar("SelfPolicyReuse", bound="PolicyReuse")


class PolicyReuse(OffPolicyAlgorithm):
    """
    Mixin that adds source policies to an algorithm of SB3, with discrete or continuous actions.

    :param args: The arguments of SB3's algorithm, in its order
    :param source_policies: The policies to reuse: a list of anything that ``as_source`` takes, or a dictionary by name
    :param kwargs: The arguments of SB3's algorithm by name
    """

    options_class: ClassVar[type[OptionSet]] = OptionSet
    options: OptionSet
    # How many steps there were before the one that is under way, None once that is stored
    _steps_before: int | None = None
    # Whether the environments tell which actions are allowed
    _has_action_masks = False
    # Which actions are allowed in the last observations, None where they do not tell
    _last_action_masks: np.ndarray | None = None

    def __new__(cls: type[SelfPolicyReuse], *args: Any, **kwargs: Any) -> SelfPolicyReuse:
        # Python says which argument there is not, and not which one was meant
        if cls.__init__.__module__.partition(".")[0] == __name__.partition(".")[0]:
            checks.check_names(cls, kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        *args: Any,
        source_policies: Iterable[Any] | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs, _init_setup_model=False)  # type: ignore[call-arg]
        # Under the name under which `load` puts it there
        vars(self)["source_policies"] = source_policies
        # Whether the environments were, since the last run began
        self._was_reset = False

    def _setup_model(self) -> None:
        checks.check_numbers(self)
        self._setup_options()
        self._check_arguments()
        # What the policy and the buffer need of us, besides what the user passes on to them
        policy_kwargs: dict[str, Any] = self.policy_kwargs
        replay_buffer_kwargs: dict[str, Any] = self.replay_buffer_kwargs
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
        self._setup_schedules(self._total_timesteps)
        used: OptionUse | None = vars(self).get("_use")
        self._use = used if used is not None and len(used.steps) == len(self.options) else OptionUse(len(self.options))
        # A loaded model goes on where its random numbers were
        self.rng = rng or np.random.default_rng(self.seed)
        self._share_rng()

    def set_random_seed(self, seed: int | None = None) -> None:
        """
        Set the seed of all random numbers, see SB3.

        :param seed: the seed, None to change nothing
        """
        super().set_random_seed(seed)
        if seed is not None:
            self.rng = np.random.default_rng(seed)
            self._share_rng()

    def _share_rng(self) -> None:
        """Let the parts that draw draw from the model's own numbers."""
        parts: list[Any] = [vars(self).get("replay_buffer"), vars(self).get("policy")]
        for part in parts:
            if hasattr(part, "rng"):
                part.rng = self.rng

    def _setup_schedules(self, total_timesteps: int) -> None:
        """
        Make the schedules of a run.

        :param total_timesteps: its length
        """
        self._schedules = {name: schedule_over(value, total_timesteps) for name, value in self._scheduled().items()}

    def _scheduled(self) -> dict[str, Any]:
        """:return: numbers and schedules by name, beside those of SB3"""
        return {}

    def _scheduled_value(self, name: str) -> float:
        """
        :param name: one of those that ``_scheduled`` returns
        :return: its value at this point of the run
        """
        return self._schedules[name](self._current_progress_remaining)

    def _check_arguments(self) -> None:
        """
        Refuse what cannot work, before anything is built.
        """

    def _policy_arguments(self) -> dict[str, Any]:
        """:return: arguments for the policy, beside the user's ``policy_kwargs``"""
        return {}

    def _buffer_arguments(self) -> dict[str, Any]:
        """:return: arguments for the replay buffer, beside the user's ``replay_buffer_kwargs``"""
        return {}

    def _setup_options(self) -> None:
        """
        Build the option set, or check the one that was loaded.
        """
        # The user's models are not kept: they would keep their replay buffers alive
        given = self.__dict__.pop("source_policies", None)
        stored_names: list[str] | None = self.__dict__.get("source_names")
        stored: OptionSet | None = self.__dict__.get("options")
        if given is not None or stored_names is None:
            space = emitted_space(self.env) if self.env is not None else self.observation_space
            self.options = self.options_class(given, space, self.action_space)  # type: ignore[arg-type]
        elif stored is None:
            raise ValueError(f"The source policies {stored_names} were not saved with the model: pass source_policies.")
        if stored_names is not None and len(stored_names) != self.options.n_sources:
            raise ValueError(
                f"The saved model has {len(stored_names)} source policies, {stored_names}, but "
                f"{self.options.n_sources} were passed, {self.options.source_names}: pass as many, in the same order."
            )
        self.source_names = self.options.source_names
        # By which a saved model can be a source policy
        self.algorithm_class = f"{type(self).__module__}:{type(self).__qualname__}"
        if self.env is not None:
            self._adapt_options(self.env)

    @property
    def source_policies(self) -> tuple[SourcePolicy, ...]:
        """The policies to reuse, in the order given. CAPS can ``add_source`` and ``remove_source``."""
        return tuple(self.options.sources)

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """
        Set the environment to learn in, see SB3's ``BaseAlgorithm.set_env``.

        :param env: The environment for learning a policy
        :param force_reset: Force call to ``reset()`` before training to avoid unexpected behavior
        """
        super().set_env(env, force_reset)
        assert self.env is not None
        self._adapt_options(self.env)

    def _adapt_options(self, env: VecEnv) -> None:
        """
        Let sources see what the environments emit, and ask whether these tell which actions are allowed.
        """
        normalizer = self._vec_normalize_env
        self.options.normalizer = None if normalizer is None else ObservationNormalizer(normalizer)
        self._has_action_masks = isinstance(env.action_space, spaces.Discrete) and has_action_masks(env)

    def _action_masks(self) -> np.ndarray | None:
        """
        :return: which actions the environments allow now, None where they do not tell
        """
        assert self.env is not None
        return action_masks_of(self.env) if self._has_action_masks else None

    def _masks_where_steps_led(self, infos: list[dict[str, Any]]) -> np.ndarray | None:
        """
        :param infos: what the environments told
        :return: which actions are allowed where the last steps led to. Where an episode was truncated the environment
            is in the next one: all count as allowed, but for what ``infos`` tell by Gymnasium's ``"action_mask"``.
            None where the environments have no masks.
        """
        if self._last_action_masks is None:
            return None
        masks = self._last_action_masks.copy()
        for i, info in enumerate(infos):
            if info.get("TimeLimit.truncated", False):
                told = info.get("action_mask")
                masks[i] = True if told is None else check_action_masks(told, 1, self.options.n_actions)
        return masks

    def _check_buffer_size(self) -> None:
        """Refuse a replay buffer that cannot be learned from."""
        checks.check_buffer_size(self.buffer_size, self.batch_size, self.n_envs)

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        self._check_buffer_size()
        observed = self._last_obs
        setup = super()._setup_learn(*args, **kwargs)
        # Not told by the starts of episodes: all may have ended in the last step before a stop
        self._was_reset |= self._last_obs is not observed
        checks.check_finite("observation", self._original_observations(), self.num_timesteps)
        total_timesteps = setup[0]
        self._setup_schedules(total_timesteps)
        if isinstance(self.learning_rate, PiecewiseLinear):
            self.lr_schedule = self.learning_rate.over(total_timesteps)
        assert self.env is not None
        # Once for a run: environments may be in other processes
        self._option_labels = option_labels(self.options.names, self.options.n_sources, action_names(self.env))
        self._start_run()
        self._was_reset = False
        return setup

    def _start_run(self) -> None:
        """
        Prepare what depends on the environments of a run. It is called at each ``learn``, once they were reset.
        """

    def _original_observations(self) -> Observations:
        """
        :return: the last observations before they were normalized, as the replay buffer gets them
        """
        original = self._last_obs if self._vec_normalize_env is None else self._last_original_obs
        assert original is not None
        return original

    def _emitted_observations(self) -> Observations:
        """
        :return: the last observations as the environments emitted them, for the sources
        """
        return self.options.as_emitted(self._original_observations())

    def collect_rollouts(self, env: VecEnv, callback: BaseCallback, *args: Any, **kwargs: Any) -> RolloutReturn:
        """
        Collect experience, see SB3. If a callback ends the run in a step, that step is stored too. SB3 would drop it,
        and the next steps would be added to an episode that may be over.
        """
        try:
            return super().collect_rollouts(env, callback, *args, **kwargs)
        finally:
            if self._steps_before is not None and self._steps_before < self.num_timesteps:
                names = ("replay_buffer", "buffer_actions", "new_obs", "rewards", "dones", "infos")
                self._store_transition(*(callback.locals[name] for name in names))

    def _store_transition(
        self,
        replay_buffer: ReplayBuffer,
        buffer_action: Any,
        new_obs: np.ndarray | dict[str, np.ndarray],
        reward: np.ndarray,
        dones: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        self._steps_before = None
        try:
            self._check_step(new_obs, reward, dones, infos)
            masks, self._last_action_masks = self._last_action_masks, self._action_masks()
            if masks is not None:
                next_masks = self._masks_where_steps_led(infos)
                add = partial(replay_buffer.add, action_masks=masks, next_action_masks=next_masks)  # type: ignore[call-arg]
                replay_buffer = SimpleNamespace(add=add)  # type: ignore[assignment]
            super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)
            self._last_episode_starts = dones
            self._tell(reward, dones)
        except BaseException:
            # The environments are a step ahead of what is known: the next run has to reset them
            self._last_obs = None
            raise

    def _tell(self, rewards: np.ndarray, dones: np.ndarray) -> None:
        """
        Take note of what was paid in a step that was stored.

        :param rewards: as they are learned from
        :param dones: which episodes ended with it
        """

    def _paid(self, rewards: np.ndarray) -> np.ndarray:
        """
        :param rewards: as they are learned from
        :return: what the task pays, by which behaviours are compared whatever the learner's rewards are scaled to
        """
        return rewards if self._vec_normalize_env is None else self._vec_normalize_env.get_original_reward()

    def _check_step(
        self,
        new_obs: np.ndarray | dict[str, np.ndarray],
        reward: np.ndarray,
        dones: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """
        Refuse a step with numbers that are not finite, before anything of it is kept.
        """
        if self._vec_normalize_env is not None:
            # Clipped, an infinite number would look like any other
            new_obs, reward = self._vec_normalize_env.get_original_obs(), self._vec_normalize_env.get_original_reward()
        checks.check_step(new_obs, reward, dones, infos, self.num_timesteps)

    def learn(
        self: SelfPolicyReuse,
        total_timesteps: int = 100_000,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfPolicyReuse:
        name = tb_log_name or type(self).__name__
        return super().learn(total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar)

    def dump_logs(self) -> None:
        """
        Write log data.
        """
        self._use.record(self.logger, self._option_labels, self.options.n_sources)
        super().dump_logs()

    @classmethod
    def load(
        cls: type[SelfPolicyReuse],
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        trust: bool = True,
        **kwargs: Any,
    ) -> SelfPolicyReuse:
        """
        Load the model from a zip-file, see SB3, or from an export. Unknown arguments and models of other algorithms are
        refused. As in SB3, loading a zip-file runs code that the file holds: load only files that you trust, or pass
        ``trust=False``.

        :param path: path to the file (or a file-like) where to load the agent from
        :param env: the new environment to run the loaded model on
        :param device: Device on which the code should run.
        :param custom_objects: Dictionary of objects to replace upon loading
        :param print_system_info: Whether to print system info from the saved model and the current system info
        :param force_reset: Force call to ``reset()`` before training to avoid unexpected behavior
        :param trust: Whether the file may run code. If not, only exports are loaded, as a model and as
            ``source_policies``
        :param kwargs: arguments of the constructor to change when loading. ``source_policies`` are matched by name.
            CAPS takes any; other algorithms need as many as were saved. As in SB3, ``policy_kwargs`` must be those of
            the zip-file: to change ``execution`` or ``averaging``, pass all of them as
            ``custom_objects={"policy_kwargs": {...}}``.
        :return: new model instance with loaded parameters
        """
        check_trust(trust)
        exported = is_export(path)
        if exported:
            # An export holds arguments alone, so both say what takes their place
            kwargs = {**(custom_objects or {}), **kwargs}
        elif not trust:
            raise ValueError(refusal(path))
        checks.check_names(cls, kwargs)
        given = kwargs.get("source_policies")
        if given is not None and hasattr(given, "trust"):
            # A library, of which those come that fit
            kwargs["source_policies"] = copy(given)
            kwargs["source_policies"].trust = trust and given.trust
        elif given is not None and (exported or not trust):
            # Before anything is limited by what the file holds
            kwargs["source_policies"] = as_sources(given, trust)
        if exported:
            if print_system_info:
                get_system_info()
            model = model_from_export(path, cls, env, device, kwargs)
        else:
            check_saved_model(path, cls)
            model = super().load(path, env, device, custom_objects, print_system_info, force_reset, **kwargs)
        model._after_load()
        return model

    def _after_load(self) -> None:
        """
        Change what can be changed only when all of a saved model is there.
        """

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """
        Save all the attributes of the object, the sources and the model parameters in a zip-file.
        An existing file is replaced only when the new one is complete.

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
        An existing file is replaced only when the new one is complete.

        :param path: Path to the file where the replay buffer should be saved
        """
        buffer: Any = self.replay_buffer
        if hasattr(buffer, "option_names"):
            buffer.option_names = self.options.names
        write_pickle(path, buffer)

    def load_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True) -> None:
        """
        Load a replay buffer from a pickle file, which runs code that the file holds. If this model cannot learn from
        it, it is refused, and the model keeps its buffer.

        :param path: Path to the pickled replay buffer
        :param truncate_last_traj: For ``HerReplayBuffer``, see SB3
        """
        found = read_pickle(path)
        self._fit_replay_buffer(found)
        checks.check_replay_buffer(found, self, self.options.names, self._buffer_arguments(), str(path))
        found.device = self.device
        if hasattr(found, "rng"):
            found.rng = self.rng
        if isinstance(found, HerReplayBuffer) and self.env is not None:
            found.set_env(self.env)
            if truncate_last_traj:
                found.truncate_last_trajectory()
        self.replay_buffer = found

    def _fit_replay_buffer(self, found: Any) -> None:
        """
        Change a loaded buffer where it can be made to fit.

        :param found: what was loaded
        """

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_schedules"]


class PolicyReuseAlgorithm(PolicyReuse, DQN):
    """
    Base of the algorithms with discrete actions: a DQN that has source policies.

    :param args: The arguments of SB3's DQN, in its order
    :param exploration_schedule: The exploration rate as a function of the remaining progress,
        in place of DQN's three ``exploration_*`` numbers
    :param kwargs: see ``PolicyReuse``
    """

    action_space: spaces.Discrete

    def __init__(self, *args: Any, exploration_schedule: Schedule | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.given_exploration_schedule = exploration_schedule

    def _setup_model(self) -> None:
        # It is not saved, so it can be there already only because it was passed to `load`
        self.given_exploration_schedule = self.__dict__.pop("exploration_schedule", self.given_exploration_schedule)
        super()._setup_model()
        self.exploration_schedule = self.given_exploration_schedule or self.exploration_schedule

    def _start_run(self) -> None:
        super()._start_run()
        if isinstance(self.given_exploration_schedule, PiecewiseLinear):
            self.exploration_schedule = self.given_exploration_schedule.over(self._total_timesteps)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "exploration_schedule"]


def emitted_space(env: VecEnv) -> spaces.Space:
    """
    :param env: wrapped environments
    :return: the observations that the user's environment emits, before SB3 normalises or transposes them
    """
    return unwrapped(env)[0].observation_space
