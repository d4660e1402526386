"""A loss of your own: squared errors in place of Huber's, and option values kept small."""

import argparse
from collections.abc import Sequence

import numpy as np
import torch as th
from stable_baselines3.common.evaluation import evaluate_policy
from torch.nn import functional as F

from sb3_caps import CAPS, each
from sb3_caps.caps.networks import OptionEstimates
from sb3_caps.replay.type_aliases import OptionReplayBufferSamples


class SquaredCAPS(CAPS):
    """CAPS with squared errors and a penalty on large values."""

    penalty = 1e-4

    def _compute_loss(
        self, replay_data: OptionReplayBufferSamples, estimates: OptionEstimates, targets: th.Tensor
    ) -> th.Tensor:
        """
        :param replay_data: sequences, with the mask of what is to be learned
        :param estimates: what the network says of the options
        :param targets: what their values should be
        :return: the loss of every option that agreed with the action taken
        """
        values = estimates.values[replay_data.learned]
        loss = F.mse_loss(values, targets[replay_data.learned]) + self.penalty * values.square().mean()
        return loss + self._termination_loss(replay_data, estimates)


def lean(observation: np.ndarray) -> int:
    """
    :param observation: of CartPole
    :return: push to the side that the pole falls to
    """
    angle, angular_speed = observation[2:]
    return int(angle + 0.3 * angular_speed > 0)


def main(argv: Sequence[str] | None = None) -> SquaredCAPS:
    """
    :param argv: the arguments, those of the process by default
    :return: the trained model
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=20_000, help="steps of CAPS")
    parser.add_argument("--episodes", type=int, default=20, help="episodes of the evaluation")
    args = parser.parse_args(argv)

    # `lean` is a function of one observation; sources get batches
    model = SquaredCAPS("MlpPolicy", "CartPole-v1", source_policies=[each(lean)], verbose=1, seed=0)
    model.learn(args.timesteps)
    env = model.get_env()
    assert env is not None
    mean, _ = evaluate_policy(model, env, args.episodes)
    print(f"CAPS: mean return {mean:.1f}")
    return model


if __name__ == "__main__":
    main()
