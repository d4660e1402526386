"""
Evaluating the networks of continuous sources in NumPy, those of one architecture at once.

All of this is for speed alone: a source that is not known here acts by itself, and all of them would.
"""

from collections.abc import Sequence

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import MlpExtractor
from stable_baselines3.sac.policies import Actor as SACActor
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import Actor as TD3Actor
from stable_baselines3.td3.policies import TD3Policy
from torch import nn

from sb3_caps.sources import SourcePolicy
from sb3_caps.sources.evaluate import ArrayStack, _listed, feature_layers, is_as_built, runs_as_arrays


class BoxStack:
    """
    Sources of one architecture, evaluated as one network.

    :param members: the sources' places in the option set
    :param policies: their policies
    """

    def __init__(self, members: list[int], policies: Sequence[BasePolicy]) -> None:
        self.members = members
        self.squashes = policies[0].squash_output
        self.networks = ArrayStack([actor_layers(policy) or [] for policy in policies], policies[0].observation_space)
        assert isinstance(policies[0].action_space, spaces.Box)
        self.space = policies[0].action_space

    def takes(self, observations: np.ndarray) -> bool:
        """:return: whether this is faster than torch"""
        return len(observations) <= self.networks.most_rows

    def actions(self, observations: np.ndarray) -> np.ndarray:
        """
        :param observations: one for each environment, as the environment emits them
        :return: the likeliest action of each source, of shape (environments, members, \\*shape of an action)
        """
        found = self.networks.outputs(observations).swapaxes(0, 1)
        found = found.reshape(*found.shape[:2], *self.space.shape)
        low, high = self.space.low, self.space.high
        if self.squashes:
            return low + 0.5 * (np.tanh(found) + 1.0) * (high - low)
        return np.clip(found, low, high)


def stack_box_sources(sources: Sequence[SourcePolicy]) -> list[BoxStack]:
    """
    :param sources: all source policies
    :return: those that are plain networks, grouped by architecture; all others act by themselves
    """
    groups: dict[str, dict[int, BasePolicy]] = {}
    for i, source in enumerate(sources):
        policy = source.network if source.deterministic else None
        layers = None if policy is None else actor_layers(policy)
        if policy is not None and layers is not None:
            key = f"{layers} {policy.observation_space} {policy.action_space} {policy.squash_output}"
            groups.setdefault(key, {})[i] = policy
    return [BoxStack(list(group), list(group.values())) for group in groups.values()]


def actor_layers(policy: BasePolicy) -> list[nn.Module] | None:
    """
    :param policy: an SB3 policy of continuous actions
    :return: its layers in order, up to the action before it is squashed; None for a policy that is more than that
    """
    # Subclasses may do anything in between, so only these very classes
    actor = getattr(policy, "actor", None)
    if type(policy) is SACPolicy and type(actor) is SACActor and not actor.use_sde:
        extractor, head = feature_layers(actor.features_extractor), _listed(actor.latent_pi, actor.mu)
    elif type(policy) is TD3Policy and type(actor) is TD3Actor and type(_listed(actor.mu)[-1]) is nn.Tanh:
        extractor, head = feature_layers(actor.features_extractor), _listed(actor.mu)[:-1]
    elif type(policy) is ActorCriticPolicy and type(policy.mlp_extractor) is MlpExtractor and not policy.squash_output:
        extractor = feature_layers(policy.pi_features_extractor)
        head = _listed(policy.mlp_extractor.policy_net, policy.action_net)
    else:
        return None
    layers = [] if extractor is None else [*extractor, *head]
    on_cpu = policy.device.type == "cpu"
    if not layers or not on_cpu or not runs_as_arrays(layers, policy.observation_space) or not is_as_built(policy):
        return None
    return layers
