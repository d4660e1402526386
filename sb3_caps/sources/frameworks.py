"""Acting with policies that were not made with SB3: modules of torch, TorchScript, ONNX, and objects with predict."""

import inspect
import io
import warnings
from functools import cached_property
from typing import Any

import numpy as np
import torch as th
from torch import nn

from sb3_caps.extras import require
from sb3_caps.sources.act import Observations, SourceState, draw, drawing, frozen_copy

TORCH_SCRIPT = (".pt", ".ts", ".pth")
ONNX = ".onnx"
# ML-Agents calls them so: an input for the actions that are allowed, and one of several outputs
MASKS, LIKELIEST = "action_masks", "deterministic_discrete_actions"
# How ONNX calls the types that NumPy calls otherwise
TYPES = {"float": "float32", "double": "float64"}


class ScoresAct:
    """
    Act by what a network puts out: an action for each observation, or a score of each action (a logit or a value), of
    which the highest wins. Of several outputs the first one counts.
    """

    takes_rng = is_network = True
    # Whether numbers are scores of actions; where actions are continuous they are the action
    returns_scores = True
    # How many scores there are of an observation, None where it puts out actions
    n_scores: int | None = None
    kind: str

    def __call__(
        self,
        observations: Observations,
        state: SourceState,
        episode_starts: np.ndarray,
        rng: np.random.Generator | None = None,
        **action_masks: np.ndarray,
    ) -> tuple[np.ndarray, SourceState]:
        return self.choose(self.outputs(observations, **action_masks), rng), state

    def outputs(self, observations: Observations, **action_masks: np.ndarray) -> Any:
        """
        :param observations: a batch of observations
        :param action_masks: which actions are allowed, for those that take them
        :return: what the network puts out
        """
        raise NotImplementedError()

    def choose(self, outputs: Any, rng: np.random.Generator | None) -> np.ndarray:
        """
        :param outputs: what a network put out
        :param rng: to draw actions with, None for the likeliest ones
        :return: the actions
        """
        if isinstance(outputs, (tuple, list)) and isinstance(outputs[0], th.Tensor):
            outputs = outputs[0]
        found = outputs.detach().cpu().numpy() if isinstance(outputs, th.Tensor) else np.asarray(outputs)
        if not self.returns_scores or found.ndim != 2 or not np.issubdtype(found.dtype, np.floating):
            return found
        self.n_scores = found.shape[1]
        actions: np.ndarray = found.argmax(axis=1) if rng is None else draw(found, rng)
        return actions


class ModuleAct(ScoresAct):
    """
    Act with a module of torch. It gets vectors and pixels as floats of its own type, and numbers as integers.

    :param module: the module, of which a copy is made
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = frozen_copy(module)
        self.kind = type(module).__name__

    def outputs(self, observations: Observations, **action_masks: np.ndarray) -> Any:
        """:return: what the module returns"""
        floats = [parameter for parameter in self.module.parameters() if parameter.is_floating_point()]
        like = floats[0] if floats else th.zeros(1)
        with th.no_grad():
            if isinstance(observations, dict):
                return self.module({key: _as_tensor(values, like) for key, values in observations.items()})
            return self.module(_as_tensor(observations, like))


class TorchScriptAct(ModuleAct):
    """
    Act with a TorchScript module.

    :param content: what ``torch.jit.save`` wrote
    """

    kind = "TorchScript"

    def __init__(self, content: bytes) -> None:
        self.content = content
        # A file that cannot be read is refused now
        _ = self.module

    @cached_property
    def module(self) -> nn.Module:  # type: ignore[override]
        """The module: it cannot be pickled."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            module: nn.Module = th.jit.load(io.BytesIO(self.content), map_location="cpu")
        return module.eval()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "module"}


class OnnxAct(ScoresAct):
    """
    Act with a model of ONNX.

    :param content: the model
    """

    kind = "ONNX"

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.takes_action_masks = MASKS in [each.name for each in self.session.get_inputs()]

    @cached_property
    def session(self) -> Any:
        """What runs the model: it cannot be pickled."""
        runtime = require("onnxruntime", "onnx")
        options = runtime.SessionOptions()
        # Threads would cost more than they save for the few observations of a step
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        return runtime.InferenceSession(self.content, options, providers=["CPUExecutionProvider"])

    def outputs(self, observations: Observations, **action_masks: np.ndarray) -> Any:
        """:return: the first output of the model, or the likeliest actions of one of ML-Agents"""
        inputs = {each.name: each for each in self.session.get_inputs()}
        if not isinstance(observations, dict):
            names = [name for name in inputs if name != MASKS]
            if len(names) != 1:
                raise ValueError(f"it takes {', '.join(names)}, and the environment emits one array")
            observations = {names[0]: observations}
        n_envs = len(next(iter(observations.values())))
        if MASKS in inputs:
            everything = np.ones((n_envs, inputs[MASKS].shape[-1]))
            observations = {**observations, MASKS: action_masks.get(MASKS, everything)}
        missing = inputs.keys() - observations.keys()
        if missing:
            raise ValueError(f"it takes {', '.join(sorted(missing))} too, which the environment does not emit")
        feeds = {name: np.asarray(observations[name]).astype(_type_of(each)) for name, each in inputs.items()}
        names = [each.name for each in self.session.get_outputs()]
        wanted = [LIKELIEST if LIKELIEST in names else names[0]]
        # Many exports take one observation at a time
        one_by_one = n_envs > 1 and any(each.shape[:1] == [1] for each in inputs.values())
        steps = [slice(i, i + 1) for i in range(n_envs)] if one_by_one else [slice(None)]
        found = [self.session.run(wanted, {name: values[i] for name, values in feeds.items()})[0] for i in steps]
        return np.concatenate(found)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "session"}


class PredictAct(ScoresAct):
    """
    Act with an object that has a method ``predict``, which takes observations and returns actions, or actions and a
    state. What it takes of the arguments of SB3's ``predict`` it gets.

    :param model: the object
    """

    is_network = False

    def __init__(self, model: Any) -> None:
        self.model, self.kind = model, type(model).__name__
        try:
            taken = inspect.signature(model.predict).parameters.keys()
        except ValueError:  # as of some functions that are not written in Python
            taken = {}.keys()
        self.taken = {"state", "episode_start", "deterministic"} & taken
        self.takes_rng, self.takes_action_masks = "deterministic" in taken, MASKS in taken
        self.takes_batches = True

    def __call__(
        self,
        observations: Observations,
        state: SourceState,
        episode_starts: np.ndarray,
        rng: np.random.Generator | None = None,
        **action_masks: np.ndarray,
    ) -> tuple[np.ndarray, SourceState]:
        known = {"state": state, "episode_start": episode_starts, "deterministic": rng is None}
        with drawing(rng):
            found = self.model.predict(observations, **{key: known[key] for key in self.taken}, **action_masks)
        # Two actions may be a tuple, too
        if isinstance(found, tuple) and len(found) == 2 and np.ndim(found[0]) > 0:
            found, state = found
        return self.choose(found, rng), state


def _as_tensor(values: np.ndarray, like: th.Tensor) -> th.Tensor:
    pixels_or_floats = values.dtype in (np.uint8, np.bool_) or np.issubdtype(values.dtype, np.floating)
    return th.as_tensor(values, dtype=like.dtype if pixels_or_floats else None, device=like.device)


def _type_of(given: Any) -> np.dtype:
    """:return: the type of an input as NumPy calls it"""
    name = given.type.removeprefix("tensor(").removesuffix(")")
    return np.dtype(TYPES.get(name, name))
