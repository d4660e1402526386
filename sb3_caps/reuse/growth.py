"""Source policies that come to a model and leave it, whatever it has learned."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch as th
from torch import nn

from sb3_caps.reuse.action_names import action_names, option_labels
from sb3_caps.reuse.base import PolicyReuse, emitted_space
from sb3_caps.reuse.options import OptionSet
from sb3_caps.sources import Observations, as_source
from sb3_caps.sources.act import length_of

# Asks a source, by its number among the new ones, about observations; None where it cannot tell
Ask: TypeAlias = Callable[[int, Observations], np.ndarray | None]


@th.no_grad()
def map_rows(
    layer: nn.Linear,
    places: Sequence[int],
    weight: th.Tensor | float,
    bias: th.Tensor | float,
    optimizers: Sequence[th.optim.Optimizer | None] = (),
) -> None:
    """
    Give a layer with an output for each option outputs for other options. What stays keeps its numbers, in the layer
    and in the optimizers; parameters remain the same objects.

    :param layer: the layer
    :param places: for each new output the old one, -1 for one that was not there
    :param weight: the weights of outputs that were not there
    :param bias: their biases
    :param optimizers: those that move the layer: they have nothing to remember of new outputs. None for one that a copy
        was made without.
    """
    index = th.as_tensor(places, device=layer.weight.device)
    is_new = index < 0

    def mapped(values: th.Tensor, new: th.Tensor | float) -> th.Tensor:
        found = values[index.clamp(min=0)]
        found[is_new] = th.as_tensor(new, dtype=values.dtype, device=values.device)
        return found

    for name, new in (("weight", weight), ("bias", bias)):
        before: nn.Parameter = getattr(layer, name)
        # A parameter of its own: what autograd may remember of the old one has the old shape
        after = nn.Parameter(mapped(before.data, new), before.requires_grad)
        setattr(layer, name, after)
        for optimizer in filter(None, optimizers):
            for group in optimizer.param_groups:
                group["params"] = [after if each is before else each for each in group["params"]]
            state = optimizer.state.pop(before, None)
            if state is not None:
                optimizer.state[after] = {
                    key: mapped(value, 0.0) if isinstance(value, th.Tensor) and value.shape == before.shape else value
                    for key, value in state.items()
                }
    layer.out_features = len(index)


class GrowingSources(PolicyReuse):
    """What an algorithm has whose sources may change after it was made: a class before its own."""

    # Sources that were passed to `load`, until it is done
    _sources_to_come: Any = None

    def add_source(self, source: Any, name: str | None = None) -> str:
        """
        Reuse another source policy from now on. At first nothing that the model does is changed by it: its values are
        those of the actions that it takes. What it would have done in the steps of the replay buffer is found out.

        :param source: anything that ``as_source`` takes
        :param name: its name, by default that of the file, function or class
        :return: its name in ``model.options.names``
        """
        if name is not None and name in self.options.names:
            raise ValueError(f"There is an option named '{name}': give the source policy another name.")
        self.set_sources([*self._kept_sources(), as_source(source, name)])
        return self.options.source_names[-1]

    def remove_source(self, name: str) -> None:
        """
        Go on without a source policy. What is known of the others stays as it is.

        :param name: its name in ``model.options.names``
        """
        if name not in self.options.source_names:
            raise ValueError(f"There is no source policy {name!r}: pass one of {self.options.source_names}.")
        self.set_sources([source for source in self._kept_sources() if source.name != name])

    def set_sources(self, source_policies: Iterable[Any] | Mapping[str, Any]) -> None:
        """
        Reuse these source policies from now on. Those that have the name of one that is there take over all that was
        learned of it; others are new; what is not among them is dropped.

        :param source_policies: a list of anything that ``as_source`` takes, or a dictionary of them by name
        """
        before = self.options
        space = before.observation_space if self.env is None else emitted_space(self.env)
        options = self.options_class(source_policies, space, self.action_space)  # type: ignore[arg-type]
        options.normalizer = before.normalizer
        places = np.array([before.names.index(name) if name in before.names else -1 for name in options.names])
        # Whatever a source may raise, it does here, before anything is changed
        self._map_replay(self.replay_buffer, places, options)
        self.options, self.source_names = options, options.source_names
        self._use.map(places)
        if self.env is not None:
            self._adapt_options(self.env)
            self._option_labels = option_labels(options.names, options.n_sources, action_names(self.env))
        self._map_options(places, before)

    def _map_options(self, places: np.ndarray, before: OptionSet) -> None:
        """
        Let everything else know of new options, which are in ``self.options``.

        :param places: for each option where it was, -1 for one that was not there
        :param before: the options that there were
        """
        raise NotImplementedError()

    def _map_replay(self, buffer: Any, places: np.ndarray, options: OptionSet) -> None:
        """
        Let a replay buffer keep what other sources do.

        :param buffer: the buffer
        :param places: for each option where it was, -1 for one that was not there
        :param options: the new options
        """
        if buffer is not None:
            buffer.map_sources(places, lambda i, observations: self._ask(options, i, observations))

    def _ask(self, options: OptionSet, source: int, observations: Observations) -> np.ndarray | None:
        """:return: what a source does in single observations, None where that depends on more than these"""
        if options.sources[source].takes_action_masks:
            return None
        emitted = options.as_emitted(observations)
        starts = np.ones(length_of(emitted), dtype=bool)
        # A generator of its own: nobody else's draws depend on which sources there are
        answers, state = options.ask(source, emitted, None, starts, rng=np.random.default_rng(self.seed))
        return answers if state is None else None

    def _kept_sources(self) -> list[Any]:
        """:return: the sources, under names that stay theirs"""
        return [as_source(source, name=source.name) for source in self.options.sources]

    def _setup_options(self) -> None:
        known: dict[str, Any] = vars(self)
        if known.get("source_names") is not None and known.get("source_policies") is not None:
            # A saved model is loaded as it was, and changed afterwards
            self._sources_to_come = known.pop("source_policies")
            if "options" not in known:
                space = self.observation_space if self.env is None else emitted_space(self.env)
                named = {name: _Unknown(self.action_space.shape) for name in self.source_names}
                self.options = self.options_class(named, space, self.action_space)  # type: ignore[arg-type]
        super()._setup_options()

    def _after_load(self) -> None:
        given = vars(self).pop("_sources_to_come", None)
        if given is not None:
            self.set_sources(given)

    def _fit_replay_buffer(self, found: Any) -> None:
        """Let a loaded buffer, which may be that of other sources, keep what those of this model do."""
        names, ours = getattr(found, "option_names", None) or [], self.options.names
        comparable = type(found) is self.replay_buffer_class and names and names != ours
        if comparable and (found.observation_space, found.action_space) == (self.observation_space, self.action_space):
            places = np.array([names.index(name) if name in names else -1 for name in ours])
            self._map_replay(found, places, self.options)
            found.option_names = ours


class _Unknown:
    """
    In the place of a source that was not saved, until others are there.

    :param shape: of an action
    """

    def __init__(self, shape: Any) -> None:
        self.shape = shape

    def __call__(self, observations: Any) -> np.ndarray:
        return np.zeros((length_of(observations), *self.shape), dtype=np.float32 if self.shape else np.int64)
