"""Running mean and variance of observations, by Chan's parallel merge, and the standardised observation that a network reads.

The sums of a batch are taken about the running mean: they add up over the ranks that share the batch, and do not cancel as Σx² − n·mean²
does where the mean is large beside the spread.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

_EPSILON, _LIMIT = 1e-8, 10.0  # stable-baselines3's VecNormalize


class Moments(NamedTuple):
    """Statistics of all rows so far, in float64; `spread` is the sum of squared deviations from `mean`."""

    number: Float[Tensor, ""]
    mean: Float[Tensor, "*shape"]
    spread: Float[Tensor, "*shape"]


def initial(shape: tuple[int, ...]) -> Moments:
    """Before the first row."""
    return Moments(*(torch.zeros(size, dtype=torch.float64) for size in ((), shape, shape)))


def sums(
    mean: Float[Tensor, "*shape"], rows: Float[Tensor, "T B *shape"], seen: Bool[Tensor, "B"]
) -> Float[Tensor, "3 *shape"]:
    """Number, sum and sum of squares of the rows of the columns `seen`, less `mean`, in float64; those of the parts of a batch add up.

    >>> sums(torch.tensor([1.0]), torch.tensor([[[3.0], [7.0]], [[4.0], [7.0]]]), torch.tensor([True, False])).squeeze()
    tensor([ 2.,  5., 13.], dtype=torch.float64)
    """
    off = rows.double() - mean
    kept = seen.reshape(-1, *[1] * mean.ndim)
    off = torch.where(kept, off, 0.0)
    number = (kept.sum(0) * rows.shape[0]).expand(mean.shape)
    return torch.stack([number.double(), off.sum((0, 1)), off.square().sum((0, 1))])


def merge(before: Moments, found: Float[Tensor, "3 *shape"]) -> Moments:
    """The moments of the rows before and of those that `sums` was taken of; the order of batches does not matter.

    >>> two = torch.tensor([2.0], dtype=torch.float64)
    >>> merge(initial((1,)), torch.stack([two, 3 * two, 10 * two])).spread
    tensor([2.], dtype=torch.float64)
    """
    found_rows, off, square = found
    number = before.number + found_rows.flatten()[0]
    moved = off / number.clamp(min=1)
    # Σ(x − new mean)² = Σ(x − old mean)² − number · (new mean − old mean)²; rounding must not take it below 0.
    return Moments(number, before.mean + moved, (before.spread + square - number * moved.square()).clamp(min=0))


def scaling(moments: Moments) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """What `standardise` subtracts and multiplies by: the mean, and 1 / √(variance + 1e-8); 0 and 1 before the first row.

    >>> scaling(Moments(torch.tensor(2.0), torch.tensor([3.0]), torch.tensor([8.0])))
    (tensor([3.]), tensor([0.5000]))
    """
    variance = torch.where(moments.number > 0, moments.spread / moments.number.clamp(min=1) + _EPSILON, 1.0)
    return moments.mean, variance.rsqrt()


def standardise(
    rows: Float[Tensor, "N *shape"], shift: Float[Tensor, "*shape"], scale: Float[Tensor, "*shape"]
) -> Float[Tensor, "N *shape"]:
    """(x − shift) · scale, within ±10; a number that has never changed becomes 0.

    >>> standardise(torch.tensor([[5.0], [99.0]]), torch.tensor([3.0]), torch.tensor([0.5])).squeeze()
    tensor([ 1., 10.])
    """
    return ((rows - shift) * scale).clamp(-_LIMIT, _LIMIT)
