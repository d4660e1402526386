"""A rule of thumb as a source: push the car of MountainCar the way it rolls."""

import argparse
from collections.abc import Sequence

import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_caps import CAPS


def with_the_motion(observations: np.ndarray) -> np.ndarray:
    """
    :param observations: a batch of (position, speed)
    :return: 2 (push right) where the car rolls to the right, 0 (push left) where it rolls to the left
    """
    return np.where(observations[:, 1] >= 0, 2, 0)


def main(argv: Sequence[str] | None = None) -> CAPS:
    """
    :param argv: the arguments, those of the process by default
    :return: the trained model
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=30_000, help="steps of CAPS")
    parser.add_argument("--episodes", type=int, default=20, help="episodes of the evaluation")
    args = parser.parse_args(argv)

    # A rule may be poor: wherever single actions are worth more, CAPS takes those
    model = CAPS("MlpPolicy", "MountainCar-v0", source_policies=[with_the_motion], verbose=1, seed=0)
    model.learn(args.timesteps)

    env = make_vec_env("MountainCar-v0", seed=1)
    mean, _ = evaluate_policy(model, env, args.episodes)
    print(f"CAPS: mean return {mean:.1f}")
    return model


if __name__ == "__main__":
    main()
