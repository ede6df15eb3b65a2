"""Where a replay lies: in memory of its own, or in a file without a name that several processes map.

The file (memfd) exists as long as somebody has it open or mapped: nothing is left behind, whoever is killed. It is as long as the
largest replay of its arguments, but pages that were never written take no memory.
"""

import mmap
import os
import threading
import weakref
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.block import carve, size_of
from laser_rl.errors import ConfigError
from laser_rl.replay.arena import BOOKS, Arena, ArenaMemory, Words, chunk_bytes, most_chunks
from laser_rl.replay.codec import compress_bound
from laser_rl.replay.memory_estimate import Codec
from laser_rl.replay.records import Bytes, shape_of
from laser_rl.replay.shared_lock import SharedLock
from laser_rl.types import UnrollLayout

Ids = NDArray[np.int64]
# Unroll ids; bytes of blocks; a writer is at work; the first id that is not in `delivered` yet; two words of the lock.
FIRST, NEXT, COMPRESSED, UNSETTLED, COUNTED, HOLDER = range(6)
WORDS = 8
MOST_MEMBERS = 4096  # that may write into one store


class Handle(NamedTuple):
    """What another process needs to attach: an open file, and numbers. A list of it is JSON.

    >>> import json
    >>> handle = Handle(3, 12345, 100, "zstd", 10**6, 1)
    >>> Handle(*json.loads(json.dumps(handle))) == handle
    True
    """

    file: int  # descriptor, to be passed on with `pass_fds`
    layout: int  # checksum
    capacity_steps: int
    codec: Codec
    budget_bytes: int | None
    level: int


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
    """To refuse a store of another layout.

    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> checksum(layout) == checksum(UnrollLayout(2, 0, (4,), "int32", (), "int64", 2))
    False
    """
    return zlib.crc32(repr(layout).encode())


def private_room(layout: UnrollLayout, capacity: int, budget_bytes: int | None) -> Room:
    """Memory of this process for `capacity` unrolls: compressed within a budget, raw without one.

    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> private_room(layout, 10, None).frames.shape, private_room(layout, 10, 10_000).frames.shape
    ((10, 48), (0, 48))
    """
    arrays = {name: np.zeros(*field) for name, field in _rows(layout, capacity, budget_bytes).items()}
    for array in arrays.values():
        array.fill(0)  # zeros are not there until they are written: the first touch of memory is the slow one
    chunk, _ = _chunks(layout, budget_bytes)
    return Room(**arrays, words=[0] * WORDS, arena=Arena(chunk), lock=threading.Lock(), file=None)


def shared_room(layout: UnrollLayout, capacity: int, budget_bytes: int | None, handed: int | None = None) -> Room:
    """The same in a new file, or in the file of a descriptor that was handed to us, as it is.

    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> first = shared_room(layout, 10, None)
    >>> second = shared_room(layout, 10, None, first.file.number)
    >>> first.frames[3] = 7
    >>> int(second.frames.sum())
    336
    """
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
