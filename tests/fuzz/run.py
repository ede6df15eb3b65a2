"""Feeding a target, and what is counted."""

import gc
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from laser_rl.errors import UserError
from tests.fuzz.target import Target

LIMIT_S = 5.0  # for one input


class Fed(NamedTuple):
    """What became of some inputs."""

    inputs: int
    refused: int
    slowest_s: float
    grown_bytes: int  # resident memory, from the end of the first third to the end

    @property
    def read(self) -> int:
        """Inputs in which nothing was found that is not allowed."""
        return self.inputs - self.refused


class Crash(AssertionError):
    """An input that ended in another error than ours, or in none within the limit."""


def feed(name: str, target: Target, count: int, first: int = 0) -> Fed:
    """Inputs `first` to `first + count - 1` of a target; raises `Crash` with the number of the first that is not refused properly."""
    refused, slowest, settled = 0, 0.0, 0
    for number in range(first, first + count):
        if number - first == count // 3:
            settled = resident()  # by then caches are filled
        data = target.input(name, number)
        begin = time.perf_counter()
        try:
            with limited(LIMIT_S):
                target.feed(data, number)
        except UserError as error:
            refused += 1
            if not str(error).strip():
                raise Crash(f"{name}, input {number}: refused without a word") from error
        except (Exception, TooLong) as error:
            raise Crash(
                f"{name}, input {number} ({data[:80]!r}…): {type(error).__name__}: {str(error)[:300]}; "
                f"again: python -m tests.fuzz --target {name!r} --first {number} --inputs 1"
            ) from error
        slowest = max(slowest, time.perf_counter() - begin)
    return Fed(count, refused, slowest, max(0, resident() - settled))


class TooLong(BaseException):
    """No error of ours, of the system or of a library: nobody on the way may take it for one that was expected."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in here after so long."""

    def over(*_: object) -> None:
        raise TooLong(f"expected an answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def resident() -> int:
    """Bytes of memory that this process has now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
