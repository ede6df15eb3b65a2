"""The replay: unrolls of all members in one ring, first in, first out, drawn uniformly.

Thread safety: one lock. Whoever holds it copies bytes and does nothing else: rows into the ring, or rows (and compressed blocks)
out of it. Compressing and decompressing happen outside of it, on private copies. So a row is never seen half written, and
what `sample_into` has drawn cannot be overwritten before it is read.
"""

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.errors import ConfigError
from laser_rl.replay import codec as zstd
from laser_rl.replay.arena import Arena, chunk_bytes
from laser_rl.replay.frames import cut, windows
from laser_rl.replay.memory import Codec, default_budget, resolve_codec, unrolls_of
from laser_rl.replay.records import Bytes, Packed, Parts, fields_of, pack, parts_of, shape_of, unpack
from laser_rl.types import Batch, UnrollLayout, Unrolls

Ids = NDArray[np.int64]
DECOMPRESS_S = 60.0  # a part of a batch takes milliseconds


class Evicted(KeyError):
    """An unroll that is not in the store any more, or not yet."""


class _Pinned(NamedTuple):
    """Compressed frames, copied out of the ring."""

    blocks: bytes
    lengths: Ids


class Replay:
    """A store of `capacity_steps // T` unrolls (at least one), and of `budget_bytes` of compressed observations.

    An unroll's id is the number of unrolls inserted before it. `codec` "auto" compresses pictures and keeps everything else raw;
    without a budget a tenth of the raw size is assumed, and the oldest unrolls leave early when frames compress less well than that.
    `threads` decompress the parts of one batch.

    >>> from laser_rl.replay import allocate
    >>> from laser_rl.types import empty_unrolls
    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> store = Replay(layout, capacity_steps=10)
    >>> store.insert(empty_unrolls(layout, 6))
    array([0, 1, 2, 3, 4, 5])
    >>> len(store), store.first_id, store.steps
    (5, 1, 10)
    >>> batch = allocate(layout, columns=3)
    >>> ids = store.sample_into(3, np.random.default_rng(0), batch, first_column=0)
    """

    def __init__(
        self,
        layout: UnrollLayout,
        capacity_steps: int,
        *,
        codec: Literal["auto"] | Codec = "auto",
        budget_bytes: int | None = None,
        level: int = 1,
        threads: int = 1,
    ) -> None:
        self.layout = layout
        self.capacity = unrolls_of(layout, capacity_steps)  # in unrolls
        self.codec: Codec = resolve_codec(layout, codec)
        self._shape = shape_of(layout)
        self._level = level
        self._lock = threading.Lock()
        self._local = threading.local()
        self._first = self._next = 0
        self._compressed_bytes = 0
        self._records = np.zeros((self.capacity, self._shape.record_bytes), np.uint8)
        self._records.fill(0)  # zeros are not there until they are written: the first touch of memory is the slow one
        self._members = np.zeros(self.capacity, np.int32)
        self._pool = ThreadPoolExecutor(threads - 1, "decompress") if threads > 1 else None
        self._threads = threads
        if self.codec == "raw":
            self._frames = np.zeros((self.capacity, self._shape.frames_bytes), np.uint8)
            self._frames.fill(0)
        else:
            self.budget_bytes = default_budget(layout, capacity_steps) if budget_bytes is None else budget_bytes
            largest = zstd.compress_bound(self._shape.frames_bytes)
            if self.budget_bytes < largest:
                raise ConfigError(
                    f"replay budget of {self.budget_bytes:,} bytes cannot hold one unroll, which may need {largest:,}; "
                    "raise --replay.budget-gb"
                )
            self._arena = Arena(chunk_bytes(self.budget_bytes, largest))
            self._address = np.zeros(self.capacity, np.int64)
            self._length = np.zeros(self.capacity, np.int64)

    def __len__(self) -> int:
        return self._next - self._first

    @property
    def first_id(self) -> int:
        """The oldest unroll held."""
        return self._first

    @property
    def next_id(self) -> int:
        """The id that the next unroll will get."""
        return self._next

    @property
    def steps(self) -> int:
        """Steps held."""
        return len(self) * self.layout.steps

    @property
    def nbytes(self) -> int:
        """Bytes held in memory, whether filled or not."""
        if self.codec == "raw":
            return self._records.nbytes + self._members.nbytes + self._frames.nbytes
        index = self._address.nbytes + self._length.nbytes
        return self._records.nbytes + self._members.nbytes + index + self._arena.nbytes

    @property
    def compressed_bytes(self) -> int:
        """Bytes of all compressed blocks; what the budget bounds."""
        return self._compressed_bytes

    def load(self, first_id: int) -> None:
        """Start an empty store at an id: then insert the unrolls of a checkpoint in order, and everything goes on as before."""
        with self._lock:
            if len(self):
                raise ValueError(f"expected an empty replay to load into, this one holds {len(self)} unrolls")
            self._first = self._next = first_id

    def insert(self, unrolls: Unrolls) -> Ids:
        """Add unrolls and return their ids. ValueError, and nothing is added, if one is malformed or not finite."""
        return self.insert_packed(pack(self.layout, unrolls))

    def insert_packed(self, packed: Packed) -> Ids:
        """The same for unrolls that `pack` has checked already."""
        count = len(packed.records)
        members = fields_of(packed.records, self.layout)["member"]
        blocks = zstd.compress(packed.frames, self._level) if self.codec == "zstd" and count else []
        with self._lock:
            begin = self._next
            at = 0
            while at < count:
                slot = self._next % self.capacity
                piece = slice(at, min(count, at + self.capacity - slot))  # up to the end of the ring
                room = slice(slot, slot + piece.stop - at)
                if self.codec == "raw":
                    self._frames[room] = packed.frames[piece]
                    self._next += piece.stop - at
                    self._first = max(self._first, self._next - self.capacity)
                else:
                    self._add_blocks(blocks[piece])
                self._records[room] = packed.records[piece]
                self._members[room] = members[piece]
                at = piece.stop
        return np.arange(begin, begin + count)

    def _add_blocks(self, blocks: Iterable[memoryview]) -> None:
        for block in blocks:
            size = block.nbytes
            while len(self) >= self.capacity or self._compressed_bytes + size > self.budget_bytes:
                self._arena.drop()
                self._compressed_bytes -= int(self._length[self._first % self.capacity])
                self._first += 1
            slot = self._next % self.capacity
            self._address[slot], self._length[slot] = self._arena.add(block), size
            self._compressed_bytes += size
            self._next += 1

    def sample(self, count: int, random: np.random.Generator) -> Ids:
        """Ids drawn uniformly, with replacement. Others may insert before you gather: then use `sample_into`."""
        with self._lock:
            return self._draw(count, random)

    def _draw(self, count: int, random: np.random.Generator) -> Ids:
        if not len(self):
            raise ValueError(f"asked for {count} unrolls of an empty replay; insert some first")
        return random.integers(self._first, self._next, count)

    def gather(self, ids: Ids, batch: Batch, first_column: int) -> None:
        """Fill columns of a batch of `allocate`; `Evicted` if one of the unrolls has left."""
        parts = parts_of(self.layout, batch)
        with self._lock:
            pinned = self._pin(self._slots(ids), parts, first_column)
        self._finish(pinned, parts, first_column, len(ids))

    def sample_into(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> Ids:
        """Sample and gather; nothing that was drawn can leave in between."""
        parts = parts_of(self.layout, batch)
        with self._lock:
            ids = self._draw(count, random)
            pinned = self._pin(ids % self.capacity, parts, first_column)
        self._finish(pinned, parts, first_column, count)
        return ids

    def _slots(self, ids: Ids) -> Ids:
        if len(ids) and not (self._first <= int(ids.min()) and int(ids.max()) < self._next):
            raise Evicted(f"unrolls {int(ids.min())} to {int(ids.max())} asked, {self._first} to {self._next - 1} held")
        return ids % self.capacity

    def _pin(self, slots: Ids, parts: Parts, first: int) -> _Pinned | None:
        """Under the lock: copy the records, and raw frames to their place or compressed ones aside."""
        last = first + len(slots)
        if last > len(parts.records):
            raise ValueError(f"columns {first} to {last - 1} asked of a batch of {len(parts.records)}")
        # numpy's take, not torch's index_select: as fast on one thread, and no team of threads to wait for on a busy machine.
        self._records.take(slots, 0, parts.records[first:last].numpy(), "clip")
        if self.codec == "zstd":
            return self._blocks(slots)
        target = parts.frames[first:last].numpy()
        if target.shape[1] == self._shape.frame_rows:
            self._frames.take(slots, 0, target.reshape(len(slots), self._shape.frames_bytes), "clip")
        else:
            frames = self._frames.take(slots, 0, self._scratch(len(slots)), "clip")
            np.copyto(target, windows(self.layout, frames, target.shape[1]))
        return None

    def _blocks(self, slots: Ids) -> _Pinned:
        lengths = self._length[slots]
        places = zip(self._address[slots].tolist(), lengths.tolist(), strict=True)
        return _Pinned(b"".join([self._arena.read(address, length) for address, length in places]), lengths)

    def _finish(self, pinned: _Pinned | None, parts: Parts, first: int, count: int) -> None:
        """Outside the lock: decompress and stack, in parts if there are threads for them."""
        if pinned is not None and count:
            share = -(-count // self._threads)
            ends = [0, *pinned.lengths.cumsum().tolist()]
            view = memoryview(pinned.blocks)
            target = parts.frames[first : first + count].numpy()
            jobs = [
                (view[ends[at] : ends[min(at + share, count)]], target[at : at + share])
                for at in range(0, count, share)
            ]
            waiting = [self._pool.submit(self._decompress, *job) for job in jobs[1:]] if self._pool else []
            self._decompress(*jobs[0])
            for job in waiting:
                job.result(timeout=DECOMPRESS_S)
        cut(self.layout, parts, first, first + count)

    def _decompress(self, blocks: memoryview, target: Bytes) -> None:
        if target.shape[1] == self._shape.frame_rows:
            zstd.decompress(blocks, target)
            return
        frames = self._scratch(len(target))
        zstd.decompress(blocks, frames)
        np.copyto(target, windows(self.layout, frames, target.shape[1]))

    def _scratch(self, count: int) -> Bytes:
        """Room for single frames, kept by each thread: fresh memory costs more than what is written into it."""
        room: Bytes | None = getattr(self._local, "room", None)
        if room is None or len(room) < count:
            room = self._local.room = np.empty((count, self._shape.frames_bytes), np.uint8)
        return room[:count]

    def export(self, ids: Ids) -> Unrolls:
        """The unrolls as they were inserted."""
        with self._lock:
            slots = self._slots(ids)
            records = self._records[slots]
            pinned = self._blocks(slots) if self.codec == "zstd" else self._frames[slots]
        if isinstance(pinned, _Pinned):
            frames = np.empty((len(ids), self._shape.frames_bytes), np.uint8)
            zstd.decompress(pinned.blocks, frames)
            return unpack(self.layout, Packed(records, frames))
        return unpack(self.layout, Packed(records, pinned))

    def members(self, ids: Ids) -> NDArray[np.int32]:
        """Who produced each."""
        with self._lock:
            return self._members[self._slots(ids)]

    def versions(self, ids: Ids) -> Ids:
        """Of the parameters that acted; the learner's version less this is the age."""
        with self._lock:
            versions: Ids = fields_of(self._records, self.layout)["version"][self._slots(ids)].astype(np.int64)
            return versions

    def composition(self) -> dict[int, float]:
        """The share of each member in all that is held.

        >>> from laser_rl.types import empty_unrolls
        >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
        >>> store = Replay(layout, capacity_steps=10)
        >>> ids = store.insert(empty_unrolls(layout, 4)._replace(member=np.array([0, 1, 1, 1], np.int32)))
        >>> store.composition()
        {0: 0.25, 1: 0.75}
        """
        with self._lock:
            held = self._members[np.arange(self._first, self._next) % self.capacity]
        members, counts = np.unique(held, return_counts=True)
        return {int(member): int(count) / len(held) for member, count in zip(members, counts, strict=True)}
