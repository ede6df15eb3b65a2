"""Batches in memory that the ranks of a learner share: rank 0 fills all columns, each rank reads its own."""

import logging
import mmap
import os
from typing import NamedTuple

import torch
from torch import Tensor

from laser_rl.agent.parallel import Team, own_columns
from laser_rl.replay.records import Parts, shape_of, views
from laser_rl.types import Batch, UnrollLayout

log = logging.getLogger("laser_rl.training")
PAGE = 4096


class BatchPlan(NamedTuple):
    """How large they are."""

    layout: UnrollLayout
    columns: int
    batches: int
    stacked: bool  # whether frames are stacked on the host, as a CPU learns from them

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the two blocks of a batch, for one column (see `replay.records.Parts`)."""
        sizes, steps = shape_of(self.layout), self.layout.steps
        frames = (steps + 1, sizes.stack * sizes.frame_bytes) if self.stacked else (sizes.frame_rows, sizes.frame_bytes)
        return (sizes.record_bytes,), frames


class SharedBatches:
    """So many batches in one file without a name: it goes with the last process that has it.

    Args:
        plan: the same in all processes.
        handle: of the file of another process, to attach to.

    >>> from laser_rl.agent.parallel import Alone
    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> ours = SharedBatches(BatchPlan(layout, columns=4, batches=1, stacked=True))
    >>> ours.part(0, Alone()).reward.fill_(3.0).shape
    torch.Size([2, 4])
    >>> SharedBatches(ours.plan, ours.handle).part(0, Alone()).reward[0]
    tensor([3., 3., 3., 3.])
    """

    def __init__(self, plan: BatchPlan, handle: int | None = None) -> None:
        self.plan = plan
        self._bytes = [plan.columns * torch.Size(shape).numel() for shape in plan.shapes]
        self._stride = sum(map(_pages, self._bytes))
        self.handle = os.memfd_create("laser-batches") if handle is None else handle
        if handle is None:
            os.ftruncate(self.handle, self._stride * plan.batches)
        self._memory = mmap.mmap(self.handle, self._stride * plan.batches)

    def part(self, number: int, team: Team) -> Batch:
        """The columns of one rank, or of all for somebody who is alone; memory of their own kind, as `replay.allocate` makes it."""
        own = own_columns(self.plan.columns, team)
        at, parts = number * self._stride, list[Tensor]()
        for shape, size in zip(self.plan.shapes, self._bytes, strict=True):
            column = torch.Size(shape).numel()
            block = torch.frombuffer(
                self._memory, dtype=torch.uint8, count=(own.stop - own.start) * column, offset=at + own.start * column
            )
            parts.append(block.view(-1, *shape))
            at += _pages(size)
        return views(self.plan.layout, Parts(*parts))

    def pin(self) -> None:
        """For this process's GPU: uploads from here need no copy in between, and the host does not wait for them."""
        memory = torch.frombuffer(self._memory, dtype=torch.uint8)
        status = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), len(memory), 0)  # type: ignore[no-untyped-call]
        if int(status) != 0:
            log.warning("batches could not be pinned for the GPU (status %d): their uploads are slower", int(status))


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
