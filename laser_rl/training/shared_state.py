"""What the processes of a run share: how many steps every member has done, its newest state or order, places for updates on one card.

A member's state has two places. Its owner writes into the one that is not current, then makes it current: a reader sees a whole state,
whenever the owner is killed, and the state outlives its owner. The memory has no name: it goes with the last process that holds it.
"""

import fcntl
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import cuda

from laser_rl.envs.records import carve, size_of
from laser_rl.gpu_streams import wait_for
from laser_rl.training.process_handle import shared_memory
from laser_rl.training.stall import StallWarning, Steps

TRIES = 100
PUBLISH_S = 1.0  # so much of a member's learning is lost if its process is killed; with large networks more, see `member_process`
PAUSE_S = 1e-4


class States(Protocol):
    """Every member as it was last published; `SharedStateStore` is one."""

    members: int
    steps: Steps

    def get(self, member: int) -> bytes | None:
        """The newest state, whole; None if there is none yet."""

    def put(self, member: int, data: bytes) -> None:
        """What a member is to begin with."""


class SharedStateStore:
    """Shared by the processes of a run: states of at most `size` bytes; `handle` is the file of another process's store, to attach to."""

    def __init__(self, members: int, size: int, handle: int | None = None) -> None:
        self.members, self.size = members, size
        fields = {
            "steps": ((members,), "int64"),
            "ended": ((members,), "int64"),  # 1 once the member's process has done all that was asked of it
            "stop": ((1,), "int64"),  # 1 once all processes are to end
            "current": ((members,), "int64"),  # how many states were put; the newest is in place `current % 2`
            "length": ((members, 2), "int64"),
            "checksum": ((members, 2), "int64"),
            "boxes": ((members, 2, size), "uint8"),
        }
        self.handle, memory = shared_memory("laser-board", size_of(fields), handle)
        arrays: dict[str, NDArray[Any]] = carve(memoryview(memory), fields)
        self.steps, self.ended, self.stop = arrays["steps"], arrays["ended"], arrays["stop"]
        self._current, self._length, self._checksum = arrays["current"], arrays["length"], arrays["checksum"]
        self._boxes = arrays["boxes"]

    def put(self, member: int, data: bytes) -> None:
        """Publish; only the member's owner does."""
        if len(data) > self.size:
            raise ValueError(f"a state of {len(data):,} bytes for a store of {self.size:,}; make the store larger")
        place = int(self._current[member] + 1) % 2
        self._boxes[member, place, : len(data)] = np.frombuffer(data, np.uint8)
        self._length[member, place], self._checksum[member, place] = len(data), zlib.crc32(data)
        self._current[member] += 1  # last: until here the old one counts

    def get(self, member: int) -> bytes | None:
        """The newest state, whole; None if there is none yet."""
        for _ in range(TRIES):
            current = int(self._current[member])
            if not current:
                return None
            place = current % 2
            data = self._boxes[member, place, : int(self._length[member, place])].tobytes()
            # Two newer ones while we read would have gone over this one.
            if zlib.crc32(data) == self._checksum[member, place] and int(self._current[member]) - current < 2:  # noqa: PLR2004
                return data
        raise RuntimeError(f"member {member} publishes faster than it can be read; this should not happen")


class GpuSemaphore:
    """At most so many updates at a time, over all processes that hold the same file: `handle`, of another process's semaphore.

    A large update fills a card by itself, and nine at once make each other slower; a few at once leave no gap between one and the next. A
    process that is killed gives its place back at once: the system holds these locks for it.
    """

    def __init__(self, most: int, handle: int | None = None) -> None:
        self.most = most
        self.handle = os.memfd_create("laser-permits") if handle is None else handle

    @contextmanager
    def one(self, device: torch.device) -> Iterator[None]:
        """Around the launch of an update; ends when the device has done it."""
        place = self._take()
        try:
            yield
            if device.type == "cuda":
                event = cuda.Event()  # type: ignore[no-untyped-call]
                event.record(cuda.current_stream(device))
                wait_for(event, "a learner", "its update on the card")
        finally:
            fcntl.lockf(self.handle, fcntl.LOCK_UN, 1, place)

    def _take(self) -> int:
        waiting = StallWarning("a learner", "updates of other processes")
        while True:
            for place in range(self.most):
                try:
                    fcntl.lockf(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
                except (BlockingIOError, PermissionError):  # either, says POSIX
                    continue
                waiting.over()
                return place
            waiting.again()
            time.sleep(PAUSE_S)
