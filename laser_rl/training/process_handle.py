"""Child processes of a run, seen from both sides: how they start, what their main function catches, and who ends them."""

import contextlib
import importlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from laser_rl.envs.worker import die_with, end_group, start_python
from laser_rl.errors import ConfigError, EnvironmentEnded, UserError
from laser_rl.training.stop import deaf

log = logging.getLogger("laser_rl.training")
MOST_RESTARTS = 5  # without a step of its members in between
ENVIRONMENT_ENDED = 6  # the status of a process whose environment asked the program to end
IN_VAIN = frozenset({0, ConfigError.exit_status, ENVIRONMENT_ENDED})  # another start would end in the same way


class ProcessDied(UserError):
    """A process of the sweep is gone, and is not replaced: it dies again and again, or members act in lock-step."""

    exit_status = 4


def start_child(
    module: str,
    start: Mapping[str, Any],
    *,
    files: Sequence[int] = (),
    nice: int = 0,
    env: Mapping[str, str] | None = None,
    **pipes: Any,
) -> "subprocess.Popen[bytes]":
    """Start `main(start)` of a module of this package, with `start` as JSON and the open `files`, in a process that dies with this one."""
    with os.fdopen(os.memfd_create("laser-start"), "wb") as file:  # not a pipe: a large sweep would not fit into it
        file.write(json.dumps(start).encode())
        file.flush()
        arguments = [str(os.getpid()), str(nice), module, str(file.fileno())]
        handles = [*files, file.fileno()]
        return start_python(__name__, arguments, handles, env={**os.environ, **(env or {})}, **pipes)


def main() -> NoReturn:
    """Of every child: errors that a user can act on become a line and a status."""
    parent, nice, module, file = sys.argv[1:]
    start = int(file)
    # From the first moment on, not only after the seconds that torch takes to be imported.
    os.nice(int(nice))
    die_with(int(parent))
    deaf()
    logging.basicConfig(format="laser: %(message)s", level=logging.WARNING)
    what = json.loads(os.pread(start, os.fstat(start).st_size, 0))
    os.close(start)
    try:
        status = importlib.import_module(f"laser_rl.{module}").main(what)
    except (UserError, TimeoutError) as error:  # a TimeoutError names the lock or the member that blocked this one
        print(f"laser: {error}", file=sys.stderr)
        status = ENVIRONMENT_ENDED if isinstance(error, EnvironmentEnded) else getattr(error, "exit_status", 1)
    # All is closed. What Python takes apart on its way out takes seconds, and may wait for processes that are gone.
    end_at_once(status)


def end_at_once(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the parent may be gone
            stream.flush()
    os._exit(status)


class ProcessHandle:
    """A process with some members of a sweep."""

    def __init__(self, numbers: Sequence[int], start: dict[str, Any], files: Sequence[int]) -> None:
        self.numbers, self._start, self._files = list(numbers), start, list(files)
        self.restarts, self._steps = 0, -1
        self._launch()

    def _launch(self) -> None:
        start = {**self._start, "numbers": self.numbers}
        self._process = start_child("training.member_process", start, files=self._files, stdin=subprocess.DEVNULL)
        self.pid = self._process.pid

    @property
    def name(self) -> str:
        return f"the process of members {self.numbers} (pid {self.pid})"

    @property
    def stopped(self) -> bool:
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):  # it is gone
            return False
        return state == "T"

    def ended(self) -> int | None:
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
        self._launch()

    def kill(self) -> None:
        end_group(self._process)
