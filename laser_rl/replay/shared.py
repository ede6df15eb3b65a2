"""Allocate the memory of a replay: private, or a file without a name (memfd) that several processes map.

The file (memfd) exists as long as a process has it open or mapped: nothing is left behind, whichever process is killed. File or memory are
as long as the largest replay of its arguments, but pages that were never written take no memory.

Compressed blocks lie one behind the other in a ring of bytes: a block that does not fit before the end begins at 0. The ring is one
largest block longer than what may be held at once. So a new block never meets the oldest one: with it all blocks are still within the
budget, and less than one largest block is wasted at the end.
"""

import mmap
import os
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.records import carve, size_of
from laser_rl.errors import ConfigError
from laser_rl.replay.encoded_unrolls import compress_bound
from laser_rl.replay.memory_layout import Bytes, Codec, Ids, shape_of
from laser_rl.replay.shared_lock import SharedLock
from laser_rl.types import UnrollLayout

# Unroll ids; bytes of the blocks held; a writer is at work; bytes of the ring ever written; two words of the lock.
FIRST, NEXT, COMPRESSED, UNSETTLED, TOUCHED, HOLDER = range(6)
WORDS = 8


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

    @classmethod
    def of(cls, handle: Handle) -> "LentBlock":
        """Lend the memory of this process; for `borrow` in any process of this machine and user, as long as this one lives."""
        found = os.fstat(handle.file)
        return cls(os.getpid(), found.st_dev, found.st_ino, handle)


class Room(NamedTuple):
    """The memory of a store. What a codec does not need has no rows."""

    words: memoryview  # FIRST, NEXT and so on
    members: NDArray[np.int32]
    records: Bytes
    frames: Bytes
    address: Ids
    length: Ids
    blocks: memoryview
    lock: "threading.Lock | SharedLock"
    file: int | None  # the descriptor that is handed on; the store closes it

    @property
    def nbytes(self) -> int:
        """Bytes held; those of a shared store are the same bytes in every process."""
        return sum(array.nbytes for array in self[1:6]) + self.words[TOUCHED]


def make_room(
    layout: UnrollLayout, capacity: int, budget_bytes: int | None, *, shared: bool, handed: int | None = None
) -> Room:
    """Memory for `capacity` unrolls, compressed within a budget, raw without; `shared`: in a new file, or as it is in a `handed` one."""
    sizes, ring = shape_of(layout), 0 if budget_bytes is None else ring_bytes(layout, capacity, budget_bytes)
    raw, compressed = (capacity, 0) if budget_bytes is None else (0, capacity)
    fields = {
        "words": ((WORDS,), "int64"),
        "members": ((capacity,), "int32"),
        "records": ((capacity, sizes.record_bytes), "uint8"),
        "frames": ((raw, sizes.frames_bytes), "uint8"),
        "address": ((compressed,), "int64"),
        "length": ((compressed,), "int64"),
        "blocks": ((ring,), "uint8"),
    }
    size, file = size_of(fields), None
    if not shared:
        memory = np.empty(size, np.uint8).data  # NumPy asks the kernel for large pages
    else:
        file = os.memfd_create("laser-replay") if handed is None else os.dup(handed)
        if handed is None:
            os.ftruncate(file, size)
        memory = memoryview(mmap.mmap(file, size))
    arrays: dict[str, Any] = carve(memory, fields)
    if handed is None:
        for name in fields.keys() - {"blocks"}:
            arrays[name].fill(0)  # also memory that is zero: the first touch is the slow one
    words, blocks = arrays.pop("words").data, arrays.pop("blocks").data
    lock = threading.Lock() if file is None else SharedLock(file, words[HOLDER : HOLDER + 2])
    return Room(**arrays, words=words, blocks=blocks, lock=lock, file=file)


def ring_bytes(layout: UnrollLayout, capacity: int, budget_bytes: int) -> int:
    """Bytes of the ring for the compressed blocks of `capacity` unrolls; ConfigError if the budget does not hold one unroll."""
    largest = compress_bound(shape_of(layout).frames_bytes)
    if budget_bytes < largest:
        raise ConfigError(
            f"replay budget of {budget_bytes:,} bytes cannot hold one unroll, which may need {largest:,}; "
            "raise --replay.budget-gb"
        )
    return min(budget_bytes, capacity * largest) + largest
