"""The replay: unrolls of all members in one ring, first in, first out, drawn uniformly.

Thread safety: one lock, of all processes if the store is shared. Its holder copies bytes and does nothing else: rows into the
ring, or rows (and compressed blocks) out of it. Compressing and decompressing happen outside of it, on private copies. So a row is
never seen half written, and what `sample_into` has drawn cannot be overwritten before it is read.

A writer may be killed between any two writes (`_Ring`); then the lock is free (`SharedLock`). What is held are the ids from FIRST to NEXT,
each in the row `id % capacity`, and the order of writes keeps that true: FIRST moves on before a row is overwritten, and NEXT once the new
row is complete. Readers rely on nothing else. So of an insert that was cut off a few whole unrolls may be there, never a part of one; the
oldest may have left for nothing. Only the count of compressed bytes has to be made again: a writer raises the flag UNSETTLED before its
first write and takes it down after the last, and the next one that finds it raised adds up the rows. A kill lets a process finish the
instruction it is at, and a number of 8 bytes is one: no number is ever half written.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from laser_rl.errors import ConfigError
from laser_rl.replay.encoded_unrolls import Unpacking, compress, unseal
from laser_rl.replay.memory_estimate import default_budget, resolve_codec, unrolls_of
from laser_rl.replay.memory_layout import Bytes, Codec, Ids, Packed, fields_of, pack, parts_of, unpack
from laser_rl.replay.shared import (
    COMPRESSED,
    FIRST,
    NEXT,
    TOUCHED,
    UNSETTLED,
    Handle,
    Room,
    SharedLock,
    make_room,
)
from laser_rl.types import Array, Batch, UnrollLayout, Unrolls

ATTEMPTS = 100  # writers would have to go round the whole ring so often while one block is read
NONE = -1  # in place of an id


class _Ring:
    """The rows of a store, first in, first out. Everything is called under the lock of the room."""

    def __init__(self, room: Room, budget_bytes: int | None) -> None:
        self._room, self._count, self._budget_bytes = room, room.words, budget_bytes
        self._capacity = len(room.members)

    def held(self) -> Ids:
        return np.arange(self._count[FIRST], self._count[NEXT]) % self._capacity

    def begin_at(self, first_id: int) -> None:
        """Of an empty ring. Between the two writes it ends before it begins: nothing is held, instead of rows never written."""
        self._settle()
        self._count[UNSETTLED] = 1
        for word in (FIRST, NEXT) if first_id > self._count[NEXT] else (NEXT, FIRST):
            self._count[word] = first_id
        self._count[UNSETTLED] = 0

    def first_after(self, count: int, size: int) -> int:
        """The first id held now that an insert of `count` unrolls, of `size` compressed bytes together, leaves; a later one if none."""
        first, over = self._count[FIRST], self._count[COMPRESSED] + size - (self._budget_bytes or 0)
        after = max(first, self._count[NEXT] + count - self._capacity)
        if self._budget_bytes is None or over <= 0:
            return after
        return max(after, first + 1 + int(np.searchsorted(self._room.length[self.held()].cumsum(), over)))

    def insert(self, packed: Packed, members: NDArray[np.int32], blocks: Iterable[memoryview]) -> int:
        """Add unrolls, with a budget their compressed `blocks` instead of the frames; returns the id of the first."""
        self._settle()
        begin = self._count[NEXT]
        self._count[UNSETTLED] = 1
        if self._budget_bytes is None:
            self._add_raw(packed, members)
        else:
            for block, record, member in zip(blocks, packed.records, members, strict=True):
                self._add_block(block, record, member, self._budget_bytes)
        self._count[UNSETTLED] = 0
        return begin

    def _add_raw(self, packed: Packed, members: NDArray[np.int32]) -> None:
        end, kept = self._count[NEXT] + len(members), slice(-self._capacity, None)  # more do not fit
        rows = np.arange(end - len(members), end)[kept] % self._capacity
        self._count[FIRST] = max(self._count[FIRST], end - self._capacity)
        self._room.frames[rows] = packed.frames[kept]
        self._room.records[rows] = packed.records[kept]
        self._room.members[rows] = members[kept]
        self._count[NEXT] = end

    def _add_block(self, block: memoryview, record: Bytes, member: np.int32, budget_bytes: int) -> None:
        room, count, size = self._room, self._count, block.nbytes
        while count[NEXT] - count[FIRST] >= self._capacity or count[COMPRESSED] + size > budget_bytes:
            slot = count[FIRST] % self._capacity
            count[FIRST] += 1
            count[COMPRESSED] -= int(room.length[slot])
        begin, slot = self._after_newest(size), count[NEXT] % self._capacity
        count[TOUCHED] = max(count[TOUCHED], begin + size)
        room.blocks[begin : begin + size] = block
        room.address[slot], room.length[slot] = begin, size
        room.records[slot], room.members[slot] = record, member
        count[NEXT] += 1
        count[COMPRESSED] += size

    def _after_newest(self, size: int) -> int:
        """The place of a block within the budget: behind the newest one, or at the beginning of the ring."""
        if self._count[FIRST] >= self._count[NEXT]:
            return 0
        newest = (self._count[NEXT] - 1) % self._capacity
        after = int(self._room.address[newest] + self._room.length[newest])
        return after if after + size <= len(self._room.blocks) else 0

    def _settle(self) -> None:
        if not self._count[UNSETTLED]:
            return
        # It was in `begin_at`, or in an insert of more than fits.
        self._count[NEXT] = max(self._count[NEXT], self._count[FIRST])
        if self._budget_bytes is not None:
            self._count[COMPRESSED] = int(self._room.length[self.held()].sum())
        self._count[UNSETTLED] = 0


class Evicted(KeyError):
    """An unroll that is not in the store any more, or not yet."""


class Replay:
    """A store of `capacity_steps // T` unrolls (at least one), and of `budget_bytes` of compressed observations.

    An unroll's id is the number of unrolls inserted before it. `codec` "auto" compresses pictures and keeps everything else raw;
    without a budget a tenth of the raw size is assumed, and the oldest unrolls leave early when frames compress less well than that.
    `shared` puts the store into memory that other processes can `attach` to, in a new file, or as it is in a `handed` one.
    """

    def __init__(
        self,
        layout: UnrollLayout,
        capacity_steps: int,
        *,
        codec: Literal["auto"] | Codec = "auto",
        budget_bytes: int | None = None,
        shared: bool = False,
        handed: int | None = None,
    ) -> None:
        self.layout = layout
        self.capacity = unrolls_of(layout, capacity_steps)  # in unrolls
        self.codec: Codec = resolve_codec(layout, codec)
        self.budget_bytes: int | None = None
        if self.codec == "zstd":
            self.budget_bytes = default_budget(layout, capacity_steps) if budget_bytes is None else budget_bytes
        self._unpacking = Unpacking(layout)
        self._room = make_room(layout, self.capacity, self.budget_bytes, shared=shared, handed=handed)
        if self._room.file is not None:
            weakref.finalize(self, os.close, self._room.file)
        self.lock: threading.Lock | SharedLock = self._room.lock  # of all processes, if the store is shared
        self._ring = _Ring(self._room, self.budget_bytes)
        # Asked before an insert after which the first id held is what its argument returns; it returns when those before may leave.
        self.keep: Callable[[Callable[[], int]], None] | None = None

    @classmethod
    def attach(cls, layout: UnrollLayout, handle: Handle) -> "Replay":
        """The store of another process, from its `handle`: nothing is copied, and what is there stays readable when its owner has died.

        ConfigError if the memory cannot be reached.
        """
        path = f"/proc/{handle.process}/fd/{handle.file}"
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(
                f"expected the memory of a replay at {path}, got: {error}; attach only from processes of the same machine and user"
            ) from error
        try:
            found = os.fstat(file)
            if (found.st_dev, found.st_ino) != (handle.device, handle.inode):
                raise ConfigError(
                    f"expected the memory of a replay at {path}, found another file; its process is gone, or is in another container"
                )
            *_, steps, codec, budget = handle
            return cls(layout, steps, codec=codec, budget_bytes=budget, handed=file)
        finally:
            os.close(file)

    def handle(self) -> Handle:
        """For `attach` in other processes, as long as this store exists."""
        assert self._room.file is not None, "expected a replay that was made with shared=True"  # noqa: S101
        steps, found = self.capacity * self.layout.steps, os.fstat(self._room.file)
        own = os.getpid(), self._room.file, found.st_dev, found.st_ino
        return Handle(*own, steps, self.codec, self.budget_bytes)

    def __len__(self) -> int:
        first, end = self.span()
        return end - first

    @property
    def first_id(self) -> int:
        return self._room.words[FIRST]

    @property
    def next_id(self) -> int:
        return self._room.words[NEXT]

    def span(self) -> tuple[int, int]:
        """The first id held and the first not yet held; nothing is held if they are the same. Needs no lock."""
        # In this order: both only grow, and the second may be newer than the first.
        first, end = self.first_id, self.next_id
        return max(first, end - self.capacity), max(first, end)

    @property
    def steps(self) -> int:
        return len(self) * self.layout.steps

    @property
    def nbytes(self) -> int:
        return self._room.nbytes

    def begin_at(self, first_id: int) -> None:
        """Start an empty store at an id: then insert the unrolls of a checkpoint in order, and everything goes on as before."""
        with self.lock:
            if len(self):
                raise ValueError(f"expected an empty replay to load into, this one holds {len(self)} unrolls")
            self._ring.begin_at(first_id)

    def insert(self, unrolls: Unrolls) -> Ids:
        """Add unrolls and return their ids. ValueError, and nothing is added, if one is malformed or not finite."""
        return self.insert_packed(pack(self.layout, unrolls))

    def insert_packed(self, packed: Packed) -> Ids:
        """The same for unrolls that `pack` has checked already; what is compressed (`seal`) stays as it is."""
        blocks: list[memoryview] = []
        if self.codec == "raw":
            packed = unseal(self.layout, packed)
        else:
            blocks = packed.blocks() if packed.codec == "zstd" else compress(packed.frames)
        members = cast("NDArray[np.int32]", fields_of(packed.records, self.layout)["member"])
        if self.keep is not None:
            self.keep(lambda: self._ring.first_after(len(members), sum(block.nbytes for block in blocks)))
        with self.lock:
            begin = self._ring.insert(packed, members, blocks)
        return np.arange(begin, begin + len(members))

    def parcel(self, ids: Ids) -> tuple[NDArray[np.bool_], Packed]:
        """Copies of those of the unrolls that are still held, as they lie here, and which ones these are."""
        with self.lock:
            first, end = self.span()
            held = (ids >= first) & (ids < end)
            return held, self._copies(ids[held] % self.capacity)

    def gather(self, ids: Ids, batch: Batch, first_column: int) -> None:
        """Fill columns of a batch of `allocate`; `Evicted` if one of the unrolls has left."""
        parts = parts_of(self.layout, batch)
        room = self._unpacking.room(parts, first_column, len(ids))
        with self.lock:
            copies = self._copies(self._slots(ids), *room)
        self._unpacking.put(copies, ids, parts, first_column)

    def sample_into(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> Ids:
        """Fill columns with unrolls drawn uniformly, with replacement; nothing that was drawn can leave in between."""
        parts = parts_of(self.layout, batch)
        room = self._unpacking.room(parts, first_column, count)
        with self.lock:
            ids = self._draw(count, random)
            copies = self._copies(ids % self.capacity, *room)
        self._unpacking.put(copies, ids, parts, first_column)
        return ids

    def _draw(self, count: int, random: np.random.Generator) -> Ids:
        first, end = self.span()
        if first >= end:
            raise ValueError(f"asked for {count} unrolls of an empty replay; insert some first")
        return random.integers(first, end, count)

    def _slots(self, ids: Ids) -> Ids:
        first, end = self.span()
        if len(ids) and not (first <= int(ids.min()) and int(ids.max()) < end):
            raise Evicted(f"unrolls {int(ids.min())} to {int(ids.max())} asked, {first} to {end - 1} held")
        return ids % self.capacity

    def _copies(self, slots: Ids, records: Bytes | None = None, frames: Bytes | None = None) -> Packed:
        """Under the lock; records and raw frames in fresh memory, or in what is given."""
        # numpy's take, not torch's index_select: as fast on one thread, and no team of threads to wait for on a busy machine.
        records = self._room.records.take(slots, 0, records, "clip")
        if self.codec == "raw":
            return Packed(records, self._room.frames.take(slots, 0, frames, "clip"))
        lengths = self._room.length[slots]
        places = zip(self._room.address[slots].tolist(), lengths.tolist(), strict=True)
        blocks = b"".join([self._room.blocks[address : address + length] for address, length in places])
        return Packed(records, np.frombuffer(blocks, np.uint8), lengths)

    def export(self, ids: Ids) -> Unrolls:
        with self.lock:
            copies = self._copies(self._slots(ids))
        return unpack(self.layout, unseal(self.layout, copies))

    def sample_versions(self, count: int, random: np.random.Generator) -> Ids:
        """Versions of the parameters that acted in unrolls drawn uniformly; the learner's version less this is the age."""
        with self.lock:
            slots = self._draw(count, random) % self.capacity
            versions: Ids = fields_of(self._room.records, self.layout)["version"][slots].astype(np.int64)
            return versions

    def fields(self, ids: Ids, names: Iterable[str]) -> dict[str, Array]:
        """Copies of some fields of these unrolls, all but the observation; `Evicted` if one of the unrolls has left."""
        with self.lock:
            slots, held = self._slots(ids), fields_of(self._room.records, self.layout)
            return {name: held[name][slots] for name in names}

    def composition(self) -> dict[int, float]:
        with self.lock:
            held = self._room.members[self._ring.held()]
        counts = np.bincount(held)  # not unique, which sorts: a shard is asked every second, and holds half a million
        return {member: int(counts[member]) / len(held) for member in np.flatnonzero(counts).tolist()}


def outrun(store: Replay) -> ConfigError:
    return ConfigError(
        f"unrolls leave the replay before they can be read, again and again: it holds only {store.capacity} of them; "
        "raise --replay.capacity-steps"
    )
