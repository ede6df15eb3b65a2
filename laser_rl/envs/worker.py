"""Processes that step environments: start, supervise and restart one, and the loop that runs inside it.

Processes are started afresh, never forked (the pool's process may hold torch), and they import this package only, not the user's main
program, unless the environment's constructor is defined there. Their shared memory has no name: it goes with the last that holds it.

A command is one short message, and so is its answer; the rows themselves are written into the shared block *before* the answer is sent,
so a row without an answer is never read.
"""

import contextlib
import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from multiprocessing import Pipe, spawn
from multiprocessing.connection import Connection
from pathlib import Path
from socket import AF_UNIX, SO_RCVTIMEO, SOCK_STREAM, SOL_SOCKET, fromfd
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from laser_rl.envs import records
from laser_rl.envs.border import LOGGER
from laser_rl.envs.slot import COUNTERS, EXITS, FIRST_PAUSE_S, IDLE, MOST_FAILURES, Slot, exit_of
from laser_rl.errors import EnvironmentEnded, EnvironmentFailed, EnvironmentRefused

ENTRY = "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from {} import main; main()"
KILL_LIMIT_S, START_LIMIT_S, MESSAGE_LIMIT_S = 30.0, 30.0, 10
STEP, REBUILD, QUIT = b"s", b"r", b"q"
DONE, SPEC, WARN, ERROR = b"k", b"c", b"w", b"e"
PHASE, AT_SLOT, ENTRIES = range(3)
LONGEST_TEXT = 8_000  # characters; an answer has to fit into the connection's buffer, so that sending it never blocks
MOST_CREDIT_S = 1.0
NICENESS = 5  # of workers, where cores are scarce: acting and learning come first, since all workers wait for them
MOST_KILLS = 50  # in a row, without one good step in between
LONGEST_PAUSE_S, LONGEST_PAUSE_AFTER_KILL_S = 5.0, 0.5  # before a worker that failed again is started again
# By the phase: idle, constructing, resetting, stepping, pausing.
DOING = ("waiting for its turn", "constructing", "in reset", "in step", "pausing after an error")
ERRORS = {kind.__name__: kind for kind in (EnvironmentRefused, EnvironmentFailed, EnvironmentEnded)}


@dataclass(frozen=True)
class ProcessLimits:
    """How long an environment may take before its worker is replaced, in seconds."""

    step_s: float = 60.0
    reset_s: float = 60.0
    constructor_s: float = 120.0

    def of(self, phase: int) -> float:
        step_s = self.step_s
        return (step_s, self.constructor_s, self.reset_s, step_s, step_s + LONGEST_PAUSE_S)[phase]  # as `DOING`


def start_python(module: str, arguments: Sequence[str], handles: Sequence[int], **how: Any) -> subprocess.Popen[bytes]:
    """Run `main` of one of our modules in a fresh interpreter that leads a process group and inherits these file handles."""
    path = json.dumps([entry or str(Path.cwd()) for entry in sys.path])
    env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
    settled: dict[str, Any] = {"stdin": subprocess.DEVNULL, "env": env, **how}
    return subprocess.Popen(  # noqa: S603  (our own interpreter and our own code)
        [sys.executable, "-c", ENTRY.format(module), *arguments, path],
        pass_fds=handles,
        process_group=0,  # Ctrl-C is for us to handle, and what the process starts can be killed with it
        **settled,
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


def die_with(parent: int) -> None:
    """The kernel kills this process when the thread that started it ends, however that happens."""
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it was too late to ask
        os._exit(1)


@dataclass
class SupervisedWorker:
    """One worker and its process, if it has one just now.

    It is started again at once after its first failure, then after longer and longer pauses. A process that was killed from outside says
    nothing against its environment, so it may happen more often than failures of its own.
    """

    index: int
    slots: range
    process: subprocess.Popen[bytes] | None = None
    ready: bool = False  # its environments are built
    command: bytes | None = None  # what it is doing, to be repeated by its successor
    owed: list[int] = field(default_factory=list)  # slots of that command
    queued: list[int] = field(default_factory=list)  # slots of the next one
    sent_at: float = 0.0
    failures: int = 0  # in a row, like kills
    kills: int = 0
    restart_at: float = 0.0
    last_error: str = ""

    def start(self, starter: Executor, memory: Sequence[int], messages: Sequence[bytes]) -> None:
        """Start a process from the pool's own thread, with which the kernel ends it, and say what it is to do."""
        self.ready = False
        self.connection, theirs = Pipe(duplex=True)
        with fromfd(self.connection.fileno(), AF_UNIX, SOCK_STREAM) as ours:
            # A worker that is stopped in the middle of a long message must not stop the pool: it counts as lost.
            ours.setsockopt(SOL_SOCKET, SO_RCVTIMEO, struct.pack("ll", MESSAGE_LIMIT_S, 0))
        with theirs:
            handles = (theirs.fileno(), *memory)
            arguments = [str(number) for number in (*handles, os.getpid())]
            self.process = starter.submit(start_python, __name__, arguments, handles).result(START_LIMIT_S)
        self._entries = -1
        for message in messages:
            self.send(message)

    def send(self, command: bytes) -> None:
        """Never blocks: a worker has at most one command, and that fits into the connection's buffer."""
        self._waited, self._asked_at = 0.0, time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died; its fate says so
            self.connection.send_bytes(command)

    def fate(self, wait_s: float = 0.0) -> os.waitid_result | None:
        """How its process ended; None while it lives. A connection closes a moment before its process can be asked."""
        return None if self.process is None else fate_of(self.process.pid, wait_s)

    def stalled_for(self, activity: NDArray[np.int64]) -> float:
        """Seconds of waiting since it last entered the environment's code; a pause of the whole program counts for one at most."""
        now, entries = time.monotonic(), int(activity[ENTRIES])
        self._waited += min(now - self._asked_at, MOST_CREDIT_S)
        self._asked_at = now
        if entries != self._entries:
            self._entries, self._waited = entries, 0.0
        return self._waited

    def describe(self, activity: NDArray[np.int64]) -> str:
        if self.process is None:
            return f"worker {self.index} (being replaced)"
        doing = f"{DOING[int(activity[PHASE])]} of slot {int(activity[AT_SLOT])}"
        if (fate := self.fate()) is not None:
            doing += f", ended with {'status' if fate.si_code == os.CLD_EXITED else 'signal'} {fate.si_status}"
        return f"worker {self.index} (pid {self.process.pid}, {doing})"

    def kill(self) -> None:
        """End the process and what it started; afterwards no process writes to its slots, and nothing is left to reap."""
        process, self.process, self.ready = self.process, None, False
        if process is not None:
            try:
                end_group(process)
            finally:
                self.connection.close()

    def failed(self, what: str, *, name: str, killed: bool) -> None:
        """Plan the next start and log it; EnvironmentFailed if it was one failure too many."""
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
        LOGGER.warning("%s: %s; its slots start anew in another process", name, what)


def map_control(handle: int, workers: int, slots: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Shared: what each worker is doing (a cache line each), and the faults of each slot."""
    fields = {"activity": ((workers, 8), "int64"), "counts": ((slots, len(COUNTERS)), "int64")}
    *_, arrays = records.shared_arrays("", fields, handle)
    return arrays["activity"], arrays["counts"]


def map_rows(
    handle: int, spec: records.EnvironmentSpec, slots: int
) -> tuple[records.RowBlock, records.Array, records.Flags]:
    """Shared: the rows, the actions, and which slots are asked to act."""
    shape, dtype = records.action_layout(spec.action)
    asked = {"action": ((slots, *shape), dtype), "asked": ((slots,), "bool")}
    *_, arrays = records.shared_arrays("", {**records.block_fields(spec.observation, slots), **asked}, handle)
    return records.block_over(arrays), arrays["action"], cast("records.Flags", arrays["asked"])


class Worker:
    """Some slots, and the loop that obeys the pool."""

    def __init__(self, connection: Connection, memory: Sequence[int], start: Mapping[str, Any]) -> None:
        self._connection, self._start = connection, start
        control, rows, self._scratch = memory
        activity, counts = map_control(control, start["workers"], start["slots"])
        self._activity = activity[start["index"]]
        if start["main"]:
            spawn.prepare(start["main"])
        make = connection.recv()
        if start["whole"]:
            self._members = {start["members"][0][0]: make(start["members"], seed=start["seed"], watch=self._watch)}
        else:
            common = {key: start[key] for key in ("name", "seed", "on_bad_value")}
            common |= {"warn": self._warn, "watch": self._watch}
            self._members = {
                slot: Slot(make, slot=slot, counts=counts[slot], episode=episode, broken=broken, **common)
                for slot, episode, broken in start["members"]
            }
        self._spec = next(iter(self._members.values())).spec
        block, self._action, self._asked = map_rows(rows, self._spec, start["slots"])
        for slot, member in self._members.items():
            member.bind(block, slot)

    def run(self) -> None:
        self._connection.send_bytes(SPEC + records.write_spec(self._spec))
        while (command := self._connection.recv_bytes()) != QUIT:  # if the pool dies, the kernel ends this process
            self._rebuild() if command == REBUILD else self._step()
            self._activity[PHASE] = IDLE
            self._connection.send_bytes(DONE)
        for member in self._members.values():
            member.close()

    def _step(self) -> None:
        for slot, member in self._members.items():
            if self._asked[slot]:
                member.advance(self._action if self._start["whole"] else self._action[slot])

    def _rebuild(self) -> None:
        # By its name, with a position of its own: workers share the handle's.
        state = load(Path(f"/proc/self/fd/{self._scratch}").read_bytes())
        actions = records.ActionHistory(self._start["slots"], self._spec.action).load_state_dict(state)
        episodes, digests = state["episode"].tolist(), state["digest"].tolist()
        for slot, member in self._members.items():
            member.rebuild(episodes[slot], actions[slot], digests[slot])

    def _watch(self, phase: int, slot: int) -> None:
        activity = self._activity
        activity[PHASE] = phase
        activity[AT_SLOT] = slot
        activity[ENTRIES] += 1

    def _warn(self, key: str, sentence: str) -> None:
        """The pool logs it once for all its workers."""
        self._connection.send_bytes(WARN + json.dumps([key[-LONGEST_TEXT:], _shortened(sentence)]).encode())


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[: LONGEST_TEXT // 4]}\n…\n{text[-LONGEST_TEXT // 2 :]}"


def _error_message(error: BaseException) -> bytes:
    kind, text = type(error).__name__, str(error)
    if not isinstance(error, EnvironmentRefused | EnvironmentFailed):
        text = f"a worker process of the environment failed with the error below\n\n{traceback.format_exc()}"
    return ERROR + json.dumps([kind if kind in ERRORS else EnvironmentFailed.__name__, _shortened(text)]).encode()


def main() -> None:
    """Entry: `python -c … <connection> <control> <rows> <scratch> <parent's process id>`."""
    handle, *memory, parent = (int(number) for number in sys.argv[1:6])
    die_with(parent)
    os.nice(NICENESS)
    # Ctrl-C that is sent to a worker ends it; a KeyboardInterrupt can then only be the environment's own.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for descriptor in (handle, *memory):
        os.set_inheritable(descriptor, False)
    connection, name = Connection(handle), "the environment"
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the pool is gone and cannot be told
        try:
            start = json.loads(connection.recv_bytes())
            name = start["name"]
            Worker(connection, memory, start).run()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except EXITS as error:
            connection.send_bytes(_error_message(exit_of(error, name)))
        except Exception as error:  # all of it is for the pool to hear
            connection.send_bytes(_error_message(error))
