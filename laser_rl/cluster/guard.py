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
from pathlib import Path

LOOK_S = 0.5
GRACE_S = 3.0  # in which Ray's processes may end by themselves


class ProcessGuard:
    """The guard, seen from the driver; it ends processes with all of some words in their command lines, such as the cluster's address."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
            [sys.executable, "-I", "-S", __file__, str(os.getpid()), *words],
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


def main() -> None:
    """Run the guard, given the number of the driver's process and the words."""
    driver, *words = sys.argv[1:]
    while os.getppid() == int(driver):
        if select.select([0], [], [], LOOK_S)[0]:  # the driver has closed its end
            break
    ends = time.monotonic() + GRACE_S
    while (left := _running(words)) and time.monotonic() < ends:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _running(words: list[str]) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes()  # of a zombie it is empty
            if int(folder.name) != os.getpid() and all(word.encode() in command for word in words):
                found.append(int(folder.name))
    return found


if __name__ == "__main__":
    main()
