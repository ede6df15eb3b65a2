"""Python environments in supervised worker processes, with rows in shared memory.

A worker may be killed, hang, or die at any moment: it is replaced, its slots come back with `restarted` first rows, and a step
waits for it no longer than `patience_s`. A row is read only after its worker said that it is complete.
"""

import json
import mmap
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np
from numpy.typing import NDArray

from laser_rl.envs.block import ActionHistory, carve, size_of
from laser_rl.envs.border import Env, tell_once
from laser_rl.envs.process import Listener, ProcessLimits, Supervised, WorkerProcess, constructor_message
from laser_rl.envs.records import EnvironmentSpec, Rows
from laser_rl.envs.serial import LOGGER, ErrorLog, SlotEnvironments
from laser_rl.envs.slot import RESTARTS, TIMEOUTS, OnBadValue
from laser_rl.envs.spaces import action_layout
from laser_rl.envs.worker import (
    DONE,
    ERROR,
    ERRORS,
    LOG,
    MAP,
    PHASE,
    QUIT,
    REBUILD,
    SPEC,
    STEP,
    WARN,
    control_fields,
    read_spec,
    shared_fields,
    split_shared,
)
from laser_rl.errors import EnvironmentEnded, EnvironmentRefused

Array = NDArray[np.generic]
GLANCE_S = 0.1  # how often a waiting pool looks after its workers
CLOSE_LIMIT_S, FATE_LIMIT_S = 2.0, 0.2
SILENCE_S = 4.0  # then a waiting pool says for whom it waits


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
        limits: ProcessLimits | None = None,
        patience_s: float = 0.5,
        lockstep: bool = False,
    ) -> None:
        self.slots, workers = slots, min(workers, slots)
        self._name, self._limits, self._patience_s, self._lockstep = (
            name,
            limits or ProcessLimits(),
            patience_s,
            lockstep,
        )
        self._constructor, main = constructor_message(make, name)
        self._start = {
            "workers": workers,
            "slots": slots,
            "seed": seed,
            "name": name,
            "on_bad_value": on_bad_value,
            "main": main,
        }
        bounds = [slots * index // workers for index in range(workers + 1)]
        self._workers = [Supervised(index, range(*bounds[index : index + 2])) for index in range(workers)]
        self._of_slot = np.repeat(np.arange(workers), np.diff(bounds)).tolist()
        self._memory = tuple(os.memfd_create(f"laser-{os.getpid()}-{part}") for part in ("control", "rows", "scratch"))
        control = _grow(self._memory[0], control_fields(workers, slots))
        self._activity, self._counts = cast("tuple[NDArray[np.int64], ...]", tuple(control.values()))
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="laser-worker-starter")
        self._listener, self._log = Listener(), ErrorLog(name)
        self._finalizer = weakref.finalize(self, _shut_down, self._workers, self._memory, self._starter)
        self._episode, self._open = np.full(slots, -1, np.int64), np.zeros(slots, np.bool_)
        self._arrived: list[int] = []
        self._look_at = 0.0
        self._spec: EnvironmentSpec | None = None
        try:
            self._construct()
        except BaseException:
            self.close()
            raise

    def _construct(self) -> None:
        for worker in self._workers:
            self._launch(worker)
        while self._spec is None:
            self._attend(GLANCE_S)
        self.spec = self._spec

    def reset(self) -> Rows:
        """Start every slot; waits for all of them."""
        for worker in self._workers:
            worker.queued.extend(worker.slots)
            self._send_next(worker)
        return self._gather(everybody=True)

    def step(self, slots: NDArray[np.int64], action: Array) -> Rows:
        """Hand out the actions and return the rows that are there, of any slot that owed one, in the order of the slots."""
        self._action[slots] = action
        for slot in slots.tolist():
            self._workers[self._of_slot[slot]].queued.append(slot)
        for worker in self._workers:
            self._send_next(worker)
        return self._gather(everybody=self._lockstep)

    def load_state_dict(self, state: Mapping[str, Array]) -> Rows:
        """Play the open episodes again, each in its worker."""
        actions = self._history.load_state_dict(state)
        sizes = [part.nbytes for part in actions]
        offsets = np.cumsum([0, *sizes]).tolist()
        os.ftruncate(self._memory[2], max(offsets[-1], 1))
        os.pwrite(self._memory[2], b"".join(part.tobytes() for part in actions), 0)
        columns = (state["episode"].tolist(), state["digest"].tolist(), offsets[:-1], state["length"].tolist())
        for worker in self._workers:
            orders = [(slot, *(column[slot] for column in columns)) for slot in worker.slots]
            worker.owed.extend(worker.slots)
            self._send(worker, REBUILD + json.dumps(orders).encode())
        rows = self._gather(everybody=True, restoring=True)
        self._history.renew(rows, self._block.digest)
        return rows

    def processes(self) -> list[int]:
        """Process numbers of the workers that live, in the order of their slots."""
        return [worker.process.pid for worker in self._workers if worker.process is not None]

    def close(self) -> None:
        """End all workers."""
        self._log.close()
        self._finalizer()

    def _gather(self, *, everybody: bool, restoring: bool = False) -> Rows:
        if not self._arrived and not any(worker.owed for worker in self._workers):
            raise ValueError("expected at least one slot to act in, or one that owes a row; got neither")
        complain_at = time.monotonic() + SILENCE_S
        while True:
            now = time.monotonic()
            owing = [worker for worker in self._workers if worker.owed]
            deadlines = [worker.sent_at + self._patience_s for worker in owing]
            if not owing or (self._arrived and not everybody and max(deadlines) <= now):
                break
            ends = [deadline - now for deadline in deadlines if self._arrived and deadline > now]
            self._attend(min([GLANCE_S, *ends]))
            if now >= complain_at:
                complain_at = now + 2 * SILENCE_S
                self._complain(owing)
        slots, self._arrived = np.array(sorted(self._arrived), np.int64), []
        rows = self._block.take(slots)
        if not restoring:
            self._history.note(rows, self._action[slots], self._block.digest[slots])
        return rows

    def _complain(self, owing: Sequence[Supervised]) -> None:
        names = [
            worker.process.describe(self._activity[worker.index])
            if worker.process
            else f"worker {worker.index} (being replaced)"
            for worker in owing
        ]
        LOGGER.warning("%s: waiting for %s", self._name, ", ".join(names))

    def _attend(self, timeout_s: float) -> None:
        """Wait for messages, take them in, look after the workers that need it."""
        heard = self._listener.wait(timeout_s)
        for index in heard:
            worker = self._workers[index]
            if worker.process is not None:
                try:
                    for message in worker.process.receive():
                        self._take_in(worker, message)
                except EOFError:
                    worker.process.wait_until_ended(FATE_LIMIT_S)
                    self._lose(worker, "ended")
        now = time.monotonic()
        if now >= self._look_at:  # by the clock, not when it is quiet: the others may keep us busy for ever
            self._look_at = now + GLANCE_S / 2
            for worker in self._workers:
                self._look_after(worker)

    def _take_in(self, worker: Supervised, message: bytes) -> None:
        kind, content = message[:1], message[1:]
        if kind == DONE:
            self._arrive(worker)
        elif kind == SPEC:
            self._meet(worker, read_spec(content))
        elif kind == LOG:
            worker.last_error = content.decode()
            self._log.report(worker.last_error)
        elif kind == WARN:
            tell_once(self._name, *json.loads(content))
        elif kind == ERROR:
            error = json.loads(content)
            raise ERRORS[error["kind"]](error["text"])

    def _arrive(self, worker: Supervised) -> None:
        block, slots = self._block, worker.owed
        self._arrived.extend(slots)
        self._asked[slots] = False
        self._episode[slots] = block.episode[slots]
        self._open[slots] = ~(block.terminated[slots] | block.truncated[slots])
        if (worker.failures or worker.kills) and not block.is_first[slots].all():
            worker.stepped()
        worker.owed, worker.command = [], None
        self._send_next(worker)

    def _meet(self, worker: Supervised, spec: EnvironmentSpec) -> None:
        if self._spec is None:
            self._spec = spec
            shared = _grow(self._memory[1], shared_fields(spec, self.slots))
            self._block, self._action, asked = split_shared(shared)
            self._asked = cast("NDArray[np.bool_]", asked)
            self._history = ActionHistory(self.slots, *action_layout(spec.action))
        elif spec != self._spec:
            raise EnvironmentRefused(
                f"{self._name}: expected every copy to have the same spaces, got {self._spec} and {spec} in worker {worker.index}; "
                "make the constructor give the same spaces each time"
            )
        worker.ready = True
        if worker.process is not None:
            worker.process.send(MAP)
            if worker.command is not None:
                worker.process.send(worker.command)

    def _send_next(self, worker: Supervised) -> None:
        if worker.queued and worker.command is None:
            worker.owed, worker.queued = worker.queued, []
            self._asked[worker.owed] = True
            self._send(worker, STEP)

    def _send(self, worker: Supervised, command: bytes) -> None:
        worker.command, worker.sent_at = command, time.monotonic()
        if worker.ready and worker.process is not None:
            worker.process.send(command)

    def _look_after(self, worker: Supervised) -> None:
        process = worker.process
        if process is None:
            if worker.may_start():
                self._launch(worker)
            return
        activity = self._activity[worker.index]
        if process.has_ended():
            self._lose(worker, "ended")
        elif worker.command is not None or not worker.ready:
            limit = self._limits.of(int(activity[PHASE]), ready=worker.ready)
            if process.stalled_for(activity) > limit:
                self._counts[worker.slots.start, TIMEOUTS] += 1
                self._lose(worker, f"exceeded its limit of {limit:g} s")

    def _launch(self, worker: Supervised) -> None:
        members = [(slot, int(self._episode[slot]), bool(self._open[slot])) for slot in worker.slots]
        start = {**self._start, "index": worker.index, "members": members}
        worker.ready = False
        try:
            worker.process = WorkerProcess(self._starter, self._memory, start, self._constructor)
        except OSError as error:  # no memory or no process is free just now
            self._count_failure(worker, f"worker {worker.index} could not be started: {error}")
        else:
            self._listener.add(worker.process)

    def _lose(self, worker: Supervised, why: str) -> None:
        """Bury a worker; its successor starts at once, or after a pause if it failed before, while the others go on."""
        process, worker.process, worker.ready = cast("WorkerProcess", worker.process), None, False
        description, killed, left = process.describe(self._activity[worker.index]), process.was_killed(), process.left()
        self._listener.remove(process)
        process.kill()
        if left:
            raise EnvironmentEnded(
                f"{self._name}: {description}: the environment ended its process; let it return terminated or truncated, "
                "or raise an Exception"
            )
        self._counts[worker.slots.start, RESTARTS] += 1
        self._count_failure(worker, f"{description} {why}", killed=killed)
        if worker.may_start():
            self._launch(worker)

    def _count_failure(self, worker: Supervised, what: str, *, killed: bool = False) -> None:
        worker.failed(what, name=self._name, killed=killed)
        LOGGER.warning("%s: %s; its slots start anew in another process", self._name, what)


def _grow(handle: int, fields: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, Array]:
    os.ftruncate(handle, size_of(fields))
    return carve(memoryview(mmap.mmap(handle, 0)), fields)


def _shut_down(workers: Sequence[Supervised], memory: Sequence[int], starter: ThreadPoolExecutor) -> None:
    """Also runs when a pool is forgotten, and when the program ends."""
    deadline = time.monotonic() + CLOSE_LIMIT_S
    living = [worker.process for worker in workers if worker.process is not None]
    for process in living:
        process.send(QUIT)
    for process in living:
        process.wait_until_ended(deadline - time.monotonic())
    for process in living:
        process.kill()
    for worker in workers:
        worker.process = None
    for handle in memory:
        os.close(handle)
    starter.shutdown()


def default_workers(slots: int) -> int:
    """One process a core that this one may use, and not more than there are slots."""
    return max(1, min(slots, len(os.sched_getaffinity(0))))
