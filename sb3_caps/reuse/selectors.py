"""Who acts in the next episode: what the selectors of all algorithms have in common."""

from typing import Protocol

from sb3_caps.reuse.episodes import Behaviour, EpisodeResult


class Selector(Protocol):
    """
    Chooses the behaviour of each episode, and in the end what the model acts by.
    """

    def select(self, env: int) -> Behaviour:
        """
        Choose who acts in an episode that starts now.

        :param env: the environment that it starts in
        :return: who acts
        """
        ...

    def update(self, result: EpisodeResult) -> None:
        """
        Take the result of an episode into account.

        :param result: what came of it
        """
        ...

    def decide(self) -> Behaviour:
        """:return: what the model should act by, as far as is known"""
        ...


class AlwaysSelector:
    """
    The null selector: one behaviour learns in every episode, and one acts afterwards.

    :param learning: who acts while learning
    :param acting: what the model acts by
    """

    def __init__(self, learning: Behaviour, acting: Behaviour) -> None:
        self.learning, self.acting = learning, acting

    def select(self, env: int) -> Behaviour:
        """:return: who acts while learning"""
        return self.learning

    def update(self, result: EpisodeResult) -> None:
        """
        Nothing is concluded from results.

        :param result: what came of an episode
        """

    def decide(self) -> Behaviour:
        """:return: what the model acts by"""
        return self.acting
