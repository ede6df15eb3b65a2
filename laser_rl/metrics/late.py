"""Lines for which there was no space, until there is."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator

from laser_rl.errors import is_full

MOST_KEPT = 20_000  # rows: some megabytes
TRY_S = 1.0


class LateLines:
    """A bounded number of lines that wait for space; the oldest that may be dropped goes first, and is counted.

    Args:
        most: how many are kept.
        clock: in seconds.

    >>> late, written = LateLines(most=2), []
    >>> for line in (b"resumed", b"1", b"2", b"3"):
    ...     late.add(line, keep=line == b"resumed")
    >>> late.write(lambda line: written.append(line) is None), written, late.over()[1:]
    (True, [b'resumed', b'3'], (2, 2))
    """

    def __init__(self, most: int = MOST_KEPT, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self._clock = most, clock
        self._lines: deque[tuple[bytes, bool]] = deque()
        self._since = self._next = 0.0
        self._written = self._lost = 0
        self._said = False

    @property
    def waiting(self) -> bool:
        """Whether lines wait."""
        return bool(self._lines)

    @property
    def count(self) -> int:
        """How many wait or have been dropped."""
        return len(self._lines) + self._lost

    def add(self, line: bytes, *, keep: bool) -> None:
        """One more; one that is to be kept is never dropped."""
        if not self._lines:
            self._since = self._clock()
        self._lines.append((line, keep))
        if len(self._lines) > self.most:
            for place, (_, kept) in enumerate(self._lines):
                if not kept:
                    del self._lines[place]
                    self._lost += 1
                    break

    def due(self) -> bool:
        """Whether it is time to try again."""
        return self._clock() >= self._next

    def write(self, append: Callable[[bytes], bool]) -> bool:
        """Hand them on in order until one cannot be taken; whether all were."""
        while self._lines:
            if not append(self._lines[0][0]):
                self._next = self._clock() + TRY_S
                return False
            self._lines.popleft()
            self._written += 1
        return True

    def say(self) -> bool:
        """True the first time since all was well."""
        first, self._said = not self._said, True
        return first

    def over(self) -> tuple[float, int, int]:
        """All is well again: for how many seconds it was not, how many lines came late, how many were dropped."""
        found = (self._clock() - self._since, self._written, self._lost)
        self._written = self._lost = 0
        self._next, self._said = 0.0, False
        return found


@contextlib.contextmanager
def full_disk_forgiven() -> Iterator[None]:
    """Around what may fail for lack of space without harm.

    >>> with full_disk_forgiven():
    ...     raise OSError(28, "No space left on device")
    """
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
