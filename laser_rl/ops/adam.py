"""Adam (Kingma & Ba 2015) for any number of members side by side: a row each, with its own learning rate and its own count of steps.

torch.optim.Adam has one rate and one count for a whole tensor; members of a sweep differ in the first, and in the second after one has
copied another.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class AdamState(NamedTuple):
    """First and second moments, and how many steps they have seen."""

    exp_avg: Float[Tensor, "*members P"]
    exp_avg_sq: Float[Tensor, "*members P"]
    step: Float[Tensor, "*members 1"]


def initial(parameters: Float[Tensor, "*members P"]) -> AdamState:
    """The state before the first step."""
    steps = parameters.new_zeros(*parameters.shape[:-1], 1)
    return AdamState(torch.zeros_like(parameters), torch.zeros_like(parameters), steps)


def update(
    value: Float[Tensor, "*members P"],
    gradient: Float[Tensor, "*members P"],
    state: AdamState,
    taken: Bool[Tensor, "*#members_and_1"] | None,
    *,
    learning_rate: Float[Tensor, "*#members_and_1"],
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> None:
    """One step in place: m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², value ← value − rate·(m/(1−β₁ⁿ)) / (√(v/(1−β₂ⁿ)) + ε).

    Where the device says that it is not `taken`, nothing changes, whatever the gradient: as in `rmsprop.update` such a step has gradient 0,
    weights that keep the moments, and rate 0. `taken` and `learning_rate` are one number, or one for each member's row. `taken` is None
    where the host knows that the step is taken: half of the operations are masks.

    >>> value, state = torch.zeros(1), initial(torch.zeros(1))
    >>> for gradient in (torch.tensor([torch.inf]), torch.tensor([2.0])):
    ...     update(value, gradient, state, gradient.isfinite().all(), learning_rate=torch.tensor(0.1))
    >>> value
    tensor([-0.1000])
    """
    mean, square, steps = state

    def factor(number: float, otherwise: float) -> Any:
        return number if taken is None else torch.where(taken, value.new_full((), number), otherwise)

    with torch.no_grad():
        step = gradient if taken is None else torch.where(taken, gradient, 0.0)  # a product with 0 would leave NaN
        mean.lerp_(step, factor(1 - beta1, 0.0))
        square.mul_(factor(beta2, 1.0)).addcmul_(step, step, value=1 - beta2)
        # Clamped: before the first step that is taken it is 0, and 0/0 would follow.
        count = steps.add_(1) if taken is None else steps.add_(taken).clamp(min=1)
        # `rsub` and `pow`: the operators between a number and a tensor take a way through Python.
        bias = torch.rsub(torch.pow(beta1, count), 1)
        # torch divides one number by a tensor as a product with the reciprocal; rates of members' rows are divided by it.
        rate = learning_rate / bias if learning_rate.ndim else bias.reciprocal() * learning_rate
        rate = rate if taken is None else torch.where(taken, rate, 0.0)
        spread = square.sqrt().div_(torch.rsub(torch.pow(beta2, count), 1).sqrt()).add_(epsilon)
        value.sub_(torch.div(mean, spread, out=spread).mul_(rate))
