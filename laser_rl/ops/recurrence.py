"""The two recursions over time: backwards, on which every return runs, and forwards, a memory over an unroll that may cross episodes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from laser_rl.ops import checks

WRITTEN_OUT = 32
"""Up to so many rows the compiler fuses the plain recursion into one kernel; beyond, it splits it and compiles for long."""
State = tuple[Tensor, ...]
"""A memory's state: tensors [B, ...]; zeros at the start of an episode."""
Cell = Callable[[Any, State], tuple[Tensor, State]]
"""(input of one row [B, ...], state before it) → (output [B, ...], state after it)."""


def backward_recurrence(addend: Float[Tensor, "T *rest"], factor: Float[Tensor, "T *rest"]) -> Float[Tensor, "T *rest"]:
    """Solve acc_t = addend_t + factor_t · acc_{t+1} with acc_T = 0, for all t at once.

    Two rows in sequence are again one row of the same form: acc_t = (addend_t + factor_t·addend_{t+1}) + (factor_t·factor_{t+1})·acc_{t+2}.
    Doubling the distance k thus needs ⌈log₂ T⌉ rounds of whole-tensor operations instead of T. A factor of 0 cuts exactly: nothing
    behind it is ever divided out again. While torch.compile traces, a short recursion is written out instead: it becomes one
    kernel (docs/adr/0007).

    Args:
        addend: what row t adds.
        factor: with what weight row t lets through what comes after it.

    >>> backward_recurrence(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.5, 0.5]))
    tensor([1.7500, 1.5000, 1.0000])
    """
    if checks.active():
        checks.same_shape(addend=addend, factor=factor)
        checks.floating(addend=addend, factor=factor)
        checks.require(addend.ndim > 0 and addend.shape[0] > 0, "addend has no row; pass at least one step")
    steps = addend.shape[0]
    if torch.compiler.is_compiling() and steps <= WRITTEN_OUT:
        return _written_out(addend, factor)
    reach = 1  # row t of `acc` holds the sum over [t, t + reach)
    acc = addend
    while reach < steps:
        acc = torch.cat([torch.addcmul(acc[:-reach], factor[: steps - reach], acc[reach:]), acc[-reach:]])
        factor = factor[:-reach] * factor[reach:]  # rows whose partner lies behind the end are not needed again
        reach *= 2
    return acc


def _written_out(addend: Tensor, factor: Tensor) -> Tensor:
    acc = torch.zeros_like(addend[0])
    rows = []
    for row in reversed(range(addend.shape[0])):
        acc = torch.addcmul(addend[row], factor[row], acc)
        rows.append(acc)
    return torch.stack(rows[::-1])


class Unrolled(NamedTuple):
    """Outputs at every row, and the state after the last one (the state before the row that would follow)."""

    outputs: Float[Tensor, "T B *output"]
    state: tuple[Tensor, ...]


def unroll(cell: Cell, inputs: Shaped[Tensor, "T B *input"], is_first: Bool[Tensor, "T B"], state: State) -> Unrolled:
    """Apply `cell` row by row; where a row is the first of its episode, the state before it is zero.

    The reset is inside the loop, for each row and sequence: an unroll that crosses the end of an episode must not carry its memory over.

    >>> count = lambda x, state: (state[0] + x, (state[0] + x,))
    >>> is_first = torch.tensor([[False], [False], [True], [False]])
    >>> unroll(count, torch.ones(4, 1), is_first, (torch.tensor([5.0]),)).outputs.squeeze(1)
    tensor([6., 7., 1., 2.])
    """
    if checks.active():
        checks.boolean(is_first=is_first)
        checks.dimensions(2, is_first=is_first)
        checks.require(
            inputs.shape[:2] == is_first.shape,
            f"inputs have rows {tuple(inputs.shape[:2])}, is_first {tuple(is_first.shape)}; expected the same [T, B]",
        )
        checks.require(
            all(part.shape[0] == is_first.shape[1] for part in state),
            f"state has batches {[part.shape[0] for part in state]}, expected {is_first.shape[1]} like is_first",
        )
    outputs = []
    for row, first in zip(inputs.unbind(0), is_first.unbind(0), strict=True):
        output, state = cell(row, tuple(_reset(part, first) for part in state))
        outputs.append(output)
    return Unrolled(torch.stack(outputs), state)


def _reset(part: Tensor, first: Tensor) -> Tensor:
    first = first.reshape(-1, *[1] * (part.ndim - 1))
    return torch.where(first, torch.zeros_like(part), part)
