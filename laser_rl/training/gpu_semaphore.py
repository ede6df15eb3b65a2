"""Updates of several processes on one card, a few at a time."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import cuda

from laser_rl.gpu_streams import wait_for
from laser_rl.training.stall import StallWarning

PAUSE_S = 1e-4


class GpuSemaphore:
    """At most so many updates at a time, over all processes that hold the same file.

    A large update fills a card by itself, and nine at once make each other slower; a few at once leave no gap between one and the next. A
    process that is killed gives its place back at once: the system holds these locks for it.

    Args:
        most: updates at a time.
        handle: of the file of another process's permits, to attach to. The memory has no name: it goes with the last that holds it.

    >>> permits = GpuSemaphore(most=1)
    >>> with permits.one(torch.device("cpu")):
    ...     permits.taken
    0
    """

    def __init__(self, most: int, handle: int | None = None) -> None:
        self.most = most
        self.handle = os.memfd_create("laser-permits") if handle is None else handle
        self.taken: int | None = None  # the place that this process has

    @contextmanager
    def one(self, device: torch.device) -> Iterator[None]:
        """Around the launch of an update; ends when the device has done it."""
        self.taken = place = self._take()
        try:
            yield
            if device.type == "cuda":
                event = cuda.Event()  # type: ignore[no-untyped-call]
                event.record(cuda.current_stream(device))
                wait_for(event, "a learner", "its update on the card")
        finally:
            self.taken = None
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
