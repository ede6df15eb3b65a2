"""Batches filled ahead of the learner by a thread of their own."""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

POLL_S = 0.1  # how soon the thread sees that it is to stop
Item = TypeVar("Item")  # a batch, or what a batch travels in


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
    ) -> None:
        self._fill, self._ready = fill, ready
        self._empty: queue.SimpleQueue[Item | None] = queue.SimpleQueue()  # None: `close` wakes the thread
        self._full: queue.SimpleQueue[Item | None] = queue.SimpleQueue()  # None: the thread has ended
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._over = False
        for batch in batches:
            self._empty.put(batch)
        self._thread = threading.Thread(target=self._run, name="replay-ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while (batch := self._empty.get()) is not None:
                while not self._stop.is_set() and not self._ready(POLL_S):
                    pass
                if self._stop.is_set():
                    break
                self._fill(batch)
                self._full.put(batch)
        except Exhausted:
            pass
        except Exception as error:  # raised again by next()
            self._error = error
        finally:
            self._over = True
            self._full.put(None)

    def next(self, timeout_s: float) -> Item | None:
        """The next full batch, to be given back; None after the last. TimeoutError names the side that the learner has waited for."""
        try:
            batch = self._full.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(
                f"the learner has waited {timeout_s:.0f} s for unrolls from the actors; look at the log of those"
            ) from None
        if batch is None:
            self._full.put(None)  # for the next call
            if self._error is not None:
                raise self._error
        return batch

    def depth(self) -> int:
        return max(0, self._full.qsize() - self._over)  # without the mark of the end

    def give_back(self, batch: Item) -> None:
        self._empty.put(batch)

    def close(self, timeout_s: float = 10.0) -> None:
        self._stop.set()
        self._empty.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(
                f"waited {timeout_s:.0f} s for the batch that is being filled; fill() must not wait for ever"
            )
