"""Unrolls on their way between processes: three arrays of bytes, frames in the form in which a store keeps them.

An actor compresses its unrolls once (`seal`). So they travel, lie in a store and travel on without being touched, and are decompressed
where a batch is filled, straight into it: one zstd block an unroll.

All blocks of a batch are worked through in one call, without the interpreter lock. A call for each would take the lock back after each:
beside a thread that computes in Python that is a wait of 5 ms for every unroll, fifty times slower. To compress, zstandard has such a call.
Its counterpart decompresses into memory of its own, in pieces that would be copied one by one; numcodecs decompresses zstd frames that lie
one behind the other straight into the batch (which zstd allows: they are one stream).
"""

import threading

import numcodecs.zstd  # type: ignore[import-untyped]
import numpy as np
import zstandard

from laser_rl.replay.memory_layout import Bytes, Codec, Ids, Packed, Parts, cut, shape_of, windows
from laser_rl.types import UnrollLayout

LEVEL = 1  # of zstd


def compress_bound(size: int) -> int:
    """The most bytes that a block of `size` bytes can become (ZSTD_COMPRESSBOUND)."""
    small = 1 << 17
    return size + (size >> 8) + (((small - size) >> 11) if size < small else 0)


def compress(frames: Bytes) -> list[memoryview]:
    """Each row of [n, bytes] as a block."""
    count, size = frames.shape
    if not count:
        return []
    segments = np.stack([np.arange(count, dtype=np.uint64) * np.uint64(size), np.full(count, size, np.uint64)], axis=1)
    source = zstandard.BufferWithSegments(np.ascontiguousarray(frames).data, segments.tobytes())
    blocks = zstandard.ZstdCompressor(level=LEVEL).multi_compress_to_buffer(source, threads=1)
    return [memoryview(blocks[i]) for i in range(count)]  # type: ignore[arg-type]


def decompress(blocks: bytes | memoryview, out: Bytes) -> None:
    """Blocks, one behind the other, into [n, bytes]; together they must give exactly as many bytes as it has."""
    if out.size:
        numcodecs.zstd.decompress(blocks, out)


def seal(packed: Packed, codec: Codec) -> Packed:
    """Compress, if that is the codec of the store that it goes to (`resolve_codec`)."""
    if codec == "raw":
        return packed
    blocks = compress(packed.frames)
    lengths = np.array([block.nbytes for block in blocks], np.int64)
    return Packed(packed.records, np.frombuffer(b"".join(blocks), np.uint8), lengths)


def unseal(layout: UnrollLayout, parcel: Packed) -> Packed:
    """The inverse of `seal`; what is raw is returned as it is."""
    if parcel.codec == "raw":
        return parcel
    frames = np.empty((parcel.unrolls, shape_of(layout).frames_bytes), np.uint8)
    decompress(parcel.frames.data, frames)
    return Packed(parcel.records, frames)


class Unpacking:
    """From packed unrolls into batches; each thread keeps the memory that it needs on the way."""

    def __init__(self, layout: UnrollLayout) -> None:
        self._layout, self._shape, self._local = layout, shape_of(layout), threading.local()

    def room(self, parts: Parts, first_column: int, count: int) -> tuple[Bytes, Bytes]:
        """Where records and raw frames of unrolls can lie before `put`: in the batch already, but for frames that are to be stacked."""
        records, target = self._columns(parts, first_column, count)
        whole = target.shape[1] == self._shape.frame_rows
        return records, target.reshape(count, self._shape.frames_bytes) if whole else self.scratch(count)

    def put(self, parcel: Packed, ids: Ids, parts: Parts, first_column: int) -> None:
        """Fill columns of a batch of `allocate`, of which these are the `parts`; `ids` are those in the replay, -1 of what is online."""
        records, target = self._columns(parts, first_column, parcel.unrolls)
        if not np.may_share_memory(records, parcel.records):
            records[...] = parcel.records
        fields = records.view(self._shape.record)[:, 0]
        fields["id"], fields["online"], fields["weight"] = ids, ids < 0, 1.0
        frames = parcel.frames
        if parcel.codec == "zstd":
            whole = target.shape[1] == self._shape.frame_rows
            frames = target if whole else self.scratch(parcel.unrolls)
            decompress(parcel.frames.data, frames)
        if not np.may_share_memory(frames, target):
            np.copyto(target, windows(self._layout, frames, target.shape[1]))
        cut(self._layout, parts, first_column, first_column + parcel.unrolls)

    def _columns(self, parts: Parts, first: int, count: int) -> tuple[Bytes, Bytes]:
        if (last := first + count) > len(parts.records):
            raise ValueError(f"columns {first} to {last - 1} asked of a batch of {len(parts.records)}")
        return parts.records.numpy()[first:last], parts.frames.numpy()[first:last]

    def scratch(self, count: int) -> Bytes:
        """Room for single frames, kept by each thread: fresh memory costs more than what is written into it."""
        room: Bytes | None = getattr(self._local, "room", None)
        if room is None or len(room) < count:
            room = self._local.room = np.empty((count, self._shape.frames_bytes), np.uint8)
        return room[:count]
