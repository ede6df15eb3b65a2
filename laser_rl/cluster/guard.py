"""A process that outlives the one which started a Ray cluster on this machine, and ends what Ray leaves behind.

Most of Ray's processes end with the driver. Two helpers of its node do not: if the driver is killed, they live on for minutes. All of them
inherit a mark in their environment. The guard is in a session of its own, so that a signal to the driver's group does not reach it. It
needs the standard library only and is run as a file: nothing that takes time is imported.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "LASER_RL_CLUSTER"  # the variable in the environment of every process of the cluster
LOOK_S = 0.5
GRACE_S = 3.0  # in which Ray's processes may end by themselves


class ProcessGuard:
    """The guard of all processes that were started with this mark in their environment, seen from the driver.

    >>> with subprocess.Popen(["sleep", "60"], env={MARK: "example"}) as forgotten:
    ...     ProcessGuard("example").close()
    >>> forgotten.returncode
    -9
    """

    def __init__(self, mark: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
            [sys.executable, "-I", "-S", __file__, str(os.getpid()), mark],
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
    """Run the guard, given the driver's process and the mark, until the driver ends or closes its side."""
    driver, mark = sys.argv[1:]
    while os.getppid() == int(driver) and not select.select([0], [], [], LOOK_S)[0]:
        pass
    ends = time.monotonic() + GRACE_S
    while (left := _marked(f"{MARK}={mark}".encode())) and time.monotonic() < ends:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _marked(entry: bytes) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


if __name__ == "__main__":
    main()
