"""When to do what takes time away from learning."""

import contextlib
import time
from collections.abc import Callable, Iterator


class Sparing:
    """Due every `every_s`; more seldom where it takes long, so that it is at most `share` of the time; `most_s` apart at the most.

    >>> now = [0.0]
    >>> sparing = Sparing(1.0, share=0.01, most_s=60.0, clock=lambda: now[0])
    >>> with sparing.measured():
    ...     now[0] += 0.3
    >>> due = []
    >>> for now[0] in (2.0, 29.0, 30.0):
    ...     due.append(sparing.due())
    >>> due
    [False, False, True]
    """

    def __init__(
        self, every_s: float, *, share: float, most_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every_s, self._share, self._most_s, self._clock = every_s, share, most_s, clock
        self._next = clock() + every_s

    def due(self) -> bool:
        """Whether it is time again; the first time `every_s` from the beginning."""
        return self._clock() >= self._next

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Around doing it."""
        begun = self._clock()
        try:
            yield
        finally:
            took = self._clock() - begun
            self._next = begun + max(self._every_s, min(took / self._share, self._most_s))
