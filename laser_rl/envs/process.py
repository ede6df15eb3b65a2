"""Worker processes, seen from the pool: started, spoken to, watched, killed, and how often one may fail before the pool gives up.

Processes are started afresh, never forked (the pool's process may hold torch), and they import this package only, not the user's main
program, unless the environment's constructor is defined there. Their shared memory has no name: it goes with the last that holds it.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import Pipe, spawn
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.slot import CONSTRUCTING, FIRST_PAUSE_S, IDLE, MOST_FAILURES, PAUSING, RESETTING, STEPPING
from laser_rl.envs.worker import AT_SLOT, ENTRIES, PHASE, Channel
from laser_rl.errors import EnvironmentFailed, EnvironmentRefused

ENTRY = "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from {} import main; main()"
WORKER = "laser_rl.envs.worker"
LARGEST_CONSTRUCTOR = 100_000  # bytes; what fits into the connection's buffer, so that sending it never blocks
START_LIMIT_S = 30.0
KILL_LIMIT_S = 10.0
MOST_CREDIT_S = 1.0
LONGEST_PAUSE_S = 5.0  # before a worker that failed again is started again
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
DOING = {
    IDLE: "waiting for its turn",
    CONSTRUCTING: "constructing",
    RESETTING: "in reset",
    STEPPING: "in step",
    PAUSING: "pausing after an error",
}


@dataclass(frozen=True)
class ProcessLimits:
    """How long an environment may take before its worker is replaced, in seconds."""

    step_s: float = 60.0
    reset_s: float = 60.0
    constructor_s: float = 120.0

    def of(self, phase: int, *, ready: bool) -> float:
        """The limit of what a worker is doing."""
        if not ready or phase == CONSTRUCTING:
            return self.constructor_s
        return {RESETTING: self.reset_s, PAUSING: self.step_s + LONGEST_PAUSE_S}.get(phase, self.step_s)


def constructor_message(make: Callable[[], Any], name: str) -> tuple[bytes, Mapping[str, Any]]:
    """What a worker needs to call `make`: the constructor itself, and the user's main program if it lives there."""
    try:
        message = bytes(ForkingPickler.dumps(make))
    except Exception as error:  # pickling runs a user's code, and that may raise anything
        raise EnvironmentRefused(
            f"{name}: expected a constructor that can be sent to a worker process, got {make!r} ({error}); "
            "define it at the top of a module, or use placement='thread'"
        ) from error
    if len(message) > LARGEST_CONSTRUCTOR:
        raise EnvironmentRefused(
            f"{name}: expected a constructor of at most {LARGEST_CONSTRUCTOR:,} bytes, got {len(message):,}; "
            "let it load its data itself, or use placement='thread'"
        )
    if b"__main__" not in message:
        return message, {}
    data = spawn.get_preparation_data(name)
    return message, {key: data[key] for key in ("init_main_from_name", "init_main_from_path") if key in data}


def start_python(
    module: str, arguments: Sequence[str], handles: Sequence[int], output: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """Run `main` of one of our modules in a fresh interpreter that leads a process group and inherits these file handles."""
    path = json.dumps([entry or str(Path.cwd()) for entry in sys.path])
    return subprocess.Popen(  # noqa: S603  (our own interpreter and our own code)
        [sys.executable, "-c", ENTRY.format(module), *arguments, path],
        pass_fds=handles,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        process_group=0,  # Ctrl-C is for us to handle, and what the environment starts can be killed with it
        env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ},
    )


def fate_of(pid: int, wait_s: float = 0.0) -> os.waitid_result | None:
    """How a process ended; None while it lives. It is not reaped: until `end_group`, its number cannot become another's."""
    deadline = time.monotonic() + wait_s
    while (fate := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.002)
    return fate


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process of `start_python` and what it started, and reap it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # if it had no time yet to make its group
    try:
        process.wait(KILL_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailed(
            f"expected process {process.pid} to end within {KILL_LIMIT_S:.0f} s of being killed, it did not; "
            "it hangs inside the kernel (a device or a network disk?): end it by hand and start again"
        ) from error


class WorkerProcess:
    """A process that runs `worker.main`, and how long it has been busy without entering the environment anew."""

    def __init__(
        self, starter: ThreadPoolExecutor, memory: Sequence[int], start: Mapping[str, Any], constructor: bytes
    ) -> None:
        self.connection, theirs = Pipe(duplex=True)
        numbers = [str(number) for number in (theirs.fileno(), *memory, os.getpid())]
        try:
            # From the pool's own thread: the kernel ends a worker with the *thread* that started it.
            handles = (theirs.fileno(), *memory)
            self._process = starter.submit(start_python, WORKER, numbers, handles).result(START_LIMIT_S)
        finally:
            theirs.close()
        self.index, self.pid = int(start["index"]), self._process.pid
        self._waited, self._asked_at, self._entries = 0.0, time.monotonic(), -1
        self._channel = Channel(self.connection.fileno())
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died; `has_ended` says so
            self.connection.send_bytes(json.dumps(start).encode())
            self.connection.send_bytes(constructor)

    def send(self, command: bytes) -> None:
        """Never blocks: a worker has at most one command, and that is short."""
        self._waited, self._asked_at = 0.0, time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died; `has_ended` says so
            self._channel.send(command)

    def receive(self) -> list[bytes]:
        """The messages that are there, after the listener heard something; raises EOFError if the worker is gone."""
        try:
            return self._channel.receive()
        except OSError as error:
            raise EOFError from error

    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return fate_of(self.pid) is not None

    def was_killed(self) -> bool:
        """Whether a signal from outside ended it; one of its own, as for a wrong address, does not count."""
        fate = fate_of(self.pid)
        return fate is not None and fate.si_code == os.CLD_KILLED and fate.si_status in FROM_OUTSIDE

    def left(self) -> bool:
        """Whether it ended by itself, as if all were done; only the environment's own code can have asked for that."""
        fate = fate_of(self.pid)
        return fate is not None and fate.si_code == os.CLD_EXITED and fate.si_status == 0

    def stalled_for(self, activity: NDArray[np.int64]) -> float:
        """Seconds of waiting since it last entered the environment's code.

        Time between two looks counts for a second at most: a pause of the whole program is not the worker's.
        """
        now, entries = time.monotonic(), int(activity[ENTRIES])
        self._waited += min(now - self._asked_at, MOST_CREDIT_S)
        self._asked_at = now
        if entries != self._entries:
            self._entries, self._waited = entries, 0.0
        return self._waited

    def describe(self, activity: NDArray[np.int64]) -> str:
        """Who, and doing what, for messages."""
        ended = fate_of(self.pid)
        fate = (
            ""
            if ended is None
            else f", ended with {'status' if ended.si_code == os.CLD_EXITED else 'signal'} {ended.si_status}"
        )
        return f"worker {self.index} (pid {self.pid}, {DOING[int(activity[PHASE])]} of slot {int(activity[AT_SLOT])}{fate})"

    def wait_until_ended(self, timeout_s: float) -> None:
        """A connection closes a moment before its process can be asked how it ended."""
        fate_of(self.pid, timeout_s)

    def kill(self) -> None:
        """End the process and what it started; afterwards no process writes to its slots, and nothing is left to reap."""
        try:
            end_group(self._process)
        finally:
            self.connection.close()


class Listener:
    """Waits for messages of several workers at once."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._who: dict[int, int] = {}

    def add(self, process: WorkerProcess) -> None:
        """Listen to it from now on."""
        handle = process.connection.fileno()
        self._who[handle] = process.index
        self._poll.register(handle, select.POLLIN | select.POLLHUP)

    def remove(self, process: WorkerProcess) -> None:
        """Before its connection is closed."""
        handle = process.connection.fileno()
        del self._who[handle]
        self._poll.unregister(handle)

    def wait(self, timeout_s: float) -> list[int]:
        """Numbers of the workers that have something to say, in order."""
        return sorted(self._who[handle] for handle, _ in self._poll.poll(max(0.0, timeout_s) * 1000.0))


MOST_KILLS = 50  # in a row, without one good step in between
LONGEST_PAUSE_AFTER_KILL_S = 0.5


@dataclass
class Supervised:
    """One worker. It is started again at once after its first failure, then after longer and longer pauses.

    A process that was killed from outside says nothing against its environment, so it may happen more often than failures of its own.
    """

    index: int
    slots: range
    process: WorkerProcess | None = None
    ready: bool = False  # its environments are built
    command: bytes | None = None  # what it is doing, to be repeated by its successor
    owed: list[int] = field(default_factory=list)  # slots of that command
    queued: list[int] = field(default_factory=list)  # slots of the next one
    sent_at: float = 0.0
    failures: int = 0  # in a row, like kills
    kills: int = 0
    restart_at: float = 0.0
    last_error: str = ""

    def stepped(self) -> None:
        """A good step: what went wrong before is forgiven."""
        self.failures = self.kills = 0

    def failed(self, what: str, *, name: str, killed: bool) -> None:
        """Plan the next start; EnvironmentFailed if it was one failure too many."""
        self.failures, self.kills = self.failures + (not killed), self.kills + killed
        if self.failures >= MOST_FAILURES:
            raise EnvironmentFailed(
                f"{name}: {what}, the {self.failures}th failure in a row; "
                f"correct the environment, or raise its time limits\n\n{self.last_error}"
            )
        if self.kills >= MOST_KILLS:
            raise EnvironmentFailed(
                f"{name}: {what}, killed from outside {self.kills} times in a row without a step in between; "
                "find out who kills it: if the machine is out of memory, use fewer slots or workers"
            )
        count, longest_s = (self.kills, LONGEST_PAUSE_AFTER_KILL_S) if killed else (self.failures, LONGEST_PAUSE_S)
        self.restart_at = time.monotonic() + min(FIRST_PAUSE_S * (2 ** (count - 1) - 1), longest_s)

    def may_start(self) -> bool:
        """Whether the pause after a failure is over."""
        return time.monotonic() >= self.restart_at
