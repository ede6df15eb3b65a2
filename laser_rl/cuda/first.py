"""The first convolution of a picture's bytes together with the max-pooling behind it, in Triton.

The convolution's own output, at full resolution, would be the largest tensor of the whole step; here it lives in registers only. Forward:
each pooled position computes the nine convolutions of its window and keeps the largest. Backward: the bytes have no gradient, so that of
the weights is all there is: each input position gathers its gradient from the windows that chose it (see `pool`), and its patch times that
gradient is summed.

Patches are [positions, K] with K = 9 · planes numbers in the order (row, column, plane), padded to a power of 2. They are read from framed
pictures, [N, H+2, W+2, planes] with a border of zeros: no reading needs a mask, which would cost more than the products do. What is read
for the padding of K is multiplied with zero weights, or left out of the sum.

Where channels are few the products are cheap and the readings are not. There patches are read by row: one row serves up to three of the
convolutions above each other, so a window takes 15 readings of K = 3 · planes instead of 9 of three times that.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from laser_rl.cuda.max_pool import window

PROGRAMS = 132 * 2  # that sum weight gradients
LOW = tl.constexpr(-3e38)  # of a convolution beyond the border


@triton.jit
def _frame(pictures, out, pixels, H: tl.constexpr, W: tl.constexpr, PLANES: tl.constexpr, BLOCK: tl.constexpr):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    w, h, picture = pixel % (W + 2) - 1, (pixel // (W + 2)) % (H + 2) - 1, (pixel // ((W + 2) * (H + 2))).to(tl.int64)
    inside = (pixel < pixels) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    for plane in tl.static_range(PLANES):
        v = tl.load(pictures + ((picture * PLANES + plane) * H + h) * W + w, mask=inside, other=0)
        tl.store(out + pixel.to(tl.int64) * PLANES + plane, v, mask=pixel < pixels)


@triton.jit
def _reach(k, W: tl.constexpr, PLANES: tl.constexpr):
    """Where the K numbers of a patch lie, counted from its first."""
    tap = k // PLANES
    at = ((tap // 3) * (W + 2) + tap % 3) * PLANES + k % PLANES
    return tl.where(tap < 9, at, k % PLANES)


@triton.jit
def _keep(best, v, inside, at: tl.constexpr):
    """The larger of two, and which it is.

    That stands in the last four bits: one comparison keeps value and choice, of equals (if positive) the first. The value moves by 2⁻²⁰
    of itself, far below what bfloat16 can tell.
    """
    v = tl.where(inside[:, None], v, LOW)
    bits = (v.to(tl.int32, bitcast=True) & -16) | (8 - at)
    return tl.maximum(best, bits.to(tl.float32, bitcast=True))


@triton.jit
def _row(pictures, picture, row, start, k, H: tl.constexpr, W: tl.constexpr, PLANES: tl.constexpr, dtype: tl.constexpr):
    """The numbers of one row of each patch; the padding of K reads what follows it."""
    at = ((picture * (H + 2) + row) * (W + 2) + start) * PLANES
    return tl.load(pictures + at[:, None] + k[None, :]).to(dtype)  # bytes are exact in bfloat16


@triton.jit
def _best_by_patch(
    pictures, weight, picture, row, column,
    H: tl.constexpr, W: tl.constexpr, PLANES: tl.constexpr, CP: tl.constexpr, KP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    c, k = tl.arange(0, CP), tl.arange(0, KP)
    w9 = tl.load(weight + k[:, None] * CP + c[None, :])
    reach = _reach(k, W, PLANES)
    best = tl.full((BLOCK, CP), LOW, tl.float32)
    for at in tl.static_range(9):
        h, w = 2 * row - 1 + at // 3, 2 * column - 1 + at % 3
        inside = (h >= 0) & (h < H) & (w >= 0) & (w < W)
        start = ((picture * (H + 2) + tl.where(inside, h, 0)) * (W + 2) + tl.where(inside, w, 0)) * PLANES
        patch = tl.load(pictures + start[:, None] + reach[None, :]).to(w9.dtype)
        best = _keep(best, tl.dot(patch, w9), inside, at)
    return best


@triton.jit
def _best_by_row(
    pictures, weight, picture, row, column,
    H: tl.constexpr, W: tl.constexpr, PLANES: tl.constexpr, CP: tl.constexpr, KP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    c, k = tl.arange(0, CP), tl.arange(0, KP)
    at = weight + k[:, None] * CP + c[None, :]
    w0, w1, w2 = tl.load(at), tl.load(at + KP * CP), tl.load(at + 2 * KP * CP)
    best = tl.full((BLOCK, CP), LOW, tl.float32)
    top = 2 * row - 1
    for tap in tl.static_range(3):
        w = 2 * column - 1 + tap
        inside = (w >= 0) & (w < W)
        start = tl.where(inside, w, 0)
        # Framed rows: that of the picture's row h is h + 1. Those beyond the frame belong to convolutions that are not inside.
        p0 = _row(pictures, picture, tl.maximum(top, 0), start, k, H, W, PLANES, w0.dtype)
        p1 = _row(pictures, picture, top + 1, start, k, H, W, PLANES, w0.dtype)
        p2 = _row(pictures, picture, top + 2, start, k, H, W, PLANES, w0.dtype)
        p3 = _row(pictures, picture, top + 3, start, k, H, W, PLANES, w0.dtype)
        p4 = _row(pictures, picture, tl.minimum(top + 4, H + 1), start, k, H, W, PLANES, w0.dtype)
        best = _keep(best, tl.dot(p2, w2, tl.dot(p1, w1, tl.dot(p0, w0))), inside & (top >= 0), tap)
        best = _keep(best, tl.dot(p3, w2, tl.dot(p2, w1, tl.dot(p1, w0))), inside, 3 + tap)
        best = _keep(best, tl.dot(p4, w2, tl.dot(p3, w1, tl.dot(p2, w0))), inside & (top + 2 < H), 6 + tap)
    return best


@triton.jit
def _forward(
    pictures, weight, bias, out, rectified, index, positions,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, PLANES: tl.constexpr,
    C: tl.constexpr, CP: tl.constexpr, KP: tl.constexpr, BLOCK: tl.constexpr,
    RECTIFIED: tl.constexpr, CHOICE: tl.constexpr, BY_ROW: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, CP)
    valid = position < positions
    real = tl.minimum(position, positions - 1)
    column, row, picture = real % WO, (real // WO) % HO, real // (WO * HO)
    if BY_ROW:
        best = _best_by_row(pictures, weight, picture, row, column, H, W, PLANES, CP, KP, BLOCK)
    else:
        best = _best_by_patch(pictures, weight, picture, row, column, H, W, PLANES, CP, KP, BLOCK)
    which = 8 - (best.to(tl.int32, bitcast=True) & 15)
    best = tl.where(best > LOW / 2, best, float("nan"))  # no number was larger: the weights are not finite
    best += tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
    to = (position.to(tl.int64) * C)[:, None] + c[None, :]
    kept = valid[:, None] & (c < C)[None, :]
    tl.store(out + to, best, mask=kept)
    if CHOICE:
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
    reach = _reach(k, W, PLANES)
    total = tl.zeros((KP, CP), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(tiles, BLOCK), tl.num_programs(0)):
        tile = block * BLOCK + tl.arange(0, BLOCK)
        valid = tile < tiles
        real = tl.minimum(tile, tiles - 1)
        j, i, picture = real % WO, (real // WO) % HO, real // (WO * HO)
        g00, k00 = window(gradient, index, picture.to(tl.int64), i, j, valid, c, HO, WO, C, CP)
        g01, k01 = window(gradient, index, picture.to(tl.int64), i, j + 1, valid, c, HO, WO, C, CP)
        g10, k10 = window(gradient, index, picture.to(tl.int64), i + 1, j, valid, c, HO, WO, C, CP)
        g11, k11 = window(gradient, index, picture.to(tl.int64), i + 1, j + 1, valid, c, HO, WO, C, CP)
        # Beyond the border of a picture of odd size no window has chosen anything: its patch is any that exists.
        right, below = tl.minimum(2 * j + 1, W - 1) - 2 * j, tl.minimum(2 * i + 1, H - 1) - 2 * i
        start = ((picture * (H + 2) + 2 * i) * (W + 2) + 2 * j) * PLANES
        g = tl.where(k00 == 4, g00, 0.0)
        p = tl.load(pictures + start[:, None] + reach[None, :])
        total = tl.dot(tl.trans(p.to(gradient.dtype.element_ty)), g.to(gradient.dtype.element_ty), total)
        g = tl.where(k00 == 5, g00, 0.0) + tl.where(k01 == 3, g01, 0.0)
        p = tl.load(pictures + (start + right * PLANES)[:, None] + reach[None, :])
        total = tl.dot(tl.trans(p.to(gradient.dtype.element_ty)), g.to(gradient.dtype.element_ty), total)
        g = tl.where(k00 == 7, g00, 0.0) + tl.where(k10 == 1, g10, 0.0)
        start += below * (W + 2) * PLANES
        p = tl.load(pictures + start[:, None] + reach[None, :])
        total = tl.dot(tl.trans(p.to(gradient.dtype.element_ty)), g.to(gradient.dtype.element_ty), total)
        g = tl.where(k00 == 8, g00, 0.0) + tl.where(k01 == 6, g01, 0.0)
        g += tl.where(k10 == 2, g10, 0.0) + tl.where(k11 == 0, g11, 0.0)
        p = tl.load(pictures + (start + right * PLANES)[:, None] + reach[None, :])
        total = tl.dot(tl.trans(p.to(gradient.dtype.element_ty)), g.to(gradient.dtype.element_ty), total)
    tl.store(partial + tl.program_id(0) * KP * CP + k[:, None] * CP + c[None, :], total)


def frame(pictures: Tensor) -> Tensor:
    """Bytes [N, planes, H, W] as [N, H+2, W+2, planes], with a border of zeros."""
    n, planes, height, width = pictures.shape
    size = n * (height + 2) * (width + 2) * planes
    if size >= 2**31:
        raise ValueError(f"{n} pictures of {height}×{width}×{planes} at once are too many for 32-bit places; use fewer")
    # The padding of the last picture's last row reads a few bytes beyond it.
    out = torch.empty(size + 3 * planes + 16, dtype=torch.uint8, device=pictures.device)[:size]
    out = out.view(n, height + 2, width + 2, planes)
    pixels = n * (height + 2) * (width + 2)
    _frame[(triton.cdiv(pixels, 1024),)](pictures, out, pixels, height, width, planes, 1024, num_warps=4)
    return out


def first(
    framed: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: float,
    *,
    rectified: bool,
    choice: bool = True,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """As `pool` of a convolution of scale · bytes, given as [N, H+2, W+2, planes] by `frame`.

    The weight is [C, planes, 3, 3], float32, the bias [C]; products and results have the `dtype`.
    """
    n, height, width, planes = framed.shape[0], framed.shape[1] - 2, framed.shape[2] - 2, framed.shape[3]
    channels, rows, columns = len(weight), (height + 1) // 2, (width + 1) // 2
    wide = max(16, triton.next_power_of_2(channels))
    block, warps, by_row = FORWARD[min(wide, 64)]
    parts = 3 if by_row else 1
    each = 9 * planes // parts
    deep = max(16, triton.next_power_of_2(each))
    flat = torch.zeros(parts, deep, wide, dtype=dtype, device=weight.device)
    flat[:, :each, :channels] = (weight * scale).permute(2, 3, 1, 0).reshape(parts, each, channels)
    out = torch.empty(n, rows, columns, channels, dtype=dtype, device=weight.device)
    positive = torch.empty_like(out) if rectified else None
    index = torch.empty(out.shape, dtype=torch.uint8, device=weight.device) if choice else None
    _forward[(triton.cdiv(n * rows * columns, block),)](
        framed, flat, bias, out, out if positive is None else positive, out if index is None else index,
        n * rows * columns, height, width, rows, columns, planes, channels, wide, deep, block,
        rectified, choice, by_row, num_warps=warps,
    )  # fmt: skip
    return out, positive, index


def first_gradient(framed: Tensor, gradient: Tensor, index: Tensor, scale: float) -> Tensor:
    """Of the weight [C, planes, 3, 3], float32, from that of the pooled output. The bias's is the sum over all positions."""
    n, height, width, planes = framed.shape[0], framed.shape[1] - 2, framed.shape[2] - 2, framed.shape[3]
    _, rows, columns, channels = gradient.shape
    wide, deep = max(16, triton.next_power_of_2(channels)), max(16, triton.next_power_of_2(9 * planes))
    block, warps = BACKWARD[min(wide, 64)]
    tiles = n * rows * columns
    programs = min(PROGRAMS, triton.cdiv(tiles, block))
    partial = torch.empty(programs, deep, wide, dtype=torch.float32, device=gradient.device)
    _weight_gradient[(programs,)](
        framed, gradient, index, partial, tiles,
        height, width, rows, columns, planes, channels, wide, deep, block, num_warps=warps,
    )  # fmt: skip
    total = partial.sum(0)[: 9 * planes, :channels]
    return total.view(3, 3, planes, channels).permute(3, 2, 0, 1) * scale


# Positions of a program, its warps, and whether patches are read by row, by channels; measured on an H200 (benchmarks/kernels.md).
FORWARD = {16: (32, 2, True), 32: (64, 4, False), 64: (64, 4, False)}
BACKWARD = {16: (64, 4), 32: (64, 4), 64: (32, 4)}
