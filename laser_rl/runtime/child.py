"""One process of a sweep, seen from the parent: started, spoken to, started again, killed."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from laser_rl.errors import ConfigError, UserError

log = logging.getLogger("laser_rl.runtime")
KILL_S = 30.0
MOST_RESTARTS = 5  # without a step of its members in between
# It has to die with us from the first moment on, not only after the seconds that torch takes to be imported.
ENTRY = (
    "import sys; from laser_rl.envs.worker import die_with; die_with(int(sys.argv[1])); "
    "from laser_rl.runtime.share_process import main; main()"
)


class ProcessDied(UserError):
    """A process of the sweep dies again and again."""

    exit_status = 4


class ShareProcess:
    """One process, seen from the parent."""

    def __init__(self, numbers: Sequence[int], start: dict[str, Any], files: Sequence[int]) -> None:
        self.numbers, self._start, self._files = list(numbers), start, list(files)
        self.restarts, self._steps = 0, -1
        self._process = self._launch()

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self._process.pid

    def _launch(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
            [sys.executable, "-c", ENTRY, str(os.getpid())],
            stdin=subprocess.PIPE,
            pass_fds=self._files,
            process_group=0,  # Ctrl-C is for the parent to handle
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
        )
        assert process.stdin is not None  # noqa: S101
        process.stdin.write(json.dumps({**self._start, "numbers": self.numbers}).encode() + b"\n")
        process.stdin.flush()
        return process

    def order(self, order: dict[str, Any]) -> None:
        """Say something; a process that is gone does not hear it."""
        with contextlib.suppress(BrokenPipeError, OSError):
            assert self._process.stdin is not None  # noqa: S101
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def ended(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._process.poll()

    def restart(self, steps: int) -> None:
        """After it died; `ProcessDied` if it does so without getting anywhere."""
        self.restarts = self.restarts + 1 if steps == self._steps else 1
        self._steps = steps
        status = self._process.returncode
        if self.restarts > MOST_RESTARTS or status == ConfigError.exit_status:
            raise ProcessDied(
                f"the process of members {self.numbers} ended with status {status}, {self.restarts} times without a step in between; "
                "its error is above, and 'laser resume' goes on from the last checkpoint"
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
