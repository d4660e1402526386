"""
What a step costs with the defaults, two PPO sources on CartPole, beside SB3's DQN with the same settings:
``python -m benchmarks.steps``.
"""

import argparse
import warnings
from functools import partial
from typing import Any

import torch as th
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

from benchmarks.report import Result, interleaved, machine, table
from sb3_caps import CAPS
from sb3_caps.caps.arguments import VECTOR_DEFAULTS

ENV = "CartPole-v1"
# Until the sources were tried
WARM_UP = 2_000


def measure(n_steps: int, rounds: int) -> list[Result]:
    """
    :param n_steps: in each round
    :param rounds: how many
    :return: a whole ``learn``, a gradient step of the values and a step of the environment
    """
    arguments: dict[str, Any] = {"buffer_size": 20_000, "seed": 0, "device": "cpu", **VECTOR_DEFAULTS}
    sources = [PPO("MlpPolicy", ENV, seed=seed, device="cpu") for seed in range(2)]
    ours = CAPS("MlpPolicy", ENV, source_policies=sources, **arguments).learn(WARM_UP)
    models: list[DQN] = [ours, DQN("MlpPolicy", ENV, **arguments).learn(WARM_UP)]
    results = []
    for name, do in (("learn", _learn), ("gradient step", _train), ("step of the environment", _act)):
        found, theirs = interleaved([partial(do, model, n_steps) for model in models], rounds)
        results.append(Result(name, 1e6 * found / n_steps, 1e6 * theirs / n_steps, "µs", theirs / found))
    return results


def _learn(model: DQN, n_steps: int) -> None:
    model.learn(n_steps, reset_num_timesteps=False)


def _train(model: DQN, n_steps: int) -> None:
    if isinstance(model, CAPS):
        # What the actor learns is no part of it
        model._actor_steps = 0
    model.train(n_steps, model.batch_size)


def _act(model: DQN, n_steps: int) -> None:
    env = model.get_env()
    assert env is not None
    _, callback = model._setup_learn(10**6, reset_num_timesteps=False)
    model.collect_rollouts(env, callback, TrainFreq(n_steps, TrainFrequencyUnit.STEP), model.replay_buffer)  # type: ignore[arg-type]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--steps", type=int, default=256, help="in each round")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    th.set_num_threads(1)
    print(f"Measured on {machine()}\n\n{table(measure(args.steps, args.rounds))}")


if __name__ == "__main__":
    main()
