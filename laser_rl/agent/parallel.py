"""Data parallelism: each rank has a copy of the learner and some columns of every batch; all copies stay identical.

Sums over all columns (the counts behind a mean, PopArt's moments, the inputs of the controllers, the gradient) are all-reduced before they
are used. From there on every rank does the same arithmetic on the same numbers, so no rank has to broadcast its result. A mean of the
ranks' means would differ from the mean of the batch: the trust region leaves each rank a different count of learnable steps.
"""

import torch
from torch import Tensor

from laser_rl.types import Batch


class Team:
    """The collective operations of the ranks that learn together; this class is a team of one rank, which has the whole batch.

    Each rank calls the same methods in the same order; a call ends when all have made it.
    """

    rank, size = 0, 1

    def sum(self, part: Tensor) -> Tensor:
        """All-reduce: the sum of `part` over all ranks, with the same bits on each; `part` may be overwritten with it."""
        return part

    def columns(self, part: Tensor) -> Tensor:
        """All-gather: [n, ...] of each rank, in the order of the ranks: [ranks · n, ...]."""
        return part


ALONE = Team()


class Drifted(RuntimeError):
    """The parameters of some ranks differ."""


def own_columns(columns: int, team: Team) -> slice:
    width = columns // team.size
    return slice(team.rank * width, (team.rank + 1) * width)


def part_of(batch: Batch, which: slice) -> Batch:
    time_major = Batch._fields.index("member")  # the fields before it are [T, B, ...], the others [B, ...]
    return Batch(*(field[:, which] if at < time_major else field[which] for at, field in enumerate(batch)))


def require_together(team: Team, value: Tensor) -> None:
    """Raise `Drifted` unless these parameters have the same bits on all ranks; waits for a GPU."""
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
