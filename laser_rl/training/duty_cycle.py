"""When to do what takes time away from learning."""

import contextlib
import time
from collections.abc import Callable, Iterator

from torch import Tensor

from laser_rl.ports import ParameterMailbox


class DutyCycle:
    """Due every `every_s`; more seldom where it takes long, so that it is at most `share` of the time; `most_s` apart at the most.

    >>> now = [0.0]
    >>> sparing = DutyCycle(1.0, share=0.01, most_s=60.0, clock=lambda: now[0])
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


class ThrottledMailbox:
    """Leaves out versions where publishing takes long: the next one is newer anyway.

    Args:
        mailbox: where the others go.
        sparing: says when.

    >>> import torch
    >>> from laser_rl.training.mailbox import ThreadMailbox
    >>> now, there = [0.0], torch.zeros(1)
    >>> mailbox = ThrottledMailbox(ThreadMailbox(torch.zeros(1), 0), DutyCycle(1.0, share=1.0, most_s=1.0, clock=lambda: now[0]))
    >>> for version, now[0] in ((1, 1.0), (2, 1.5), (3, 2.0), (4, 2.5)):
    ...     mailbox.publish(torch.full((1,), float(version)), version)
    >>> mailbox.collect(there, 0), there
    (3, tensor([3.]))
    """

    def __init__(self, mailbox: ParameterMailbox, sparing: DutyCycle) -> None:
        self._mailbox, self._sparing = mailbox, sparing

    def publish(self, parameters: Tensor, version: int) -> None:
        """If it is time."""
        if self._sparing.due():
            with self._sparing.measured():
                self._mailbox.publish(parameters, version)

    def collect(self, into: Tensor, newer_than: int) -> int:
        """What was published."""
        return self._mailbox.collect(into, newer_than)
