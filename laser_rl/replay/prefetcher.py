"""Batches filled ahead of the learner by a thread of their own."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from laser_rl.errors import UserError

POLL_S = 0.1  # how soon the thread sees that it is to stop
CLOSE_S = 10.0
Item = TypeVar("Item")  # a batch, or what a batch travels in


class Starved(UserError):
    """The learner has waited too long."""

    exit_status = 4


class Exhausted(Exception):
    """Raised by `ready` when nothing will ever come again: the batches end, in good order."""


class Prefetcher(Generic[Item]):
    """Two or more batches go round: the thread fills what the learner has given back.

    `ready(seconds)` waits at most so long until `fill` can go on, and says whether it can. Gathering works outside the interpreter
    lock, so it makes progress while the learner computes. What fails in the thread is raised by `next`.
    """

    def __init__(
        self,
        fill: Callable[[Item], None],
        batches: Sequence[Item],
        *,
        ready: Callable[[float], bool] = lambda seconds: True,
        waiting_for: str = "unrolls from the actors",
    ) -> None:
        if len(batches) < 2:  # noqa: PLR2004
            raise ValueError(f"expected at least 2 batches to fill one while another is read, got {len(batches)}")
        self._fill, self._ready, self._waiting_for = fill, ready, waiting_for
        self._empty: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[Item | None] = queue.SimpleQueue()  # None: the thread has ended
        self._lent: list[Item] = []
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._ended = self._over = False
        for batch in batches:
            self._empty.put(batch)
        self._thread = threading.Thread(target=self._run, name="replay-ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while (batch := self._take()) is not None:
                self._fill(batch)
                self._full.put(batch)
        except Exhausted:
            self._ended = True
        except Exception as error:  # raised again by next()
            self._error = error
        finally:
            self._over = True
            self._full.put(None)

    def _take(self) -> Item | None:
        """The next batch to fill, once there is something to fill it with; None when closing."""
        batch = None
        while not self._stop.is_set():
            try:
                if batch is None:
                    batch = self._empty.get(timeout=POLL_S)
            except queue.Empty:  # the learner still reads all of them
                continue
            if self._ready(POLL_S):
                return batch
        return None

    def next(self, timeout_s: float) -> Item | None:
        """The next full batch, to be given back; None after the last. `Starved` names the side that the learner has waited for."""
        begin = time.monotonic()
        try:
            batch = self._full.get(timeout=timeout_s)
        except queue.Empty:
            raise Starved(
                f"the learner has waited {time.monotonic() - begin:.0f} s for {self._waiting_for} "
                f"({len(self._lent)} batches are with the learner); look at the log of those, or raise the time-out"
            ) from None
        if batch is None:
            self._full.put(None)  # for the next call of `next`
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            raise RuntimeError("next() after close(): no batch will come; ask before closing")
        self._lent.append(batch)
        return batch

    def depth(self) -> int:
        """Full batches that wait for the learner."""
        return max(0, self._full.qsize() - self._over)  # without the mark of the end

    def give_back(self, batch: Item) -> None:
        """The learner has read it; it may be overwritten."""
        for i, lent in enumerate(self._lent):
            if lent is batch:
                del self._lent[i]
                self._empty.put(batch)
                return
        raise ValueError("this batch was not handed out by next(), or was given back already")

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """End the thread; may be called twice."""
        self._stop.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise Starved(f"waited {timeout_s:.0f} s for the batch that is being filled; fill() must not wait for ever")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
