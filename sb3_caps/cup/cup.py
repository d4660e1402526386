"""Critic-guided policy reuse, on SB3's SAC."""

from typing import Any

import torch as th

from sb3_caps.continuous.base import ActorSample, ContinuousReuseAlgorithm
from sb3_caps.continuous.buffers import SourceReplayBufferSamples
from sb3_caps.reuse.checks import check_number


def guidance_loss(
    means: th.Tensor, answers: th.Tensor, source_values: th.Tensor, values: th.Tensor, bound: float
) -> th.Tensor:
    """
    Pull an actor in each state to the source whose action the critic values most, where it values it more than what
    the actor does.

    :param means: what the actor does without noise, of shape (states, dimensions)
    :param answers: what each source does, of shape (states, sources, dimensions)
    :param source_values: the value of what each source does, of shape (states, sources)
    :param values: the value of what the actor does, of shape (states, 1)
    :param bound: the largest weight of a state, as a share of the actor's value there
    :return: the mean over the states of min(advantage, bound · |value|) times the squared distance
    """
    best, guides = source_values.detach().max(dim=1)
    values = values.detach()[:, 0]
    weights = th.minimum((best - values).clamp(min=0.0), bound * values.abs())
    guided = answers[th.arange(len(guides), device=guides.device), guides]
    return (weights * (means - guided).square().sum(dim=1)).mean()


class CUP(ContinuousReuseAlgorithm):
    """
    Critic-Guided Policy Reuse (CUP)

    In each state, the source whose action the critic values most guides the actor, unless the critic values what the
    actor does more; the loss of SAC's actor is regularised towards it. Nothing else is learned, and ``predict`` is
    SAC's.

    Paper: Zhang, Li and Zhang: CUP: Critic-Guided Policy Reuse, NeurIPS 2022, https://arxiv.org/abs/2210.08153
    What was chosen here: sources give one action each, so the distance to a guide is that of the actor's mean, squared,
    in place of a divergence of distributions; the weight of a state is the guide's advantage, bounded by a share of
    the actor's value.

    :param args: see ``ContinuousReuseAlgorithm``
    :param guidance: How much the regularisation weighs
    :param bound: The largest weight of a state, as a share of the actor's value there
    :param kwargs: see ``ContinuousReuseAlgorithm``
    """

    def __init__(self, *args: Any, guidance: float = 1.0, bound: float = 0.2, **kwargs: Any) -> None:
        self.guidance = guidance
        self.bound = bound
        super().__init__(*args, **kwargs)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        check_number("guidance", self.guidance, at_least=0.0)
        check_number("bound", self.bound, at_least=0.0)

    def _reuse_loss(self, data: SourceReplayBufferSamples, sample: ActorSample) -> th.Tensor | float:
        with th.no_grad():
            values = self.policy.values_of(self.critic, data.observations, data.source_actions)
        return self.guidance * guidance_loss(sample.means, data.source_actions, values, sample.values, self.bound)
