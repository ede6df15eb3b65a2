"""3×3 convolutions of narrow pictures (16 to 32 channels) with what stands around them, in Triton; pictures are [N, H, W, C].

With so few channels a convolution is limited by memory, and a library's kernels, made for many channels, reach a fraction of it. Here one
pass reads the input, rectifies it on the way in, and adds bias, residual and mask on the way out: a residual block has no other passes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 132 * 2  # that sum weight gradients, for each row of the kernel


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
    """One row of the 3×3 kernel: patches of three columns, and a fourth that is 1 once, whose gradient is the bias's."""
    co, k = tl.arange(0, CO), tl.arange(0, 4 * CI)
    dh = tl.program_id(1) - 1
    tap = k // CI
    ones = (k == 3 * CI)[None, :]
    total = tl.zeros((4 * CI, CO), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(positions, BLOCK), tl.num_programs(0)):
        position = block * BLOCK + tl.arange(0, BLOCK)
        valid = position < positions
        column, row = position % W, (position // W) % H
        rows = valid & (row + dh >= 0) & (row + dh < H)
        near = column[:, None] + (tap - 1)[None, :]
        inside = rows[:, None] & (near >= 0) & (near < W) & (tap < 3)[None, :]
        at = ((position.to(tl.int64) + dh * W - 1) * CI)[:, None] + k[None, :]  # column w + tap - 1, channel k mod CI
        v = tl.load(x + at, mask=inside, other=0.0)
        if RECTIFY:
            v = tl.where(v < 0, 0.0, v)
        v = tl.where(ones, 1.0, v).to(x.dtype.element_ty)
        g = tl.load(
            gradient + (position.to(tl.int64) * CO)[:, None] + co[None, :], mask=valid[:, None], other=0.0
        )
        total = tl.dot(tl.trans(v), g, total)
    to = (tl.program_id(0) * 3 + tl.program_id(1)) * 4 * CI
    tl.store(partial + (to + k[:, None]) * CO + co[None, :], total)


def taps(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight [O, I, 3, 3] as the kernel reads it, [9, I, O]."""
    return weight.permute(2, 3, 1, 0).reshape(9, weight.shape[1], weight.shape[0]).to(dtype).contiguous()


def taps_back(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The same for the gradient of the input: the kernel turned round, [9, O, I]."""
    return weight.flip(2, 3).permute(2, 3, 0, 1).reshape(9, *weight.shape[:2]).to(dtype).contiguous()


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
    """residual + (positive > 0) · f(weight ∗ g(x) + bias), where f and g rectify if asked to.

    Args:
        x: [N, H, W, I].
        weight: [9, I, O], of `taps` or `taps_back`.
        bias: [O].
        rectify: the input.
        rectified: the output, before mask and residual.
        positive: [N, H, W, O]; where it is not above 0 the convolution counts nothing.
        residual: [N, H, W, O].
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
    """Of the weight [O, I, 3, 3] and of the bias, float32."""
    n, height, width, inputs = x.shape
    outputs, positions = gradient.shape[-1], n * height * width
    block, warps = BACKWARD[inputs, outputs]
    programs = min(PROGRAMS, triton.cdiv(positions, block))
    partial = torch.empty(programs, 3, 4, inputs, outputs, dtype=torch.float32, device=x.device)
    _weight_gradient[(programs, 3)](
        x, gradient, partial, positions, height, width, inputs, outputs, block, rectify, num_warps=warps
    )
    total = partial.sum(0)
    return total[:, :3].permute(3, 2, 0, 1), total[0, 3, 0]


# Positions of a program and its warps, by channels in and out; measured on an H200 (benchmarks/kernels.md).
FORWARD = {(16, 16): (128, 4), (16, 32): (128, 4), (32, 16): (128, 4), (32, 32): (128, 4)}
BACKWARD = {(16, 16): (128, 4), (16, 32): (128, 4), (32, 32): (128, 4)}
