"""Python environments in supervised worker processes, with rows in shared memory.

A worker may be killed, hang, or die at any moment: it is replaced, its slots come back with `restarted` first rows, and a step
waits for it no longer than `patience_s`. A row is read only after its worker said that it is complete.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from laser_rl.envs import worker as protocol
from laser_rl.envs.border import Env, tell_once
from laser_rl.envs.records import ActionHistory, Array, EnvironmentSpec, Ints, Rows, read_spec
from laser_rl.envs.slot import (
    FIRST_PAUSE_S,
    LOGGER,
    MOST_FAILURES,
    RESTARTS,
    TIMEOUTS,
    ErrorLog,
    OnBadValue,
    SlotEnvironments,
)
from laser_rl.errors import EnvironmentEnded, EnvironmentFailed, EnvironmentRefused

GLANCE_S = 0.1  # how often a waiting pool looks after its workers
CLOSE_LIMIT_S, FATE_LIMIT_S = 2.0, 0.2
SILENCE_S = 4.0  # then a waiting pool says for whom it waits
START_LIMIT_S = 30.0
MOST_CREDIT_S = 1.0
MOST_KILLS = 50  # in a row, without one good step in between
LONGEST_PAUSE_AFTER_KILL_S = 0.5  # before a worker is started again
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


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

    def start(self, launch: Callable[[int], subprocess.Popen[bytes]], messages: Sequence[bytes]) -> None:
        """Start a process by `launch`, which is handed its end of the connection, and say what it is to do."""
        self.ready = False
        self.connection: Connection
        self.connection, theirs = Pipe(duplex=True)
        try:
            self.process = launch(theirs.fileno())
        except OSError:
            self.connection.close()
            raise
        finally:
            theirs.close()
        self._waited, self._asked_at, self._entries = 0.0, time.monotonic(), -1
        self.channel = protocol.Channel(self.connection.fileno())
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died; its fate says so
            for message in messages:
                self.connection.send_bytes(message)

    def send(self, command: bytes) -> None:
        """Never blocks: a worker has at most one command, and that is short."""
        self._waited, self._asked_at = 0.0, time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died; its fate says so
            self.channel.send(command)

    def fate(self, wait_s: float = 0.0) -> os.waitid_result | None:
        """How its process ended; None while it lives. A connection closes a moment before its process can be asked."""
        return None if self.process is None else protocol.fate_of(self.process.pid, wait_s)

    def stalled_for(self, activity: NDArray[np.int64]) -> float:
        """Seconds of waiting since it last entered the environment's code.

        Time between two looks counts for a second at most: a pause of the whole program is not the worker's.
        """
        now, entries = time.monotonic(), int(activity[protocol.ENTRIES])
        self._waited += min(now - self._asked_at, MOST_CREDIT_S)
        self._asked_at = now
        if entries != self._entries:
            self._entries, self._waited = entries, 0.0
        return self._waited

    def describe(self, activity: NDArray[np.int64]) -> str:
        """Who, and doing what, for messages."""
        if self.process is None:
            return f"worker {self.index} (being replaced)"
        doing = f"{protocol.DOING[int(activity[protocol.PHASE])]} of slot {int(activity[protocol.AT_SLOT])}"
        if (fate := self.fate()) is not None:
            doing += f", ended with {'status' if fate.si_code == os.CLD_EXITED else 'signal'} {fate.si_status}"
        return f"worker {self.index} (pid {self.process.pid}, {doing})"

    def kill(self) -> None:
        """End the process and what it started; afterwards no process writes to its slots, and nothing is left to reap."""
        process, self.process, self.ready = self.process, None, False
        if process is not None:
            try:
                protocol.end_group(process)
            finally:
                self.connection.close()

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
        count, longest_s = (
            (self.kills, LONGEST_PAUSE_AFTER_KILL_S) if killed else (self.failures, protocol.LONGEST_PAUSE_S)
        )
        self.restart_at = time.monotonic() + min(FIRST_PAUSE_S * (2 ** (count - 1) - 1), longest_s)


class PoolEnvironments(SlotEnvironments):
    """`slots` copies of a Python environment in `workers` processes.

    `lockstep` waits for all rows that are owed (the same rows as `SerialEnvironments` gives); otherwise a worker that takes longer
    than `patience_s` is left behind, and its rows come with a later step.
    """

    def __init__(
        self,
        make: Callable[[], Env],
        *,
        slots: int,
        seed: int,
        workers: int,
        name: str = "environment",
        on_bad_value: OnBadValue = "fail",
        limits: protocol.ProcessLimits | None = None,
        patience_s: float = 0.5,
        lockstep: bool = False,
    ) -> None:
        self.slots, workers = slots, min(workers, slots)
        self._name, self._limits, self._patience_s = name, limits or protocol.ProcessLimits(), patience_s
        self._lockstep = lockstep
        self._constructor, main = protocol.constructor_message(make, name)
        self._start = {"workers": workers, "slots": slots, "seed": seed, "name": name, "main": main}
        self._start["on_bad_value"] = on_bad_value
        bounds = [slots * index // workers for index in range(workers + 1)]
        self._workers = [SupervisedWorker(index, range(*bounds[index : index + 2])) for index in range(workers)]
        self._of_slot = np.repeat(np.arange(workers), np.diff(bounds)).tolist()
        self._memory = tuple(os.memfd_create(f"laser-{os.getpid()}-{part}") for part in ("control", "rows", "scratch"))
        self._activity, self._counts = protocol.map_control(self._memory[0], workers, slots)
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="laser-worker-starter")
        self._poll, self._log = select.poll(), ErrorLog(name)
        self._finalizer = weakref.finalize(self, _shut_down, self._workers, self._memory, self._starter)
        self._episode, self._open = np.full(slots, -1, np.int64), np.zeros(slots, np.bool_)
        self._arrived: list[int] = []
        self._look_at = 0.0
        self._spec: EnvironmentSpec | None = None
        try:
            for worker in self._workers:
                self._launch(worker)
            while self._spec is None:
                self._attend(GLANCE_S)
        except BaseException:
            self.close()
            raise
        self.spec: EnvironmentSpec = self._spec

    def reset(self) -> Rows:
        """Start every slot; waits for all of them."""
        for worker in self._workers:
            worker.queued.extend(worker.slots)
            self._send_next(worker)
        return self._gather(all_rows=True)

    def step(self, slots: Ints, action: Array) -> Rows:
        """Hand out the actions and return the rows that are there, of any slot that owed one, in the order of the slots."""
        self._action[slots] = action
        for slot in slots.tolist():
            self._workers[self._of_slot[slot]].queued.append(slot)
        for worker in self._workers:
            self._send_next(worker)
        return self._gather(all_rows=self._lockstep)

    def load_state_dict(self, state: Mapping[str, Array]) -> Rows:
        """Play the open episodes again, each in its worker."""
        self._history.load_state_dict(state)
        with Path(protocol.kept_in(self._memory[2])).open("wb") as scratch:
            np.savez(scratch, **cast("dict[str, Any]", state))
        for worker in self._workers:
            worker.owed.extend(worker.slots)
            self._send(worker, protocol.REBUILD)
        rows = self._gather(all_rows=True, restoring=True)
        self._history.renew(rows, self._block.digest)
        return rows

    def processes(self) -> list[int]:
        """Process numbers of the workers that live, in the order of their slots."""
        return [worker.process.pid for worker in self._workers if worker.process is not None]

    def close(self) -> None:
        """End all workers."""
        self._log.close()
        self._finalizer()

    def _gather(self, *, all_rows: bool, restoring: bool = False) -> Rows:
        if not self._arrived and not any(worker.owed for worker in self._workers):
            raise ValueError("expected at least one slot to act in, or one that owes a row; got neither")
        complain_at = time.monotonic() + SILENCE_S
        while True:
            now = time.monotonic()
            owing = [worker for worker in self._workers if worker.owed]
            deadlines = [worker.sent_at + self._patience_s for worker in owing]
            if not owing or (self._arrived and not all_rows and max(deadlines) <= now):
                break
            ends = [deadline - now for deadline in deadlines if self._arrived and deadline > now]
            self._attend(min([GLANCE_S, *ends]))
            if now >= complain_at:
                complain_at = now + 2 * SILENCE_S
                late = ", ".join(worker.describe(self._activity[worker.index]) for worker in owing)
                LOGGER.warning("%s: waiting for %s", self._name, late)
        slots, self._arrived = np.array(sorted(self._arrived), np.int64), []
        rows = self._block.take(slots)
        if not restoring:
            self._history.note(rows, self._action[slots], self._block.digest[slots])
        return rows

    def _attend(self, timeout_s: float) -> None:
        """Wait for messages, take them in, look after the workers that need it."""
        heard = {handle for handle, _ in self._poll.poll(max(0.0, timeout_s) * 1000.0)}
        for worker in self._workers if heard else ():
            if worker.process is not None and worker.connection.fileno() in heard:
                try:
                    messages = worker.channel.receive()
                except (EOFError, OSError):
                    worker.fate(FATE_LIMIT_S)
                    self._lose(worker, "ended")
                else:
                    for message in messages:
                        self._take_in(worker, message[:1], message[1:])
        now = time.monotonic()
        if now >= self._look_at:  # by the clock, not when it is quiet: the others may keep us busy for ever
            self._look_at = now + GLANCE_S / 2
            for worker in self._workers:
                self._look_after(worker)

    def _take_in(self, worker: SupervisedWorker, kind: bytes, content: bytes) -> None:
        if kind == protocol.DONE:
            self._arrive(worker)
        elif kind == protocol.SPEC:
            self._meet(worker, read_spec(content))
        elif kind == protocol.LOG:
            worker.last_error = content.decode()
            self._log.report(worker.last_error)
        elif kind == protocol.WARN:
            tell_once(self._name, *json.loads(content))
        elif kind == protocol.ERROR:
            error, text = json.loads(content)
            raise protocol.ERRORS[error](text)

    def _arrive(self, worker: SupervisedWorker) -> None:
        block, slots = self._block, worker.owed
        self._arrived.extend(slots)
        self._asked[slots] = False
        self._episode[slots] = block.episode[slots]
        self._open[slots] = ~(block.terminated[slots] | block.truncated[slots])
        if (worker.failures or worker.kills) and not block.is_first[slots].all():
            worker.failures = worker.kills = 0  # a good step: what went wrong before is forgiven
        worker.owed, worker.command = [], None
        self._send_next(worker)

    def _meet(self, worker: SupervisedWorker, spec: EnvironmentSpec) -> None:
        if self._spec is None:
            self._spec = spec
            self._block, self._action, self._asked = protocol.map_rows(self._memory[1], spec, self.slots)
            self._history = ActionHistory(self.slots, spec.action)
        elif spec != self._spec:
            raise EnvironmentRefused(
                f"{self._name}: expected every copy to have the same spaces, got {self._spec} and {spec} in worker {worker.index}; "
                "make the constructor give the same spaces each time"
            )
        worker.ready = True
        worker.send(protocol.MAP)
        if worker.command is not None:
            worker.send(worker.command)

    def _send_next(self, worker: SupervisedWorker) -> None:
        if worker.queued and worker.command is None:
            worker.owed, worker.queued = worker.queued, []
            self._asked[worker.owed] = True
            self._send(worker, protocol.STEP)

    def _send(self, worker: SupervisedWorker, command: bytes) -> None:
        worker.command, worker.sent_at = command, time.monotonic()
        if worker.ready:
            worker.send(command)

    def _look_after(self, worker: SupervisedWorker) -> None:
        if worker.process is None:
            self._launch(worker)
            return
        activity = self._activity[worker.index]
        if worker.fate() is not None:
            self._lose(worker, "ended")
        elif worker.command is not None or not worker.ready:
            limit = self._limits.of(int(activity[protocol.PHASE]), ready=worker.ready)
            if worker.stalled_for(activity) > limit:
                self._counts[worker.slots.start, TIMEOUTS] += 1
                self._lose(worker, f"exceeded its limit of {limit:g} s")

    def _launch(self, worker: SupervisedWorker) -> None:
        """Start a worker's process, unless the pause after its last failure is not over yet."""
        if time.monotonic() < worker.restart_at:
            return
        members = [(slot, int(self._episode[slot]), bool(self._open[slot])) for slot in worker.slots]
        start = json.dumps({**self._start, "index": worker.index, "members": members}).encode()
        try:
            worker.start(self._start_process, (start, self._constructor))
        except OSError as error:  # no memory or no process is free just now
            self._count_failure(worker, f"worker {worker.index} could not be started: {error}")
        else:
            self._poll.register(worker.connection.fileno(), select.POLLIN | select.POLLHUP)

    def _start_process(self, handle: int) -> subprocess.Popen[bytes]:
        """From the pool's own thread: the kernel ends a worker with the *thread* that started it."""
        handles = (handle, *self._memory)
        arguments = [str(number) for number in (*handles, os.getpid())]
        starting = self._starter.submit(protocol.start_python, protocol.__name__, arguments, handles)
        return starting.result(START_LIMIT_S)

    def _lose(self, worker: SupervisedWorker, why: str) -> None:
        """Bury a worker; its successor starts at once, or after a pause if it failed before, while the others go on."""
        description, fate = worker.describe(self._activity[worker.index]), worker.fate()
        self._poll.unregister(worker.connection.fileno())
        worker.kill()
        if fate is not None and fate.si_code == os.CLD_EXITED and fate.si_status == 0:
            # As if all were done; only the environment's own code can have asked for that.
            raise EnvironmentEnded(
                f"{self._name}: {description}: the environment ended its process; let it return terminated or truncated, "
                "or raise an Exception"
            )
        self._counts[worker.slots.start, RESTARTS] += 1
        # A signal of its own, as for a wrong address, counts as a failure.
        killed = fate is not None and fate.si_code == os.CLD_KILLED and fate.si_status in FROM_OUTSIDE
        self._count_failure(worker, f"{description} {why}", killed=killed)
        self._launch(worker)

    def _count_failure(self, worker: SupervisedWorker, what: str, *, killed: bool = False) -> None:
        worker.failed(what, name=self._name, killed=killed)
        LOGGER.warning("%s: %s; its slots start anew in another process", self._name, what)


def _shut_down(workers: Sequence[SupervisedWorker], memory: Sequence[int], starter: ThreadPoolExecutor) -> None:
    """Also runs when a pool is forgotten, and when the program ends."""
    deadline = time.monotonic() + CLOSE_LIMIT_S
    for worker in workers:
        if worker.process is not None:
            worker.send(protocol.QUIT)
    for worker in workers:
        worker.fate(deadline - time.monotonic())
    for worker in workers:
        worker.kill()
    for handle in memory:
        os.close(handle)
    starter.shutdown()


def default_workers(slots: int) -> int:
    """One process a core that this one may use, and not more than there are slots."""
    return max(1, min(slots, len(os.sched_getaffinity(0))))
