"""Whose data, and how old, is trusted by whom: counted in every fourth update (in every one it would cost a tenth), reported as shares."""

import torch
from torch import Tensor

from laser_rl.agent.loss import Loss
from laser_rl.types import Batch

AGES = (10, 100, 1_000, 10_000)  # updates; below the first, …, from the last on
GROUPS = len(AGES) + 1
EVERY = 4  # updates
MOST_RELEVANCE = 1e3  # an infinite divergence would make every mean infinite


def tally(loss: Loss, batch: Batch, age: Tensor, *, sources: int, members: int) -> Tensor:
    """For each member, for each source and then for each age: trusted steps, all replayed steps, sum of their relevance.

    Args:
        loss: of this batch.
        batch: the columns of each member one after the other.
        age: [B], how many updates ago a column was produced.
        sources: how many members write into the replay.
        members: how many learn from this batch.

    Returns:
        [members, sources + ages, 3].
    """
    replayed = batch.real & ~batch.online
    divergence = torch.where(replayed, loss.relevance.clamp(max=MOST_RELEVANCE), 0.0)
    of_column = torch.stack([(loss.learnable & replayed).sum(0), replayed.sum(0), divergence.sum(0)], dim=1).float()
    width = sources + GROUPS
    member = torch.arange(members, device=age.device).repeat_interleave(age.shape[0] // members) * width
    group = sources + torch.bucketize(age.clamp(min=0), torch.tensor(AGES, device=age.device), right=True)
    # A column of a member that is not one of the sources (of another sweep, say) counts by age only.
    known = batch.member < sources
    place = torch.cat([torch.where(known, member + batch.member, member + group), member + group])
    weight = torch.cat([known, torch.ones_like(known)])
    counted = of_column.repeat(2, 1) * weight[:, None]
    return torch.zeros(members * width, 3, device=age.device).index_add_(0, place, counted).view(members, width, 3)


def shares(counted: Tensor, sources: int) -> dict[str, float]:
    """The numbers of a report from a member's tally [sources + ages, 3]; what was never replayed is left out.

    >>> shares(torch.tensor([[1.0, 4.0, 0.4], [4.0, 4.0, 0.0], [5.0, 8.0, 0.4]] + [[0.0] * 3] * 4), sources=2)
    {'acceptance_from_0': 0.25, 'kl_from_0': 0.1..., 'acceptance_from_1': 1.0, 'kl_from_1': 0.0, 'acceptance_age_0': 0.625}
    """
    numbers: dict[str, float] = {}
    for row, (trusted, offered, divergence) in enumerate(counted.tolist()):
        if not offered:
            continue
        if row < sources:
            if sources > 1:
                numbers[f"acceptance_from_{row}"] = trusted / offered
                numbers[f"kl_from_{row}"] = divergence / offered
        else:
            numbers[f"acceptance_age_{row - sources}"] = trusted / offered
    return numbers
