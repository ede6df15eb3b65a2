"""One way to end a run: signals, callbacks, errors and the end itself all ask here."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import NoReturn

FINISHED = "finished"
EXIT_STATUS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
AGAIN_S = 0.1  # sooner, a signal is the same one twice: from the terminal, and passed on by our parent
WANTED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Set once; the first reason stays. A run that is finished still hears what is urgent: its last evaluation may take long."""

    def __init__(self) -> None:
        self.reason: str | None = None  # None while the run goes on
        self._urgent = False
        self.listen: Callable[[], None] = lambda: None  # where one hears of it only by asking

    def request(self, reason: str) -> None:
        if self.reason is None:  # no lock: a signal's handler may interrupt the holder of one
            self.reason = reason

    def interrupt(self, reason: str) -> None:
        if self.interrupted is None:
            self.reason = reason
        self._urgent = True

    @property
    def urgent(self) -> bool:
        """Whether even an evaluation under way is to be broken off."""
        self.listen()
        return self._urgent

    @property
    def interrupted(self) -> str | None:
        """What ended it before its end; None while it goes on, and if it was finished."""
        return None if self.reason == FINISHED else self.reason


class StoppedAtOnce(KeyboardInterrupt):
    """Stop immediately: a second signal, or one before there is anything to save."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name, self.exit_status = name, EXIT_STATUS[name]


def signals(stop: Stop) -> AbstractContextManager[None]:
    """The first Ctrl-C or SIGTERM asks for an orderly end, a second raises `StoppedAtOnce`; a closed terminal is told of more than once."""
    heard: dict[int, float] = {}

    def handle(number: int) -> None:
        now, name = time.monotonic(), signal.Signals(number).name
        if number != signal.SIGHUP and now - heard.setdefault(number, now) > AGAIN_S:
            raise StoppedAtOnce(name)
        stop.interrupt(name)

    return _handled(handle)


def nothing_to_save() -> AbstractContextManager[None]:
    """Around the start and the end of a command: there SIGTERM and a closed terminal raise, as Ctrl-C does."""

    def handle(number: int) -> None:
        raise StoppedAtOnce(signal.Signals(number).name)

    return _handled(handle)


def deliver_again(reason: str | None) -> None:
    """After an orderly end inside a user's program: a signal that asked for it takes the course that it would have taken without us."""
    if reason in EXIT_STATUS:
        signal.raise_signal(signal.Signals[reason])


@contextlib.contextmanager
def no_exit() -> Iterator[None]:
    """While environments are stepped, `os._exit` of this process raises SystemExit: it would end a run half way, with any status."""
    leave, pid = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() == pid:
            raise SystemExit(status)
        leave(status)  # the child of a fork

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = leave


def deaf() -> None:
    for number in WANTED:
        signal.signal(number, _unheard)


def _unheard(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN: what this process starts would inherit that."""


@contextlib.contextmanager
def _handled(handle: Callable[[int], None]) -> Iterator[None]:
    """What is ignored stays ignored: `nohup` asked for it. Elsewhere than in the main thread nothing can be handled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in WANTED}
    before = {number: found for number, found in before.items() if found not in (None, signal.SIG_IGN, _unheard)}
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def handle_one(number: int, _: FrameType | None) -> None:
        # What would be said to a terminal that is gone is dropped: it would be an error, before the run has been saved.
        for stream in terminals if number == signal.SIGHUP else ():
            if not os.isatty(stream):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream)
                os.close(nowhere)
        handle(number)

    for number in before:
        signal.signal(number, handle_one)
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)
