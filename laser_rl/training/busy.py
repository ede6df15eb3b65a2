"""How much of its time the learner learns, and what it waits for."""

import functools
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol, Self

import torch
from torch import cuda

from laser_rl.gpu_streams import wait_for

UNDER_WAY = 2  # updates that a card may have before it: one at work, one that it finds when that is done


class Mark(Protocol):
    """An event that knows its time."""

    def query(self) -> bool:
        """Whether the device has come here."""

    def elapsed_time(self, end: Self) -> float:
        """Milliseconds from here to there."""


class _Update(NamedTuple):
    begin: Mark
    end: Mark


class Busy:
    """Measures a learner; on a GPU also keeps it from running further ahead of the card than `UNDER_WAY` updates.

    The share of time is that of the learner's stream on a GPU, from the moment at which it has its batch, and of its thread on a CPU.
    Nothing here stalls the card: an update is counted when it is over.

    Args:
        device: of the learner.
        clock: in seconds.
        mark: puts an event into the learner's stream.

    >>> now = iter([0.0, 1.0, 4.0, 4.0, 5.0, 8.0])
    >>> busy = Busy(torch.device("cpu"), clock=lambda: next(now))
    >>> with busy.learning():  # from 1 to 4
    ...     pass
    >>> with busy.waiting():  # from 4 to 5
    ...     pass
    >>> busy.report()
    {'learner_busy': 0.375, 'learner_wait': 0.125}
    """

    def __init__(
        self,
        device: torch.device,
        *,
        clock: Callable[[], float] = time.monotonic,
        mark: Callable[[], Mark] | None = None,
    ) -> None:
        self._mark = mark or (functools.partial(_marked, device) if device.type == "cuda" else None)
        self._clock, self._since = clock, clock()
        self._learned_s = self._waited_s = 0.0
        self._under_way: deque[_Update] = deque()

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Around one update."""
        if self._mark is None:
            begin = self._clock()
            yield
            self._learned_s += self._clock() - begin
            return
        while len(self._under_way) >= UNDER_WAY:
            wait_for(self._under_way[0].end, "the learner", "an update on the card")
            self._count()
        begun = self._mark()
        yield
        self._under_way.append(_Update(begun, self._mark()))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait for a batch."""
        begin = self._clock()
        yield
        self._waited_s += self._clock() - begin

    def _count(self) -> None:
        update = self._under_way.popleft()
        self._learned_s += 1e-3 * update.begin.elapsed_time(update.end)

    def report(self) -> dict[str, float]:
        """Shares of the time since the last report."""
        while self._under_way and self._under_way[0].end.query():
            self._count()
        now = self._clock()
        seconds = max(now - self._since, 1e-9)
        shares = {"learner_busy": self._learned_s / seconds, "learner_wait": self._waited_s / seconds}
        self._learned_s, self._waited_s, self._since = 0.0, 0.0, now
        return shares


def _marked(device: torch.device) -> Mark:
    event = cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(cuda.current_stream(device))
    return event
