"""Allocate the memory of a replay: private, or a file without a name (memfd) that several processes map.

The file (memfd) exists as long as a process has it open or mapped: nothing is left behind, whichever process is killed. File or memory are
as long as the largest replay of its arguments, but pages that were never written take no memory.

Compressed blocks lie one behind the other in a ring of bytes: a block that does not fit before the end begins at 0. The ring is one
largest block longer than what may be held at once. So a new block never meets the oldest one: with it all blocks are still within the
budget, and less than one largest block is wasted at the end.

Also here: `SharedLock`, a lock between threads and between processes that a killed holder does not keep.

Between processes it is flock(2): the kernel gives it up when the last descriptor of the holder's open file is closed, so also when the
holder is killed. A descriptor that was inherited is the *same* open file: two processes that share it would not exclude each other, and
a child would keep the lock of a dead parent. So every lock opens the file anew, and children do not inherit that descriptor.

The others lost: fcntl's record locks exclude neither threads nor two stores of one process, and vanish when any descriptor of the file is
closed; a robust mutex depends on the layout of the C library's structures. flock has no timeout: we try and sleep in turns.

A holder that is stopped, not killed, keeps the lock. So two words of shared memory hold the holder's pid and how often the lock was
taken: a process that reads the same count twice knows that the holder has not changed in between.
"""

import fcntl
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.records import carve, shared_arrays, size_of
from laser_rl.errors import ConfigError
from laser_rl.replay.encoded_unrolls import compress_bound
from laser_rl.replay.memory_layout import Bytes, Codec, Ids, shape_of
from laser_rl.types import UnrollLayout

log = logging.getLogger("laser_rl.replay")
LOCK_S = 60.0  # the holder only copies bytes, which takes milliseconds
SAY_AFTER_S = 4.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 20e-6, 500e-6
ASK_S = 0.1  # between two calls of `while_waiting`
MOST_CREDIT_S = 1.0  # of one look: time in which this process was stopped itself is not the holder's
PID, TAKEN = range(2)
# Unroll ids; bytes of the blocks held; a writer is at work; bytes of the ring ever written; two words of the lock.
FIRST, NEXT, COMPRESSED, UNSETTLED, TOUCHED, HOLDER = range(6)
WORDS = 8


class SharedLock:
    """A lock on the file of a descriptor; `words` are two words of shared memory that name the holder."""

    def __init__(self, file: int, words: memoryview) -> None:
        self._words = words
        self.while_waiting: Callable[[], None] = lambda: None  # called every `ASK_S` while a thread waits for the lock
        self._file = _open_anew(file)
        self._close = weakref.finalize(self, os.close, self._file)
        self._threads, self._process = threading.Lock(), os.getpid()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        if not self._threads.acquire(timeout=min(SAY_AFTER_S, LOCK_S)):
            self._say(SAY_AFTER_S)
            if not self._threads.acquire(timeout=max(0.0, LOCK_S - SAY_AFTER_S)):
                raise TimeoutError(self._complaint())
        try:
            if not self._try():
                self._wait()
            self._words[TAKEN] += 1
            self._words[PID] = self._process
        except BaseException:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # harmless if we do not hold it
            self._threads.release()
            raise

    def __exit__(self, *error: object) -> None:
        self._words[PID] = 0
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._threads.release()

    def _try(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def holder(self) -> tuple[int, int]:
        """The pid that holds the lock, 0 if it is free, and the number of its acquisition. Only looks: the process may have been killed."""
        return self._words[PID], self._words[TAKEN]

    def _wait(self) -> None:
        waited_s, asked_s, pause_s, said, now = 0.0, 0.0, FIRST_PAUSE_S, False, time.monotonic()
        while not self._try():
            before, now = now, time.monotonic()
            waited_s += min(now - before, MOST_CREDIT_S)
            if waited_s - asked_s > ASK_S:
                asked_s = waited_s
                self.while_waiting()
            if waited_s > SAY_AFTER_S and not said:
                self._say(waited_s)
                said = True
            if waited_s > LOCK_S:
                raise TimeoutError(self._complaint())
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _say(self, waited_s: float) -> None:
        log.warning("waited %.0f s for the lock of the replay; %s has it", min(waited_s, LOCK_S), self._who())

    def _who(self) -> str:
        pid, _ = self.holder()
        if pid == self._process:
            return "a thread of this process"
        return f"process {pid}" if pid else "another process"

    def _complaint(self) -> str:
        return (
            f"expected the lock of the replay within milliseconds, waited {LOCK_S:g} s for {self._who()}; "
            "if that is stopped, let it go on or kill it: then the lock is free"
        )

    def _renew(self) -> None:
        """In the child of a fork: an open file of its own under the same number, and no thread that holds the lock."""
        own = _open_anew(self._file)
        os.dup2(own, self._file, inheritable=False)
        os.close(own)
        self._threads, self._process = threading.Lock(), os.getpid()


def _open_anew(file: int) -> int:
    try:
        return os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"a shared replay needs /proc, to open its file anew, got: {error}; mount it") from error


def _renew_all() -> None:
    for lock in list(_LOCKS):
        lock._renew()  # noqa: SLF001


_LOCKS: "weakref.WeakSet[SharedLock]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_renew_all)


class Handle(NamedTuple):
    """Where the memory of a store is, for other processes of its machine and user, as long as its owner lives. A list of it is JSON.

    They open the owner's file under /proc. A number of a process or of a descriptor may mean something else there, in a container or once
    the owner is gone: device and inode say whether it is the right file.
    """

    process: int
    file: int  # the owner's descriptor
    device: int
    inode: int  # of the file, as long as a process has it open
    capacity_steps: int
    codec: Codec
    budget_bytes: int | None


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
    """Memory for `capacity` unrolls, compressed within a budget, raw without; see `Replay` for the others."""
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
    if shared or handed is not None:
        file, _, arrays = shared_arrays("laser-replay", fields, None if handed is None else os.dup(handed))
    else:
        memory = np.empty(size_of(fields), np.uint8).data  # NumPy asks the kernel for large pages
        file, arrays = None, carve(memory, fields)
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
