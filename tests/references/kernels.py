"""The kernels' twins in plain PyTorch: the same arguments, the same results, any device, any float type."""

import torch
import torch.nn.functional as F
from torch import Tensor

from laser_rl.networks.impala import nchw

__all__ = ["nchw"]


def nhwc(x: Tensor) -> Tensor:
    """And back."""
    return x.permute(0, 2, 3, 1).contiguous()


def pool(
    x: Tensor, bias: Tensor, *, rectified: bool, choice: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Twin of `laser_rl.cuda.max_pool.pool`."""
    high = F.pad(nchw(x), (1, 1, 1, 1), value=-torch.inf)
    windows = high.unfold(2, 3, 2).unfold(3, 3, 2).flatten(4)  # [N, C, rows, columns, 9]
    best, index = windows.max(-1)
    first = (windows == best[..., None]).to(torch.uint8).argmax(-1)  # of equals the first, as torch's own pooling
    index = torch.where(best.isnan(), index, first)
    out = nhwc(best) + bias.to(x.dtype)
    return out, out.clamp(min=0) if rectified else None, nhwc(index.to(torch.uint8)) if choice else None


def pool_gradient(gradient: Tensor, index: Tensor, height: int, width: int) -> Tensor:
    """Twin of `laser_rl.cuda.max_pool.pool_gradient`."""
    n, rows, columns, channels = gradient.shape
    out = gradient.new_zeros(n, 2 * rows + 1, 2 * columns + 1, channels)  # with a border of one before
    for k in range(9):
        rows_of, columns_of = slice(k // 3, k // 3 + 2 * rows, 2), slice(k % 3, k % 3 + 2 * columns, 2)
        out[:, rows_of, columns_of] += torch.where(index == k, gradient, 0)
    return out[:, 1 : height + 1, 1 : width + 1].contiguous()


def add_bias_rectify(
    x: Tensor, c: Tensor, bias: Tensor, *, total: bool, rectified: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Twin of `laser_rl.cuda.pointwise.add_bias_rectify`."""
    out = x + c + bias.to(x.dtype)
    return out if total else None, out.clamp(min=0) if rectified else None


def masked(gradient: Tensor, positive: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Twin of `laser_rl.cuda.pointwise.masked`."""
    out = torch.where(positive > 0, gradient, 0)
    out = out if other is None else out + other
    return out, out.sum((0, 1, 2))


def frame(pictures: Tensor) -> Tensor:
    """Twin of `laser_rl.cuda.first.frame`."""
    return nhwc(F.pad(pictures, (1, 1, 1, 1)))


def first(
    framed: Tensor, weight: Tensor, bias: Tensor, scale: float, *, rectified: bool, choice: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Twin of `laser_rl.cuda.first.first`."""
    x = nhwc(F.conv2d(nchw(framed).to(weight.dtype), weight * scale))
    return pool(x, bias, rectified=rectified, choice=choice)


def first_gradient(framed: Tensor, gradient: Tensor, index: Tensor, scale: float) -> Tensor:
    """Twin of `laser_rl.cuda.first.first_gradient`."""
    pictures = framed[:, 1:-1, 1:-1]
    full = pool_gradient(gradient, index, *pictures.shape[1:3])
    return weight_gradient(pictures.to(gradient.dtype), full)[0] * scale


def channel_sums(x: Tensor) -> Tensor:
    """Twin of `laser_rl.cuda.pointwise.channel_sums`."""
    return x.sum((0, 1, 2))


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
    """Twin of `laser_rl.cuda.convolution.convolve`."""
    inputs, outputs = weight.shape[1:]
    kernel = weight.view(3, 3, inputs, outputs).permute(3, 2, 0, 1).to(x.dtype)
    out = nhwc(F.conv2d(nchw(x.clamp(min=0) if rectify else x), kernel, bias, padding=1))
    out = out.clamp(min=0) if rectified else out
    out = out if positive is None else torch.where(positive > 0, out, 0)
    return out if residual is None else out + residual


def weight_gradient(x: Tensor, gradient: Tensor, *, rectify: bool = False) -> tuple[Tensor, Tensor]:
    """Twin of `laser_rl.cuda.convolution.weight_gradient`."""
    patches = F.unfold(nchw(x.clamp(min=0) if rectify else x), 3, padding=1)  # [N, I · 9, positions]
    outputs, inputs = gradient.shape[-1], x.shape[-1]
    weight = torch.einsum("nkp,npo->ok", patches, gradient.flatten(1, 2))
    return weight.view(outputs, inputs, 3, 3), gradient.sum((0, 1, 2))
