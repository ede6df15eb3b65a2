"""A process that outlives the one which started a Ray cluster on this machine, and ends what Ray leaves behind.

Most of Ray's processes end with the driver. Two helpers of its node do not: if the driver is killed, they live on for minutes. All of them
write into the folder of Ray's session; who only reads a log there is left alone. The guard is in a session of its own, so that a signal to
the driver's group does not reach it. It needs the standard library only and is run as a file: nothing that takes time is imported.
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
    """The guard, seen from the driver, of the processes that write into `folder`."""

    def __init__(self, folder: str | Path) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
            [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(folder)],
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
    driver, folder = int(sys.argv[1]), Path(sys.argv[2]).resolve()
    if not folder.name.startswith("session_"):  # elsewhere it would kill programs that have nothing to do with Ray
        sys.exit(f"{folder} is not the folder of a Ray session")
    while os.getppid() == driver and not select.select([0], [], [], LOOK_S)[0]:
        pass  # until the driver is gone, or has closed its end
    ends = time.monotonic() + GRACE_S
    while (left := _writers_in(folder) - {driver}) and time.monotonic() < ends:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _writers_in(folder: Path) -> set[int]:
    found = set()
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it has been closed, or its process has ended
            if handle.lstat().st_mode & 0o200 and handle.readlink().is_relative_to(folder):
                found.add(int(handle.parts[2]))
    return found


if __name__ == "__main__":
    main()
