"""RMSProp as TensorFlow 1 computes it, which the published learning rates assume.

Two differences from torch.optim.RMSprop: ε stands inside the root, and the mean square starts at 1 instead of 0. At
ε = 0.1 they decide the size of the step. The learning rate enters the momentum, so a schedule does not rescale steps
already taken.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class RmsPropState(NamedTuple):
    """Tensors like the parameters."""

    mean_square: Float[Tensor, "*parameters"]
    momentum: Float[Tensor, "*parameters"]


def initial(parameters: Float[Tensor, "*parameters"]) -> RmsPropState:
    """The state before the first step: mean squares of 1, no momentum."""
    return RmsPropState(torch.ones_like(parameters), torch.zeros_like(parameters))


def update(
    value: Float[Tensor, "*parameters"],
    gradient: Float[Tensor, "*parameters"],
    state: RmsPropState,
    taken: Bool[Tensor, "*#parameters"],
    *,
    learning_rate: Float[Tensor, "*#parameters"],
    decay: float = 0.99,
    momentum: float = 0.0,
    epsilon: float = 0.01,
) -> None:
    """One step in place: ms ← decay·ms + (1 − decay)·g², mom ← momentum·mom + rate·g/√(ms + ε), value ← value − mom.

    Where the device says that it is not `taken`, nothing changes, whatever the gradient. `taken` and `learning_rate` are one number, or one
    for each member's row. A step that is not taken is one with gradient 0 and factors 1: the mask costs one pass over the gradient, not
    one over each result. In all 26 vectors are read or written (30 with momentum), none of them allocated but two.

    >>> value, state = torch.zeros(1), initial(torch.zeros(1))
    >>> for gradient in (torch.tensor([torch.nan]), torch.tensor([2.0])):
    ...     taken = gradient.isfinite().all()
    ...     update(value, gradient, state, taken, learning_rate=torch.tensor(0.1), decay=0.5, epsilon=1.5)
    >>> value
    tensor([-0.1000])
    """
    mean_square, velocity = state
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
