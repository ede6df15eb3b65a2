"""Memory for blocks of bytes of any size that come and go first in, first out, without fragmentation.

Blocks are laid one behind the other into chunks of equal size; a chunk whose last block is gone is used again. Chunks are never
given back: the size is that of the most bytes ever held at once, which the store's budget bounds, whatever `malloc` does. Blocks of
many sizes allocated one by one would leave holes.
"""

from collections import deque

import numpy as np

CHUNK_BYTES = 16 << 20


def chunk_bytes(budget_bytes: int, largest_block: int) -> int:
    """A 64th of the budget, at most 16 MiB, and never less than four of the largest blocks: the waste at a chunk's end stays small."""
    return max(4 * largest_block, min(CHUNK_BYTES, budget_bytes // 64))


class Arena:
    """Blocks are added at the end and dropped at the beginning.

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

    def __init__(self, chunk_bytes: int) -> None:
        self._size = chunk_bytes
        self._chunks: list[memoryview] = []
        self._free: deque[int] = deque()
        self._in_use: deque[list[int]] = deque()  # [chunk, blocks alive], oldest first
        self._end = chunk_bytes

    @property
    def nbytes(self) -> int:
        """Bytes held, used or not."""
        return len(self._chunks) * self._size

    def add(self, block: bytes | memoryview) -> int:
        """Copy a block in and return its address."""
        size = len(block)
        if self._end + size > self._size or not self._in_use:
            self._in_use.append([self._next_chunk(), 0])
            self._end = 0
        current = self._in_use[-1]
        self._chunks[current[0]][self._end : self._end + size] = block
        address = current[0] * self._size + self._end
        self._end += size
        current[1] += 1
        return address

    def drop(self) -> None:
        """Forget the oldest block."""
        oldest = self._in_use[0]
        oldest[1] -= 1
        if oldest[1]:
            return
        if len(self._in_use) > 1:
            self._free.append(self._in_use.popleft()[0])
        else:
            self._end = 0

    def read(self, address: int, size: int) -> memoryview:
        """A view of a block; copy it before anything is added."""
        chunk, at = divmod(address, self._size)
        return self._chunks[chunk][at : at + size]

    def _next_chunk(self) -> int:
        if self._free:
            return self._free.popleft()
        self._chunks.append(np.full(self._size, 0xFF, np.uint8).data)  # written once: the first touch is the slow one
        return len(self._chunks) - 1
