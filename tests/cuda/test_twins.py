"""The twins in plain PyTorch against torch's own functions and autograd, in float64."""

import pytest
import torch
import torch.nn.functional as F

from laser_rl.cuda.convolution import taps, taps_back
from tests.references import kernels as plain

SHAPES = [(2, 12, 12, 3), (1, 7, 9, 4), (2, 5, 8, 2)]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def choices(index: torch.Tensor, width: int) -> torch.Tensor:
    """Our choice among nine as torch's place in the picture."""
    rows, columns = torch.meshgrid(torch.arange(index.shape[1]), torch.arange(index.shape[2]), indexing="ij")
    k = index.long()
    return (2 * rows[..., None] - 1 + k // 3) * width + 2 * columns[..., None] - 1 + k % 3


@pytest.mark.parametrize("shape", SHAPES)
def test_pool_is_torchs_max_pooling_and_its_gradient(shape):
    torch.manual_seed(1)
    x = normal(*shape).mul(3).round().requires_grad_()  # whole numbers: many windows have equal largest ones
    bias = normal(shape[-1])
    out, positive, index = plain.pool(x, bias, rectified=True)
    expected, places = F.max_pool2d(plain.nchw(x), 3, stride=2, padding=1, return_indices=True)
    torch.testing.assert_close(plain.nchw(out), expected + bias[:, None, None])
    torch.testing.assert_close(positive, out.clamp(min=0))
    assert torch.equal(choices(index, shape[2]).permute(0, 3, 1, 2), places)
    gradient = normal(*out.shape)
    (wanted,) = torch.autograd.grad(expected, x, plain.nchw(gradient))
    torch.testing.assert_close(plain.pool_gradient(gradient, index, *shape[1:3]), wanted)


def test_first_is_convolution_then_pooling():
    torch.manual_seed(2)
    pictures = torch.randint(0, 256, (2, 3, 9, 12), dtype=torch.uint8)
    weight, bias = normal(5, 3, 3, 3).requires_grad_(), normal(5)
    framed = plain.frame(pictures)
    out, _, index = plain.first(framed, weight, bias, 1 / 255, rectified=False)
    expected = F.max_pool2d(F.conv2d(pictures.double() / 255, weight, bias, padding=1), 3, stride=2, padding=1)
    torch.testing.assert_close(plain.nchw(out), expected, rtol=1e-6, atol=1e-6)
    gradient = normal(*out.shape)
    (wanted,) = torch.autograd.grad(expected, weight, plain.nchw(gradient))
    torch.testing.assert_close(plain.first_gradient(framed, gradient, index, 1 / 255), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rectify", [False, True])
def test_convolve_and_its_gradients(rectify):
    torch.manual_seed(3)
    x, weight, bias = (
        normal(2, 6, 7, 4).requires_grad_(),
        normal(5, 4, 3, 3).requires_grad_(),
        normal(5).requires_grad_(),
    )
    seen = x.clamp(min=0) if rectify else x
    expected = F.conv2d(plain.nchw(seen), weight, bias, padding=1).permute(0, 2, 3, 1)
    out = plain.convolve(x, taps(weight), bias, rectify=rectify)
    torch.testing.assert_close(out, expected)
    gradient = normal(*out.shape)
    dx, dw, db = torch.autograd.grad(expected, (x, weight, bias), gradient)
    found = plain.weight_gradient(x, gradient, rectify=rectify)
    torch.testing.assert_close(found, (dw, db))
    back = plain.convolve(gradient, taps_back(weight), positive=x if rectify else None)
    torch.testing.assert_close(back, dx)


def test_convolve_masks_before_it_adds():
    x, weight = torch.ones(1, 3, 3, 1, dtype=torch.float64), torch.zeros(9, 1, 1, dtype=torch.float64)
    weight[4] = 2.0  # the middle: twice the input
    mask = torch.tensor([1.0, -1.0, 0.0] * 3).view(1, 3, 3, 1)
    out = plain.convolve(x, weight, positive=mask, residual=torch.full_like(x, 10.0))
    assert out.flatten().tolist() == [12.0, 10.0, 10.0] * 3


def test_masked_lets_through_where_positive_and_sums():
    gradient, positive = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([[[[1.0, 0.0], [-1.0, 5.0]]]])
    out, sums = plain.masked(gradient, positive, torch.ones(1, 1, 2, 2))
    assert out.flatten().tolist() == [2.0, 1.0, 1.0, 5.0]
    assert sums.tolist() == [3.0, 6.0]
