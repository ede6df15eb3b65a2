"""PopArt: normalise value targets by task, and rescale the last layer so that values do not change when the statistics do.

The network's last layer predicts n = (v − mean) / σ. Order matters: the statistics move on the new targets, then the
last layer is rescaled so that σ·n + mean is what it was, and only then is the loss taken, in the new units.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from laser_rl.ops import checks

_LOWEST, _HIGHEST = 1e-4, 1e6  # of σ


class Statistics(NamedTuple):
    """First and second moments of each task's targets, in float64: mean_square − mean² cancels in float32 once the mean is large."""

    mean: Float[Tensor, "tasks"]
    mean_square: Float[Tensor, "tasks"]


class Layer(NamedTuple):
    """The last linear layer of the value head, one output a task."""

    weight: Float[Tensor, "tasks features"]
    bias: Float[Tensor, "tasks"]


def initial(tasks: int) -> Statistics:
    """The statistics at the start: mean 0, σ 1."""
    return Statistics(torch.zeros(tasks, dtype=torch.float64), torch.ones(tasks, dtype=torch.float64))


def sigma(statistics: Statistics) -> Float[Tensor, "tasks"]:
    """√(mean_square − mean²), kept between 1e-4 and 1e6.

    >>> sigma(Statistics(torch.tensor([3.0]), torch.tensor([13.0])))
    tensor([2.])
    """
    variance = statistics.mean_square - statistics.mean.square()
    return variance.clamp(_LOWEST**2, _HIGHEST**2).sqrt()


def sums(
    target: Float[Tensor, "T B"], task: Integer[Tensor, "B"], learnable: Bool[Tensor, "T B"], *, tasks: int
) -> Float[Tensor, "3 tasks"]:
    """Number, sum and sum of squares of each task's learnable targets, in float64; those of the parts of a batch add up.

    >>> sums(torch.tensor([[4.0, 8.0]]), torch.tensor([0, 0]), torch.tensor([[True, False]]), tasks=2)[1]
    tensor([4., 0.], dtype=torch.float64)
    """
    if checks.active():
        checks.rows(learnable, target=target)
        checks.same_shape(column=target[0], task=task)
        checks.indices(tasks, task=task)
    with torch.no_grad():
        target = torch.where(learnable, target, target.new_zeros(())).double()
        nothing, task = target.new_zeros(tasks), task.long()
        rows = learnable.sum(0).double(), target.sum(0), target.square().sum(0)
        return torch.stack([nothing.index_add(0, task, row) for row in rows])


def update(statistics: Statistics, seen: Float[Tensor, "3 tasks"], *, step: float = 3e-4) -> Statistics:
    """Move each task's moments towards those of the targets that `sums` was taken of, by `step` a target.

    n targets of one task move its moments by 1 − (1 − step)ⁿ of the way to their average: a running mean that saw them one by one, made
    independent of their order. It agrees with Σ step·(target − mean) to first order and cannot overshoot however large the batch.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> update(initial(1), torch.stack([one, 4 * one, 16 * one]), step=0.5).mean
    tensor([2.], dtype=torch.float64)
    """
    with torch.no_grad():
        number, total, square = seen
        rate = 1 - (1 - step) ** number  # 0 for a task without a target
        number = number.clamp(min=1)
        return Statistics(
            statistics.mean + rate * (total / number - statistics.mean),
            statistics.mean_square + rate * (square / number - statistics.mean_square),
        )


def rescale(layer: Layer, old: Statistics, new: Statistics) -> Layer:
    """The last layer in the new units: σ·(w·h + b) + mean stays what it was, for every task and every h.

    >>> old, new = initial(1), Statistics(torch.tensor([1.0]), torch.tensor([5.0]))
    >>> rescale(Layer(torch.tensor([[4.0]]), torch.tensor([3.0])), old, new)
    Layer(weight=tensor([[2.]]), bias=tensor([1.]))
    """
    with torch.no_grad():
        old_sigma, new_sigma = sigma(old), sigma(new)
        weight = layer.weight * (old_sigma / new_sigma).unsqueeze(-1)
        bias = (old_sigma * layer.bias + old.mean - new.mean) / new_sigma
        return Layer(weight.to(layer.weight.dtype), bias.to(layer.bias.dtype))


def normalise(statistics: Statistics, value: Float[Tensor, "T B"], task: Integer[Tensor, "B"]) -> Float[Tensor, "T B"]:
    """From the task's own units to the network's: (v − mean) / σ.

    >>> normalise(Statistics(torch.tensor([1.0]), torch.tensor([5.0])), torch.tensor([[3.0]]), torch.tensor([0]))
    tensor([[1.]])
    """
    mean, scale = _of_task(statistics, task)
    return ((value - mean) / scale).to(value.dtype)


def unnormalise(
    statistics: Statistics, value: Float[Tensor, "T B"], task: Integer[Tensor, "B"]
) -> Float[Tensor, "T B"]:
    """From the network's units to the task's own: σ·n + mean.

    >>> unnormalise(Statistics(torch.tensor([1.0]), torch.tensor([5.0])), torch.tensor([[1.0]]), torch.tensor([0]))
    tensor([[3.]])
    """
    mean, scale = _of_task(statistics, task)
    return (value * scale + mean).to(value.dtype)


def _of_task(statistics: Statistics, task: Tensor) -> tuple[Tensor, Tensor]:
    if checks.active():
        checks.indices(statistics.mean.shape[0], task=task)
    task = task.long()
    return statistics.mean[task], sigma(statistics)[task]
