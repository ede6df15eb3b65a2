"""Writing into the memory of a replay so that whoever writes may be killed between any two writes.

What is held are the ids from FIRST to NEXT, each in the row `id % capacity`, and the order of writes keeps that true: FIRST moves on
before a row is overwritten, and NEXT once the new row is complete. Readers rely on nothing else. So of an insert that was cut off a few
whole unrolls may be there, never a part of one; the oldest may have left for nothing.

The rest (compressed bytes, the arena's books) follows from the rows held. A writer raises the flag UNSETTLED before its first write
and takes it down after the last; the next one that finds it raised makes the rest again, which takes as long as adding up the rows.
A kill lets a process finish the instruction it is at, and a number of 8 bytes is one: no number is ever half written.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from laser_rl.replay.records import Bytes, Packed
from laser_rl.replay.shared import COMPRESSED, FIRST, NEXT, UNSETTLED, Ids, Room


class Ring:
    """The rows of a store, first in, first out. Everything but the properties and `len` is called under the lock of the room.

    >>> from laser_rl.replay.shared import private_room
    >>> from laser_rl.types import UnrollLayout
    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> room = private_room(layout, 3, None)
    >>> ring = Ring(room, budget_bytes=None)
    >>> ring.insert(Packed(np.zeros_like(room.records), np.zeros_like(room.frames)), np.zeros(3, np.int32), [])
    0
    >>> len(ring), ring.first, ring.end
    (3, 0, 3)
    """

    def __init__(self, room: Room, budget_bytes: int | None) -> None:
        self._room, self._count, self._budget_bytes = room, room.words, budget_bytes
        self._capacity = len(room.members)

    def __len__(self) -> int:
        while True:
            first, end = self._count[FIRST], self._count[NEXT]
            if first == self._count[FIRST]:  # nobody has moved it meanwhile: the two belong together
                return max(0, end - first)

    @property
    def first(self) -> int:
        """The oldest id held."""
        return self._count[FIRST]

    @property
    def end(self) -> int:
        """The next id."""
        return self._count[NEXT]

    def bounds(self) -> tuple[int, int]:
        """Both at once, under the lock; nothing is held if the second is not the greater."""
        return self._count[FIRST], self._count[NEXT]

    def held(self) -> Ids:
        """Rows of all that is held, oldest first."""
        return np.arange(self._count[FIRST], self._count[NEXT]) % self._capacity

    def compressed_bytes(self) -> int:
        """Bytes of all blocks held."""
        self._settle()
        return self._count[COMPRESSED]

    def begin_at(self, first_id: int) -> None:
        """Of an empty ring. Between the two writes it ends before it begins: nothing is held, instead of rows never written."""
        self._settle()
        self._count[UNSETTLED] = 1
        for word in (FIRST, NEXT) if first_id > self._count[NEXT] else (NEXT, FIRST):
            self._count[word] = first_id
        self._count[UNSETTLED] = 0

    def insert(self, packed: Packed, members: NDArray[np.int32], blocks: Iterable[memoryview]) -> int:
        """Add unrolls, with a budget their compressed `blocks` instead of the frames; returns the id of the first."""
        self._settle()
        self._count[UNSETTLED] = 1
        begin = self._count[NEXT]
        if self._budget_bytes is None:
            self._add_raw(packed, members)
        else:
            for block, record, member in zip(blocks, packed.records, members, strict=True):
                self._add_block(block, record, member, self._budget_bytes)
        self._count[UNSETTLED] = 0
        return begin

    def _add_raw(self, packed: Packed, members: NDArray[np.int32]) -> None:
        count, at = len(packed.records), 0
        while at < count:
            slot = self._count[NEXT] % self._capacity
            piece = slice(at, min(count, at + self._capacity - slot))  # up to the end of the ring
            rows, end = slice(slot, slot + piece.stop - at), self._count[NEXT] + piece.stop - at
            self._count[FIRST] = max(self._count[FIRST], end - self._capacity)
            self._room.frames[rows] = packed.frames[piece]
            self._room.records[rows] = packed.records[piece]
            self._room.members[rows] = members[piece]
            self._count[NEXT] = end
            at = piece.stop

    def _add_block(self, block: memoryview, record: Bytes, member: np.int32, budget_bytes: int) -> None:
        room, count, size = self._room, self._count, block.nbytes
        while count[NEXT] - count[FIRST] >= self._capacity or count[COMPRESSED] + size > budget_bytes:
            slot = count[FIRST] % self._capacity
            count[FIRST] += 1
            count[COMPRESSED] -= int(room.length[slot])
            room.arena.drop()
        slot = count[NEXT] % self._capacity
        room.address[slot], room.length[slot] = room.arena.add(block), size
        room.records[slot] = record
        room.members[slot] = member
        count[NEXT] += 1
        count[COMPRESSED] += size

    def _settle(self) -> None:
        """Make again what a writer left half done."""
        if not self._count[UNSETTLED]:
            return
        self._count[NEXT] = max(self._count[NEXT], self._count[FIRST])  # it was in `begin_at`
        if self._budget_bytes is not None:
            held = self.held()
            self._count[COMPRESSED] = int(self._room.length[held].sum())
            self._room.arena.rebuild(self._room.address[held], self._room.length[held])
        self._count[UNSETTLED] = 0
