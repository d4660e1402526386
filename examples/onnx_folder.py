"""Sources from another library: a folder with an ONNX export, as Isaac Lab and ML-Agents leave one, is a source."""

import argparse
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import gymnasium as gym
import torch as th
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from torch import nn

from sb3_caps import CAPS
from sb3_caps.sources import evaluate_sources


def weak_cart() -> gym.Env:
    """
    :return: CartPole with a third of the force
    """
    env = gym.make("CartPole-v1")
    cart = env.unwrapped
    assert isinstance(cart, CartPoleEnv)
    cart.force_mag = 10.0 / 3.0
    return env


def train_elsewhere(folder: Path, steps: int) -> None:
    """
    Stands for another library: a network that learned to push the cart under its pole, exported to
    ``<run>/exported/policy.onnx``. It puts out a score for each action; actions themselves would do, too.

    :param folder: of the run
    :param steps: of learning
    """
    th.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = th.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(steps):
        states = th.randn(256, 4)
        falls_to = (states[:, 2] + 0.5 * states[:, 3] > 0).long()
        loss = nn.functional.cross_entropy(network(states), falls_to)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    file = folder / "exported" / "policy.onnx"
    file.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # The newer exporter needs onnxscript
        warnings.simplefilter("ignore", DeprecationWarning)
        th.onnx.export(network, (th.zeros(1, 4),), str(file), input_names=["obs"], dynamo=False)


def main(argv: Sequence[str] | None = None) -> CAPS:
    """
    :param argv: the arguments, those of the process by default
    :return: the trained model
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=15_000, help="steps of CAPS")
    parser.add_argument("--source-steps", type=int, default=300, help="steps of learning of the source")
    parser.add_argument("--episodes", type=int, default=20, help="episodes of each evaluation")
    args = parser.parse_args(argv)

    with tempfile.TemporaryDirectory() as run:
        train_elsewhere(Path(run), args.source_steps)
        # The path of the folder is enough; the dictionary gives the source a name
        sources = {"balance": f"{run}/exported"}
        env = make_vec_env(weak_cart, seed=0)
        for worth in evaluate_sources(sources, env, args.episodes):
            print(f"{worth.name}: mean return {worth.mean:.1f} before anything is learned")
        model = CAPS("MlpPolicy", env, source_policies=sources, verbose=1, seed=0)

    # The network is in the model by now, and in what it saves: the folder is needed no more
    model.learn(args.timesteps)
    mean, _ = evaluate_policy(model, make_vec_env(weak_cart, seed=1), args.episodes)
    print(f"CAPS: mean return {mean:.1f}")
    return model


if __name__ == "__main__":
    main()
