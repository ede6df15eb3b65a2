"""One process of a sweep, seen from the parent: started, spoken to, started again, killed."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from laser_rl.errors import ConfigError, UserError
from laser_rl.training.stall import MOST_CREDIT_S

log = logging.getLogger("laser_rl.training")
KILL_S = 30.0
MOST_RESTARTS = 5  # without a step of its members in between
ENVIRONMENT_ENDED = 6  # the status of a process whose environment asked the program to end
IN_VAIN = frozenset(
    {0, ConfigError.exit_status, ENVIRONMENT_ENDED}
)  # after these another start would end in the same way
# It has to die with us from the first moment on, not only after the seconds that torch takes to be imported.
ENTRY = (
    "import sys; from laser_rl.envs.worker import die_with; die_with(int(sys.argv[1])); "
    "from laser_rl.training.member_process import main; main()"
)


class ProcessDied(UserError):
    """A process of the sweep dies again and again."""

    exit_status = 4


class ProcessHandle:
    """One process, seen from the parent, which never waits for it: what the pipe does not take is kept for later."""

    def __init__(self, numbers: Sequence[int], start: dict[str, Any], files: Sequence[int]) -> None:
        self.numbers, self._start, self._files = list(numbers), start, list(files)
        self.restarts, self._steps = 0, -1
        self._process = self._launch()

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self._process.pid

    def _launch(self) -> "subprocess.Popen[bytes]":
        self._told, self._unsent = set[bytes](), b""
        self._blocking: object = None
        self.blocked_s, self._looked = 0.0, time.monotonic()
        start = os.memfd_create("laser-start")  # not through the pipe: a large sweep's does not fit in
        try:
            os.write(start, json.dumps({**self._start, "numbers": self.numbers}).encode())
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
                [sys.executable, "-c", ENTRY, str(os.getpid()), str(start)],
                stdin=subprocess.PIPE,
                bufsize=0,
                pass_fds=[*self._files, start],
                process_group=0,  # Ctrl-C is for the parent to handle
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            )
        finally:
            os.close(start)
        assert process.stdin is not None  # noqa: S101
        os.set_blocking(process.stdin.fileno(), False)
        return process

    def order(self, order: dict[str, Any]) -> None:
        """Say something, once to each process: its pipe keeps it. A process that is gone does not hear it."""
        line = json.dumps(order).encode() + b"\n"
        if line not in self._told:
            self._told.add(line)
            self._unsent += line
        self.send()

    def send(self) -> None:
        """Into the pipe, as far as it takes it."""
        with contextlib.suppress(OSError, ValueError):  # full, or nobody is there
            assert self._process.stdin is not None  # noqa: S101
            while self._unsent:
                self._unsent = self._unsent[os.write(self._process.stdin.fileno(), self._unsent) :]

    @property
    def listens(self) -> bool:
        """Whether it has taken all its orders."""
        return not self._unsent

    @property
    def stopped(self) -> bool:
        """Whether somebody has stopped it with a signal."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):  # it is gone
            return False
        return state == "T"

    def blocks_for(self, how: object) -> float:
        """Seconds that it has blocked the others without a break, always in the same way; None: it does not.

        Time in which the parent did not look counts for a second at most: it may have been stopped as well.
        """
        now = time.monotonic()
        credit_s, self._looked = min(now - self._looked, MOST_CREDIT_S), now
        self.blocked_s = self.blocked_s + credit_s if how is not None and how == self._blocking else 0.0
        self._blocking = how
        return self.blocked_s

    def ended(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._process.poll()

    def restart(self, steps: int, missing: int) -> None:
        """After it died; `ProcessDied` if it does so without getting anywhere, or by itself with steps missing."""
        self.restarts = self.restarts + 1 if steps == self._steps else 1
        self._steps = steps
        status = self._process.returncode
        if self.restarts > MOST_RESTARTS or status in IN_VAIN:
            raise ProcessDied(
                f"the process of members {self.numbers} ended with status {status}, {self.restarts} times without a step in between, "
                f"and {missing:,} steps of each member are missing; its error is above, and 'laser resume' goes on from the last checkpoint"
            )
        log.warning("the process of members %s ended with status %s; it is started again", self.numbers, status)
        self._close()
        self._process = self._launch()

    def kill(self) -> None:
        """End it and all that it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(KILL_S)
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None  # noqa: S101
            self._process.stdin.close()
