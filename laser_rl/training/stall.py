"""Waiting: a warning after seconds without progress names the side that blocks, an error after minutes; and what members wait at."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Steps = NDArray[np.int64]
log = logging.getLogger("laser_rl.training")
SAY_AFTER_S = 4.0  # five seconds are promised, and a wait is looked at a few times a second
GIVE_UP_S = 600.0
PATIENCE_S = 0.2  # between two looks
MOST_CREDIT_S = 5.0  # of one look: a process that was stopped for ten minutes has not waited for ten minutes


class StallWarning:
    """Waits of `who` for `whom`: logs a warning after `SAY_AFTER_S`, and its end; raises TimeoutError after `GIVE_UP_S`."""

    def __init__(self, who: str, whom: str) -> None:
        self._who, self.whom, self._said = who, whom, False
        self.waited_s = 0.0
        self._looked: float | None = None

    def again(self) -> None:
        waited = self.look()
        if waited > SAY_AFTER_S and not self._said:
            log.warning("%s has waited %.0f s for %s", self._who, waited, self.whom)
            self._said = True
        if waited >= GIVE_UP_S:
            raise TimeoutError(f"{self._who} has waited {waited:.0f} s for {self.whom} and gives up")

    def over(self) -> None:
        """What was waited for has come, if there was a wait; the next look begins another one."""
        if self._said:
            log.warning("%s goes on: it had waited %.0f s for %s", self._who, self.look(), self.whom)
        self._said, self.waited_s, self._looked = False, 0.0, None

    def look(self) -> float:
        """Seconds so far; a long time between two looks counts for `MOST_CREDIT_S`: this process may have been stopped as well."""
        now = time.monotonic()
        self.waited_s += 0.0 if self._looked is None else min(now - self._looked, MOST_CREDIT_S)
        self._looked = now
        return self.waited_s


class Gate:
    """A lock between threads; a thread that waits says what for: `what` the holder does, "the actor to finish its step"."""

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

    def __exit__(self, *_: object) -> None:
        self.holder = None
        self._lock.release()


def join(thread: threading.Thread, who: str, whom: str, progress: Callable[[], object] = lambda: None) -> None:
    """Wait for its end; each `progress`, a value that is another one than at the last look, begins the wait anew."""
    waiting, before = StallWarning(who, whom), progress()
    while thread.is_alive():
        thread.join(PATIENCE_S)
        if (now := progress()) != before:
            before = now
            waiting.over()
        if thread.is_alive():
            waiting.again()
    waiting.over()


class StepBarrier:
    """Identical speed: keeps the steps of all members of a sweep within `max(unroll_steps, (turns + 1) · slots)` of each other.

    `steps` may be memory that other processes write their own into; those of the members `own` move here, by `slots` in a turn at most.
    With 0 `turns` only the slowest act as soon as a turn is longer than an unroll: right where members take turns, but processes would
    act one at a time, each waiting for the others to learn.
    """

    def __init__(self, steps: Steps, own: Sequence[int], *, unroll_steps: int, slots: int, turns: int = 0) -> None:
        self.steps, self._own = steps, list(own)
        self._slack = max(0, unroll_steps - slots, turns * slots)
        self._waiting = StallWarning(f"the process of members {self._own}", "another")

    def among(self, done: Sequence[bool]) -> list[bool]:
        own = zip(self._own, done, strict=True)
        return [not ended and self.allows(int(self.steps[number])) for number, ended in own]

    def allows(self, steps: int) -> bool:
        return steps - int(self.steps.min()) <= self._slack

    def move(self, place: int, steps: int) -> None:
        self.steps[self._own[place]] = steps
        self._waiting.over()

    def wait(self) -> None:
        """Called while all members here have to wait; says for which one, and gives up in the end."""
        self._waiting.whom = f"member {int(self.steps.argmin())}, which is behind"
        self._waiting.again()
