"""The actor begins as a source: by its networks where they fit, by cloning what it does otherwise."""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.sac.policies import Actor, SACPolicy
from stable_baselines3.td3.policies import Actor as TD3Actor
from torch import nn

from sb3_caps.caps.gate import BEST
from sb3_caps.continuous import losses

# Steps and step size of cloning, and the noise of the clone: enough to explore around the source, and no more
CLONING_STEPS, CLONING_RATE, CLONING_BATCH, CLONED_LOG_STD = 1000, 1e-3, 256, -1.5


def fits(source: BasePolicy | None, policy: SACPolicy) -> tuple[bool, bool]:
    """
    Tell whether a source is an actor-critic of SB3 with the same layers: of SAC and TD3 actor and critics fit, of TQC
    and DDPG the actor.

    :param source: the source's network, None where it has none that sees what the learner does
    :param policy: where its networks should go
    :return: whether the actor fits, and whether the critics do too
    """
    found = [] if source is None or source.action_space != policy.action_space else _networks(source)
    if not found or not _same(*_layers(found[0], policy.actor)):
        return False, False
    return True, _same(found[1:], [policy.critic, policy.critic_target])


def take_over(source: BasePolicy | None, policy: SACPolicy) -> tuple[bool, bool]:
    """
    Take over what fits of a source: its actor, and its critics.

    :param source: see ``fits``
    :param policy: where to; what does not fit is not changed
    :return: see ``fits``
    """
    takes_actor, takes_critics = fits(source, policy)
    if takes_actor:
        actor, *critics = _networks(source)
        _load(*_layers(actor, policy.actor))
        if not hasattr(actor, "log_std"):
            # TD3 has no noise of its own
            log_std: Any = policy.actor.log_std
            nn.init.zeros_(log_std.weight)
            nn.init.constant_(log_std.bias, CLONED_LOG_STD)
        if takes_critics:
            _load(critics, [policy.critic, policy.critic_target])
    return takes_actor, takes_critics


def _networks(source: Any) -> list[Any]:
    """:return: actor, critics and their targets that a policy acts by, nothing where there are none"""
    if not hasattr(source, "actor"):
        return []
    gate = getattr(source, "gate", None)
    if gate is not None and source.options.n_sources:
        # One of ours may act by one of its own sources, or as it was at its best
        if gate.controller.is_source:
            return []
        if gate.controller == BEST:
            return [source.actor_best, source.critic_best, source.critic_best]
    return [source.actor, source.critic, source.critic_target]


def _layers(source: Any, actor: Actor) -> tuple[list[Any], list[Any]]:
    """:return: what is to be compared and copied: the actors, or the layers of one of TD3, which has all in one"""
    if not isinstance(source, TD3Actor) or actor.use_sde:
        return [source], [actor]
    own: Any = actor
    return [source.features_extractor, *list(source.mu)[:-1]], [own.features_extractor, *own.latent_pi, own.mu]


def _same(source: list[Any], target: list[Any]) -> bool:
    return [_form(layer) for layer in source] == [_form(layer) for layer in target]


def _load(source: list[Any], target: list[Any]) -> None:
    for theirs, own in zip(source, target, strict=True):
        own.load_state_dict(theirs.state_dict())


def _form(layer: Any) -> Any:
    # A parameter that is no layer, that of gSDE, is told by its shape
    shapes = {name: value.shape for name, value in layer.state_dict().items()}
    return str(layer), shapes


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
