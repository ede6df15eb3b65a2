"""The time that a run may take, over all its sessions and for all members together; and when to do what takes time from learning."""

import contextlib
import time
from collections.abc import Iterator


class Budget:
    """Counts the seconds from tick to tick; with `minutes` of None nothing is counted, and it is never over.

    What is no training does not tick, and is not counted: loading, the evaluation at the end, a user who thinks between two calls. Any
    thread may tick. Earlier sessions took `spent_s`; the present one began at `since`, by a clock that all processes of the machine share.
    """

    def __init__(self, minutes: float | None, *, spent_s: float = 0.0, since: float | None = None) -> None:
        self.minutes, self._before, self._since = minutes, spent_s, since
        self._seen = 0.0 if since is None else time.monotonic()

    def tick(self) -> bool:
        """Count the time since the last tick; True if the budget is used up."""
        if self.minutes is None:
            return False
        self._seen = time.monotonic()
        if self._since is None:
            self._since = self._seen
        return self.over

    def pause(self) -> None:
        """The session ends: what passes until the next tick is not counted."""
        self._before, self._since = self.spent_s, None

    def go_on(self, spent_s: float) -> None:
        """Earlier sessions took so long; known already if one is under way, where a state that was saved in it would count twice."""
        if self._since is None:
            self._before = max(self._before, spent_s)

    @property
    def spent_s(self) -> float:
        return self._before if self._since is None else self._before + self._seen - self._since

    @property
    def left_s(self) -> float | None:
        """None where there is no limit."""
        return None if self.minutes is None else max(0.0, 60 * self.minutes - self.spent_s)

    @property
    def over(self) -> bool:
        return self.left_s == 0.0

    def handle(self) -> dict[str, float | None]:
        """Arguments of the same budget in another process of the machine."""
        return {"minutes": self.minutes, "spent_s": self._before, "since": self._since}


class DutyCycle:
    """Due every `every_s`; more seldom where it takes long, so that it is at most `share` of the time; `most_s` apart at the most."""

    def __init__(self, every_s: float, *, share: float, most_s: float) -> None:
        self._every_s, self._share, self._most_s = every_s, share, most_s
        self._next = time.monotonic() + every_s

    def due(self) -> bool:
        return time.monotonic() >= self._next

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - begun
            self._next = begun + max(self._every_s, min(took / self._share, self._most_s))
