"""Layouts and sizes that kernels and their twins in plain PyTorch agree on; `tests/references/kernels.py` has all twins."""

from torch import Tensor


def pooled(height: int, width: int) -> tuple[int, int]:
    """What a 3×3 window with stride 2 and padding 1 makes of a picture."""
    return (height + 1) // 2, (width + 1) // 2


def taps(weight: Tensor) -> Tensor:
    """A weight [O, I, 3, 3] as the kernel reads it, [9, I, O]."""
    return weight.permute(2, 3, 1, 0).reshape(9, weight.shape[1], weight.shape[0]).contiguous()


def taps_back(weight: Tensor) -> Tensor:
    """The same for the gradient of the input: the kernel turned round, [9, O, I]."""
    return weight.flip(2, 3).permute(2, 3, 0, 1).reshape(9, *weight.shape[:2]).contiguous()


def nchw(x: Tensor) -> Tensor:
    """[N, H, W, C] as torch's convolutions see it, without moving anything."""
    return x.permute(0, 3, 1, 2)
