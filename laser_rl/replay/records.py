"""How an unroll lies in memory: one record of bytes for all that is small, one row of bytes for its frames.

The store and a batch use the same two rows, so that gathering is copying rows, and the fields of a batch are views
into them: no loop over fields, no transposition.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laser_rl.types import Array, Batch, UnrollLayout, Unrolls

Bytes = NDArray[np.uint8]
# More fields of a record: zero in the store, set in a batch.
ONLINE, CARRIED, WEIGHT, ID = "online", "carried", "weight", "id"
STATE = "state"
OF_BATCH = {ONLINE: "bool", CARRIED: "bool", WEIGHT: "float32", ID: "int64"}
ALIGNMENT = 64  # of a record: a cache line; every field starts at a multiple of 8 so that it can be viewed as its type
FIELD_ALIGNMENT = 8


class Shape(NamedTuple):
    """Sizes that follow from a layout; one object for each layout."""

    record: np.dtype[np.void]  # all fields but the observation
    frame_bytes: int  # one observation
    frame_rows: int  # observations of an unroll, context included
    stack: int

    def place(self, name: str) -> "tuple[np.dtype[np.generic], int]":
        """Type and offset of a field."""
        fields = cast("Mapping[str, tuple[np.dtype[np.generic], int]]", self.record.fields)
        return fields[name][0], fields[name][1]

    @property
    def record_bytes(self) -> int:
        """Bytes of a record."""
        return self.record.itemsize

    @property
    def frames_bytes(self) -> int:
        """Bytes of the observations of an unroll, each once."""
        return self.frame_bytes * self.frame_rows


class Packed(NamedTuple):
    """n unrolls as bytes."""

    records: Bytes  # [n, record_bytes]
    frames: Bytes  # [n, frames_bytes], contiguous


class Parts(NamedTuple):
    """The two blocks that a batch of `allocate` lies in, unroll-major."""

    records: Tensor  # uint8 [B, record_bytes]
    frames: Tensor  # uint8 [B, T+1, stack · frame_bytes]; without stacking [B, context + T+1, frame_bytes]


@lru_cache(maxsize=64)
def shape_of(layout: UnrollLayout) -> Shape:
    """Where each field lies.

    >>> layout = UnrollLayout(20, 3, (1, 84, 84), "uint8", (), "int64", 18)
    >>> shape = shape_of(layout)
    >>> shape.record_bytes, shape.frames_bytes
    (2176, 169344)
    """
    names, formats, offsets, at = [], [], [], 0
    fields = {**layout.fields(), **{name: ((), dtype) for name, dtype in OF_BATCH.items()}}
    del fields["observation"]
    for name, (shape, dtype) in fields.items():
        names.append(name)
        formats.append((np.dtype(dtype), shape))
        offsets.append(at)
        at = _up(at + prod(shape) * np.dtype(dtype).itemsize, FIELD_ALIGNMENT)
    record = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": _up(at, ALIGNMENT)})
    (rows, *observation), dtype = layout.fields()["observation"]
    return Shape(record, prod(observation) * np.dtype(dtype).itemsize, rows, layout.stack)


def fields_of(records: Bytes, layout: UnrollLayout) -> dict[str, Array]:
    """Each field of [n, record_bytes] as a view [n, ...]."""
    dtype = shape_of(layout).record
    structured = records.view(dtype)[:, 0]
    return {name: structured[name] for name in dtype.names or ()}


def pack(layout: UnrollLayout, unrolls: Unrolls) -> Packed:
    """Check and pack; ValueError names the field with a wrong type or shape, or a number that is not finite.

    >>> from laser_rl.types import empty_unrolls
    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> pack(layout, empty_unrolls(layout, 3)).frames.shape
    (3, 48)
    >>> pack(layout, empty_unrolls(layout, 3)._replace(reward=np.full((3, 2), np.nan, np.float32)))
    Traceback (most recent call last):
    ValueError: reward holds numbers that are not finite; nothing non-finite may enter the replay
    """
    count = len(unrolls.member)
    for name, (shape, dtype) in layout.fields().items():
        array: Array = getattr(unrolls, name)
        if array.dtype != dtype or array.shape != (count, *shape):
            raise ValueError(f"{name}: expected {dtype} {(count, *shape)}, got {array.dtype} {array.shape}")
        if array.dtype.kind == "f" and not np.isfinite(cast("NDArray[np.floating]", array)).all():
            raise ValueError(f"{name} holds numbers that are not finite; nothing non-finite may enter the replay")
    sizes = shape_of(layout)
    structured = np.zeros(count, sizes.record)
    for name in unrolls._fields[1:]:
        structured[name] = getattr(unrolls, name)
    frames = np.array(unrolls.observation, copy=True, order="C").reshape(-1).view(np.uint8)
    return Packed(
        structured.view(np.uint8).reshape(count, sizes.record_bytes), frames.reshape(count, sizes.frames_bytes)
    )


def unpack(layout: UnrollLayout, packed: Packed) -> Unrolls:
    """The inverse of `pack`; arrays of their own."""
    count, (shape, dtype) = len(packed.records), layout.fields()["observation"]
    fields = fields_of(packed.records, layout)
    observation = packed.frames.view(dtype).reshape(count, *shape)
    return Unrolls(observation.copy(), *(fields[name].copy() for name in Unrolls._fields[1:]))


def allocate(layout: UnrollLayout, columns: int, *, pin: bool = False, stacked: bool = True) -> Batch:
    """A zeroed batch to be filled over and over; its tensors are time-major views [T+1, B, ...] of unroll-major memory.

    With `stacked=False` its observation holds the single frames [context + T+1, B, ...]: a quarter of the bytes to gather and to
    transfer, for `upload`, which stacks on the device.

    >>> layout = UnrollLayout(20, 3, (1, 84, 84), "uint8", (), "int64", 18)
    >>> batch = allocate(layout, columns=8)
    >>> batch.observation.shape, batch.reward.shape, batch.online.shape
    (torch.Size([21, 8, 4, 84, 84]), torch.Size([20, 8]), torch.Size([8]))
    """
    sizes = shape_of(layout)
    rows, frame = (
        (layout.steps + 1, sizes.stack * sizes.frame_bytes) if stacked else (sizes.frame_rows, sizes.frame_bytes)
    )
    records = torch.zeros(columns, sizes.record_bytes, dtype=torch.uint8, pin_memory=pin)
    return views(layout, Parts(records, torch.zeros(columns, rows, frame, dtype=torch.uint8, pin_memory=pin)))


def views(layout: UnrollLayout, parts: Parts) -> Batch:
    """The batch that lies in two blocks of any device."""
    sizes, columns = shape_of(layout), len(parts.records)
    fields = {"observation": _observation(layout, parts.frames)}
    for name in (*Unrolls._fields[1:], *OF_BATCH):
        dtype, offset = sizes.place(name)
        raw = parts.records[:, offset : offset + dtype.itemsize]
        field = raw.view(_torch_type(dtype.base)).reshape(columns, *dtype.shape)
        fields[name] = field.transpose(0, 1) if dtype.shape and name != STATE else field  # a state has no rows
    fields["is_first"] = fields["is_first"][layout.context :]
    return Batch(**fields)


def parts_of(layout: UnrollLayout, batch: Batch) -> Parts:
    """The blocks behind a batch of `allocate` or `upload`; ValueError for any other."""
    sizes, columns = shape_of(layout), batch.online.shape[0]
    rows, frame = batch.observation.shape[0], sizes.frame_bytes
    frame *= sizes.stack if rows == layout.steps + 1 else 1
    records, frames = batch.online.untyped_storage(), batch.observation.untyped_storage()
    if (records.nbytes(), frames.nbytes()) != (columns * sizes.record_bytes, columns * rows * frame):
        raise ValueError("the batch does not lie in two blocks of this layout; make it with laser_rl.replay.allocate")
    empty = torch.empty(0, dtype=torch.uint8, device=batch.online.device)
    empty_frames = torch.empty(0, dtype=torch.uint8, device=batch.online.device)
    return Parts(
        empty.set_(records, 0, (columns, sizes.record_bytes)),  # type: ignore[call-overload]
        empty_frames.set_(frames, 0, (columns, rows, frame)),  # type: ignore[call-overload]
    )


def _observation(layout: UnrollLayout, frames: Tensor) -> Tensor:
    """[B, rows, bytes] as [rows, B, stack · C, ...]."""
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
