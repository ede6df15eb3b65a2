"""How unrolls and batches lie in memory: one record of bytes for all that is small, one row of bytes for the frames.

The store and a batch use the same two rows, so that gathering is copying rows, and the fields of a batch are views
into them: no loop over fields, no transposition.

Each observation is kept once, and the stacks that a network sees are rebuilt when a batch is filled. Frames of an unroll lie one behind the
other, so the stack at row t is the run of bytes that begins at frame t: windows that overlap. What is not a window: frames before an
`is_first` belong to another episode (or to none) and are zero.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor

from laser_rl.types import Array, Batch, UnrollLayout, Unrolls

Bytes = NDArray[np.uint8]
Ids = NDArray[np.int64]
Codec = Literal["raw", "zstd"]
# More fields of a record: zero in the store, set in a batch.
OF_BATCH = {"online": "bool", "carried": "bool", "weight": "float32", "id": "int64"}
ALIGNMENT = 64  # of a record: a cache line; every field starts at a multiple of 8 so that it can be viewed as its type


class Shape(NamedTuple):
    """Sizes that follow from a layout; one object for each layout."""

    fields: Mapping[str, tuple[tuple[int, ...], np.dtype[np.generic]]]  # of `Unrolls`
    record: np.dtype[np.void]  # all of them but the observation, and those of a batch
    frame_bytes: int  # one observation
    frame_rows: int  # observations of an unroll, context included
    stack: int

    def place(self, name: str) -> "tuple[np.dtype[np.generic], int]":
        fields = cast("Mapping[str, tuple[np.dtype[np.generic], int]]", self.record.fields)
        return fields[name][0], fields[name][1]

    @property
    def record_bytes(self) -> int:
        return self.record.itemsize

    @property
    def frames_bytes(self) -> int:
        return self.frame_bytes * self.frame_rows


class Packed(NamedTuple):
    """n unrolls as bytes. The arrays may be read-only views of memory that other processes map as well."""

    records: Bytes  # [n, record_bytes]
    frames: Bytes  # raw [n, frames_bytes], contiguous; or all compressed blocks one behind the other
    lengths: Ids = np.zeros(0, np.int64)  # of the blocks

    @property
    def unrolls(self) -> int:
        return len(self.records)

    @property
    def codec(self) -> Codec:
        return "raw" if self.frames.ndim > 1 else "zstd"

    def blocks(self) -> list[memoryview]:
        ends, view = self.lengths.cumsum().tolist(), self.frames.data
        return [view[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)] if ends else []


class Parts(NamedTuple):
    """The two blocks that a batch of `allocate` lies in, unroll-major."""

    records: Tensor  # uint8 [B, record_bytes]
    frames: Tensor  # uint8 [B, T+1, stack · frame_bytes]; without stacking [B, context + T+1, frame_bytes]


class _Views(Batch):
    """A batch that knows the blocks that it lies in: to find them again would cost as much as to copy a small batch."""

    parts: Parts


@lru_cache(maxsize=64)
def shape_of(layout: UnrollLayout) -> Shape:
    names, formats, offsets, at = [], [], [], 0
    unrolls = {name: (shape, np.dtype(dtype)) for name, (shape, dtype) in layout.fields().items()}
    fields = {**layout.fields(), **{name: ((), dtype) for name, dtype in OF_BATCH.items()}}
    del fields["observation"]
    for name, (shape, dtype) in fields.items():
        names.append(name)
        formats.append((np.dtype(dtype), shape))
        offsets.append(at)
        at = _up(at + prod(shape) * np.dtype(dtype).itemsize, 8)
    record = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": _up(at, ALIGNMENT)})
    (rows, *observation), dtype = layout.fields()["observation"]
    return Shape(unrolls, record, prod(observation) * np.dtype(dtype).itemsize, rows, layout.stack)


def fields_of(records: Bytes, layout: UnrollLayout) -> dict[str, Array]:
    """Each field of [n, record_bytes] as a view [n, ...]."""
    dtype = shape_of(layout).record
    structured = records.view(dtype)[:, 0]
    return {name: structured[name] for name in dtype.names or ()}


def pack(layout: UnrollLayout, unrolls: Unrolls) -> Packed:
    """Check and pack; ValueError names the field with a wrong type or shape, or a number that is not finite."""
    count, sizes = len(unrolls.member), shape_of(layout)
    for (name, (shape, dtype)), array in zip(sizes.fields.items(), unrolls, strict=True):
        if array.dtype != dtype or array.shape != (count, *shape):
            raise ValueError(f"{name}: expected {dtype} {(count, *shape)}, got {array.dtype} {array.shape}")
        if array.dtype.kind == "f" and not np.isfinite(cast("NDArray[np.floating]", array)).all():
            raise ValueError(f"{name} holds numbers that are not finite; nothing non-finite may enter the replay")
    rows = np.zeros(count, sizes.record)
    for name in unrolls._fields[1:]:
        rows[name] = getattr(unrolls, name)
    frames = np.array(unrolls.observation, copy=True, order="C").reshape(-1).view(np.uint8)
    return Packed(rows.view(np.uint8).reshape(count, sizes.record_bytes), frames.reshape(count, sizes.frames_bytes))


def unpack(layout: UnrollLayout, packed: Packed) -> Unrolls:
    """The inverse of `pack`; arrays of their own."""
    count, (shape, dtype) = len(packed.records), layout.fields()["observation"]
    fields = fields_of(packed.records, layout)
    observation = packed.frames.view(dtype).reshape(count, *shape)
    return Unrolls(observation.copy(), *(fields[name].copy() for name in Unrolls._fields[1:]))


def allocate(layout: UnrollLayout, columns: int, *, pin: bool = False, stacked: bool = True) -> Batch:
    """A zeroed batch to be filled over and over; its tensors are time-major views [T+1, B, ...] of unroll-major memory.

    With `stacked=False` its observation holds the single frames [context + T+1, B, ...]: a quarter of the bytes to gather and to
    transfer, for `DeviceBatch`, which stacks on the device.
    """
    sizes = shape_of(layout)
    rows, stack = (layout.steps + 1, sizes.stack) if stacked else (sizes.frame_rows, 1)
    records = torch.zeros(columns, sizes.record_bytes, dtype=torch.uint8, pin_memory=pin)
    frames = torch.zeros(columns, rows, stack * sizes.frame_bytes, dtype=torch.uint8, pin_memory=pin)
    return views(layout, Parts(records, frames))


def views(layout: UnrollLayout, parts: Parts) -> Batch:
    sizes, columns = shape_of(layout), len(parts.records)
    fields = {"observation": _observation(layout, parts.frames)}
    for name in (*Unrolls._fields[1:], *OF_BATCH):
        dtype, offset = sizes.place(name)
        raw = parts.records[:, offset : offset + dtype.itemsize]
        field = raw.view(_torch_type(dtype.base)).reshape(columns, *dtype.shape)
        fields[name] = field.transpose(0, 1) if dtype.shape and name != "state" else field  # a state has no rows
    fields["is_first"] = fields["is_first"][layout.context :]
    batch = _Views(**fields)
    batch.parts = parts
    return batch


def parts_of(layout: UnrollLayout, batch: Batch) -> Parts:
    """The blocks behind a batch of `allocate` or `DeviceBatch`; ValueError for any other."""
    parts: Parts | None = getattr(batch, "parts", None)
    if parts is not None and parts.records.shape[1] == shape_of(layout).record_bytes:
        return parts
    raise ValueError("the batch does not lie in two blocks of this layout; make it with memory_layout.allocate")


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
    """Memory on a device for batches like one of `allocate`, to be copied into over and over; stacks what was allocated unstacked."""

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
        """Tell the allocator that `stream` writes here too: freed memory is not reused before that stream is done with it."""
        for block in (*self._parts, self._stacks):
            block.record_stream(stream)

    def copy_from(self, batch: Batch) -> Batch:
        """On the current stream. From pinned memory this does not wait: keep the batch as it is until the device has caught up."""
        for there, here in zip(self._parts, parts_of(self._layout, batch), strict=True):
            there.copy_(here, non_blocking=True)
        if self._stacks is not self._parts.frames:
            sizes = shape_of(self._layout)
            offset = sizes.place("is_first")[1]
            is_first = self._parts.records[:, offset : offset + sizes.frame_rows].view(torch.bool)
            stack_into(self._layout, self._parts.frames, is_first, self._stacks)
        return self.batch


def _observation(layout: UnrollLayout, frames: Tensor) -> Tensor:
    itemsize = np.dtype(layout.observation_dtype).itemsize
    channels, *rest = layout.observation_shape or (1,)
    stack = frames.shape[-1] // (itemsize * channels * prod(rest))
    typed = frames.view(_torch_type(np.dtype(layout.observation_dtype)))
    shape = (stack * channels, *rest) if layout.observation_shape or stack > 1 else ()
    return typed.reshape(*frames.shape[:2], *shape).transpose(0, 1)


def _torch_type(dtype: "np.dtype[np.generic]") -> torch.dtype:
    return torch.from_numpy(np.zeros(0, dtype)).dtype


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
