"""The targets of option values: Algorithm 2, along sequences, and what a bonus adds to rewards."""

import torch as th

from sb3_caps.replay.type_aliases import OptionReplayBufferSamples


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
            "A bonus needs a replay buffer that counts visits, and this one was filled without: "
            "leave it out of exploration_kwargs, or start with an empty buffer."
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
    rewards, discounts = data.rewards[..., None], gamma * ~data.dones[..., None]
    follows = data.agreements & data.mask[..., None]
    best = next_greedy[..., None]
    targets = th.empty_like(next_values)
    for t in reversed(range(len(targets))):
        continued = next_values[t]
        if t + 1 < len(targets):
            continued = th.where(follows[t + 1], targets[t + 1], continued)
        u = th.lerp(continued, continued.gather(1, best[t]), next_terminations[t])
        th.addcmul(rewards[t], discounts[t], u, out=targets[t])
    return targets
