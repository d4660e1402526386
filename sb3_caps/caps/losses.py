"""What CAPS learns by, as functions of tensors: targets and losses of option values, terminations and the actor."""

from collections.abc import Callable

import torch as th
from torch.nn import functional as F

from sb3_caps.replay.type_aliases import OptionReplayBufferSamples


def option_targets(
    data: OptionReplayBufferSamples,
    gamma: float,
    next_greedy: th.Tensor,
    next_values: th.Tensor,
    next_terminations: th.Tensor,
    next_allowed: th.Tensor | None = None,
) -> th.Tensor:
    """
    r + γ U(s', o), with U(s', o) = (1 - β_o(s')) Q_O(s', o) + β_o(s') max Q_O(s', ·) (Algorithm 2).

    Along a sequence, Q_O(s', i) gives way to the target of the next step wherever option i agrees with the action
    taken there, for option i itself and for the greedy option after a termination: a tree backup over options.
    With sequences of one step that never happens, and this is the paper's rule.
    An option whose action is not allowed in s' ends there, so that its value does not count.

    All tensors begin with the axes (length, sequences); s' is the successor of each step.

    :param data: the sequences
    :param gamma: the discount factor
    :param next_greedy: the greedy option in s' by the online network (double Q)
    :param next_values: Q_O(s', ·) by the target network
    :param next_terminations: β(s')
    :param next_allowed: which options are allowed in s'; None for all
    :return: the target of every option, of which those that agree with the action taken are to be learned
    """
    discounts = gamma * ~data.dones
    if next_allowed is not None:
        next_terminations = next_terminations.masked_fill(~next_allowed, 1.0)
    # All of a step at once: to take a part of a tensor takes as long as to add two
    given = (data.rewards[..., None], discounts[..., None], next_greedy[..., None], next_values, next_terminations)
    steps = zip(*(reversed(each.unbind()) for each in given), strict=True)
    agrees = [None, *reversed((data.agreements & data.mask[..., None]).unbind())]
    targets: list[th.Tensor] = []
    # What the step after each agrees with, and its target
    for follows, (reward, discount, greedy, values, terminations) in zip(agrees, steps, strict=False):
        continued = values if follows is None else th.where(follows, targets[-1], values)
        u = th.lerp(continued, continued.gather(1, greedy), terminations)
        targets.append(th.addcmul(reward, discount, u))
    return th.stack(targets[::-1])


def option_loss(
    values: th.Tensor,
    targets: th.Tensor,
    learned: th.Tensor,
    n_steps: th.Tensor | int,
    loss_fn: Callable[..., th.Tensor] = F.smooth_l1_loss,
) -> th.Tensor:
    """
    The loss of the option values, by default Huber's (less sensitive to outliers).

    :param values: Q_O(s, ·)
    :param targets: of the same shape
    :param learned: which of them are learned: those of options that agreed with the action taken
    :param n_steps: the number of steps that the loss is a mean over
    :param loss_fn: one of ``torch.nn.functional``, or anything that is called as they are
    :return: the loss
    """
    losses = loss_fn(values, targets, reduction="none")
    return (losses * learned).sum() / n_steps


def termination_loss(
    logits: th.Tensor,
    values: th.Tensor,
    source_actions: th.Tensor,
    disabled: th.Tensor | None,
    mask: th.Tensor,
    action_masks: th.Tensor | None = None,
) -> th.Tensor:
    """
    β of every option in every state: the probability that the action it takes there is not the best one.

    It is the sign of the advantage of Equation 2, for one action: whether going on for longer would be worth it is left
    to the option values, and whether to explore by the option to ``exploration_kwargs``.

    :param logits: β before the logistic function, of shape (length, sequences, options)
    :param values: Q_O(s, ·), of the same shape
    :param source_actions: the action of each source, of shape (length, sequences, sources), -1 where it is not known
    :param disabled: which options are disabled, of shape (options,), None where none is
    :param mask: which steps count, of shape (length, sequences)
    :param action_masks: which actions are allowed, of shape (length, sequences, actions); None for all. Nothing is
        learned of options that are not, and none of them is the best one.
    :return: cross entropy, in the mean over the steps
    """
    actions, known = source_actions.clamp(min=0), source_actions >= 0
    values = values.detach() if disabled is None else values.detach().masked_fill(disabled, -th.inf)
    of_sources, best = values.split([actions.shape[-1], values.shape[-1] - actions.shape[-1]], dim=-1)
    # That of an action is the value of the best option that takes it
    best = best.scatter_reduce(2, actions, of_sources.masked_fill(~known, -th.inf), "amax")
    if action_masks is None:
        known = F.pad(known, (0, best.shape[-1]), value=True)
    else:
        best = best.masked_fill(~action_masks, -th.inf)
        known = th.cat([known & action_masks.gather(2, actions), action_masks], dim=2)
    worse = best < best.amax(dim=-1, keepdim=True)
    worse = th.cat([worse.gather(2, actions), worse], dim=2).to(logits.dtype)
    counts = (known & mask[..., None]).to(logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, worse, counts, reduction="sum") / mask.sum()


def vtrace(
    rewards: th.Tensor,
    values: th.Tensor,
    next_values: th.Tensor,
    dones: th.Tensor,
    last_steps: th.Tensor,
    ratios: th.Tensor,
    gamma: float,
    trace: float,
) -> tuple[th.Tensor, th.Tensor]:
    """
    Targets of the values of states, and advantages of the actions taken (V-trace, Espeholt and others 2018).

    All tensors are of shape (steps,), in the order of time.

    :param rewards: of each step
    :param values: V(s)
    :param next_values: V(s') of the step's own successor, also where an episode was truncated
    :param dones: whether it led to a terminal state
    :param last_steps: whether the next row belongs to another episode
    :param ratios: π(a|s) / μ(a|s), at most 1
    :param gamma: the discount factor
    :param trace: λ
    :return: the targets and the advantages
    """
    errors = (rewards + gamma * next_values * ~dones - values).tolist()
    decays = (gamma * trace * ~last_steps).tolist()
    advantages, corrections, ahead = [0.0] * len(errors), [0.0] * len(errors), 0.0
    # Numbers of Python: an operation of torch on one number takes a hundred times as long
    for t, ratio in zip(reversed(range(len(errors))), reversed(ratios.tolist()), strict=True):
        advantages[t] = errors[t] + decays[t] * ahead
        corrections[t] = ahead = ratio * advantages[t]
    return values + values.new_tensor(corrections), values.new_tensor(advantages)


def actor_loss(
    log_probs: th.Tensor, old_log_probs: th.Tensor, advantages: th.Tensor, weights: th.Tensor, clip_range: float
) -> th.Tensor:
    """
    PPO's clipped objective, for steps that another policy may have taken.

    :param log_probs: log π(a|s)
    :param old_log_probs: the same before this round of updates
    :param advantages: standardised: gaps between actions are tiny beside values
    :param weights: how likely the old policy was to do the same, beside what did: at most 1
    :param clip_range: how far a probability may move from the old one in a round, as a share
    :return: the loss
    """
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
    return -(weights * th.minimum(ratio * advantages, clipped * advantages)).mean()
