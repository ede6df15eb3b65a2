"""Max-pooling 3×3, stride 2, padding 1, of pictures [N, H, W, C] (channels last), in Triton.

Forward: the bias of the convolution before it is added after the maximum, to a quarter of the numbers (max(x) + b = max(x + b)), and the
rectified result is written in the same pass. Backward: every input position gathers from the at most four windows that it lies in, so each
gradient is written once and nothing is added atomically. Written out, with the window's choice k = 3·row + column:

    (2i,   2j):   k(i,j) = 4
    (2i,   2j+1): k(i,j) = 5, k(i,j+1) = 3
    (2i+1, 2j):   k(i,j) = 7, k(i+1,j) = 1
    (2i+1, 2j+1): k(i,j) = 8, k(i,j+1) = 6, k(i+1,j) = 2, k(i+1,j+1) = 0
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward(
    x, bias, out, rectified, index, positions,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, C: tl.constexpr, CP: tl.constexpr,
    BLOCK: tl.constexpr, RECTIFIED: tl.constexpr, CHOICE: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, CP)
    valid = position < positions
    column, row, picture = position % WO, (position // WO) % HO, (position // (WO * HO)).to(tl.int64)
    real = (c < C)[None, :]
    best = tl.full((BLOCK, CP), -float("inf"), tl.float32)
    which = tl.zeros((BLOCK, CP), tl.int32)
    for k in tl.static_range(9):
        h, w = 2 * row - 1 + k // 3, 2 * column - 1 + k % 3
        inside = valid & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        at = ((picture * H + h) * W + w) * C
        v = tl.load(x + at[:, None] + c[None, :], mask=inside[:, None] & real, other=-float("inf")).to(tl.float32)
        take = (v > best) | (v != v)  # NaN wins, as in torch: a network that has diverged must show it
        best = tl.where(take, v, best)
        which = tl.where(take, k, which)
    best += tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
    to = (position.to(tl.int64) * C)[:, None] + c[None, :]
    kept = valid[:, None] & real
    tl.store(out + to, best, mask=kept)
    if CHOICE:
        tl.store(index + to, which.to(tl.uint8), mask=kept)
    if RECTIFIED:
        tl.store(rectified + to, tl.where(best < 0, 0.0, best), mask=kept)


@triton.jit
def window(
    gradient, index, picture, row, column, valid, c,
    HO: tl.constexpr, WO: tl.constexpr, C: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """Gradient and choice of one window for each of some positions; nothing beyond the border."""
    kept = (valid & (row < HO) & (column < WO))[:, None]
    if CP > C:
        kept = kept & (c < C)[None, :]
    at = (((picture * HO + row) * WO + column) * C)[:, None] + c[None, :]
    return tl.load(gradient + at, mask=kept, other=0.0).to(tl.float32), tl.load(index + at, mask=kept, other=9)


@triton.jit
def _backward(
    gradient, index, out, tiles,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, C: tl.constexpr, CP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, CP)
    valid = tile < tiles
    j, i, picture = tile % WO, (tile // WO) % HO, (tile // (WO * HO)).to(tl.int64)
    g00, k00 = window(gradient, index, picture, i, j, valid, c, HO, WO, C, CP)
    g01, k01 = window(gradient, index, picture, i, j + 1, valid, c, HO, WO, C, CP)
    g10, k10 = window(gradient, index, picture, i + 1, j, valid, c, HO, WO, C, CP)
    g11, k11 = window(gradient, index, picture, i + 1, j + 1, valid, c, HO, WO, C, CP)
    real = (c < C)[None, :]
    at = (((picture * H + 2 * i) * W + 2 * j) * C)[:, None] + c[None, :]
    right, below = 2 * j + 1 < W, 2 * i + 1 < H
    tl.store(out + at, tl.where(k00 == 4, g00, 0.0), mask=valid[:, None] & real)
    tl.store(
        out + at + C,
        tl.where(k00 == 5, g00, 0.0) + tl.where(k01 == 3, g01, 0.0),
        mask=(valid & right)[:, None] & real,
    )
    tl.store(
        out + at + W * C,
        tl.where(k00 == 7, g00, 0.0) + tl.where(k10 == 1, g10, 0.0),
        mask=(valid & below)[:, None] & real,
    )
    tl.store(
        out + at + (W + 1) * C,
        tl.where(k00 == 8, g00, 0.0)
        + tl.where(k01 == 6, g01, 0.0)
        + tl.where(k10 == 2, g10, 0.0)
        + tl.where(k11 == 0, g11, 0.0),
        mask=(valid & right & below)[:, None] & real,
    )


def pool(
    x: Tensor, bias: Tensor, *, rectified: bool, choice: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Pooled pictures plus bias, the same rectified, and which of its nine each window chose; the last two only if asked for."""
    n, height, width, channels = x.shape
    rows, columns = (height + 1) // 2, (width + 1) // 2
    out = x.new_empty(n, rows, columns, channels)
    positive = torch.empty_like(out) if rectified else None
    index = x.new_empty(out.shape, dtype=torch.uint8) if choice else None
    block, warps = _blocks(channels)
    _forward[(triton.cdiv(n * rows * columns, block),)](
        x, bias, out, out if positive is None else positive, out if index is None else index, n * rows * columns,
        height, width, rows, columns, channels, triton.next_power_of_2(channels), block, rectified, choice, num_warps=warps,
    )  # fmt: skip
    return out, positive, index


def pool_gradient(gradient: Tensor, index: Tensor, height: int, width: int) -> Tensor:
    n, rows, columns, channels = gradient.shape
    out = gradient.new_empty(n, height, width, channels)
    block, warps = _blocks(channels)
    _backward[(triton.cdiv(n * rows * columns, block),)](
        gradient, index, out, n * rows * columns,
        height, width, rows, columns, channels, triton.next_power_of_2(channels), block, num_warps=warps,
    )  # fmt: skip
    return out


def _blocks(channels: int) -> tuple[int, int]:
    """Positions of a program and its warps: 4 numbers for each of 256 threads, measured on an H200 (benchmarks/kernels.md)."""
    return max(1, 1024 // triton.next_power_of_2(channels)), 8
