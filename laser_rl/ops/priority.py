"""Prioritised sampling, the baseline of the paper's appendix. N unrolls in the store, B of them in a batch."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def probabilities(
    powered: Float[Tensor, "B"], *, total: float, stored: int, uniform_share: float = 0.0
) -> Float[Tensor, "B"]:
    """P(τ) = (1−ε)·p^α / Σp^α + ε/N: a uniform share ε, so that no priority goes stale for ever; uniform while all priorities are 0.

    `powered` is p^α of some unrolls, `total` its sum over all N that are `stored`.

    >>> probabilities(torch.tensor([1.0, 3.0]), total=4.0, stored=2, uniform_share=0.5)
    tensor([0.3750, 0.6250])
    """
    if not total > 0:
        return torch.full_like(powered, 1.0 / stored)
    return (1 - uniform_share) * (powered / total) + uniform_share / stored


def weights(sampled: Float[Tensor, "B"], *, stored: int, exponent: float) -> Float[Tensor, "B"]:
    """Importance weights (1 / (N·P))^β of unrolls sampled with probability `sampled` from `stored`; β = 1 corrects fully.

    >>> weights(torch.tensor([0.25, 0.5]), stored=4, exponent=1.0)
    tensor([1.0000, 0.5000])
    """
    return (stored * sampled) ** -exponent


def critic_priority(value_loss: Float[Tensor, "T B"], learnable: Bool[Tensor, "T B"]) -> Float[Tensor, "B"]:
    """The priority of an unroll: its mean critic loss over learnable steps, 0 if it has none.

    >>> critic_priority(torch.tensor([[1.0], [9.0]]), torch.tensor([[True], [False]]))
    tensor([1.])
    """
    with torch.no_grad():
        total = torch.where(learnable, value_loss, value_loss.new_zeros(())).sum(0)
        return total / learnable.sum(0).clamp(min=1)
