"""Running a recurrent memory over an unroll that may cross episodes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from laser_rl.ops import checks

State = tuple[Tensor, ...]
"""A memory's state: tensors [B, ...]; zeros at the start of an episode."""
Cell = Callable[[Any, State], tuple[Tensor, State]]
"""(input of one row [B, ...], state before it) → (output [B, ...], state after it)."""


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
