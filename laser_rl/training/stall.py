"""Who waits says for whom, soon, and gives up in the end."""

import logging
import threading
import time
from types import TracebackType

log = logging.getLogger("laser_rl.training")
SAY_AFTER_S = 4.0  # five seconds are promised, and a wait is looked at a few times a second
GIVE_UP_S = 600.0
PATIENCE_S = 0.2  # between two looks
MOST_CREDIT_S = 5.0  # of one look: a process that was stopped for ten minutes has not waited for ten minutes


class StallWarning:
    """One wait: says for whom after `SAY_AFTER_S`, that it is over if it was said, and gives up after `GIVE_UP_S`.

    >>> waiting = StallWarning("the learner", "unrolls from the actor")
    >>> waiting.again()  # nothing is said yet
    >>> waiting.over()
    """

    def __init__(self, who: str, whom: str) -> None:
        self._who, self.whom, self._said = who, whom, False
        self._waited, self._looked = 0.0, time.monotonic()

    def again(self) -> None:
        """Another look was in vain."""
        waited = self._wait()
        if waited > SAY_AFTER_S and not self._said:
            log.warning("%s has waited %.0f s for %s", self._who, waited, self.whom)
            self._said = True
        if waited > GIVE_UP_S:
            raise TimeoutError(f"{self._who} has waited {waited:.0f} s for {self.whom} and gives up")

    def over(self) -> None:
        """What was waited for has come."""
        if self._said:
            log.warning("%s goes on: it had waited %.0f s for %s", self._who, self._wait(), self.whom)

    def _wait(self) -> float:
        now = time.monotonic()
        self._waited += min(now - self._looked, MOST_CREDIT_S)
        self._looked = now
        return self._waited


class Gate:
    """A lock between threads of which a waiting one says for whom it waits.

    Args:
        what: its holder does; "the actor to finish its step".

    >>> gate = Gate("the actor to finish its step")
    >>> with gate:
    ...     gate.holder == threading.current_thread().name
    True
    """

    def __init__(self, what: str) -> None:
        self._what, self._lock = what, threading.Lock()
        self.holder: str | None = None  # the name of a thread

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=PATIENCE_S):
            holder, who = self.holder, threading.current_thread().name
            waiting = StallWarning(f"thread {who}", f"{self._what} (thread {holder})")
            while not self._lock.acquire(timeout=PATIENCE_S):
                waiting.again()
            waiting.over()
        self.holder = threading.current_thread().name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.holder = None
        self._lock.release()


def join(thread: threading.Thread, who: str, whom: str) -> None:
    """Wait for the end of a thread."""
    waiting = StallWarning(who, whom)
    while thread.is_alive():
        thread.join(PATIENCE_S)
        if thread.is_alive():
            waiting.again()
    waiting.over()
