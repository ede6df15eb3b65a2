"""Adam (Kingma & Ba 2015) for any number of members side by side: a row each, with its own learning rate and its own count of steps.

torch.optim.Adam has one rate and one count for a whole tensor; members of a sweep differ in the first, and in the second after one has
copied another.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laser_rl.ops import checks


class AdamState(NamedTuple):
    """First and second moments, and how many steps they have seen."""

    mean: Float[Tensor, "*members P"]
    square: Float[Tensor, "*members P"]
    steps: Float[Tensor, "*members 1"]


class AdamStep(NamedTuple):
    """What to subtract from the parameters, and the state after it."""

    decrement: Float[Tensor, "*members P"]
    state: AdamState


def initial(parameters: Float[Tensor, "*members P"]) -> AdamState:
    """The state before the first step.

    >>> initial(torch.zeros(2, 3)).steps.shape
    torch.Size([2, 1])
    """
    return AdamState(
        torch.zeros_like(parameters), torch.zeros_like(parameters), parameters.new_zeros(*parameters.shape[:-1], 1)
    )


def update(
    gradient: Float[Tensor, "*members P"],
    state: AdamState,
    *,
    learning_rate: float | Float[Tensor, "*members 1"],
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> AdamStep:
    """One step: m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², parameter ← parameter − rate·(m/(1−β₁ⁿ)) / (√(v/(1−β₂ⁿ)) + ε).

    >>> step = update(torch.tensor([2.0]), initial(torch.zeros(1)), learning_rate=0.1)
    >>> step.decrement, step.state.steps
    (tensor([0.1000]), tensor([1.]))
    """
    if checks.active():
        lowest = learning_rate.min() if isinstance(learning_rate, Tensor) else learning_rate
        checks.positive(learning_rate=lowest, epsilon=epsilon)
        checks.share(beta1=beta1, beta2=beta2)
        checks.same_shape(mean=state.mean, gradient=gradient)
        checks.finite(gradient=gradient)
    with torch.no_grad():
        count = state.steps + 1
        mean = torch.lerp(state.mean, gradient, 1 - beta1)
        square = (state.square * beta2).addcmul_(gradient, gradient, value=1 - beta2)
        rate = learning_rate / (1 - beta1**count)
        spread = square.sqrt().div_((1 - beta2**count).sqrt()).add_(epsilon)
        return AdamStep((mean / spread).mul_(rate), AdamState(mean, square, count))


def update_where(
    taken: Bool[Tensor, ""],
    value: Float[Tensor, "*members P"],
    gradient: Float[Tensor, "*members P"],
    state: AdamState,
    *,
    learning_rate: Float[Tensor, ""],
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> None:
    """`update` in place, bit for bit, where the device says that it is taken; else nothing changes, whatever the gradient.

    As in `rmsprop.update_where` a step that is not taken has gradient 0, weights that keep the moments, and rate 0.

    >>> value, state = torch.zeros(1), initial(torch.zeros(1))
    >>> for gradient in (torch.tensor([torch.inf]), torch.tensor([2.0])):
    ...     update_where(gradient.isfinite().all(), value, gradient, state, learning_rate=torch.tensor(0.1))
    >>> value, state.steps
    (tensor([-0.1000]), tensor([1.]))
    """
    mean, square, steps = state
    with torch.no_grad():
        step = torch.where(taken, gradient, 0.0)  # a product with 0 would leave NaN
        mean.lerp_(step, torch.where(taken, value.new_full((), 1 - beta1), 0.0))
        square.mul_(torch.where(taken, value.new_full((), beta2), 1.0)).addcmul_(step, step, value=1 - beta2)
        steps.add_(taken)
        count = steps.clamp(min=1)  # before the first step that is taken: 0/0
        # `update` divides a number by a tensor, which torch does as a product.
        rate = torch.where(taken, (1 - beta1**count).reciprocal() * learning_rate, 0.0)
        spread = torch.sqrt(square, out=step).div_((1 - beta2**count).sqrt()).add_(epsilon)
        value.sub_(torch.div(mean, spread, out=spread).mul_(rate))
