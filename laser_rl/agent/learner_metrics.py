"""What updates report: means of their numbers, and the share of the replayed data that is trusted, by its source and by its age.

Shares are counted in every fourth update: counting in each would cost a tenth of an update.
"""

import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from laser_rl.agent.loss import Loss
from laser_rl.agent.parallel import ALONE, Team
from laser_rl.types import Batch

AGES = (10, 100, 1_000, 10_000)  # updates; below the first, …, from the last on
GROUPS = len(AGES) + 1
EVERY = 4  # updates
MOST_RELEVANCE = 1e3  # an infinite divergence would make every mean infinite


def tally(loss: Loss, batch: Batch, age: Tensor, *, sources: int, members: int) -> Tensor:
    """For each member, for each source and then for each age: trusted steps, all replayed steps, sum of their relevance.

    `age` [B] is how many updates ago a column was produced; `sources` members write into the replay, `members` learn from this batch, the
    columns of each one after the other. The result is [members, sources + ages, 3].
    """
    replayed = batch.is_transition & ~batch.online
    divergence = torch.where(replayed, loss.relevance.clamp(max=MOST_RELEVANCE), 0.0)
    of_column = torch.stack([(loss.learnable & replayed).sum(0), replayed.sum(0), divergence.sum(0)], dim=1).float()
    width = sources + GROUPS
    member = torch.arange(members, device=age.device).repeat_interleave(age.shape[0] // members) * width
    group = sources + torch.bucketize(age.clamp(min=0), _edges(age.device), right=True)
    # A column of a member that is not one of the sources (of another sweep, say) counts by age only.
    known = batch.member < sources
    place = torch.cat([torch.where(known, member + batch.member, member + group), member + group])
    weight = torch.cat([known, torch.ones_like(known)])
    counted = of_column.repeat(2, 1) * weight[:, None]
    return torch.zeros(members * width, 3, device=age.device).index_add_(0, place, counted).view(members, width, 3)


@functools.cache
def _edges(device: torch.device) -> Tensor:
    """Made once: a copy from the host is waited for."""
    return torch.tensor(AGES, device=device)


def ages(age: Tensor, batch: Batch, members: int, team: Team = ALONE) -> dict[str, Tensor]:
    """How many versions old the data is, online and replayed, for each member; `age` is [B]."""
    parts = torch.stack([batch.online, ~batch.online]).float()
    sums = torch.stack([parts * age, parts]).view(2, 2, members, -1).sum(3)
    total, count = team.sum(sums)
    lag, replayed = total / count
    return {"lag_updates": lag, "replay_age_updates": replayed}


def shares(counted: Tensor, sources: int) -> dict[str, float]:
    """The numbers of a report from a member's tally [sources + ages, 3]; what was never replayed is left out."""
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


class Numbers:
    """Sums over updates, kept on the device: the host reads them only for a report."""

    def __init__(self, sources: int, device: torch.device) -> None:
        self._sources, self.names = sources, list[str]()
        self.sums = torch.zeros(2, 0, device=device)  # of each number, and how often it was defined
        self.tally = torch.zeros(sources + GROUPS, 3, device=device)

    def add(self, names: list[str], values: Tensor) -> None:
        """The numbers of an update, the same ones every time. Can be recorded in a graph, but for the first time."""
        defined = ~values.isnan()  # an entropy where no online row is trusted does not count
        if not self.names:
            with torch.inference_mode(mode=False):  # a report changes them outside of that mode
                self.names, self.sums = names, torch.zeros(2, len(names), device=self.sums.device)
        self.sums += torch.stack([torch.where(defined, values, 0.0), defined.float()])

    def report(self) -> dict[str, float]:
        totals, counts = self.sums.tolist()
        found = zip(self.names, totals, counts, strict=True)
        means = {name: total / count for name, total, count in found if count > 0}
        means |= shares(self.tally, self._sources)
        self.sums.zero_()  # in place: a recorded update adds to this memory
        self.tally.zero_()
        return means

    def load_state_dict(self, names: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
        device, self.names = self.sums.device, list(names)
        self.sums, self.tally = (tensors[name].to(device, copy=True) for name in ("sums", "tally"))
