"""Fused Triton kernels for bias, ReLU and skip connection of a residual block, one pass over memory each; pictures as [..., C].

The backward passes also sum what they write over all positions: that is the gradient of the bias before it. Sums are taken by a fixed
number of programs and added in a fixed order: the same numbers give the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 132 * 8  # that sum: eight for each multiprocessor of an H200; any number is right
NUMBERS = 4096  # of one program's pass


@triton.jit
def _add_bias_rectify(
    x, c, bias, out, rectified, size, C: tl.constexpr, BLOCK: tl.constexpr, SUM: tl.constexpr, RECTIFIED: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    kept = at < size
    v = tl.load(c + at, mask=kept).to(tl.float32) + tl.load(bias + (at % C).to(tl.int32), mask=kept).to(tl.float32)
    v += tl.load(x + at, mask=kept).to(tl.float32)
    if SUM:
        tl.store(out + at, v, mask=kept)
    if RECTIFIED:
        tl.store(rectified + at, tl.where(v < 0, 0.0, v), mask=kept)


@triton.jit
def _masked(
    gradient, positive, other, out, partial, rows,
    C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, MASK: tl.constexpr, OTHER: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, CP)
    total = tl.zeros((BLOCK, CP), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        row = block * BLOCK + tl.arange(0, BLOCK)
        kept = (row < rows)[:, None] & (c < C)[None, :]
        at = (row.to(tl.int64) * C)[:, None] + c[None, :]
        v = tl.load(gradient + at, mask=kept, other=0.0).to(tl.float32)
        if MASK:
            v = tl.where(tl.load(positive + at, mask=kept, other=0.0).to(tl.float32) > 0, v, 0.0)
            if OTHER:
                v += tl.load(other + at, mask=kept, other=0.0).to(tl.float32)
            tl.store(out + at, v, mask=kept)
        total += v
    tl.store(partial + tl.program_id(0) * C + c, tl.sum(total, 0), mask=c < C)


def add_bias_rectify(
    x: Tensor, c: Tensor, bias: Tensor, *, total: bool, rectified: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gives x + c + b, and the same rectified; each only if asked for."""
    out = torch.empty_like(x) if total else None
    positive = torch.empty_like(x) if rectified else None
    _add_bias_rectify[(triton.cdiv(x.numel(), NUMBERS),)](
        x, c, bias, x if out is None else out, x if positive is None else positive, x.numel(),
        x.shape[-1], NUMBERS, total, rectified, num_warps=8,
    )  # fmt: skip
    return out, positive


def masked(gradient: Tensor, positive: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The gradient where `positive` is above 0 (plus `other` everywhere), and its sum over all but the last dimension in float32.

    A gradient that is not finite is kept where it is let through, and only there.
    """
    out = torch.empty_like(gradient)
    return out, _sums(gradient, positive, other, out)


def channel_sums(x: Tensor) -> Tensor:
    """Over all but the last dimension, in float32."""
    return _sums(x, None, None, x)


def _sums(gradient: Tensor, positive: Tensor | None, other: Tensor | None, out: Tensor) -> Tensor:
    channels = gradient.shape[-1]
    rows, wide = gradient.numel() // channels, triton.next_power_of_2(channels)
    block = max(1, NUMBERS // wide)
    programs = min(PROGRAMS, triton.cdiv(rows, block))
    partial = torch.empty(programs, channels, dtype=torch.float32, device=gradient.device)
    _masked[(programs,)](
        gradient, gradient if positive is None else positive, gradient if other is None else other, out, partial, rows,
        channels, wide, block, positive is not None, other is not None, num_warps=8,
    )  # fmt: skip
    return partial.sum(0)
