"""Where a replay lies: in memory of its own, or in a file without a name that several processes map.

The file (memfd) exists as long as a process has it open or mapped: it leaves nothing behind when processes are killed. It is as long as
the largest replay of its arguments, but pages that were never written take no memory.

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
import zlib
from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.records import carve, size_of
from laser_rl.errors import ConfigError
from laser_rl.replay.encoded_unrolls import compress_bound
from laser_rl.replay.records import Bytes, Codec, Ids, shape_of
from laser_rl.replay.shared_lock import SharedLock
from laser_rl.types import UnrollLayout

# Unroll ids; bytes of blocks; a writer is at work; the first id that is not in `delivered` yet; two words of the lock.
FIRST, NEXT, COMPRESSED, UNSETTLED, COUNTED, HOLDER = range(6)
WORDS = 8
MOST_MEMBERS = 4096  # that may write into one store
CHUNK_BYTES = 16 << 20
OLDEST, NEWEST, END, CHUNKS = range(
    4
)  # oldest and newest chunk in use, end of the newest one's blocks, chunks ever used
BOOKS = 4
Words = MutableSequence[int] | memoryview


class Handle(NamedTuple):
    """What another process needs to attach: an open file, and numbers. A list of it is JSON."""

    file: int  # descriptor, to be passed on with `pass_fds`
    layout: int  # checksum
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


class ArenaMemory(NamedTuple):
    """Zeroed memory for an arena with a fixed number of chunks."""

    chunks: list[memoryview]
    books: Words
    alive: Words  # blocks alive in each chunk
    after: Words  # the next younger chunk of each


class Arena:
    """Blocks are added at the end and dropped at the beginning.

    Without memory given it allocates its own, chunk by chunk.
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


class Room(NamedTuple):
    """The memory of a store. What a codec does not need has no rows."""

    words: Words  # FIRST, NEXT and so on
    members: NDArray[np.int32]
    numbers: Ids  # of each unroll among those of its member
    records: Bytes
    frames: Bytes
    address: Ids
    length: Ids
    delivered: Ids  # by member: how many of its unrolls have ever come in
    arena: Arena
    lock: "threading.Lock | SharedLock"
    file: "MemoryFile | None"

    @property
    def nbytes(self) -> int:
        """Bytes held; those of a shared store are the same bytes in every process."""
        return sum(array.nbytes for array in self[1:7]) + self.arena.nbytes


class MemoryFile:
    """The descriptor that is handed on; closed with the store."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._close = weakref.finalize(self, os.close, number)


def checksum(layout: UnrollLayout) -> int:
    """A checksum of the layout, to refuse a store of another one."""
    return zlib.crc32(repr(layout).encode())


def private_room(layout: UnrollLayout, capacity: int, budget_bytes: int | None) -> Room:
    """Memory of this process for `capacity` unrolls: compressed within a budget, raw without one."""
    arrays = {name: np.zeros(*field) for name, field in _rows(layout, capacity, budget_bytes).items()}
    for array in arrays.values():
        array.fill(0)  # zeros are not there until they are written: the first touch of memory is the slow one
    chunk, _ = _chunks(layout, budget_bytes)
    return Room(**arrays, words=[0] * WORDS, arena=Arena(chunk), lock=threading.Lock(), file=None)


def shared_room(layout: UnrollLayout, capacity: int, budget_bytes: int | None, handed: int | None = None) -> Room:
    """The same in a new file, or in the file of a descriptor that was handed to us, as it is."""
    rows, (chunk, chunks) = _rows(layout, capacity, budget_bytes), _chunks(layout, budget_bytes)
    numbers = {"words": WORDS, "books": BOOKS, "alive": chunks, "after": chunks}
    fields = {
        **{name: ((size,), "int64") for name, size in numbers.items()},
        **rows,
        "blocks": ((chunks * chunk,), "uint8"),
    }
    file = MemoryFile(os.memfd_create("laser-replay") if handed is None else _duplicate(handed, size_of(fields)))
    if handed is None:
        os.ftruncate(file.number, size_of(fields))
    arrays = carve(memoryview(mmap.mmap(file.number, size_of(fields))), fields)
    if handed is None:
        for name in rows:
            arrays[name].fill(0)  # the first touch, as above; the arena touches its own
    blocks = arrays.pop("blocks").data
    words, books, alive, after = (arrays.pop(name).data for name in numbers)
    memory = ArenaMemory([blocks[i * chunk : (i + 1) * chunk] for i in range(chunks)], books, alive, after)
    lock = SharedLock(file.number, words[HOLDER : HOLDER + 2])
    return Room(**arrays, words=words, arena=Arena(chunk, memory), lock=lock, file=file)  # type: ignore[arg-type]


def _rows(layout: UnrollLayout, capacity: int, budget_bytes: int | None) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of every array: a row for each unroll, and one for each member."""
    sizes, raw, compressed = shape_of(layout), capacity, 0
    if budget_bytes is not None:
        raw, compressed = 0, capacity
    return {
        "members": ((capacity,), "int32"),
        "numbers": ((capacity,), "int64"),
        "records": ((capacity, sizes.record_bytes), "uint8"),
        "frames": ((raw, sizes.frames_bytes), "uint8"),
        "address": ((compressed,), "int64"),
        "length": ((compressed,), "int64"),
        "delivered": ((MOST_MEMBERS,), "int64"),
    }


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


def _duplicate(handed: int, size: int) -> int:
    """A descriptor of our own; ConfigError if it cannot be that of such a store."""
    try:
        own = os.dup(handed)
    except OSError as error:
        raise ConfigError(
            f"expected descriptor {handed} of a shared replay to be open, got: {error}; "
            "start the process with pass_fds=[handle.file]"
        ) from error
    if (found := os.fstat(own).st_size) != size:
        os.close(own)
        raise ConfigError(
            f"expected descriptor {handed} to be a shared replay of {size:,} bytes, got {found:,}; "
            "pass the handle on as it was given, and its file with pass_fds=[handle.file]"
        )
    return own
