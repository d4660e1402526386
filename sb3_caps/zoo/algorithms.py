"""Our algorithms in rl_zoo3's registries, and what its hyperparameter optimisation samples for them."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.dqn.dqn import DQN

from sb3_caps import CAPS, CUP, IBRL, OPSTL, PRQL, ContinuousCAPS, ContinuousJumpStart, JumpStart, QDagger
from sb3_caps.extras import require

zoo_utils = require("rl_zoo3.utils", "zoo")
hyperparams_opt = require("rl_zoo3.hyperparams_opt", "zoo")

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {
    "caps": CAPS,
    "prql": PRQL,
    "ops_tl": OPSTL,
    "jump_start": JumpStart,
    "qdagger": QDagger,
    "continuous_caps": ContinuousCAPS,
    "cup": CUP,
    "ibrl": IBRL,
    "continuous_jump_start": ContinuousJumpStart,
}

Suggestion: TypeAlias = Callable[[Any, str], Any]


def _between(low: float, high: float, log: bool = False) -> Suggestion:
    """A whole number where both ends are whole numbers."""

    def suggest(trial: Any, name: str) -> Any:
        return (trial.suggest_int if isinstance(low, int) else trial.suggest_float)(name, low, high, log=log)

    return suggest


CURRICULUM: dict[str, Suggestion] = {
    "curriculum_stages": _between(2, 20),
    "tolerance": _between(0.02, 0.5, log=True),
    "average_episodes": _between(1, 10),
}
# What is sampled for each algorithm, beside the hyperparameters of DQN or SAC
SAMPLED: dict[str, dict[str, Suggestion]] = {
    "caps": {"termination_regularization": _between(1e-3, 0.1, log=True), "sequence_length_pow": _between(0, 4)},
    "prql": {"reuse_decay": _between(0.9, 0.999), "temperature_growth": _between(0.005, 0.5, log=True)},
    "ops_tl": {"reuse_decay": _between(0.9, 0.999), "bandit_exploration": _between(0.05, 2.0, log=True)},
    "jump_start": CURRICULUM,
    "qdagger": {"teacher_fraction": _between(0.02, 0.3, log=True), "temperature": _between(0.001, 0.1, log=True)},
    "continuous_caps": {"pull": _between(0.5, 20.0, log=True)},
    "cup": {"guidance": _between(0.1, 10.0, log=True), "bound": _between(0.05, 1.0, log=True)},
    "ibrl": {},
    "continuous_jump_start": CURRICULUM,
}


def register() -> None:
    """
    Add our algorithms, their samplers and converters to rl_zoo3.
    Its modules all hold the same dictionaries, so changing these in place reaches every one of them.
    """
    zoo_utils.ALGOS.update(ALGORITHMS)
    hyperparams_opt.HYPERPARAMS_SAMPLER.update({algo: partial(sample_params, algo) for algo in ALGORITHMS})
    hyperparams_opt.HYPERPARAMS_CONVERTER.update({algo: partial(convert_params, algo=algo) for algo in ALGORITHMS})


def sample_params(
    algo: str, trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]
) -> dict[str, Any]:
    """
    Sample hyperparameters: those of DQN or SAC, and the algorithm's own.

    :param algo: a name in ``ALGORITHMS``
    :param trial: Optuna's trial
    :param n_actions: number of actions, for continuous ones only
    :param n_envs: number of environments
    :param additional_args: what rl_zoo3 passes to its samplers
    :return: arguments for the algorithm
    """
    of_base = hyperparams_opt.sample_dqn_params if _is_dqn(algo) else hyperparams_opt.sample_sac_params
    hyperparams = of_base(trial, n_actions, n_envs, additional_args)
    return _completed(hyperparams | {name: suggest(trial, name) for name, suggest in SAMPLED[algo].items()}, algo)


def convert_params(sampled_params: dict[str, Any], algo: str = "caps") -> dict[str, Any]:
    """
    :param sampled_params: the parameters of a trial, as Optuna stores them
    :param algo: a name in ``ALGORITHMS``
    :return: arguments for the algorithm
    """
    return _completed(hyperparams_opt.convert_offpolicy_params(sampled_params), algo)


def _is_dqn(algo: str) -> bool:
    return issubclass(ALGORITHMS[algo], DQN)


def _completed(hyperparams: dict[str, Any], algo: str) -> dict[str, Any]:
    if not _is_dqn(algo):
        return hyperparams
    # DQN's sampler means targets that are copied
    hyperparams["tau"] = 1.0
    if "termination_regularization" in hyperparams:
        hyperparams["termination_kwargs"] = {"regularization": hyperparams.pop("termination_regularization")}
    if "sequence_length_pow" in hyperparams:
        # A batch has to hold a sequence
        hyperparams["sequence_length"] = min(2 ** hyperparams.pop("sequence_length_pow"), hyperparams["batch_size"])
    return hyperparams
