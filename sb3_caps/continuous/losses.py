"""What ContinuousCAPS learns by, as functions of tensors."""

import torch as th
from torch.nn import functional as F


def bootstrap_values(candidates: th.Tensor) -> th.Tensor:
    """
    The value of the best candidate in each state: what a source would do there, or the actor (IBRL, for n sources).

    :param candidates: the value of what each of them would do, of shape (states, candidates)
    :return: of shape (states, 1)
    """
    return candidates.max(dim=1, keepdim=True).values


def td_targets(rewards: th.Tensor, dones: th.Tensor, gamma: float, next_values: th.Tensor) -> th.Tensor:
    """
    r + γ V(s').

    :param rewards: of shape (states, 1)
    :param dones: 1 where the next state is terminal, of the same shape
    :param gamma: the discount factor
    :param next_values: V(s')
    :return: of the same shape
    """
    return rewards + (1 - dones) * gamma * next_values


def critic_loss(values: tuple[th.Tensor, ...], targets: th.Tensor) -> th.Tensor:
    """
    :param values: Q(s, a) of each critic
    :param targets: of the same shape
    :return: SAC's loss
    """
    losses: th.Tensor = 0.5 * sum(F.mse_loss(each, targets) for each in values)  # type: ignore[assignment]
    return losses


def entropy_loss(log_ent_coef: th.Tensor, log_probs: th.Tensor, target_entropy: float) -> th.Tensor:
    """
    :param log_ent_coef: the logarithm of α
    :param log_probs: log π(a|s)
    :param target_entropy: what the entropy should be
    :return: SAC's loss of α
    """
    return -(log_ent_coef * (log_probs + target_entropy).detach()).mean()


def actor_loss(ent_coef: th.Tensor, log_probs: th.Tensor, values: th.Tensor) -> th.Tensor:
    """
    :param ent_coef: α
    :param log_probs: log π(a|s)
    :param values: the lowest Q(s, a) of all critics
    :return: SAC's loss of the actor
    """
    return (ent_coef * log_probs - values).mean()


def pull_loss(means: th.Tensor, answers: th.Tensor, values: th.Tensor) -> th.Tensor:
    """
    std(Q) ‖μ(s) - a(s)‖²: it pulls as hard as differences of values do, whatever the task pays in.

    :param means: what the actor does without noise, of shape (states, dimensions)
    :param answers: what it is pulled to, of the same shape
    :param values: Q(s, a) of the batch, for their spread
    :return: the mean over the states
    """
    return values.detach().std() * (means - answers).square().sum(dim=1).mean()


def cloning_loss(means: th.Tensor, log_stds: th.Tensor, answers: th.Tensor, log_std: float) -> th.Tensor:
    """
    :param means: what the actor does without noise, of shape (states, dimensions)
    :param log_stds: the logarithm of its standard deviations, of the same shape
    :param answers: what a source does, of the same shape
    :param log_std: what the logarithm should be
    :return: the mean squares of both differences
    """
    return (means - answers).square().mean() + 0.1 * (log_stds - log_std).square().mean()


def termination_loss(logits: th.Tensor, values: th.Tensor) -> th.Tensor:
    """
    β of every option in every state: the probability that what it does there is not best.

    :param logits: β before the logistic function, of shape (states, options)
    :param values: the value of what each option does there, of the same shape
    :return: cross entropy
    """
    worse = values < values.max(dim=1, keepdim=True).values
    return F.binary_cross_entropy_with_logits(logits, worse.to(logits.dtype))
