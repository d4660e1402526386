"""The learner of CAPS alone, for whoever tunes or judges what was learned."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np

from sb3_caps.caps.gate import LEARNERS, OPTIONS, Gate
from sb3_caps.reuse.episodes import Behaviour


class LearnerOnly:
    """
    The learner of a CAPS model as it is now, whatever the model acts by: a source for whole episodes, or the networks
    that did best so far, which may be early ones that do what a source does. The learner still follows sources as
    options. Pass it to ``evaluate_policy``, or see ``acting``.

    :param model: the model, which stays as it is
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def behaviour(self) -> Behaviour:
        """The form in which the latest networks act best, as far as whole episodes tell."""
        controller = self.model.gate.controller
        if controller not in LEARNERS:
            latest: Any = copy(self.model.selector)
            latest.sources, latest.kept = [], False
            controller = latest.decide()
        return controller if controller in LEARNERS else OPTIONS

    @contextmanager
    def acting(self) -> Iterator[None]:
        """A context in which ``predict`` of the model acts by the learner, for callbacks that evaluate the model."""
        policy, before = self.model.policy, self.model.policy.gate
        policy.gate = Gate(self.behaviour, before.disabled)
        try:
            yield
        finally:
            policy.gate = before

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[Any, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        **action_masks: np.ndarray | None,
    ) -> tuple[np.ndarray, tuple[Any, ...] | None]:
        """Act as the model does, but always by the learner."""
        with self.acting():
            found: tuple[np.ndarray, tuple[Any, ...] | None] = self.model.predict(
                observation, state, episode_start, deterministic, **action_masks
            )
        return found
