"""A process that outlives the one which started a Ray cluster on this machine, and ends what Ray leaves behind.

Most of Ray's processes end with the driver. Two helpers of its node do not: if the driver is killed, they live on for minutes. The guard
is in a session of its own, so that a signal to the driver's group does not reach it. It needs the standard library only and is run as a
file: nothing that takes time is imported.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

LOOK_S = 0.5
GRACE_S = 3.0  # in which Ray's processes may end by themselves
Known = dict[int, str]  # numbers of processes, and when each began: a number may be given to another process later


class ProcessGuard:
    """The guard, seen from the driver."""

    def __init__(self, roots: Iterable[int]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
            [sys.executable, "-I", "-S", __file__, str(os.getpid()), *map(str, roots)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """After the cluster has been shut down: kill now what still lives."""
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2 * GRACE_S)


def children_with(word: str) -> list[int]:
    found = []
    for pid, (parent, _) in _table().items():
        with contextlib.suppress(OSError):
            if parent == os.getpid() and word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def main() -> None:
    driver, *roots = map(int, sys.argv[1:])
    known = {pid: began for pid, (_, began) in _table().items() if pid in roots}
    while os.getppid() == driver:
        known = _with_descendants(known)
        if select.select([0], [], [], LOOK_S)[0]:  # the driver has closed its end
            break
    ends = time.monotonic() + GRACE_S
    while (left := _living(known, _table())) and time.monotonic() < ends:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _with_descendants(known: Known) -> Known:
    table, grown = _table(), dict(known)
    while more := {pid: began for pid, (parent, began) in table.items() if parent in grown and pid not in grown}:
        grown |= more
    return _living(grown, table)


def _living(known: Known, table: dict[int, tuple[int, str]]) -> Known:
    return {pid: began for pid, began in known.items() if pid in table and table[pid][1] == began}


def _table() -> dict[int, tuple[int, str]]:
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent, *rest = (folder / "stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                found[int(folder.name)] = int(parent), rest[17]
    return found


if __name__ == "__main__":
    main()
