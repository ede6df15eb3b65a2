"""Optimisers over flat parameters: a gradient vector in, a step taken in place."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from laser_rl.agent.parameters import FlatParameters
from laser_rl.config import OptimiserConfig
from laser_rl.ops import rmsprop


class Optimiser(Protocol):
    """Takes the gradient that stands in the flat parameters."""

    def step(self, learning_rate: float) -> None:
        """Move the parameters."""

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors by name."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on exactly there."""


class RMSProp:
    """TensorFlow 1's, from `ops.rmsprop`."""

    def __init__(self, flat: FlatParameters, *, decay: float, momentum: float, epsilon: float) -> None:
        self._flat = flat
        self._decay, self._momentum, self._epsilon = decay, momentum, epsilon
        self._state = rmsprop.initial([flat.value])

    def step(self, learning_rate: float) -> None:
        """One step of `ops.rmsprop.update`."""
        step = rmsprop.update(
            [self._flat.gradient],
            self._state,
            learning_rate=learning_rate,
            decay=self._decay,
            momentum=self._momentum,
            epsilon=self._epsilon,
        )
        self._flat.value.sub_(step.decrements[0])
        self._state = step.state

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors by name."""
        return {"mean_square": self._state.mean_square[0], "momentum": self._state.momentum[0]}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on exactly there."""
        device = self._flat.value.device
        self._state = rmsprop.State((state["mean_square"].to(device),), (state["momentum"].to(device),))


class Adam:
    """torch's, on one vector."""

    def __init__(self, flat: FlatParameters, *, epsilon: float) -> None:
        self._parameter = nn.Parameter(flat.value)
        self._parameter.grad = flat.gradient
        self._adam = torch.optim.Adam([self._parameter], eps=epsilon, foreach=False)

    def step(self, learning_rate: float) -> None:
        """One step of Adam."""
        self._adam.param_groups[0]["lr"] = learning_rate
        self._adam.step()

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors by name; none before the first step."""
        return dict(self._adam.state[self._parameter])

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on exactly there."""
        device = self._parameter.device
        # Adam counts its steps on the CPU; moving the counter would change how it is used.
        loaded = {name: tensor.clone() if name == "step" else tensor.to(device) for name, tensor in state.items()}
        if loaded:
            self._adam.state[self._parameter] = loaded


def build_optimiser(flat: FlatParameters, config: OptimiserConfig) -> Optimiser:
    """The optimiser that a configuration names."""
    if config.kind == "adam":
        return Adam(flat, epsilon=config.added)
    return RMSProp(flat, decay=config.decay, momentum=config.momentum, epsilon=config.added)
