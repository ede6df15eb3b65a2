"""A convolution's weight as our kernel reads it: one matrix a tap."""

from torch import Tensor


def taps(weight: Tensor) -> Tensor:
    """A weight [O, I, 3, 3] as the kernel reads it, [9, I, O]."""
    return weight.permute(2, 3, 1, 0).reshape(9, weight.shape[1], weight.shape[0]).contiguous()


def taps_back(weight: Tensor) -> Tensor:
    """The same for the gradient of the input: the kernel turned round, [9, O, I]."""
    return weight.flip(2, 3).permute(2, 3, 0, 1).reshape(9, *weight.shape[:2]).contiguous()
