"""RMSProp as TensorFlow 1 computes it, which the published learning rates assume.

Two differences from torch.optim.RMSprop: ε stands inside the root, and the mean square starts at 1 instead of 0. At
ε = 0.1 they decide the size of the step. The learning rate enters the momentum, so a schedule does not rescale steps
already taken.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laser_rl.ops import checks


class RmsPropState(NamedTuple):
    """One tensor a parameter, in the order of the parameters."""

    mean_square: tuple[Tensor, ...]
    momentum: tuple[Tensor, ...]


class RmsPropStep(NamedTuple):
    """What to subtract from each parameter, and the state after it."""

    decrements: tuple[Tensor, ...]
    state: RmsPropState


def initial(parameters: Sequence[Tensor]) -> RmsPropState:
    """The state before the first step: mean squares of 1, no momentum.

    >>> initial([torch.zeros(2)]).mean_square
    (tensor([1., 1.]),)
    """
    return RmsPropState(tuple(torch.ones_like(p) for p in parameters), tuple(torch.zeros_like(p) for p in parameters))


def update(
    gradients: Sequence[Tensor],
    state: RmsPropState,
    *,
    learning_rate: float | Float[Tensor, ""] | Float[Tensor, "members 1"],
    decay: float = 0.99,
    momentum: float = 0.0,
    epsilon: float = 0.01,
) -> RmsPropStep:
    """One step: ms ← decay·ms + (1 − decay)·g², mom ← momentum·mom + rate·g/√(ms + ε), parameter ← parameter − mom.

    >>> update([torch.tensor([2.0])], initial([torch.zeros(1)]), learning_rate=0.1, decay=0.5, epsilon=1.5).decrements
    (tensor([0.1000]),)
    """
    if checks.active():
        lowest = learning_rate.min() if isinstance(learning_rate, Tensor) else learning_rate
        checks.positive(learning_rate=lowest, epsilon=epsilon)
        checks.share(decay=decay, momentum=momentum)
        checks.require(
            len(gradients) == len(state.mean_square),
            f"{len(gradients)} gradients for a state of {len(state.mean_square)} parameters; make the state from the same parameters",
        )
        for gradient, mean_square in zip(gradients, state.mean_square, strict=True):
            checks.same_shape(mean_square=mean_square, gradient=gradient)
            checks.finite(gradient=gradient)
    with torch.no_grad():
        mean_squares = tuple(
            decay * ms + (1 - decay) * g.square() for ms, g in zip(state.mean_square, gradients, strict=True)
        )
        decrements = tuple(
            momentum * mom + learning_rate * g / (ms + epsilon).sqrt()
            for mom, g, ms in zip(state.momentum, gradients, mean_squares, strict=True)
        )
    return RmsPropStep(decrements, RmsPropState(mean_squares, decrements))


def update_where(
    taken: Bool[Tensor, ""],
    value: Float[Tensor, "*members P"],
    gradient: Float[Tensor, "*members P"],
    state: RmsPropState,
    *,
    learning_rate: Float[Tensor, ""],
    decay: float = 0.99,
    momentum: float = 0.0,
    epsilon: float = 0.01,
) -> None:
    """`update` of one parameter in place, bit for bit, where the device says that it is taken; else nothing changes, whatever the gradient.

    A step that is not taken is one with gradient 0 and factors 1: the mask costs one pass over the gradient, not one over each result. In
    all 26 vectors are read or written (30 with momentum), none of them allocated but two.

    >>> value, state = torch.zeros(1), initial([torch.zeros(1)])
    >>> for gradient in (torch.nan, 2.0):
    ...     gradient = torch.tensor([gradient])
    ...     update_where(gradient.isfinite().all(), value, gradient, state, learning_rate=torch.tensor(0.1), decay=0.5, epsilon=1.5)
    >>> value
    tensor([-0.1000])
    """
    (mean_square,), (velocity,) = state
    with torch.no_grad():
        step = torch.where(taken, gradient, 0.0)  # a product with 0 would leave NaN
        scratch = step.square().mul_(1 - decay)
        mean_square.mul_(_factor(taken, decay, value)).add_(scratch)
        torch.add(mean_square, epsilon, out=scratch).sqrt_()
        step.mul_(learning_rate).div_(scratch)
        if momentum == 0.0:
            torch.where(taken, step, velocity, out=velocity)
            value.sub_(step)
        else:
            velocity.mul_(_factor(taken, momentum, value)).add_(step)
            value.addcmul_(velocity, taken.to(value.dtype), value=-1)


def _factor(taken: Tensor, factor: float, like: Tensor) -> Tensor:
    """A number in memory of the device; one copied from the host would have to be waited for."""
    return torch.where(taken, like.new_full((), factor), 1.0)


def linear_rate(start: float, end: float, *, step: int, total: int) -> float:
    """A learning rate that goes from `start` to `end` over `total` steps and stays there.

    >>> linear_rate(6e-4, 0.0, step=50, total=200)
    0.00045
    """
    if checks.active():
        checks.require(
            total > 0 and step >= 0, f"step {step} of {total}: expected a step of at least 0 and a total of at least 1"
        )
    done = min(step / total, 1.0)
    return start + (end - start) * done
