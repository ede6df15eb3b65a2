"""Writing into the memory of a replay so that the writing process may be killed between any two writes.

What is held are the ids from FIRST to NEXT, each in the row `id % capacity`, and the order of writes keeps that true: FIRST moves on
before a row is overwritten, and NEXT once the new row is complete. Readers rely on nothing else. So of an insert that was cut off a few
whole unrolls may be there, never a part of one; the oldest may have left for nothing.

The rest (compressed bytes, the arena's books, how many unrolls each member has delivered) follows from the rows held. A writer raises
the flag UNSETTLED before its first write and takes it down after the last; the next one that finds it raised makes the rest again, which
takes as long as adding up the rows.

Every unroll has a number among those of its member, from 0, without gaps. So a writer that does not know whether an insert came through,
since it or its predecessor was killed, may send it again: what is in is left out (`Ring.repeated`).
A kill lets a process finish the instruction it is at, and a number of 8 bytes is one: no number is ever half written.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from laser_rl.replay.records import Bytes, Ids, Packed
from laser_rl.replay.shared import COMPRESSED, COUNTED, FIRST, MOST_MEMBERS, NEXT, UNSETTLED, Room


class Ring:
    """The rows of a store, first in, first out. Everything but the properties and `len` is called under the lock of the room."""

    def __init__(self, room: Room, budget_bytes: int | None) -> None:
        self._room, self._count, self._budget_bytes = room, room.words, budget_bytes
        self._capacity = len(room.members)

    def __len__(self) -> int:
        while True:
            first, end = self._count[FIRST], self._count[NEXT]
            if first == self._count[FIRST]:  # it has not moved meanwhile: the two belong together
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
        self._count[COUNTED] = first_id
        self._count[UNSETTLED] = 0

    def delivered(self, member: int) -> int:
        """How many unrolls of a member have ever come in."""
        self._settle()
        return int(self._room.delivered[member])

    def repeated(self, member: int, number: int, count: int) -> int:
        """How many of `count` unrolls that were sent before, the first as `number`, are in already; ValueError after a gap."""
        there = self.delivered(member)
        if number > there:
            raise ValueError(
                f"expected unroll {there} of member {member} next, got {number}; deliver the {number - there} before it first"
            )
        return min(count, there - number)

    def insert(self, packed: Packed, members: NDArray[np.int32], blocks: Iterable[memoryview]) -> int:
        """Add unrolls, with a budget their compressed `blocks` instead of the frames; returns the id of the first."""
        self._settle()
        begin, numbers = self._count[NEXT], self._numbered(members)
        self._count[UNSETTLED] = 1
        if self._budget_bytes is None:
            self._add_raw(packed, members, numbers)
        else:
            for block, record, member, number in zip(blocks, packed.records, members, numbers, strict=True):
                self._add_block(block, record, (member, number), self._budget_bytes)
        self._count[UNSETTLED] = 0
        return begin

    def _numbered(self, members: NDArray[np.int32]) -> Ids:
        """The next numbers of these members."""
        numbers = np.empty(len(members), np.int64)
        for member in set(members.tolist()):
            if not 0 <= member < MOST_MEMBERS:
                raise ValueError(f"expected a member from 0 to {MOST_MEMBERS - 1}, got {member}")
            own = members == member
            numbers[own] = self._room.delivered[member] + np.arange(np.count_nonzero(own))
        return numbers

    def _add_raw(self, packed: Packed, members: NDArray[np.int32], numbers: Ids) -> None:
        count, at = len(packed.records), 0
        while at < count:
            slot = self._count[NEXT] % self._capacity
            piece = slice(at, min(count, at + self._capacity - slot))  # up to the end of the ring
            rows, end = slice(slot, slot + piece.stop - at), self._count[NEXT] + piece.stop - at
            self._count[FIRST] = max(self._count[FIRST], end - self._capacity)
            self._room.frames[rows] = packed.frames[piece]
            self._room.records[rows] = packed.records[piece]
            self._room.members[rows], self._room.numbers[rows] = members[piece], numbers[piece]
            self._count[NEXT] = end
            self._acknowledge()
            at = piece.stop

    def _add_block(self, block: memoryview, record: Bytes, name: tuple[np.int32, np.int64], budget_bytes: int) -> None:
        room, count, size = self._room, self._count, block.nbytes
        while count[NEXT] - count[FIRST] >= self._capacity or count[COMPRESSED] + size > budget_bytes:
            slot = count[FIRST] % self._capacity
            count[FIRST] += 1
            count[COMPRESSED] -= int(room.length[slot])
            room.arena.drop()
        slot = count[NEXT] % self._capacity
        room.address[slot], room.length[slot] = room.arena.add(block), size
        room.records[slot] = record
        room.members[slot], room.numbers[slot] = name
        count[NEXT] += 1
        count[COMPRESSED] += size
        room.delivered[name[0]], count[COUNTED] = name[1] + 1, count[NEXT]

    def _acknowledge(self) -> None:
        """Count what has come in since COUNTED. Numbers are written, not added up: done twice, it is the same."""
        rows = np.arange(max(self._count[COUNTED], self._count[FIRST]), self._count[NEXT]) % self._capacity
        np.maximum.at(self._room.delivered, self._room.members[rows], self._room.numbers[rows] + 1)
        self._count[COUNTED] = self._count[NEXT]

    def _settle(self) -> None:
        """Make again what a writer left half done."""
        if not self._count[UNSETTLED]:
            return
        self._count[NEXT] = max(self._count[NEXT], self._count[FIRST])  # it was in `begin_at`
        self._acknowledge()
        if self._budget_bytes is not None:
            held = self.held()
            self._count[COMPRESSED] = int(self._room.length[held].sum())
            self._room.arena.rebuild(self._room.address[held], self._room.length[held])
        self._count[UNSETTLED] = 0
