"""A run over several processes of one machine: which exist, what they share, and what happens when one is killed.

The parent owns the directory, the replay's memory and the shared states. It starts the processes, starts again those that die, decides
which members copy which, writes checkpoints from the shared states (no member stops for them) and shows the rows that the processes write.
Not deterministic.
"""

import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from laser_rl.checkpoint import Loaded, Mended
from laser_rl.errors import ConfigError
from laser_rl.metrics.rows import Sink
from laser_rl.networks.build import TorsoSource
from laser_rl.replay.shared_lock import SharedLock
from laser_rl.replay.store import Replay
from laser_rl.training.budget import Budget
from laser_rl.training.build import EnvironmentSource
from laser_rl.training.build_group import build_members
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import Result
from laser_rl.training.member_training import Callback, MemberTraining
from laser_rl.training.pbt import Exploit, order_of
from laser_rl.training.process_handle import ProcessHandle
from laser_rl.training.saving import Written, warm_start
from laser_rl.training.settings import SweepConfig
from laser_rl.training.shared_state import ORDER_BYTES, ROOM_FOR_NUMBERS, GpuSemaphore, SharedStateStore, published
from laser_rl.training.stall import SAY_AFTER_S, StallWarning
from laser_rl.training.supervisor import STOP_S, SweepSupervisor, require_by_name, spent_s

log = logging.getLogger("laser_rl.training")
LOOK_S = 0.1
MOST_UPDATES = 3  # at a time on one card: 1 leaves gaps, 9 slow each other down (benchmarks/kernels.md)
BYTES_A_RETURN = 64  # in the JSON of an evaluation, generously
REPLACE_S = 30.0  # a process that blocks the others for so long is killed and started again; others give up after 60 s
HASTE_S = 1.0  # instead, once the run is to end


class ProcessSupervisor(SweepSupervisor):
    """The parent's view of a run over `count` processes; the other arguments as of `SweepSupervisor`."""

    def __init__(
        self,
        sweep: SweepConfig,
        directory: RunDirectory,
        count: int,
        *,
        sinks: Sequence[Sink] = (),
        callbacks: Sequence[Callback] = (),
    ) -> None:
        members = build_members(sweep, shared=True)
        first = [published(MemberTraining(member)) for member in members]
        numbers = ROOM_FOR_NUMBERS + BYTES_A_RETURN * sweep.base.run.evaluate_episodes
        self.board = SharedStateStore(len(members), 2 * max(map(len, first)) + numbers)
        self.orders = SharedStateStore(len(members), ORDER_BYTES)
        super().__init__(sweep, directory, members, self.board, sinks=sinks, callbacks=callbacks)
        loaded = self._go_on()
        if loaded is None:
            for store in self.stores:
                warm_start(store, sweep.base, members=len(members))
            for number, data in enumerate(first):
                self.board.put(number, data)
        self._plan_save()
        self.budget = Budget(sweep.base.run.budget_minutes, spent_s=spent_s(loaded))
        on_card = count > 1 and members[0].learner.device.type == "cuda"
        self.permits = GpuSemaphore(MOST_UPDATES) if on_card else None
        self.budget.tick()  # for all processes, also those that are started again later
        self.processes = [self._process(own.tolist(), count) for own in np.array_split(np.arange(len(members)), count)]
        self._blocking: dict[
            int, tuple[int | None, StallWarning]
        ] = {}  # by pid: the acquisition of a lock, and for how long
        for store in self.stores:
            if isinstance(store.lock, SharedLock):
                store.lock.while_waiting = self._relieve

    def _process(self, numbers: Sequence[int], count: int) -> ProcessHandle:
        stores = {str(one.number): one.replay.handle() for one in self.members if isinstance(one.replay, Replay)}
        # Rounded up: processes that learn leave their cores to the emulators of others.
        cores = -(-len(os.sched_getaffinity(0)) // count)
        start = {
            "sweep": _within(self.sweep, cores).model_dump(mode="json"),
            "budget": self.budget.handle(),
            "run_dir": str(self.directory.path.resolve()),
            "layout": asdict(self.members[0].layout),
            "stores": {number: list(handle) for number, handle in stores.items()},
            "board": [self.board.size, self.board.handle],
            "orders": [self.orders.size, self.orders.handle],
            "threads": cores,
            "permits": None if self.permits is None else [self.permits.most, self.permits.handle],
        }
        files = {self.board.handle, self.orders.handle, *(handle.file for handle in stores.values())}
        files |= set() if self.permits is None else {self.permits.handle}
        return ProcessHandle(numbers, start, sorted(files))

    def _pause(self) -> None:
        time.sleep(LOOK_S)

    def _watch(self) -> bool:
        over = True
        self._relieve()
        for process in self.processes:
            status = process.ended()
            if status is None:
                over = False
            elif status != 0 or not self.board.ended[process.numbers].all():
                steps, wanted = self.board.steps[process.numbers], self.sweep.base.run.steps
                process.restart(int(steps.sum()), max(0, wanted - int(steps.min())))
                over = False
        return over

    def _relieve(self) -> None:
        """Name a process that blocks the others, and kill it in the end: the next look starts it again.

        Also called while this process waits for the lock of a replay itself. No other part would hear then that the run is to end.
        """
        limit_s = REPLACE_S if self.stop.reason is None else HASTE_S
        holders = [store.lock.holder() for store in self.stores if isinstance(store.lock, SharedLock)]
        taken = {holder.pid: holder.taken for holder in holders if holder is not None}
        before, self._blocking = self._blocking, {}
        for process in self.processes:
            pid, stopped = process.pid, process.stopped
            if process.ended() is not None or not (stopped or pid in taken):
                continue
            how = " and ".join(["is stopped"] * stopped + ["holds the lock of the replay"] * (pid in taken))
            since, waiting = before.get(pid, (None, None))
            if waiting is None or since != taken.get(pid):  # it has let the lock go since the last look
                waiting = StallWarning("the other processes", process.name)
            self._blocking[pid] = (taken.get(pid), waiting)
            before_s, now_s = waiting.waited_s, waiting.look()
            if before_s <= SAY_AFTER_S < now_s:
                log.warning("%s %s, and others wait for it; it is replaced after %.0f s", process.name, how, REPLACE_S)
            if now_s > limit_s:
                log.warning("%s %s for %.0f s now; it is killed", process.name, how, now_s)
                process.kill()

    def _stop_all(self) -> None:
        self.board.stop[0] = 1
        for process in self.processes:
            if process.stopped:  # it would hear nothing, and may hold what the others need to end
                log.warning("%s is stopped; it is killed", process.name)
                process.kill()
        deadline = time.monotonic() + STOP_S
        while (late := [one for one in self.processes if one.ended() is None]) and time.monotonic() < deadline:
            time.sleep(LOOK_S / 5)
        for process in late:
            log.warning(
                "%s has not ended in %.0f s; it is killed, and what it last published is saved", process.name, STOP_S
            )
            process.kill()  # before anything is saved: it may be in the middle of an insert

    def _kill_all(self) -> None:
        for process in self.processes:
            process.kill()

    def _tell(self, exploit: Exploit) -> None:
        self.orders.put(exploit.member, json.dumps(order_of(exploit)).encode())

    def _write_replays(self) -> Written:
        return self.directory.write_stores(self.stores, self.members[0].layout)

    def _fill_replays(self, loaded: Loaded) -> Mended | None:
        return self.directory.fill(self.stores, self.members[0].layout, loaded)


def _within(sweep: SweepConfig, cores: int) -> SweepConfig:
    """For one of several processes: emulators that would take all cores of the machine have so many threads, or workers."""
    environment = sweep.base.environment
    atari = environment.atari.model_copy(update={"threads": environment.atari.threads or cores})
    workers = environment.workers or min(cores, environment.slots)
    environment = environment.model_copy(update={"atari": atari, "workers": workers})
    return sweep.model_copy(update={"base": sweep.base.model_copy(update={"environment": environment})})


def run_processes(
    sweep: SweepConfig,
    directory: RunDirectory | None,
    count: int,
    *,
    source: EnvironmentSource | None = None,
    torso: TorsoSource | None = None,
    sinks: Sequence[Sink] = (),
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run all members over `count` processes; ConfigError for what cannot be sent to them."""
    if directory is None:
        raise ConfigError("a run in processes of its own needs a run directory: they meet there; give one")
    require_by_name(source, torso, "over several processes", "use processes=1 with objects of your own")
    others = [sink for sink in sinks if sink is not directory.log]  # the processes write into the log themselves
    return ProcessSupervisor(sweep, directory, count, sinks=others, callbacks=callbacks).run()
