"""3×3 convolutions of narrow pictures (16 to 32 channels) with what stands around them, in Triton; pictures are [N, H, W, C].

With so few channels a convolution is limited by memory, and a library's kernels, made for many channels, reach a fraction of it. Here one
pass reads the input, rectifies it on the way in, and adds bias, residual and mask on the way out: a residual block has no other passes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 132 * 4  # that sum weight gradients, for each row of the kernel


@triton.jit
def _convolve(
    x, weight, bias, positive, residual, out, positions,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, BLOCK: tl.constexpr,
    RECTIFY: tl.constexpr, BIAS: tl.constexpr, RECTIFIED: tl.constexpr, MASK: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ci, co = tl.arange(0, CI), tl.arange(0, CO)
    valid = position < positions
    column, row = position % W, (position // W) % H
    at = (position.to(tl.int64) * CI)[:, None] + ci[None, :]
    total = tl.zeros((BLOCK, CO), tl.float32)
    for k in tl.static_range(9):
        dh, dw = k // 3 - 1, k % 3 - 1
        inside = valid & (row + dh >= 0) & (row + dh < H) & (column + dw >= 0) & (column + dw < W)
        v = tl.load(x + at + (dh * W + dw) * CI, mask=inside[:, None], other=0.0)
        if RECTIFY:
            v = tl.where(v < 0, 0.0, v).to(x.dtype.element_ty)
        w = tl.load(weight + (k * CI + ci[:, None]) * CO + co[None, :])
        total = tl.dot(v, w, total)
    to = (position.to(tl.int64) * CO)[:, None] + co[None, :]
    kept = valid[:, None] & (co < CO)[None, :]
    if BIAS:
        total += tl.load(bias + co).to(tl.float32)[None, :]
    if RECTIFIED:
        total = tl.where(total < 0, 0.0, total)
    if MASK:
        total = tl.where(tl.load(positive + to, mask=kept, other=0.0).to(tl.float32) > 0, total, 0.0)
    if RESIDUAL:
        total += tl.load(residual + to, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + to, total, mask=kept)


@triton.jit
def _weight_gradient(
    x, gradient, partial, positions,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, BLOCK: tl.constexpr, RECTIFY: tl.constexpr,
):  # fmt: skip
    """One row of the 3×3 kernel, a product for each of its columns; and one with ones, whose result is the bias's gradient."""
    ci, co = tl.arange(0, CI), tl.arange(0, CO)
    dh = tl.program_id(1) - 1
    left, middle, right = (
        tl.zeros((CI, CO), tl.float32), tl.zeros((CI, CO), tl.float32), tl.zeros((CI, CO), tl.float32)
    )  # fmt: skip
    sums = tl.zeros((16, CO), tl.float32)
    ones = tl.full((16, BLOCK), 1.0, x.dtype.element_ty)
    for block in range(tl.program_id(0), tl.cdiv(positions, BLOCK), tl.num_programs(0)):
        position = block * BLOCK + tl.arange(0, BLOCK)
        valid = position < positions
        column, row = position % W, (position // W) % H
        rows = valid & (row + dh >= 0) & (row + dh < H)
        at = ((position.to(tl.int64) + dh * W) * CI)[:, None] + ci[None, :]
        g = tl.load(gradient + (position.to(tl.int64) * CO)[:, None] + co[None, :], mask=valid[:, None], other=0.0)
        v0 = tl.load(x + at - CI, mask=(rows & (column > 0))[:, None], other=0.0)
        v1 = tl.load(x + at, mask=rows[:, None], other=0.0)
        v2 = tl.load(x + at + CI, mask=(rows & (column < W - 1))[:, None], other=0.0)
        if RECTIFY:
            v0 = tl.where(v0 < 0, 0.0, v0).to(x.dtype.element_ty)
            v1 = tl.where(v1 < 0, 0.0, v1).to(x.dtype.element_ty)
            v2 = tl.where(v2 < 0, 0.0, v2).to(x.dtype.element_ty)
        left = tl.dot(tl.trans(v0), g, left)
        middle = tl.dot(tl.trans(v1), g, middle)
        right = tl.dot(tl.trans(v2), g, right)
        if dh == 0:
            sums = tl.dot(ones, g, sums)
    to = partial + (tl.program_id(0) * 3 + tl.program_id(1)) * 4 * CI * CO + ci[:, None] * CO + co[None, :]
    tl.store(to, left)
    tl.store(to + CI * CO, middle)
    tl.store(to + 2 * CI * CO, right)
    if dh == 0:
        first_of_16 = (tl.arange(0, 16) == 0)[:, None] & (co < CO)[None, :]
        at_bias = (tl.program_id(0) * 3 + 1) * 4 * CI * CO + 3 * CI * CO
        tl.store(partial + at_bias + tl.arange(0, 16)[:, None] * CO + co[None, :], sums, mask=first_of_16)


def taps(weight: Tensor) -> Tensor:
    """A weight [O, I, 3, 3] as the kernel reads it, [9, I, O]."""
    return weight.permute(2, 3, 1, 0).reshape(9, weight.shape[1], weight.shape[0]).contiguous()


def taps_back(weight: Tensor) -> Tensor:
    """The same for the gradient of the input: the kernel turned round, [9, O, I]."""
    return weight.flip(2, 3).permute(2, 3, 0, 1).reshape(9, *weight.shape[:2]).contiguous()


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    rectify: bool = False,
    rectified: bool = False,
    positive: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Gives residual + (positive > 0) · f(weight ∗ g(x) + bias); g rectifies if asked to (`rectify`), and so does f (`rectified`).

    Pictures are [N, H, W, channels], the weight [9, I, O] (of `taps`), the bias [O].
    """
    n, height, width, inputs = x.shape
    outputs = weight.shape[2]
    out = x.new_empty(n, height, width, outputs)
    positions = n * height * width
    block, warps = FORWARD[inputs, outputs]
    _convolve[(triton.cdiv(positions, block),)](
        x, weight, x if bias is None else bias, x if positive is None else positive, x if residual is None else residual,
        out, positions, height, width, inputs, outputs, block,
        rectify, bias is not None, rectified, positive is not None, residual is not None, num_warps=warps,
    )  # fmt: skip
    return out


def weight_gradient(x: Tensor, gradient: Tensor, *, rectify: bool = False) -> tuple[Tensor, Tensor]:
    """Gradients of the weight [O, I, 3, 3] and of the bias, float32."""
    n, height, width, inputs = x.shape
    outputs, positions = gradient.shape[-1], n * height * width
    block, warps = BACKWARD[inputs, outputs]
    programs = min(PROGRAMS, triton.cdiv(positions, block))
    partial = torch.empty(programs, 3, 4, inputs, outputs, dtype=torch.float32, device=x.device)
    _weight_gradient[(programs, 3)](
        x, gradient, partial, positions, height, width, inputs, outputs, block, rectify, num_warps=warps
    )
    total = partial.sum(0)  # of the fourth column only one row has been written, and only that is read
    return total[:, :3].permute(3, 2, 0, 1), total[1, 3, 0]


# Positions of a program and its warps, by channels in and out; measured on an H200 (benchmarks/kernels.md).
FORWARD = {(16, 16): (128, 2), (16, 32): (256, 4), (32, 16): (128, 2), (32, 32): (128, 4)}
BACKWARD = {(16, 16): (32, 1), (16, 32): (32, 1), (32, 32): (64, 2)}
