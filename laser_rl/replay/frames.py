"""Frame stacks: each observation is kept once, and the stacks that a network sees are rebuilt when a batch is filled.

Frames of an unroll lie one behind the other, so the stack at row t is the run of bytes that begins at frame t: windows that
overlap. What is not a window: frames before an `is_first` belong to another episode (or to none) and are zero.
"""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from laser_rl.replay.records import ID, ONLINE, WEIGHT, Bytes, Packed, Parts, fields_of, parts_of, shape_of, views
from laser_rl.types import Batch, UnrollLayout


def windows(layout: UnrollLayout, frames: Bytes, rows: int) -> Bytes:
    """[n, frames_bytes] as [n, rows, bytes of a row], a view: stacks if rows is T+1, else single frames."""
    sizes, count = shape_of(layout), len(frames)
    if rows == sizes.frame_rows:
        return frames.reshape(count, rows, sizes.frame_bytes)
    shape = (count, rows, sizes.stack * sizes.frame_bytes)
    return as_strided(frames, shape, (frames.strides[0], sizes.frame_bytes, 1), writeable=False)


def cut(layout: UnrollLayout, parts: Parts, first: int, last: int) -> None:
    """Zero what the stacks of columns first..last-1 hold of earlier episodes. `is_first` must be there already."""
    sizes = shape_of(layout)
    if sizes.stack == 1 or parts.frames.shape[1] == sizes.frame_rows:
        return
    is_first = fields_of(parts.records[first:last].numpy(), layout)["is_first"]
    stacks = parts.frames[first:last].numpy().reshape(last - first, layout.steps + 1, sizes.stack, sizes.frame_bytes)
    earlier = np.zeros((last - first, layout.steps + 1), np.bool_)
    for age in range(1, sizes.stack):
        begins = layout.context - age + 1  # the frame of this age precedes a reset among the younger ones
        earlier |= is_first[:, begins : begins + layout.steps + 1].astype(np.bool_)
        column, row = np.nonzero(earlier)
        if len(column):
            stacks[column, row, layout.context - age] = 0


def stack_into(layout: UnrollLayout, frames: Tensor, is_first: Tensor, stacks: Tensor) -> None:
    """Write the stacks [B, T+1, stack · frame_bytes] of single frames [B, context + T+1, frame_bytes], on any device."""
    sizes, rows = shape_of(layout), layout.steps + 1
    frames, stacks = _wide(frames, sizes.frame_bytes), _wide(stacks, sizes.frame_bytes)
    stacks = stacks.view(len(stacks), rows, sizes.stack, -1)
    stacks.copy_(frames.unfold(1, sizes.stack, 1).movedim(-1, -2))
    earlier = torch.zeros(len(frames), rows, dtype=torch.bool, device=frames.device)
    for age in range(1, sizes.stack):
        begins = layout.context - age + 1
        earlier = earlier | is_first[:, begins : begins + rows]
        stacks[:, :, layout.context - age].masked_fill_(earlier[..., None], 0)


def _wide(rows: Tensor, frame_bytes: int) -> Tensor:
    """Bytes [..., k · frame_bytes] eight at a time where a frame allows it: a GPU copies so many words a second, whatever their width."""
    return rows.view(torch.int64) if frame_bytes % 8 == 0 else rows


class DeviceBatch:
    """Memory on a device for batches like one of `allocate`, to be copied into over and over; stacks what was allocated unstacked.

    Args:
        layout: of the unrolls.
        like: a batch on the host.
        device: of this one.

    >>> from laser_rl.replay.records import allocate
    >>> layout = UnrollLayout(20, 3, (1, 84, 84), "uint8", (), "int64", 18)
    >>> host = allocate(layout, 8, stacked=False)
    >>> there = DeviceBatch(layout, host, "cpu")
    >>> there.copy_from(host)
    >>> there.batch.observation.shape
    torch.Size([21, 8, 4, 84, 84])
    """

    def __init__(self, layout: UnrollLayout, like: Batch, device: torch.device | str) -> None:
        sizes, parts = shape_of(layout), parts_of(layout, like)
        self._layout, (records, frames) = layout, parts
        self._parts = Parts(*(torch.empty(part.shape, dtype=torch.uint8, device=device) for part in (records, frames)))
        self._stacks = self._parts.frames
        if sizes.stack > 1 and frames.shape[1] == sizes.frame_rows:
            stacked = (len(frames), layout.steps + 1, sizes.stack * sizes.frame_bytes)
            self._stacks = torch.empty(stacked, dtype=torch.uint8, device=device)
        self.batch = views(layout, Parts(self._parts.records, self._stacks))

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Another stream than the one it was made on will write here: when this is freed, nobody gets the memory before that is done."""
        for block in (*self._parts, self._stacks):
            block.record_stream(stream)

    def copy_from(self, batch: Batch) -> None:
        """On the current stream. From pinned memory this does not wait: keep the batch as it is until the device has caught up."""
        for there, here in zip(self._parts, parts_of(self._layout, batch), strict=True):
            there.copy_(here, non_blocking=True)
        if self._stacks is not self._parts.frames:
            sizes = shape_of(self._layout)
            offset = sizes.place("is_first")[1]
            is_first = self._parts.records[:, offset : offset + sizes.frame_rows].view(torch.bool)
            stack_into(self._layout, self._parts.frames, is_first, self._stacks)


def upload(layout: UnrollLayout, batch: Batch, device: torch.device | str) -> Batch:
    """A batch of `allocate` on a device, in memory of its own; see `DeviceBatch.copy_from`.

    >>> from laser_rl.replay.records import allocate
    >>> layout = UnrollLayout(20, 3, (1, 84, 84), "uint8", (), "int64", 18)
    >>> upload(layout, allocate(layout, 8, stacked=False), "cpu").observation.shape
    torch.Size([21, 8, 4, 84, 84])
    """
    there = DeviceBatch(layout, batch, device)
    there.copy_from(batch)
    return there.batch


def put_packed(layout: UnrollLayout, blocks: Iterable[Packed], batch: Batch, first_column: int) -> None:
    """Fill columns of a batch from packed unrolls that are in no store: the same bytes as `Replay.gather` gives, but online."""
    parts = parts_of(layout, batch)
    records, frames, at = parts.records.numpy(), parts.frames.numpy(), first_column
    for block in blocks:
        end = at + len(block.records)
        if end > len(records):
            raise ValueError(f"columns {at} to {end - 1} asked of a batch of {len(records)}")
        records[at:end] = block.records
        frames[at:end] = windows(layout, block.frames, frames.shape[1])
        at = end
    fields = fields_of(records[first_column:at], layout)
    fields[ONLINE][:], fields[WEIGHT][:], fields[ID][:] = True, 1.0, -1
    cut(layout, parts, first_column, at)
