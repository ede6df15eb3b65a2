"""Python environments in supervised worker processes, with rows in shared memory.

A worker may be killed, hang, or die at any moment: it is replaced, its slots come back with `restarted` first rows, and a step
waits for it no longer than `patience_s`. A row is read only after its worker said that it is complete.
"""

import json
import os
import select
import signal
import time
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from laser_rl.envs import worker as protocol
from laser_rl.envs.border import LOGGER, warn_once
from laser_rl.envs.records import ActionHistory, Array, EnvironmentSpec, Ints, Rows, read_spec
from laser_rl.envs.slot import CONSTRUCTING, RESTARTS, TIMEOUTS, OnBadValue, SlotEnvironments
from laser_rl.errors import EnvironmentEnded, EnvironmentRefused

GLANCE_S = 0.1  # how often a waiting pool looks after its workers
CLOSE_LIMIT_S, FATE_LIMIT_S = 2.0, 0.2
SILENCE_S = 4.0  # then a waiting pool says for whom it waits
LARGEST_CONSTRUCTOR = 100_000  # bytes; what fits into the connection's buffer, so that sending it never blocks
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class PoolEnvironments(SlotEnvironments):
    """`slots` copies of a Python environment in `workers` processes.

    `lockstep` waits for all rows that are owed (the same rows as `SerialEnvironments` gives); otherwise a worker that takes longer
    than `patience_s` is left behind, and its rows come with a later step. With `whole`, `make` constructs all environments of a worker at
    once (`atari.Emulators`).
    """

    def __init__(
        self,
        make: Callable[..., Any],
        *,
        slots: int,
        seed: int,
        workers: int,
        name: str = "environment",
        on_bad_value: OnBadValue = "fail",
        limits: protocol.ProcessLimits | None = None,
        patience_s: float = 0.5,
        lockstep: bool = False,
        whole: bool = False,
        spec: EnvironmentSpec | None = None,
    ) -> None:
        self.slots, workers = slots, min(workers, slots)
        self._name, self._limits, self.patience_s = name, limits or protocol.ProcessLimits(), patience_s
        self._lockstep = lockstep
        self._constructor, main = _constructor_message(make, name)
        about = {"name": name, "on_bad_value": on_bad_value, "main": main, "whole": whole}
        self._start: dict[str, Any] = {"workers": workers, "slots": slots, "seed": seed, **about}
        bounds = [slots * index // workers for index in range(workers + 1)]
        self.workers = [protocol.SupervisedWorker(index, range(*bounds[index : index + 2])) for index in range(workers)]
        self._of_slot = np.repeat(np.arange(workers), np.diff(bounds)).tolist()
        self._memory = tuple(os.memfd_create(f"laser-{os.getpid()}-{part}") for part in ("control", "rows", "scratch"))
        self.activity, self._counts = protocol.map_control(self._memory[0], workers, slots)
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="laser-worker-starter")
        self.listener = select.epoll()
        self._finalizer = weakref.finalize(self, _shut_down, self.workers, self._memory, self._starter, self.listener)
        self._episode, self._open = np.full(slots, -1, np.int64), np.zeros(slots, np.bool_)
        self.arrived: list[int] = []
        self._look_at, self._loading = 0.0, False
        try:
            for worker in self.workers:
                self._launch(worker)
            if spec is not None:  # known without them: they construct while the caller goes on
                self._share_rows(spec)
            while not hasattr(self, "spec"):
                self.attend(GLANCE_S)
        except BaseException:
            self.close()
            raise

    def reset(self) -> Rows:
        self.send(np.arange(self.slots), np.zeros_like(self._action))
        return self._received()

    def step(self, slots: Ints, action: Array) -> Rows:
        self.send(slots, action)
        return self._received(all_rows=self._lockstep)

    def load_state_dict(self, state: Mapping[str, Array]) -> Rows:
        self.send_state(state)
        return self._received()

    def send(self, slots: Ints, action: Array) -> None:
        """Hand out actions; `receive` gives the rows, after `wait_for_rows`. Of slots that have not begun, they are ignored."""
        self._action[slots] = action
        for slot in slots.tolist():
            self.workers[self._of_slot[slot]].queued.append(slot)
        for worker in self.workers:
            self._send_next(worker)

    def send_state(self, state: Mapping[str, Array]) -> None:
        self._history.load_state_dict(state)
        self._loading = True
        Path(f"/proc/self/fd/{self._memory[2]}").write_bytes(save(dict(state)))
        for worker in self.workers:
            worker.owed.extend(worker.slots)
            self._send(worker, protocol.REBUILD)

    def receive(self) -> Rows:
        slots, self.arrived = np.array(sorted(self.arrived), np.int64), []
        rows = self._block.take(slots)
        self._history.note(rows, None if self._loading else self._action[slots], self._block.digest[slots])
        self._loading = False
        return rows

    def _received(self, *, all_rows: bool = True) -> Rows:
        wait_for_rows([self], all_rows=all_rows)
        return self.receive()

    def close(self) -> None:
        self._finalizer()

    def attend(self, timeout_s: float) -> None:
        heard = {handle for handle, _ in self.listener.poll(timeout_s)}
        for worker in self.workers if heard else ():
            if worker.process is not None and worker.connection.fileno() in heard:
                try:
                    message = worker.connection.recv_bytes()
                except (EOFError, OSError):
                    worker.fate(FATE_LIMIT_S)
                    self._lose(worker, "ended")
                else:
                    self._take_in(worker, message[:1], message[1:])
        now = time.monotonic()
        if now >= self._look_at:  # by the clock, not when it is quiet: the others may keep us busy for ever
            self._look_at = now + GLANCE_S / 2
            for worker in self.workers:
                self._look_after(worker)

    def _take_in(self, worker: protocol.SupervisedWorker, kind: bytes, content: bytes) -> None:
        if kind == protocol.DONE:
            self._arrive(worker)
        elif kind == protocol.SPEC:
            self._meet(worker, read_spec(content))
        elif kind == protocol.WARN:
            key, worker.last_error = json.loads(content)
            warn_once(self._name, key, worker.last_error)
        elif kind == protocol.ERROR:
            error, text = json.loads(content)
            raise protocol.ERRORS[error](text)

    def _arrive(self, worker: protocol.SupervisedWorker) -> None:
        newest, slots = self._block.rows, worker.owed
        self.arrived.extend(slots)
        self._asked[slots] = False
        self._episode[slots] = newest.episode[slots]
        self._open[slots] = ~(newest.terminated[slots] | newest.truncated[slots])
        if (worker.failures or worker.kills) and not newest.is_first[slots].all():
            worker.failures = worker.kills = 0  # a good step: what went wrong before is forgiven
        worker.owed, worker.command = [], None
        self._send_next(worker)

    def _share_rows(self, spec: EnvironmentSpec) -> None:
        self.spec = spec
        self._block, self._action, self._asked = protocol.map_rows(self._memory[1], spec, self.slots)
        self._history = ActionHistory(self.slots, spec.action)

    def _meet(self, worker: protocol.SupervisedWorker, spec: EnvironmentSpec) -> None:
        if not hasattr(self, "spec"):
            self._share_rows(spec)
        elif spec != self.spec:
            raise EnvironmentRefused(
                f"{self._name}: expected every copy to have the same spaces, got {self.spec} and {spec} in worker {worker.index}; "
                "make the constructor give the same spaces each time"
            )
        worker.ready = True
        if worker.command is not None:
            worker.send(worker.command)

    def _send_next(self, worker: protocol.SupervisedWorker) -> None:
        if worker.queued and worker.command is None:
            worker.owed, worker.queued = worker.queued, []
            self._asked[worker.owed] = True
            self._send(worker, protocol.STEP)

    def _send(self, worker: protocol.SupervisedWorker, command: bytes) -> None:
        worker.command, worker.sent_at = command, time.monotonic()
        if worker.ready:
            worker.send(command)

    def _look_after(self, worker: protocol.SupervisedWorker) -> None:
        if worker.process is None:
            self._launch(worker)
            return
        activity = self.activity[worker.index]
        if worker.fate() is not None:
            self._lose(worker, "ended")
        elif worker.command is not None or not worker.ready:
            limit = self._limits.of(int(activity[protocol.PHASE]))
            if worker.stalled_for(activity) > limit:
                self._counts[worker.slots.start, TIMEOUTS] += 1
                self._lose(worker, f"exceeded its limit of {limit:g} s")

    def _launch(self, worker: protocol.SupervisedWorker) -> None:
        """Start a worker's process, unless the pause after its last failure is not over yet."""
        if time.monotonic() < worker.restart_at:
            return
        members = [(slot, int(self._episode[slot]), bool(self._open[slot])) for slot in worker.slots]
        start = json.dumps({**self._start, "index": worker.index, "members": members}).encode()
        self.activity[worker.index][protocol.PHASE] = CONSTRUCTING  # not what its predecessor died of
        try:
            worker.start(self._starter, self._memory, (start, self._constructor))
        except OSError as error:  # no memory or no process is free just now
            worker.failed(f"worker {worker.index} could not be started: {error}", name=self._name, killed=False)
        else:
            self.listener.register(worker.connection.fileno(), select.EPOLLIN | select.EPOLLHUP)

    def _lose(self, worker: protocol.SupervisedWorker, why: str) -> None:
        """Bury a worker; its successor starts at once, or after a pause if it failed before, while the others go on."""
        description, fate = worker.describe(self.activity[worker.index]), worker.fate()
        self.listener.unregister(worker.connection.fileno())
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
        worker.failed(f"{description} {why}", name=self._name, killed=killed)
        self._launch(worker)


def _constructor_message(make: Callable[[], Any], name: str) -> tuple[bytes, Mapping[str, Any]]:
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


def wait_for_rows(
    pools: Sequence[PoolEnvironments], *, all_rows: bool, some: bool = False, among: Container[int] | None = None
) -> None:
    """Wait for the rows that are owed: for `all_rows`, or until one has arrived and the other workers' patience is over.

    `some` says that rows of other environments are there already; workers whose slots are not `among` these are not waited for. Each
    worker's time is limited, so this ends.
    """
    complain_at, heard = time.monotonic() + SILENCE_S, False
    while True:
        now = time.monotonic()
        owing = [(pool, worker) for pool in pools for worker in pool.workers if worker.owed]
        owing = owing if among is None else [(pool, worker) for pool, worker in owing if worker.slots.start in among]
        some = some or any(pool.arrived for pool in pools)
        ends = [worker.sent_at + pool.patience_s - now for pool, worker in owing]
        patient = all_rows or not some or max(ends, default=0.0) > 0
        if not owing or (heard and not patient):  # a late worker is not waited for, but its rows may be there
            return
        timeout_s = min([GLANCE_S, *(end for end in ends if some and end > 0)]) if patient else 0.0
        if len(pools) > 1:
            several = select.poll()
            for pool in pools:
                several.register(pool.listener, select.POLLIN)
            several.poll(timeout_s * 1000.0)
        for pool in pools:
            pool.attend(timeout_s if len(pools) == 1 else 0.0)
        heard = True
        if now >= complain_at:
            complain_at = now + 2 * SILENCE_S
            for pool, worker in owing:
                LOGGER.warning("%s: waiting for %s", pool.spec.name, worker.describe(pool.activity[worker.index]))


def _shut_down(
    workers: Sequence[protocol.SupervisedWorker],
    memory: Sequence[int],
    starter: ThreadPoolExecutor,
    listener: select.epoll,
) -> None:
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
    listener.close()
    starter.shutdown()
