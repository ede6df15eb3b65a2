"""Child processes of a run, seen from both sides: how they start, what their main function catches, and who ends them."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from laser_rl.errors import ConfigError, EnvironmentEnded, UserError
from laser_rl.training.stall import MOST_CREDIT_S
from laser_rl.training.stop import deaf

log = logging.getLogger("laser_rl.training")
KILL_S = 30.0
MOST_RESTARTS = 5  # without a step of its members in between
ENVIRONMENT_ENDED = 6  # the status of a process whose environment asked the program to end
IN_VAIN = frozenset({0, ConfigError.exit_status, ENVIRONMENT_ENDED})  # another start would end in the same way
# A child is nice and dies with its parent from the first moment on, not only after the seconds that torch takes to be imported.
ENTRY = (
    "import os, sys; parent, nice, *files = map(int, sys.argv[1:]); os.nice(nice); "
    "from laser_rl.envs.worker import die_with; die_with(parent); from laser_rl.training.{} import main; main(*files)"
)


class ProcessDied(UserError):
    """A process of the sweep dies again and again."""

    exit_status = 4


def start_child(
    module: str,
    *arguments: int,
    files: Sequence[int] = (),
    nice: int = 0,
    env: Mapping[str, str] | None = None,
    **pipes: Any,
) -> "subprocess.Popen[bytes]":
    """Start `main` of a module of this package in a process that dies with this one.

    Args:
        module: the name of the module.
        arguments: of its `main`.
        files: open files that the child inherits.
        nice: how much lower its priority is.
        env: environment variables beside this process's own.
        pipes: `stdin`, `stdout`, … as of `subprocess.Popen`.
    """
    return subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
        [sys.executable, "-c", ENTRY.format(module), str(os.getpid()), str(nice), *map(str, arguments)],
        pass_fds=files,
        process_group=0,  # Ctrl-C is for the parent to handle
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path), **(env or {})},
        **pipes,
    )


def kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """End a child and all that it started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait(KILL_S)


def run_child(run: Callable[[], int]) -> NoReturn:
    """The main function of a child: errors that a user can act on become a line and a status; `run` returns the status otherwise."""
    deaf()
    logging.basicConfig(format="laser: %(message)s", level=logging.WARNING)
    try:
        status = run()
    except (
        UserError,
        TimeoutError,
    ) as error:  # a TimeoutError of a lock or of another member says who blocked this one
        print(f"laser: {error}", file=sys.stderr)
        status = ENVIRONMENT_ENDED if isinstance(error, EnvironmentEnded) else getattr(error, "exit_status", 1)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the parent may be gone
            stream.flush()
    # All is closed. What Python takes apart on its way out takes seconds, and may wait for processes that are gone.
    os._exit(status)


class ProcessHandle:
    """A process with some members of a sweep. The parent never waits for it: what its pipe does not take is kept for later."""

    def __init__(self, numbers: Sequence[int], start: dict[str, Any], files: Sequence[int]) -> None:
        self.numbers, self._start, self._files = list(numbers), start, list(files)
        self.restarts, self._steps = 0, -1
        self._launch()

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self._process.pid

    def _launch(self) -> None:
        self._told, self._unsent = set[bytes](), b""
        self._blocking: object = None
        self.blocked_s, self._looked = 0.0, time.monotonic()
        start = os.memfd_create("laser-start")  # not through the pipe: a large sweep's does not fit in
        try:
            os.write(start, json.dumps({**self._start, "numbers": self.numbers}).encode())
            files = [*self._files, start]
            process = start_child("member_process", start, files=files, stdin=subprocess.PIPE, bufsize=0)
        finally:
            os.close(start)
        assert process.stdin is not None  # noqa: S101
        os.set_blocking(process.stdin.fileno(), False)
        self._process, self._pipe = process, process.stdin

    def order(self, order: dict[str, Any]) -> None:
        """Say something, once to each process: its pipe keeps it. A process that is gone does not hear it."""
        line = json.dumps(order).encode() + b"\n"
        if line not in self._told:
            self._told.add(line)
            self._unsent += line
        self.send()

    def send(self) -> None:
        """Into the pipe, as far as it takes it."""
        with contextlib.suppress(OSError, ValueError):  # full, or the process is gone
            while self._unsent:
                self._unsent = self._unsent[os.write(self._pipe.fileno(), self._unsent) :]

    @property
    def listens(self) -> bool:
        """Whether it has taken all its orders."""
        return not self._unsent

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it."""
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
        self._launch()

    def kill(self) -> None:
        """End it and all that it started."""
        kill_tree(self._process)
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.close()
