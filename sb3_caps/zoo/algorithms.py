"""Our algorithms in rl_zoo3's registries, and what its hyperparameter optimisation samples for them."""

from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_caps import CAPS, OPSTL, PRQL, JumpStart, QDagger
from sb3_caps.extras import require

zoo_utils = require("rl_zoo3.utils", "zoo")
hyperparams_opt = require("rl_zoo3.hyperparams_opt", "zoo")

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {
    "caps": CAPS,
    "prql": PRQL,
    "ops_tl": OPSTL,
    "jump_start": JumpStart,
    "qdagger": QDagger,
}


def register() -> None:
    """
    Add our algorithms, their samplers and converters to rl_zoo3.
    Its modules all hold the same dictionaries, so changing these in place reaches every one of them.
    """
    zoo_utils.ALGOS.update(ALGORITHMS)
    hyperparams_opt.HYPERPARAMS_SAMPLER.update(
        caps=sample_caps_params,
        prql=sample_prql_params,
        ops_tl=sample_ops_tl_params,
        jump_start=sample_jump_start_params,
        qdagger=sample_qdagger_params,
    )
    hyperparams_opt.HYPERPARAMS_CONVERTER.update(
        dict.fromkeys(ALGORITHMS, hyperparams_opt.convert_offpolicy_params), caps=convert_caps_params
    )


def sample_caps_params(trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    Sampler for CAPS hyperparams: those of DQN, and how terminations and sequences are learned.

    :param trial: Optuna's trial
    :param n_actions: number of actions, for continuous ones only
    :param n_envs: number of environments
    :param additional_args: what rl_zoo3 passes to its samplers
    :return: arguments for CAPS
    """
    hyperparams = hyperparams_opt.sample_dqn_params(trial, n_actions, n_envs, additional_args)
    hyperparams["termination_regularization"] = trial.suggest_float("termination_regularization", 1e-3, 0.1, log=True)
    hyperparams["sequence_length_pow"] = trial.suggest_int("sequence_length_pow", 0, 4)
    return _grouped(hyperparams)


def convert_caps_params(sampled_params: dict[str, Any]) -> dict[str, Any]:
    """
    :param sampled_params: the parameters of a trial, as Optuna stores them
    :return: arguments for CAPS
    """
    return _grouped(hyperparams_opt.convert_offpolicy_params(sampled_params))


def _grouped(hyperparams: dict[str, Any]) -> dict[str, Any]:
    hyperparams["termination_kwargs"] = {"regularization": hyperparams.pop("termination_regularization")}
    # A batch has to hold a sequence
    hyperparams["sequence_length"] = min(2 ** hyperparams.pop("sequence_length_pow"), hyperparams["batch_size"])
    return hyperparams


def sample_prql_params(trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    Sampler for PRQL hyperparams: those of DQN, and how sources are drawn and followed.

    :param trial: Optuna's trial
    :param n_actions: number of actions, for continuous ones only
    :param n_envs: number of environments
    :param additional_args: what rl_zoo3 passes to its samplers
    :return: arguments for PRQL
    """
    hyperparams = hyperparams_opt.sample_dqn_params(trial, n_actions, n_envs, additional_args)
    hyperparams["reuse_decay"] = trial.suggest_float("reuse_decay", 0.9, 0.999)
    hyperparams["temperature_growth"] = trial.suggest_float("temperature_growth", 0.005, 0.5, log=True)
    return hyperparams


def sample_ops_tl_params(trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    Sampler for OPS-TL hyperparams: those of DQN, and how sources are tried and followed.

    :param trial: Optuna's trial
    :param n_actions: number of actions, for continuous ones only
    :param n_envs: number of environments
    :param additional_args: what rl_zoo3 passes to its samplers
    :return: arguments for OPSTL
    """
    hyperparams = hyperparams_opt.sample_dqn_params(trial, n_actions, n_envs, additional_args)
    hyperparams["reuse_decay"] = trial.suggest_float("reuse_decay", 0.9, 0.999)
    hyperparams["bandit_exploration"] = trial.suggest_float("bandit_exploration", 0.05, 2.0, log=True)
    return hyperparams


def sample_jump_start_params(
    trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]
) -> dict[str, Any]:
    """
    Sampler for jump-start hyperparams: those of DQN, and how the horizon of the guide shrinks.

    :param trial: Optuna's trial
    :param n_actions: number of actions, for continuous ones only
    :param n_envs: number of environments
    :param additional_args: what rl_zoo3 passes to its samplers
    :return: arguments for JumpStart
    """
    hyperparams = hyperparams_opt.sample_dqn_params(trial, n_actions, n_envs, additional_args)
    hyperparams["curriculum_stages"] = trial.suggest_int("curriculum_stages", 2, 20)
    hyperparams["tolerance"] = trial.suggest_float("tolerance", 0.02, 0.5, log=True)
    hyperparams["average_episodes"] = trial.suggest_int("average_episodes", 1, 10)
    return hyperparams


def sample_qdagger_params(trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    Sampler for QDagger hyperparams: those of DQN, and how the teacher is distilled.

    :param trial: Optuna's trial
    :param n_actions: number of actions, for continuous ones only
    :param n_envs: number of environments
    :param additional_args: what rl_zoo3 passes to its samplers
    :return: arguments for QDagger
    """
    hyperparams = hyperparams_opt.sample_dqn_params(trial, n_actions, n_envs, additional_args)
    hyperparams["teacher_fraction"] = trial.suggest_float("teacher_fraction", 0.02, 0.3, log=True)
    hyperparams["temperature"] = trial.suggest_float("temperature", 0.001, 0.1, log=True)
    return hyperparams
