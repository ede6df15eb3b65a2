"""Optimisers over flat parameters: a gradient in, a step taken in place. Their memory can be moved beside that of other members."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from laser_rl.config import OptimiserConfig
from laser_rl.ops import adam, rmsprop

Rate = float | Tensor  # a number, or one a row [K, 1]


class Optimiser(Protocol):
    """Keeps its state in `state`: tensors [P], or [K, P] for the rows of K members."""

    state: dict[str, Tensor]

    def step(self, value: Tensor, gradient: Tensor, learning_rate: Rate) -> None:
        """Move `value` in place."""

    def step_where(self, taken: Tensor, value: Tensor, gradient: Tensor, learning_rate: Tensor) -> None:
        """The same, without a look from the host: nothing moves where the device says that the step is not `taken`."""


class RMSProp:
    """TensorFlow 1's, from `ops.rmsprop`."""

    def __init__(self, value: Tensor, *, decay: float, momentum: float, epsilon: float) -> None:
        self._decay, self._momentum, self._epsilon = decay, momentum, epsilon
        begin = rmsprop.initial([value])
        self.state = {"mean_square": begin.mean_square[0], "momentum": begin.momentum[0]}

    def step(self, value: Tensor, gradient: Tensor, learning_rate: Rate) -> None:
        """One step of `ops.rmsprop.update`."""
        step = rmsprop.update(
            [gradient],
            rmsprop.RmsPropState((self.state["mean_square"],), (self.state["momentum"],)),
            learning_rate=learning_rate,
            decay=self._decay,
            momentum=self._momentum,
            epsilon=self._epsilon,
        )
        value.sub_(step.decrements[0])
        self.state["mean_square"].copy_(step.state.mean_square[0])
        self.state["momentum"].copy_(step.state.momentum[0])

    def step_where(self, taken: Tensor, value: Tensor, gradient: Tensor, learning_rate: Tensor) -> None:
        """One step of `ops.rmsprop.update_where`."""
        rmsprop.update_where(
            taken,
            value,
            gradient,
            rmsprop.RmsPropState((self.state["mean_square"],), (self.state["momentum"],)),
            learning_rate=learning_rate,
            decay=self._decay,
            momentum=self._momentum,
            epsilon=self._epsilon,
        )


class Adam:
    """From `ops.adam`."""

    def __init__(self, value: Tensor, *, epsilon: float) -> None:
        self._epsilon = epsilon
        begin = adam.initial(value)
        self.state = {"exp_avg": begin.mean, "exp_avg_sq": begin.square, "step": begin.steps}

    def step(self, value: Tensor, gradient: Tensor, learning_rate: Rate) -> None:
        """One step of `ops.adam.update`."""
        state = adam.AdamState(self.state["exp_avg"], self.state["exp_avg_sq"], self.state["step"])
        step = adam.update(gradient, state, learning_rate=learning_rate, epsilon=self._epsilon)
        value.sub_(step.decrement)
        for kept, new in zip(state, step.state, strict=True):
            kept.copy_(new)

    def step_where(self, taken: Tensor, value: Tensor, gradient: Tensor, learning_rate: Tensor) -> None:
        """One step of `ops.adam.update_where`."""
        state = adam.AdamState(self.state["exp_avg"], self.state["exp_avg_sq"], self.state["step"])
        adam.update_where(taken, value, gradient, state, learning_rate=learning_rate, epsilon=self._epsilon)


def build_optimiser(value: Tensor, config: OptimiserConfig) -> Optimiser:
    """The optimiser that a configuration names, for parameters [P] or [K, P].

    >>> import torch
    >>> sorted(build_optimiser(torch.zeros(3), OptimiserConfig(kind="adam")).state)
    ['exp_avg', 'exp_avg_sq', 'step']
    """
    if config.kind == "adam":
        return Adam(value, epsilon=config.added)
    return RMSProp(value, decay=config.decay, momentum=config.momentum, epsilon=config.added)


def load_state(optimiser: Optimiser, state: Mapping[str, Tensor]) -> None:
    """Go on exactly there; memory stays where it is."""
    for name, tensor in optimiser.state.items():
        tensor.copy_(state[name].reshape(tensor.shape))


def move_state(optimiser: Optimiser, rows: Mapping[str, Tensor]) -> None:
    """Live in other memory from now on; the values come along."""
    for name, tensor in optimiser.state.items():
        rows[name].copy_(tensor)
        optimiser.state[name] = rows[name]
