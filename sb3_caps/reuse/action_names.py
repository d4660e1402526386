"""What an environment calls its actions."""

from collections.abc import Sequence

from stable_baselines3.common.vec_env import VecEnv


def action_names(env: VecEnv) -> list[str] | None:
    """
    :param env: environments that may have ``get_action_meanings()``, as Atari games do, or ``action_meanings``
    :return: the names of the actions as the first environment has them, None if it has none
    """
    if env.has_attr("get_action_meanings"):
        found = env.env_method("get_action_meanings", indices=[0])[0]
    elif env.has_attr("action_meanings"):
        found = env.get_attr("action_meanings", indices=[0])[0]
    else:
        return None
    return [str(name) for name in found]


def option_labels(names: Sequence[str], n_sources: int, actions: Sequence[str] | None) -> list[str]:
    """
    :param names: the names of all options
    :param n_sources: how many of them are source policies
    :param actions: the names of the actions, None if they have none
    :return: what to call each option in logs and figures: primitive options by the name of their action where it has
        one, and that of no other option
    """
    labels = [*names[:n_sources], *(actions or ())]
    return labels if len(labels) == len(names) == len(set(labels)) else list(names)
