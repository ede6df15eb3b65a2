"""The first convolution of a picture's bytes together with the max-pooling behind it, in Triton.

The convolution's own output, at full resolution, would be the largest tensor of the whole step; here it lives in registers only. Forward:
each pooled position computes the nine convolutions of its window and keeps the largest. Backward: the bytes have no gradient, so the
gradients of weights and bias are all there is: each input position gathers its gradient from the windows that chose it
(see `pool`), and its patch times that gradient is summed. One more column of ones in the patch makes that sum give the bias's gradient.

Patches are [positions, K] with K = 9 · planes numbers in the order (row, column, plane), padded to a power of 2.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from laser_rl.kernels.pool import window
from laser_rl.kernels.shapes import pooled, power_of_2

PROGRAMS = 132 * 2  # that sum weight gradients


@triton.jit
def _patch(
    pictures, picture, h, w, valid, k,
    H: tl.constexpr, W: tl.constexpr, PLANES: tl.constexpr, ONES: tl.constexpr,
):  # fmt: skip
    """Bytes around (h, w) of some positions, [positions, K]; 1 in the column after them if `ONES`."""
    tap, plane = k // PLANES, k % PLANES
    hh, ww = h[:, None] + (tap // 3 - 1)[None, :], w[:, None] + (tap % 3 - 1)[None, :]
    inside = valid[:, None] & (hh >= 0) & (hh < H) & (ww >= 0) & (ww < W) & (tap < 9)[None, :]
    at = ((picture[:, None] * H + hh) * W + ww) * PLANES + plane[None, :]
    v = tl.load(pictures + at, mask=inside, other=0).to(tl.float32)  # bytes are exact in bfloat16 too
    if ONES:
        v = tl.where((k == 9 * PLANES)[None, :], 1.0, v)
    return v


@triton.jit
def _forward(
    pictures, weight, bias, out, rectified, index, positions,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, PLANES: tl.constexpr,
    C: tl.constexpr, CP: tl.constexpr, KP: tl.constexpr, BLOCK: tl.constexpr, RECTIFIED: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c, k = tl.arange(0, CP), tl.arange(0, KP)
    valid = position < positions
    column, row, picture = position % WO, (position // WO) % HO, (position // (WO * HO)).to(tl.int64)
    w9 = tl.load(weight + k[:, None] * CP + c[None, :])
    best = tl.full((BLOCK, CP), -float("inf"), tl.float32)
    which = tl.zeros((BLOCK, CP), tl.int32)
    for window_at in tl.static_range(9):
        h, w = 2 * row - 1 + window_at // 3, 2 * column - 1 + window_at % 3
        inside = valid & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        v = tl.dot(_patch(pictures, picture, h, w, inside, k, H, W, PLANES, False).to(w9.dtype), w9)
        v = tl.where(inside[:, None], v, -float("inf"))
        take = (v > best) | (v != v)
        best = tl.where(take, v, best)
        which = tl.where(take, window_at, which)
    best += tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
    to = (position.to(tl.int64) * C)[:, None] + c[None, :]
    kept = valid[:, None] & (c < C)[None, :]
    tl.store(out + to, best, mask=kept)
    tl.store(index + to, which.to(tl.uint8), mask=kept)
    if RECTIFIED:
        tl.store(rectified + to, tl.where(best < 0, 0.0, best), mask=kept)


@triton.jit
def _weight_gradient(
    pictures, gradient, index, partial, tiles,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, PLANES: tl.constexpr,
    C: tl.constexpr, CP: tl.constexpr, KP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    c, k = tl.arange(0, CP), tl.arange(0, KP)
    total = tl.zeros((KP, CP), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(tiles, BLOCK), tl.num_programs(0)):
        tile = block * BLOCK + tl.arange(0, BLOCK)
        valid = tile < tiles
        j, i, picture = tile % WO, (tile // WO) % HO, (tile // (WO * HO)).to(tl.int64)
        g00, k00 = window(gradient, index, picture, i, j, valid, c, HO, WO, C)
        g01, k01 = window(gradient, index, picture, i, j + 1, valid, c, HO, WO, C)
        g10, k10 = window(gradient, index, picture, i + 1, j, valid, c, HO, WO, C)
        g11, k11 = window(gradient, index, picture, i + 1, j + 1, valid, c, HO, WO, C)
        right, below = 2 * j + 1 < W, 2 * i + 1 < H
        g = tl.where(k00 == 4, g00, 0.0)
        p = _patch(pictures, picture, 2 * i, 2 * j, valid, k, H, W, PLANES, True)
        total = tl.dot(tl.trans(p.to(gradient.dtype.element_ty)), g.to(gradient.dtype.element_ty), total)
        g = tl.where(k00 == 5, g00, 0.0) + tl.where(k01 == 3, g01, 0.0)
        p = _patch(pictures, picture, 2 * i, 2 * j + 1, valid & right, k, H, W, PLANES, True)
        total = tl.dot(tl.trans(p.to(gradient.dtype.element_ty)), g.to(gradient.dtype.element_ty), total)
        g = tl.where(k00 == 7, g00, 0.0) + tl.where(k10 == 1, g10, 0.0)
        p = _patch(pictures, picture, 2 * i + 1, 2 * j, valid & below, k, H, W, PLANES, True)
        total = tl.dot(tl.trans(p.to(gradient.dtype.element_ty)), g.to(gradient.dtype.element_ty), total)
        g = tl.where(k00 == 8, g00, 0.0) + tl.where(k01 == 6, g01, 0.0)
        g += tl.where(k10 == 2, g10, 0.0) + tl.where(k11 == 0, g11, 0.0)
        p = _patch(pictures, picture, 2 * i + 1, 2 * j + 1, valid & right & below, k, H, W, PLANES, True)
        total = tl.dot(tl.trans(p.to(gradient.dtype.element_ty)), g.to(gradient.dtype.element_ty), total)
    tl.store(partial + tl.program_id(0) * KP * CP + k[:, None] * CP + c[None, :], total)


def first(
    pictures: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: float,
    *,
    rectified: bool,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """As `pool` of a convolution of scale · bytes.

    Args:
        pictures: [N, H, W, planes], bytes.
        weight: [C, planes, 3, 3], float32.
        bias: [C].
        scale: what a byte is multiplied by.
        rectified: also give the rectified result.
        dtype: of products and results.
    """
    n, height, width, planes = pictures.shape
    channels, (rows, columns) = len(weight), pooled(height, width)
    wide, deep = max(16, power_of_2(channels)), max(16, power_of_2(9 * planes + 1))
    flat = torch.zeros(deep, wide, dtype=dtype, device=weight.device)
    flat[: 9 * planes, :channels] = (weight * scale).permute(2, 3, 1, 0).reshape(9 * planes, channels)
    out = torch.empty(n, rows, columns, channels, dtype=dtype, device=weight.device)
    positive = torch.empty_like(out) if rectified else None
    index = torch.empty(out.shape, dtype=torch.uint8, device=weight.device)
    block, warps = FORWARD[min(wide, 64)]
    _forward[(triton.cdiv(n * rows * columns, block),)](
        pictures, flat, bias, out, out if positive is None else positive, index, n * rows * columns,
        height, width, rows, columns, planes, channels, wide, deep, block, rectified, num_warps=warps,
    )  # fmt: skip
    return out, positive, index


def first_gradient(pictures: Tensor, gradient: Tensor, index: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Of the weight [C, planes, 3, 3] and of the bias, float32, from that of the pooled output."""
    n, height, width, planes = pictures.shape
    _, rows, columns, channels = gradient.shape
    wide, deep = max(16, power_of_2(channels)), max(16, power_of_2(9 * planes + 1))
    block, warps = BACKWARD[min(wide, 64)]
    tiles = n * rows * columns
    programs = min(PROGRAMS, triton.cdiv(tiles, block))
    partial = torch.empty(programs, deep, wide, dtype=torch.float32, device=gradient.device)
    _weight_gradient[(programs,)](
        pictures, gradient, index, partial, tiles,
        height, width, rows, columns, planes, channels, wide, deep, block, num_warps=warps,
    )  # fmt: skip
    total = partial.sum(0)[:, :channels]
    weight = total[: 9 * planes].view(3, 3, planes, channels).permute(3, 2, 0, 1) * scale
    return weight, total[9 * planes]


# Positions of a program and its warps, by channels; measured on an H200 (benchmarks/kernels.md).
FORWARD = {16: (128, 4), 32: (128, 4), 64: (128, 4)}
BACKWARD = {16: (64, 4), 32: (64, 4), 64: (64, 4)}
