"""The one recursion over time on which every return of this project runs."""

import torch
from jaxtyping import Float
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
