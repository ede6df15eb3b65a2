"""The two recursions over time: backwards, on which every return runs, and forwards, a memory over an unroll that may cross episodes."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from laser_rl.ops import checks

WRITTEN_OUT = 32
"""Up to so many rows the compiler fuses the plain recursion into one kernel; beyond, it splits it and compiles for long."""


def backward_recurrence(addend: Float[Tensor, "T *rest"], factor: Float[Tensor, "T *rest"]) -> Float[Tensor, "T *rest"]:
    """Solve acc_t = addend_t + factor_t · acc_{t+1} with acc_T = 0, for all t at once.

    Two rows in sequence are again one row of the same form: acc_t = (addend_t + factor_t·addend_{t+1}) + (factor_t·factor_{t+1})·acc_{t+2}.
    Doubling the distance k thus needs ⌈log₂ T⌉ rounds of whole-tensor operations instead of T. A factor of 0 cuts exactly: nothing
    behind it is ever divided out again. While torch.compile traces, a short recursion is written out instead: it becomes one
    kernel (docs/adr/0007).

    >>> backward_recurrence(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.5, 0.5]))
    tensor([1.7500, 1.5000, 1.0000])
    """
    steps = addend.shape[0]
    if torch.compiler.is_compiling() and steps <= WRITTEN_OUT:
        return _written_out(addend, factor)
    reach = 1  # row t of `acc` holds the sum over [t, t + reach)
    acc = addend
    while reach < steps:
        acc = torch.cat([torch.addcmul(acc[:-reach], factor[: steps - reach], acc[reach:]), acc[-reach:]])
        if 2 * reach < steps:  # rows whose partner lies behind the end are not needed again
            factor = factor[:-reach] * factor[reach:]
        reach *= 2
    return acc


def _written_out(addend: Tensor, factor: Tensor) -> Tensor:
    acc = torch.zeros_like(addend[0])
    rows = []
    for row in reversed(range(addend.shape[0])):
        acc = torch.addcmul(addend[row], factor[row], acc)
        rows.append(acc)
    return torch.stack(rows[::-1])


def unroll(
    cell: Callable[[Tensor, Tensor], Tensor],
    inputs: Shaped[Tensor, "T B *input"],
    is_first: Bool[Tensor, "T B"],
    state: Float[Tensor, "B *state"],
) -> Float[Tensor, "T B *state"]:
    """A memory's state after every row: `cell(row, state before it)`, where the state before the first row of an episode is zero.

    The reset is inside the loop, for each row and sequence: an unroll that crosses the end of an episode must not carry its memory over.

    >>> is_first = torch.tensor([[False], [False], [True], [False]])
    >>> unroll(lambda row, count: count + row, torch.ones(4, 1), is_first, torch.tensor([5.0])).squeeze(1)
    tensor([6., 7., 1., 2.])
    """
    if checks.active():
        checks.boolean(is_first=is_first)
        rows = tuple(is_first.shape)
        checks.require(
            inputs.shape[:2] == rows and state.shape[:1] == rows[1:],
            f"inputs {tuple(inputs.shape)} and state {tuple(state.shape)} do not fit is_first {rows}; expected [T, B, ...] and [B, ...]",
        )
    states = []
    for row, first in zip(inputs.unbind(0), is_first.unbind(0), strict=True):
        first_of_each = first.reshape(-1, *[1] * (state.ndim - 1))
        state = cell(row, torch.where(first_of_each, torch.zeros_like(state), state))
        states.append(state)
    return torch.stack(states)
