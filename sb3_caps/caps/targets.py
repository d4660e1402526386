"""The targets of option values: Algorithm 2, along sequences."""

import torch as th

from sb3_caps.common.buffers import OptionReplayBufferSamples


def option_targets(
    data: OptionReplayBufferSamples,
    gamma: float,
    next_greedy: th.Tensor,
    next_values: th.Tensor,
    next_terminations: th.Tensor,
) -> th.Tensor:
    """
    r + γ U(s', o), with U(s', o) = (1 - β_o(s')) Q_O(s', o) + β_o(s') max Q_O(s', ·) (Algorithm 2).

    Along a sequence, Q_O(s', i) gives way to the target of the next step wherever option i agrees with the action
    taken there, for option i itself and for the greedy option after a termination: a tree backup over options.
    With sequences of one step that never happens, and this is the paper's rule.

    All tensors begin with the axes (length, sequences); s' is the successor of each step.

    :param data: the sequences
    :param gamma: the discount factor
    :param next_greedy: the greedy option in s' by the online network (double Q)
    :param next_values: Q_O(s', ·) by the target network
    :param next_terminations: β(s')
    :return: the target of every option, of which those that agree with the action taken are to be learned
    """
    best = next_greedy[..., None]
    rewards = data.rewards[..., None]
    discounts = th.where(data.dones, 0.0, gamma)[..., None]
    targets = th.empty_like(next_values)
    length = len(next_values)
    for t in reversed(range(length)):
        values = next_values[t]
        if t + 1 < length:
            follows = data.agreements[t + 1] & data.mask[t + 1, :, None]
            values = th.where(follows, targets[t + 1], values)
        continuation = th.lerp(values, values.gather(1, best[t]), next_terminations[t])
        th.addcmul(rewards[t], discounts[t], continuation, out=targets[t])
    return targets
