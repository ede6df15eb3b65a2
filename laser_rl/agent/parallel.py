"""One learner on several devices: each has some columns of every batch, and all have the same parameters.

What an update computes from all columns (counts behind a mean, PopArt's targets, what the controllers look at, the gradient) is summed over
the ranks before it is used. So every rank does the same arithmetic on the same numbers from there on, and nothing has to be sent back.
A mean of the ranks' means would be another number: the trust region leaves each of them another count of learnable steps.
"""

import torch
from torch import Tensor

from laser_rl.types import Batch


class Team:
    """The ranks that learn together; here one device, which has the whole batch.

    Each rank calls the same methods in the same order; a call ends when all have made it.
    """

    rank, size = 0, 1

    def sum(self, part: Tensor) -> Tensor:
        """Over all ranks, the same bits everywhere; `part` may be overwritten with it."""
        return part

    def columns(self, part: Tensor) -> Tensor:
        """[n, ...] of each rank, one after the other: [ranks · n, ...]."""
        return part


ALONE = Team()


class Drifted(RuntimeError):
    """The parameters of some ranks differ."""


def own_columns(columns: int, team: Team) -> slice:
    """Which columns of a batch a rank learns from."""
    width = columns // team.size
    return slice(team.rank * width, (team.rank + 1) * width)


def part_of(batch: Batch, which: slice) -> Batch:
    """Some columns of a batch, as views."""
    of_rows = Batch._fields.index("member")  # the fields before it have rows [T, B, ...], the others are one a column
    return Batch(*(field[:, which] if at < of_rows else field[which] for at, field in enumerate(batch)))


def require_together(team: Team, value: Tensor) -> None:
    """`Drifted` unless these parameters have the same bits on all ranks; waits for a GPU."""
    if team.size == 1:
        return
    words = value.detach().contiguous().view(torch.uint8).view(torch.int32).long()
    places = torch.arange(1, len(words) + 1, device=words.device)
    # Wraps around, as a checksum may. Weighted by place: values that were exchanged show.
    found = team.columns((words * places).sum()[None]).tolist()
    if len(set(found)) > 1:
        odd = [rank for rank, checksum in enumerate(found) if checksum != found[0]]
        raise Drifted(
            f"the parameters of rank {', '.join(map(str, odd))} are not those of rank 0 any more; all devices must be of one kind, with "
            "one version of torch and as many threads (--run.threads): see docs/guides/multi-gpu.md"
        )
