"""Where a replay lies: in memory of its own, or in a file without a name that several processes map.

The file (memfd) exists as long as a process has it open or mapped: nothing is left behind, whichever process is killed. File or memory are
as long as the largest replay of its arguments, but pages that were never written take no memory.

Compressed blocks lie in an arena: memory for blocks of any size that come and go first in, first out, without fragmentation. They are laid
one behind the other into chunks of equal size; a chunk whose last block is gone is used again. Chunks are never given back: the size is
that of the most bytes ever held at once, which the store's budget bounds, whatever `malloc` does. The arena's books are numbers only, so
that they can be shared. All but the count of chunks follow from the addresses and lengths of the blocks alive: `rebuild` makes them again
after a process was killed while it wrote them.
"""

import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.records import carve, size_of
from laser_rl.errors import ConfigError
from laser_rl.replay.encoded_unrolls import compress_bound
from laser_rl.replay.records import Bytes, Codec, Ids, shape_of
from laser_rl.replay.shared_lock import SharedLock
from laser_rl.types import UnrollLayout

# Unroll ids; bytes of blocks; a writer is at work; two words of the lock.
FIRST, NEXT, COMPRESSED, UNSETTLED, HOLDER = range(5)
WORDS = 8
CHUNK_BYTES = 16 << 20
# Oldest and newest chunk in use, end of the newest one's blocks, chunks ever used.
OLDEST, NEWEST, END, CHUNKS = range(4)
BOOKS = 4


class Handle(NamedTuple):
    """What another process needs to attach: an open file, and numbers. A list of it is JSON."""

    file: int  # descriptor, to be passed on with `pass_fds`
    capacity_steps: int
    codec: Codec
    budget_bytes: int | None


class LentBlock(NamedTuple):
    """Where the memory of a store is, for processes that its owner did not start.

    A descriptor can be handed to children only. Others of the same machine and user open the same file under /proc. A number of a process
    or of a descriptor may mean something else there, in a container or once the owner is gone: the inode says whether it is the right file.
    """

    process: int
    device: int
    inode: int  # of the file, as long as a process has it open
    handle: Handle


def lend(handle: Handle) -> LentBlock:
    """For `borrowed` in any process of this machine and user, as long as this one lives."""
    found = os.fstat(handle.file)
    return LentBlock(os.getpid(), found.st_dev, found.st_ino, handle)


@contextmanager
def borrowed(lent: LentBlock) -> Iterator[Handle]:
    """A handle to `Replay.attach` with; nothing is copied, and the store stays readable if its owner dies.

    ConfigError if its memory cannot be reached from here.
    """
    path = f"/proc/{lent.process}/fd/{lent.handle.file}"
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"expected the memory of a replay at {path}, got: {error}; attach only from processes of the same machine and user"
        ) from error
    try:
        found = os.fstat(file)
        if (found.st_dev, found.st_ino) != (lent.device, lent.inode):
            raise ConfigError(
                f"expected the memory of a replay at {path}, found another file; its process is gone, or is in another container"
            )
        yield lent.handle._replace(file=file)
    finally:
        os.close(file)


def chunk_bytes(budget_bytes: int, largest_block: int) -> int:
    """A 64th of the budget, at most 16 MiB, and never less than four of the largest blocks: the waste at a chunk's end stays small."""
    return max(4 * largest_block, min(CHUNK_BYTES, budget_bytes // 64))


def most_chunks(held_bytes: int, chunk_bytes: int, largest_block: int) -> int:
    """Chunks that blocks of `held_bytes` can need.

    A chunk may end with a gap just too small for the next block, and the oldest and the newest are partly empty.
    """
    return -(-held_bytes // (chunk_bytes - largest_block)) + 2


class Arena:
    """Blocks are added at the end and dropped at the beginning; over zeroed memory, or memory that another process has begun to use.

    Args:
        chunk_bytes: size of a chunk.
        blocks: the memory of all chunks.
        books: OLDEST, NEWEST and so on.
        alive: blocks alive in each chunk.
        after: the next younger chunk of each.
    """

    def __init__(self, chunk_bytes: int, blocks: Bytes, books: Ids, alive: Ids, after: Ids) -> None:
        self._size, self._blocks = chunk_bytes, blocks.data
        self._books, self._alive, self._after = books.data, alive.data, after.data

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
        address = chunk * self._size + at
        self._blocks[address : address + size] = block
        books[END] = at + size
        self._alive[chunk] += 1
        return address

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
        return self._blocks[address : address + size]

    def rebuild(self, addresses: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Make the books again for these blocks, oldest first."""
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
            begin = chunk * self._size
            np.frombuffer(self._blocks[begin : begin + self._size], np.uint8).fill(
                0xFF
            )  # the first touch is the slow one
            books[CHUNKS] = used + 1
        self._after[newest] = chunk
        books[NEWEST], books[END] = chunk, 0


class Room(NamedTuple):
    """The memory of a store. What a codec does not need has no rows."""

    words: memoryview  # FIRST, NEXT and so on
    members: NDArray[np.int32]
    records: Bytes
    frames: Bytes
    address: Ids
    length: Ids
    arena: Arena
    lock: "threading.Lock | SharedLock"
    file: "MemoryFile | None"

    @property
    def nbytes(self) -> int:
        """Bytes held; those of a shared store are the same bytes in every process."""
        return sum(array.nbytes for array in self[1:6]) + self.arena.nbytes


class MemoryFile:
    """The descriptor that is handed on; closed with the store."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._close = weakref.finalize(self, os.close, number)


def make_room(
    layout: UnrollLayout, capacity: int, budget_bytes: int | None, *, shared: bool, handed: int | None = None
) -> Room:
    """Memory for `capacity` unrolls, compressed within a budget, raw without one.

    Of this process; or shared, in a new file, or in the file of a descriptor that was handed to us, as it is.
    """
    sizes, (chunk, chunks) = shape_of(layout), _chunks(layout, budget_bytes)
    raw, compressed = (capacity, 0) if budget_bytes is None else (0, capacity)
    fields = {
        "words": ((WORDS,), "int64"),
        "books": ((BOOKS,), "int64"),
        "alive": ((chunks,), "int64"),
        "after": ((chunks,), "int64"),
        "members": ((capacity,), "int32"),
        "records": ((capacity, sizes.record_bytes), "uint8"),
        "frames": ((raw, sizes.frames_bytes), "uint8"),
        "address": ((compressed,), "int64"),
        "length": ((compressed,), "int64"),
        "blocks": ((chunks * chunk,), "uint8"),
    }
    size, file = size_of(fields), None
    if not shared:
        memory = np.empty(size, np.uint8).data  # NumPy asks the kernel for large pages
    else:
        file = MemoryFile(os.memfd_create("laser-replay") if handed is None else os.dup(handed))
        if handed is None:
            os.ftruncate(file.number, size)
        memory = memoryview(mmap.mmap(file.number, size))
    arrays: dict[str, Any] = carve(memory, fields)
    if handed is None:
        for name in fields.keys() - {"blocks"}:
            arrays[name].fill(0)  # also memory that is zero: the first touch is the slow one
    arena = Arena(chunk, *(arrays.pop(name) for name in ("blocks", "books", "alive", "after")))
    words = arrays.pop("words").data
    lock = threading.Lock() if file is None else SharedLock(file.number, words[HOLDER : HOLDER + 2])
    return Room(**arrays, words=words, arena=arena, lock=lock, file=file)


def _chunks(layout: UnrollLayout, budget_bytes: int | None) -> tuple[int, int]:
    """Size and largest number of the arena's chunks; ConfigError if the budget does not hold one unroll."""
    if budget_bytes is None:
        return 0, 0
    largest = compress_bound(shape_of(layout).frames_bytes)
    if budget_bytes < largest:
        raise ConfigError(
            f"replay budget of {budget_bytes:,} bytes cannot hold one unroll, which may need {largest:,}; "
            "raise --replay.budget-gb"
        )
    chunk = chunk_bytes(budget_bytes, largest)
    return chunk, most_chunks(budget_bytes, chunk, largest)
