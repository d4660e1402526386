"""
Small networks of the learner without the overhead of torch.

For one observation an operation of torch on a layer of 64 units takes longer to start than to compute; numpy starts
sooner.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from torch import nn

from sb3_caps.common.sources.evaluate import ARRAY_ACTIVATIONS, as_inputs, feature_layers, most_rows, runs_as_arrays

__all__ = ["ArrayNetwork", "as_inputs", "clip_grad_norm", "feature_layers", "runs_as_arrays", "sigmoid"]

# Their derivatives, as functions of what they returned
ARRAY_SLOPES: dict[type[nn.Module], Callable[[np.ndarray], np.ndarray]] = {
    nn.ReLU: lambda values: values > 0,
    nn.Tanh: lambda values: 1 - values**2,
}


class ArrayNetwork:
    """
    A network that ``runs_as_arrays``, always with the parameters that it has at the moment: on a CPU, arrays share
    the memory of its tensors.

    :param layers: its layers
    :param space: the observations that it takes, None for the outputs of other layers
    """

    def __init__(self, layers: Sequence[nn.Module], space: spaces.Space | None = None) -> None:
        self.layers = [layer for layer in layers if not isinstance(layer, nn.Flatten)]
        self.most_rows = most_rows(layers, space)
        self._arrays: list[tuple[np.ndarray, ...]] = []
        self._address = -1

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """
        :param inputs: what ``as_inputs`` returned, or other layers
        :return: its outputs
        """
        return self.outputs(inputs)[-1]

    def outputs(self, inputs: np.ndarray) -> list[np.ndarray]:
        """
        :param inputs: what ``as_inputs`` returned, or other layers
        :return: the inputs, and after them the outputs of each layer
        """
        found = [inputs]
        for layer, parameters in zip(self.layers, self.parameters(), strict=True):
            values = found[-1]
            found.append(_linear(values, *parameters) if parameters else ARRAY_ACTIVATIONS[type(layer)](values))
        return found

    def backward(self, outputs: Sequence[np.ndarray], slopes: np.ndarray) -> None:
        """
        Set the gradients of the parameters.

        :param outputs: what ``outputs`` returned
        :param slopes: the derivative of a loss by the outputs of the last layer, in the first so many rows
        """
        n_rows, arrays = len(slopes), self.parameters()
        for i in reversed(range(len(self.layers))):
            layer, inputs = self.layers[i], outputs[i][:n_rows]
            if not isinstance(layer, nn.Linear):
                slopes = slopes * ARRAY_SLOPES[type(layer)](outputs[i + 1][:n_rows])
                continue
            weight = arrays[i][0]
            if inputs.ndim == 1:
                by_weight = np.zeros_like(weight)
                np.add.at(by_weight.T, inputs, slopes)
            else:
                by_weight = slopes.T @ inputs
            for parameter, gradient in ((layer.weight, by_weight), (layer.bias, slopes.sum(axis=0))):
                if parameter.requires_grad:
                    parameter.grad = th.from_numpy(gradient)
            if i:
                slopes = slopes @ weight

    def parameters(self) -> list[tuple[np.ndarray, ...]]:
        """:return: for each layer its weight and bias, or nothing"""
        if not self.layers:
            return []
        weight: th.Tensor = self.layers[0].weight  # type: ignore[assignment]
        # Views live as long as the tensors stay where they are
        if weight.data_ptr() != self._address or not weight.is_cpu:
            self._address = weight.data_ptr()
            self._arrays = [
                tuple(parameter.detach().cpu().numpy() for parameter in layer.parameters()) for layer in self.layers
            ]
        return self._arrays

    def __getstate__(self) -> dict[str, Any]:
        # A copy has tensors of its own
        return {**self.__dict__, "_arrays": [], "_address": -1}


def sigmoid(values: np.ndarray) -> np.ndarray:
    """:return: the logistic function, which does not overflow and is precise where it is small"""
    return np.exp(-np.logaddexp(0.0, -values))


def clip_grad_norm(parameters: Sequence[nn.Parameter], max_norm: float) -> None:
    """
    What torch's ``clip_grad_norm_`` does, which multiplies all gradients also where nothing is to be clipped, by 1.

    :param parameters: whose gradients to clip
    :param max_norm: the norm that they may have together
    """
    norms = [th.linalg.vector_norm(parameter.grad) for parameter in parameters if parameter.grad is not None]
    # Near the border torch decides
    if norms and not th.linalg.vector_norm(th.stack(norms)) < 0.999 * max_norm:
        nn.utils.clip_grad_norm_(parameters, max_norm)


def _linear(values: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    outputs = weight.T[values] if values.ndim == 1 else np.dot(values, weight.T)
    outputs += bias
    return outputs
