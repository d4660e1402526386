"""The targets of option values: Algorithm 2, along sequences, and what a bonus adds to rewards."""

import numpy as np
import torch as th

from sb3_caps.common.buffers import OptionReplayBufferSamples


def with_bonus(data: OptionReplayBufferSamples, bonus: float) -> OptionReplayBufferSamples:
    """
    :param data: sequences
    :param bonus: added to the reward of a step to an observation that was seen n times, divided by n
    :return: the same with higher rewards
    """
    if bonus == 0:
        return data
    if data.visits is None:
        raise ValueError(
            "exploration_bonus needs a replay buffer that counts visits, and this one was filled without: "
            "pass exploration_bonus=0, or start with an empty buffer."
        )
    return data._replace(rewards=data.rewards + bonus / data.visits)


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
    # For so few numbers, an operation of torch takes longer to start than to compute
    rewards, dones, agreements, mask, best, values, beta = (
        tensor.cpu().numpy()
        for tensor in (
            *(data.rewards, data.dones, data.agreements, data.mask),
            *(next_greedy, next_values, next_terminations),
        )
    )
    length, n_sequences = mask.shape
    sequences, discounts = np.arange(n_sequences), np.where(dones, np.float32(0), np.float32(gamma))
    follows = agreements & mask[..., None]
    targets = np.empty_like(values)
    for t in reversed(range(length)):
        continued = values[t] if t + 1 == length else np.where(follows[t + 1], targets[t + 1], values[t])
        greedy = continued[sequences, best[t]][:, None]
        continuation = continued + beta[t] * (greedy - continued)
        targets[t] = rewards[t][:, None] + discounts[t][:, None] * continuation
    return th.from_numpy(targets).to(next_values.device)
