"""Memory for blocks of bytes of any size that come and go first in, first out, without fragmentation.

Blocks are laid one behind the other into chunks of equal size; a chunk whose last block is gone is used again. Chunks are never
given back: the size is that of the most bytes ever held at once, which the store's budget bounds, whatever `malloc` does. Blocks of
many sizes allocated one by one would leave holes.

The books are numbers only, so that they can lie in memory that several processes share. All but the count of chunks follow from
the addresses and lengths of the blocks alive: `rebuild` makes them again after a process was killed while it wrote them.
"""

from collections.abc import MutableSequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 16 << 20
OLDEST, NEWEST, END, CHUNKS = range(
    4
)  # oldest and newest chunk in use, end of the newest one's blocks, chunks ever used
BOOKS = 4
Words = MutableSequence[int] | memoryview


def chunk_bytes(budget_bytes: int, largest_block: int) -> int:
    """A 64th of the budget, at most 16 MiB, and never less than four of the largest blocks: the waste at a chunk's end stays small."""
    return max(4 * largest_block, min(CHUNK_BYTES, budget_bytes // 64))


def most_chunks(held_bytes: int, chunk_bytes: int, largest_block: int) -> int:
    """Chunks that blocks of `held_bytes` can need.

    A chunk may end with a gap just too small for the next block, and the oldest and the newest are partly empty.

    >>> most_chunks(1000, chunk_bytes=100, largest_block=20)
    15
    """
    return -(-held_bytes // (chunk_bytes - largest_block)) + 2


class ArenaMemory(NamedTuple):
    """Zeroed memory for an arena with a fixed number of chunks."""

    chunks: list[memoryview]
    books: Words
    alive: Words  # blocks alive in each chunk
    after: Words  # the next younger chunk of each


class Arena:
    """Blocks are added at the end and dropped at the beginning.

    Without memory given it allocates its own, chunk by chunk.

    >>> arena = Arena(chunk_bytes=100)
    >>> places = [arena.add(bytes([i]) * 40) for i in range(3)]
    >>> arena.read(places[2], 40) == bytes([2]) * 40, arena.nbytes
    (True, 200)
    >>> arena.drop(), arena.drop()
    (None, None)
    >>> place = arena.add(bytes(80))  # into the chunk that became free
    >>> arena.nbytes
    200
    """

    def __init__(self, chunk_bytes: int, memory: ArenaMemory | None = None) -> None:
        self._size = chunk_bytes
        self._grows = memory is None
        self._chunks, self._books, self._alive, self._after = memory or ArenaMemory([], [0] * BOOKS, [], [])

    @property
    def nbytes(self) -> int:
        """Bytes held, used or not."""
        return self._books[CHUNKS] * self._size

    def add(self, block: bytes | memoryview) -> int:
        """Copy a block in, where no block alive is, and return its address."""
        size, books = len(block), self._books
        if books[END] + size > self._size or not books[CHUNKS]:
            self._begin_chunk()
        chunk, at = books[NEWEST], books[END]
        self._chunks[chunk][at : at + size] = block
        books[END] = at + size
        self._alive[chunk] += 1
        return chunk * self._size + at

    def drop(self) -> None:
        """Forget the oldest block."""
        oldest = self._books[OLDEST]
        self._alive[oldest] -= 1
        if self._alive[oldest]:
            return
        if oldest != self._books[NEWEST]:
            self._books[OLDEST] = self._after[oldest]
        else:
            self._books[END] = 0

    def read(self, address: int, size: int) -> memoryview:
        """A view of a block; copy it before anything is added."""
        chunk, at = divmod(address, self._size)
        return self._chunks[chunk][at : at + size]

    def rebuild(self, addresses: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Make the books again for these blocks, oldest first.

        >>> arena = Arena(chunk_bytes=100)
        >>> places = [arena.add(bytes([i]) * 40) for i in range(3)]
        >>> arena.rebuild(np.array(places[1:]), np.array([40, 40]))  # as if the first had been dropped
        >>> arena.drop()
        >>> arena.add(bytes(80)), arena.read(places[2], 40) == bytes([2]) * 40  # the first chunk is free
        (0, True)
        """
        chunks = addresses // self._size
        for chunk, count in enumerate(np.bincount(chunks, minlength=self._books[CHUNKS]).tolist()):
            self._alive[chunk] = count
        order = chunks[np.flatnonzero(np.diff(chunks, prepend=-1))].tolist() or [0]
        for older, younger in pairwise(order):
            self._after[older] = younger
        self._books[OLDEST], self._books[NEWEST] = order[0], order[-1]
        self._books[END] = int(addresses[-1] + lengths[-1]) - order[-1] * self._size if len(addresses) else 0

    def _begin_chunk(self) -> None:
        """Behind the newest chunk, or as the very first."""
        books, used = self._books, self._books[CHUNKS]
        newest = books[NEWEST]
        chunk = next((i for i in range(used) if not self._alive[i] and i != newest), used)
        if chunk == used:
            self._touch(chunk)
            books[CHUNKS] = used + 1
        self._after[newest] = chunk
        books[NEWEST], books[END] = chunk, 0

    def _touch(self, chunk: int) -> None:
        """Written once: the first touch is the slow one."""
        if not self._grows:
            np.frombuffer(self._chunks[chunk], np.uint8).fill(0xFF)
            return
        self._chunks.append(np.full(self._size, 0xFF, np.uint8).data)
        self._alive.append(0)  # type: ignore[union-attr]  # lists, if it grows
        self._after.append(0)  # type: ignore[union-attr]
