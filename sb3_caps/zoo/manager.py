"""rl_zoo3's experiment manager, with what our algorithms need in addition."""

import argparse
import contextlib
import shutil
import time
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.extras import require
from sb3_caps.library import PolicyLibrary
from sb3_caps.reuse.callbacks import HyperparameterLog, OptionMonitor, ReuseEvalCallback, evaluated_with_masks
from sb3_caps.reuse.checks import constructor_arguments
from sb3_caps.reuse.episode_log import EpisodeLog
from sb3_caps.settings import GROUPS, SCHEDULES, entries, make_schedules
from sb3_caps.sources.features import SourceFeatures
from sb3_caps.zoo.algorithms import ALGORITHMS
from sb3_caps.zoo.configs import find_config, find_source, imported, make_source
from sb3_caps.zoo.features import FILE, FeatureSettings, with_features
from sb3_caps.zoo.patching import replaced
from sb3_caps.zoo.runs import make_run_folder

zoo_utils = require("rl_zoo3.utils", "zoo")
exp_manager = require("rl_zoo3.exp_manager", "zoo")

DATABASE_ATTEMPTS = 10
# What trials are compared by: the learner alone, or what `predict` acts by
JUDGES = ("learner", "model")


class PolicyReuseManager(exp_manager.ExperimentManager):  # type: ignore[name-defined]
    """
    rl_zoo3's experiment manager, with source policies, piecewise linear schedules and variants of settings.

    :param args: the arguments of the command
    :param algo: the name of the algorithm
    :param env_id: the environment
    :param others: see rl_zoo3
    :param variant: the variant of the settings
    :param config: the file of the settings, found by itself when it is not given
    :param judge: what trials of an optimisation of CAPS are compared by, see ``JUDGES``
    :param kwargs: see rl_zoo3
    """

    env_name: Any
    vec_env_wrapper: Any

    def __init__(
        self,
        args: argparse.Namespace,
        algo: str,
        env_id: str,
        *others: Any,
        variant: str | None = None,
        config: str | None = None,
        judge: str = JUDGES[0],
        **kwargs: Any,
    ) -> None:
        super().__init__(args, algo, env_id, *others, config=config or find_config(algo, env_id), **kwargs)
        self.variant, self.judge = variant, judge
        self.exploration_schedule: Any = None
        self.feature_settings: FeatureSettings | None = None
        self.feature_models: list[Any] = []
        self.source_folders = [Path(self.config).parent] if Path(self.config).is_file() else []

    @property
    def has_learner(self) -> bool:
        """Whether the model may act by a source, and its learner alone can be judged: CAPS, whatever its actions."""
        return hasattr(zoo_utils.ALGOS[self.algo], "learner")

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        hyperparams, saved_hyperparams = self._read_variant()
        own_eval_env_kwargs = hyperparams.pop("eval_env_kwargs", None)
        if self._eval_env_kwargs_args is None:
            # rl_zoo3 evaluates without the config's own `env_kwargs`
            self.eval_env_kwargs = self.env_kwargs or own_eval_env_kwargs or hyperparams.get("env_kwargs", {})
        if self.optimize_hyperparameters or self.trial_id is not None:
            # Exploration is tuned by its numbers: a schedule would make these count for nothing
            hyperparams.pop("exploration_schedule", None)
        if self.continue_training and "source_policies" not in (self.custom_hyperparams or {}):
            # The saved model brings its own
            hyperparams.pop("source_policies", None)
        if self._leaves_sources_out(hyperparams):
            print(f"{self.algo} takes no source policies: those of the config are left out.")
            for config in (hyperparams, saved_hyperparams):
                config.pop("source_policies", None)
        given = hyperparams.get("source_policies")
        if isinstance(given, (list, tuple)):
            saved_hyperparams["source_policies"] = [self._found(entry) for entry in given]
            made = [make_source(entry, self.log_folder, self.source_folders) for entry in given]
            hyperparams["source_policies"] = made
            print(f"Source policies: {[source.name for source in made]}")
        elif isinstance(given, dict) and given.keys() == {"library"}:
            library = PolicyLibrary(find_source(str(given["library"]), self.log_folder, self.source_folders))
            saved_hyperparams["source_policies"] = {"library": str(library.folder)}
            hyperparams["source_policies"] = library
            print(f"Source policies: those of {library.folder} that fit, of {library.names}")
        if hyperparams.pop("source_features", None):
            self._read_features(hyperparams, saved_hyperparams)
        if "callback" in hyperparams:
            hyperparams["callback"] = _with_functions(hyperparams["callback"])
        return hyperparams, saved_hyperparams

    def _leaves_sources_out(self, hyperparams: dict[str, Any]) -> bool:
        """Whether the config is one for several algorithms: sources that a user names are meant for this one."""
        return (
            "source_policies" in hyperparams
            and "source_policies" not in (self.custom_hyperparams or {})
            and "source_policies" not in constructor_arguments(zoo_utils.ALGOS[self.algo])
        )

    def _read_features(self, hyperparams: dict[str, Any], saved_hyperparams: dict[str, Any]) -> None:
        self.feature_settings = settings = FeatureSettings(saved_hyperparams["source_features"])
        if hyperparams.get("frame_stack"):
            # rl_zoo3 stacks after all wrappers, and the sources saw stacks
            raise ValueError("source_features cannot see frame_stack: stack frames in env_wrapper.")
        models = hyperparams.get("source_policies") if settings.models is None else settings.models
        self.feature_models = [make_source(model, self.log_folder, self.source_folders) for model in models or []]
        # rl_zoo3 wraps the environments that it enjoys and records a run in
        file = Path(self.params_path, FILE).resolve()
        saved_hyperparams["vec_env_wrapper"] = with_features(hyperparams.get("vec_env_wrapper"), file)

    def create_log_folder(self) -> None:
        super().create_log_folder()
        settings = self.feature_settings
        if settings is not None:
            # The folder is there and the environments are not: the place to find out what the sources see
            if self.continue_training:
                settings.features = SourceFeatures.load(Path(self.trained_agent).parent / self.env_name / FILE)
            else:
                env = self._plain_env()
                settings.features = settings.fit(self.feature_models, env, self.seed)
                env.close()
            settings.features.save(Path(self.params_path, FILE))
            self.vec_env_wrapper = settings.wrapper(self.vec_env_wrapper)

    def _plain_env(self) -> VecEnv:
        """An environment as the sources saw it: before rl_zoo3 normalises and transposes."""
        own, plain = self.vec_env_wrapper, []

        def keep(env: VecEnv) -> VecEnv:
            plain.append(env if own is None else own(env))
            return plain[0]

        self.vec_env_wrapper = keep
        self.create_envs(1, no_log=True)
        self.vec_env_wrapper = own
        return plain[0]

    def _read_variant(self) -> tuple[dict[str, Any], dict[str, Any]]:
        is_yaml = Path(self.config).suffix in (".yml", ".yaml")
        # rl_zoo3 reads the file itself, but says nothing of use when it is damaged
        found = entries(Path(self.config)) if is_yaml else {}
        if self.variant is None:
            return super().read_hyperparameters()
        env_name = self.env_name
        entry = f"{env_name.gym_id}@{self.variant}"
        if entry not in found:
            others = [file for file in sorted(Path(self.config).parent.glob("*.yml")) if entry in entries(file)]
            hint = f" {others[0]} has it: pass it as -conf." if others else ""
            raise ValueError(f"There is no variant '{self.variant}' for {env_name.gym_id} in {self.config}.{hint}")
        # The entry is looked up by this name
        self.env_name = exp_manager.EnvironmentName(entry)
        try:
            return super().read_hyperparameters()
        finally:
            self.env_name = env_name

    def _found(self, entry: Any) -> Any:
        """The same source with the path of its model: the saved config means the same after further runs."""
        if isinstance(entry, str):
            return find_source(entry, self.log_folder, self.source_folders)
        if isinstance(entry, dict) and isinstance(entry.get("source"), str):
            return {**entry, "source": find_source(entry["source"], self.log_folder, self.source_folders)}
        return entry

    def _preprocess_schedules(self, hyperparams: dict[str, Any]) -> dict[str, Any]:
        given = {
            key: hyperparams.pop(key)
            for key in (*SCHEDULES, *GROUPS)
            if isinstance(hyperparams.get(key), (list, tuple, dict))
        }
        hyperparams = super()._preprocess_schedules(hyperparams)
        n_timesteps = self.n_timesteps if self.n_timesteps > 0 else int(hyperparams["n_timesteps"])
        return hyperparams | make_schedules(given, n_timesteps)

    def _preprocess_action_noise(
        self, hyperparams: dict[str, Any], saved_hyperparams: dict[str, Any], env: VecEnv
    ) -> dict[str, Any]:
        # The last step before the algorithm is made of them
        hyperparams = super()._preprocess_action_noise(hyperparams, saved_hyperparams, env)
        settings = self.feature_settings
        if settings is not None and settings.features is not None and hyperparams.get("source_policies"):
            hyperparams["source_policies"] = self._on_features(settings, hyperparams["source_policies"])
        if self.algo not in ALGORITHMS:
            # SB3's DQN has no such argument, but follows the schedule when it is set
            self.exploration_schedule = hyperparams.pop("exploration_schedule", None)
        unknown = sorted(set(hyperparams) - constructor_arguments(zoo_utils.ALGOS[self.algo]).keys())
        if unknown:
            raise ValueError(f"{self.algo} has no argument {', '.join(unknown)}: see {self.config} and -params.")
        return hyperparams

    def _on_features(self, settings: FeatureSettings, sources: list[Any]) -> list[Any]:
        """The sources, acting on features: those whose features they are do, and no others can."""
        assert settings.features is not None
        if settings.models is None:
            return settings.features.policies
        by_name = {policy.name: policy for policy in settings.features.policies}
        unknown = [source.name for source in sources if source.name not in by_name]
        if unknown:
            raise ValueError(
                f"Source policies {', '.join(unknown)} see no observations but source features: add them to the models "
                "of source_features."
            )
        return [by_name[source.name] for source in sources]

    def setup_experiment(self) -> tuple[BaseAlgorithm, dict[str, Any]] | None:
        new = [parent for parent in list(Path(vars(self)["save_path"]).parents)[:2] if not parent.exists()]
        folder = make_run_folder(vars(self)["save_path"])
        self.save_path, self.params_path = str(folder), str(folder / self.env_name)
        try:
            results = super().setup_experiment()
        except BaseException:
            # It is there before the algorithm has seen its arguments
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # another run has begun there
                for parent in new:
                    parent.rmdir()
            raise
        if results is not None and self.exploration_schedule is not None:
            results[0].exploration_schedule = self.exploration_schedule
        return results

    def create_callbacks(self) -> None:
        if self.has_learner:
            with replaced(exp_manager, EvalCallback=ReuseEvalCallback):
                super().create_callbacks()
            if not self.optimize_hyperparameters:
                self.callbacks.append(EpisodeLog(self.save_path))
        else:
            super().create_callbacks()
        if self.tensorboard_log is None or self.optimize_hyperparameters:
            return
        if not any(isinstance(callback, HyperparameterLog) for callback in self.callbacks):
            self.callbacks.append(OptionMonitor() if self.has_learner else HyperparameterLog())
        for callback in self.callbacks:
            if isinstance(callback, OptionMonitor) and callback.eval_env is None:
                callback.eval_env = self.create_envs(1, eval_env=True)

    def learn(self, model: BaseAlgorithm) -> None:
        try:
            super().learn(model)
        except Exception:
            # What was learned is worth keeping, whatever ended it
            self.save_trained_model(model)
            raise

    def hyperparameters_optimization(self) -> None:
        if self.storage is not None and not self.storage.endswith(".log"):
            _open_database(self.storage)
        if not self.has_learner:
            super().hyperparameters_optimization()
            return
        told = {"learner": "the learner alone", "model": "the model, which may act by a source"}
        print(f"Trials are judged by {told[self.judge]} (--judge {self.judge}).")
        callback = _LearnerTrial if self.judge == "learner" else _Trial
        with replaced(exp_manager, TrialEvalCallback=callback):
            super().hyperparameters_optimization()


class _Trial(exp_manager.TrialEvalCallback):  # type: ignore[name-defined]
    """A trial of a model that acts by masks where there are any."""

    def _on_step(self) -> bool:
        with evaluated_with_masks(self):
            return bool(super()._on_step())


class _LearnerTrial(_Trial):
    """A trial is worth what its learner is: a short run acts by a source, whatever its hyperparameters."""

    def _on_step(self) -> bool:
        with self.model.learner().acting():
            return super()._on_step()


def _open_database(url: str) -> None:
    """Workers that start together all try to create the tables of Optuna: those that come second try again."""
    optuna, sqlalchemy = require("optuna", "zoo"), require("sqlalchemy", "zoo")
    for attempt in range(1, DATABASE_ATTEMPTS + 1):
        try:
            optuna.storages.RDBStorage(url)
            return
        except sqlalchemy.exc.ArgumentError as error:
            raise ValueError(f"{url} is not the address of a database: {error}") from error
        except sqlalchemy.exc.SQLAlchemyError as error:
            if attempt == DATABASE_ATTEMPTS:
                raise ValueError(f"The storage {url} cannot be opened: {str(error).splitlines()[0]}") from error
            time.sleep(0.1 * attempt)


def _with_functions(callbacks: Any) -> list[Any]:
    """The callbacks of a config, with the drawing functions that import strings stand for."""
    result = []
    for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
        if isinstance(callback, dict):
            callback = {
                name: {key: imported(value) if key == "draw" else value for key, value in (kwargs or {}).items()}
                for name, kwargs in callback.items()
            }
        result.append(callback)
    return result
