"""The replay: unrolls of all members in one ring, first in, first out, drawn uniformly.

Thread safety: one lock, of all processes if the store is shared. Its holder copies bytes and does nothing else: rows into the
ring, or rows (and compressed blocks) out of it. Compressing and decompressing happen outside of it, on private copies. So a row is
never seen half written, and what `sample_into` has drawn cannot be overwritten before it is read.

Of a writer that is killed nothing half written is seen, and the lock is free: see `shared_ring` and `shared_lock`.
"""

import threading
from collections.abc import Iterable
from functools import partial
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from laser_rl.errors import ConfigError
from laser_rl.replay.encoded_unrolls import EncodedUnrolls, Unpacking, check, compress, label, unseal
from laser_rl.replay.memory_estimate import default_budget, resolve_codec, unrolls_of
from laser_rl.replay.records import (
    Codec,
    Ids,
    Packed,
    Parts,
    cut,
    fields_of,
    pack,
    parts_of,
    shape_of,
    unpack,
    windows,
)
from laser_rl.replay.shared import Handle, LentBlock, borrowed, checksum, private_room, shared_room
from laser_rl.replay.shared_lock import SharedLock
from laser_rl.replay.shared_ring import Ring
from laser_rl.types import Array, Batch, UnrollLayout, Unrolls

NO_LENGTHS: Ids = np.zeros(0, np.int64)


class Evicted(KeyError):
    """An unroll that is not in the store any more, or not yet."""


class Replay:
    """A store of `capacity_steps // T` unrolls (at least one), and of `budget_bytes` of compressed observations.

    An unroll's id is the number of unrolls inserted before it. `codec` "auto" compresses pictures and keeps everything else raw;
    without a budget a tenth of the raw size is assumed, and the oldest unrolls leave early when frames compress less well than that.
    `shared` puts the store into memory that other processes can `attach` to.

    >>> from laser_rl.replay.records import allocate
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
        shared: bool | Handle = False,
    ) -> None:
        self.layout = layout
        self.capacity = unrolls_of(layout, capacity_steps)  # in unrolls
        self.codec: Codec = resolve_codec(layout, codec)
        self.budget_bytes: int | None = None
        if self.codec == "zstd":
            self.budget_bytes = default_budget(layout, capacity_steps) if budget_bytes is None else budget_bytes
        self._shape, self._unpacking = shape_of(layout), Unpacking(layout)
        handed = shared.file if isinstance(shared, Handle) else None
        make = partial(shared_room, handed=handed) if shared else private_room
        self._room = make(layout, self.capacity, self.budget_bytes)
        self._records, self._frames = self._room.records, self._room.frames
        self.lock: threading.Lock | SharedLock = self._room.lock  # of all processes, if the store is shared
        self._ring = Ring(self._room, self.budget_bytes)

    @classmethod
    def attach(cls, layout: UnrollLayout, handle: Handle) -> "Replay":
        """The store of another process, from its `handle`: nothing is copied. ConfigError if it is not one of this layout.

        A child process has to be started with `pass_fds=[handle.file]`.
        """
        if handle.layout != checksum(layout):
            raise ConfigError(f"the shared replay holds unrolls of another layout than {layout}; attach with its own")
        steps, codec, budget = handle.capacity_steps, handle.codec, handle.budget_bytes
        return cls(layout, steps, codec=codec, budget_bytes=budget, shared=handle)

    def handle(self) -> Handle:
        """For `attach`; the file in it stays ours, and open as long as this store exists."""
        if self._room.file is None:
            raise ValueError("expected a shared replay, this one lies in memory of its own; make it with shared=True")
        steps = self.capacity * self.layout.steps
        return Handle(self._room.file.number, checksum(self.layout), steps, self.codec, self.budget_bytes)

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def first_id(self) -> int:
        """The oldest unroll held."""
        return self._ring.first

    @property
    def next_id(self) -> int:
        """The id that the next unroll will get."""
        return self._ring.end

    @property
    def steps(self) -> int:
        """Steps held."""
        return len(self) * self.layout.steps

    @property
    def nbytes(self) -> int:
        """Bytes held in memory, whether filled or not."""
        return self._room.nbytes

    @property
    def compressed_bytes(self) -> int:
        """Bytes of all compressed blocks; what the budget bounds."""
        with self.lock:
            return self._ring.compressed_bytes()

    def begin_at(self, first_id: int) -> None:
        """Start an empty store at an id: then insert the unrolls of a checkpoint in order, and everything goes on as before."""
        with self.lock:
            if len(self):
                raise ValueError(f"expected an empty replay to load into, this one holds {len(self)} unrolls")
            self._ring.begin_at(first_id)

    def insert(self, unrolls: Unrolls, number: int | None = None) -> Ids:
        """Add unrolls and return their ids. ValueError, and nothing is added, if one is malformed or not finite.

        With `number`, that of the first among all of their one member, they may have been sent before: those that are in already are
        left out, and ValueError says which ones are missing before them. `delivered` tells a writer where to go on.
        """
        return self.insert_packed(pack(self.layout, unrolls), number)

    def insert_packed(self, packed: Packed, number: int | None = None) -> Ids:
        """The same for unrolls that `pack` has checked already."""
        members = self._members(packed.records)
        if number is not None and len(set(members.tolist())) > 1:
            raise ValueError(
                f"expected unrolls of one member to have numbers, got members {sorted(set(members.tolist()))}"
            )
        blocks = compress(packed.frames) if self.codec == "zstd" and len(members) else []
        with self.lock:
            if number is not None and len(members):
                there = self._ring.repeated(int(members[0]), number, len(members))
                packed, members, blocks = Packed(*(part[there:] for part in packed)), members[there:], blocks[there:]
            begin = self._ring.insert(packed, members, blocks)
        return np.arange(begin, begin + len(members))

    def insert_parcel(self, parcel: EncodedUnrolls) -> Ids:
        """The same for unrolls that were sealed elsewhere: what is compressed stays as it is. ValueError if they are not of this layout."""
        if parcel.codec != self.codec or self.codec == "raw":
            return self.insert_packed(unseal(self.layout, parcel))
        check(self.layout, parcel)
        members = self._members(parcel.records)
        no_frames = np.zeros((len(members), 0), np.uint8)
        with self.lock:
            begin = self._ring.insert(Packed(parcel.records, no_frames), members, parcel.blocks())
        return np.arange(begin, begin + len(members))

    def _members(self, records: NDArray[np.uint8]) -> NDArray[np.int32]:
        return cast("NDArray[np.int32]", fields_of(records, self.layout)["member"])

    def parcel(self, ids: Ids) -> tuple[NDArray[np.bool_], EncodedUnrolls]:
        """Copies of those of the unrolls that are still held, as they lie here, and which ones these are."""
        with self.lock:
            first, end = self._ring.bounds()
            held = (ids >= first) & (ids < end)
            return held, self._copies(ids[held] % self.capacity)

    def delivered(self, member: int) -> int:
        """How many unrolls of a member have ever come in, whichever process sent them: the number of its next one."""
        with self.lock:
            return self._ring.delivered(member)

    def gather(self, ids: Ids, batch: Batch, first_column: int) -> None:
        """Fill columns of a batch of `allocate`; `Evicted` if one of the unrolls has left."""
        parts = parts_of(self.layout, batch)
        with self.lock:
            blocks = self._pin(self._slots(ids), parts, first_column)
        self._finish(ids, blocks, parts, first_column)

    def sample_into(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> Ids:
        """Fill columns with unrolls drawn uniformly, with replacement; nothing that was drawn can leave in between."""
        parts = parts_of(self.layout, batch)
        with self.lock:
            ids = self._draw(count, random)
            blocks = self._pin(ids % self.capacity, parts, first_column)
        self._finish(ids, blocks, parts, first_column)
        return ids

    def _draw(self, count: int, random: np.random.Generator) -> Ids:
        first, end = self._ring.bounds()
        if first >= end:
            raise ValueError(f"asked for {count} unrolls of an empty replay; insert some first")
        return random.integers(first, end, count)

    def _slots(self, ids: Ids) -> Ids:
        first, end = self._ring.bounds()
        if len(ids) and not (first <= int(ids.min()) and int(ids.max()) < end):
            raise Evicted(f"unrolls {int(ids.min())} to {int(ids.max())} asked, {first} to {end - 1} held")
        return ids % self.capacity

    def _pin(self, slots: Ids, parts: Parts, first: int) -> bytes | None:
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
            frames = self._frames.take(slots, 0, self._unpacking.scratch(len(slots)), "clip")
            np.copyto(target, windows(self.layout, frames, target.shape[1]))
        return None

    def _blocks(self, slots: Ids) -> bytes:
        places = zip(self._room.address[slots].tolist(), self._room.length[slots].tolist(), strict=True)
        return b"".join([self._room.arena.read(address, length) for address, length in places])

    def _finish(self, ids: Ids, blocks: bytes | None, parts: Parts, first: int) -> None:
        """Outside the lock: label, decompress and stack."""
        last = first + len(ids)
        label(self.layout, ids, parts, first)
        if blocks is not None and len(ids):
            self._unpacking.decompress(blocks, parts.frames[first:last].numpy())
        cut(self.layout, parts, first, last)

    def _copies(self, slots: Ids) -> EncodedUnrolls:
        """Copy unrolls while the lock is held."""
        if self.codec == "raw":
            return EncodedUnrolls(self._records[slots], self._frames[slots], NO_LENGTHS)
        blocks = np.frombuffer(self._blocks(slots), np.uint8)
        return EncodedUnrolls(self._records[slots], blocks, self._room.length[slots])

    def export(self, ids: Ids) -> Unrolls:
        """The unrolls as they were inserted."""
        with self.lock:
            copies = self._copies(self._slots(ids))
        return unpack(self.layout, unseal(self.layout, copies))

    def numbers(self, ids: Ids) -> Ids:
        """Number of each unroll among those of its member, from 0; member and number identify it for good."""
        with self.lock:
            return self._room.numbers[self._slots(ids)]

    def sample_versions(self, count: int, random: np.random.Generator) -> Ids:
        """Versions of the parameters that acted in unrolls drawn uniformly; the learner's version less this is the age."""
        with self.lock:
            slots = self._draw(count, random) % self.capacity
            versions: Ids = fields_of(self._records, self.layout)["version"][slots].astype(np.int64)
            return versions

    def fields(self, ids: Ids, names: Iterable[str]) -> dict[str, Array]:
        """Copies of some fields of these unrolls, all but the observation; `Evicted` if one of the unrolls has left."""
        with self.lock:
            slots, held = self._slots(ids), fields_of(self._records, self.layout)
            return {name: held[name][slots] for name in names}

    def composition(self) -> dict[int, float]:
        """The share of each member in all that is held."""
        with self.lock:
            held = self._room.members[self._ring.held()]
        counts = np.bincount(held)  # not unique, which sorts: a shard is asked every second, and holds half a million
        return {member: int(counts[member]) / len(held) for member in np.flatnonzero(counts).tolist()}


def borrow(layout: UnrollLayout, lent: LentBlock) -> Replay:
    """The store of a process that did not start this one, nothing copied; it stays readable if its owner dies."""
    with borrowed(lent) as handle:
        return Replay.attach(layout, handle)
