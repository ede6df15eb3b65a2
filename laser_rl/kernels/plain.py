"""What kernels compute, in plain PyTorch; `tests/references/kernels.py` has a twin of every kernel."""

from torch import Tensor


def nchw(x: Tensor) -> Tensor:
    """[N, H, W, C] as torch's convolutions see it, without moving anything."""
    return x.permute(0, 3, 1, 2)


def bias_rectify(c: Tensor, bias: Tensor) -> Tensor:
    """Twin of `laser_rl.kernels.pointwise.bias_rectify`."""
    return (c + bias.to(c.dtype)).clamp(min=0)
