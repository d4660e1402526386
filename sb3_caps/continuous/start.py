"""The actor begins as a source: by its networks where they fit, by cloning what it does otherwise."""

import numpy as np
import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.sac.policies import Actor, SACPolicy
from torch import nn

from sb3_caps.continuous import losses

# Steps and step size of cloning, and the noise of the clone: enough to explore around the source, and no more
CLONING_STEPS, CLONING_RATE, CLONING_BATCH, CLONED_LOG_STD = 1000, 1e-3, 256, -1.5


def copy_networks(source: BasePolicy | None, policy: SACPolicy) -> bool:
    """
    Take over actor and critics of a source that is a SAC of the same shape.

    :param source: the source's network, None where it has none that sees what the learner does
    :param policy: where to
    :return: whether they fit; where they do not, nothing was changed
    """
    if not isinstance(source, SACPolicy) or source.action_space != policy.action_space:
        return False
    names = ("actor", "critic", "critic_target")
    if any(_shapes(getattr(source, name)) != _shapes(getattr(policy, name)) for name in names):
        return False
    for name in names:
        getattr(policy, name).load_state_dict(getattr(source, name).state_dict())
    return True


def clone(actor: Actor, observations: PyTorchObs, answers: th.Tensor, rng: np.random.Generator) -> None:
    """
    Let an actor do what a source does, with a little noise.

    :param actor: the actor
    :param observations: where somebody has been
    :param answers: what the source would do there, of shape (states, dimensions)
    :param rng: random numbers
    """
    optimizer = th.optim.Adam(actor.parameters(), lr=CLONING_RATE)
    for _ in range(CLONING_STEPS):
        rows = th.as_tensor(rng.integers(len(answers), size=CLONING_BATCH), device=answers.device)
        batch = {key: each[rows] for key, each in observations.items()} if isinstance(observations, dict) else None
        means, log_stds, _ = actor.get_action_dist_params(observations[rows] if batch is None else batch)  # type: ignore[index]
        if actor.use_sde:
            # That noise is no matter of the states
            log_stds = th.full_like(means, CLONED_LOG_STD)
        loss = losses.cloning_loss(th.tanh(means), log_stds, answers[rows], CLONED_LOG_STD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _shapes(network: nn.Module) -> dict[str, th.Size]:
    return {name: value.shape for name, value in network.state_dict().items()}
