"""One way to end a run: signals, callbacks, errors and the end itself all ask here."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

FINISHED = "finished"
EXIT_STATUS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


class Stop:
    """Set once; the first reason stays.

    >>> stop = Stop()
    >>> stop.request("a callback"); stop.request("too late")
    >>> stop.reason
    'a callback'
    """

    def __init__(self) -> None:
        self._reason: str | None = None

    def request(self, reason: str) -> None:
        """Ask everybody to end."""
        if self._reason is None:  # no lock: a signal's handler may interrupt the holder of one
            self._reason = reason

    @property
    def reason(self) -> str | None:
        """None while the run goes on."""
        return self._reason


@contextlib.contextmanager
def signals(stop: Stop) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks for an orderly end; the second one ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {int(number): signal.getsignal(number) for number in wanted}

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.reason is not None:
            signal.signal(number, before[number])
            signal.raise_signal(number)
        stop.request(signal.Signals(number).name)

    for number in wanted:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in wanted:
            signal.signal(number, before[number])
