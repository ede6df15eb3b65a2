"""A sweep over several processes of one machine: who exists, what they share, and what happens when one is killed.

The parent owns the directory, the replay's memory and the board. It starts the processes, starts again those that die, decides who copies
whom, writes checkpoints from the board (nobody stops for them) and shows the rows that the processes write. Not deterministic.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from laser_rl.checkpoint import Loaded, Mended
from laser_rl.errors import ConfigError
from laser_rl.metrics.rows import Sink
from laser_rl.networks.build import TorsoSource
from laser_rl.replay.shared_lock import SharedLock
from laser_rl.replay.store import Replay
from laser_rl.training.budget import Budget
from laser_rl.training.build import EnvironmentSource
from laser_rl.training.build_group import GroupParts, build_parts
from laser_rl.training.cores import cores_of_each, within
from laser_rl.training.directory import RunDirectory, Written
from laser_rl.training.gpu_semaphore import GpuSemaphore
from laser_rl.training.member_training import Callback, MemberTraining
from laser_rl.training.pbt import Exploit
from laser_rl.training.process_handle import ProcessHandle
from laser_rl.training.result import Result
from laser_rl.training.settings import SweepConfig
from laser_rl.training.shared_state import ROOM_FOR_NUMBERS, SharedStateStore, published
from laser_rl.training.stall import SAY_AFTER_S
from laser_rl.training.supervisor import STOP_S, SweepSupervisor, order_of, require_by_name, spent_s
from laser_rl.training.warm_start import warm_start

log = logging.getLogger("laser_rl.training")
LOOK_S = 0.1
MOST_UPDATES = 3  # at a time on one card: 1 leaves gaps, 9 slow each other down (benchmarks/kernels.md)
BYTES_A_RETURN = 64  # in the JSON of an evaluation, generously
REPLACE_S = 30.0  # a process that blocks the others for so long is killed and started again; others give up after 60 s
HASTE_S = 1.0  # instead, once the sweep is to end


class Blockade(NamedTuple):
    """How a process blocks the others; equal to another if nothing has changed in between."""

    text: str
    taken: int | None  # the number of its acquisition of the lock

    def __str__(self) -> str:
        return self.text


class ProcessSupervisor(SweepSupervisor):
    """The parent's view of a sweep.

    Args:
        sweep: all values.
        directory: of the sweep.
        count: how many processes.
        sinks: what else gets the rows that the processes write.
        callbacks: see `Progress`.
    """

    def __init__(
        self,
        sweep: SweepConfig,
        directory: RunDirectory,
        count: int,
        *,
        sinks: Sequence[Sink] = (),
        callbacks: Sequence[Callback] = (),
    ) -> None:
        parts = build_parts(sweep, shared=True)
        members = len(sweep.settings)
        first = [_fresh(parts, place) for place in range(members)]
        numbers = ROOM_FOR_NUMBERS + BYTES_A_RETURN * sweep.base.run.evaluate_episodes
        self.board = SharedStateStore(members, 2 * max(map(len, first)) + numbers)
        super().__init__(sweep, directory, parts, self.board, sinks=sinks, callbacks=callbacks)
        loaded = self._go_on()
        if loaded is None:
            for store in self._stores():
                warm_start(store, sweep.base, members=members)
            for number, data in enumerate(first):
                self.board.put(number, data)
        self._plan_save()
        self.budget = Budget(sweep.base.run.budget_minutes, spent_s=spent_s(loaded))
        on_card = count > 1 and self.parts.learners[0].device.type == "cuda"
        self.permits = GpuSemaphore(MOST_UPDATES) if on_card else None
        self.budget.tick()  # for all processes, also those that are started again later
        self.processes = [self._process(share, count) for share in np.array_split(np.arange(members), count)]
        for store in self._stores():
            if isinstance(store.lock, SharedLock):
                store.lock.while_waiting = self._relieve

    def _process(self, numbers: "np.ndarray[Any, Any]", count: int) -> ProcessHandle:
        own = enumerate(self.parts.stores)
        stores = {str(number): store.handle() for number, store in own if isinstance(store, Replay)}
        cores = cores_of_each(count)
        start = {
            "sweep": within(self.sweep, cores).model_dump(mode="json"),
            "budget": self.budget.handle(),
            "run_dir": str(self.directory.path.resolve()),
            "layout": asdict(self.parts.layout),
            "stores": {number: list(handle) for number, handle in stores.items()},
            "board": self.board.handle,
            "size": self.board.size,
            "threads": cores,
            "permits": None if self.permits is None else [self.permits.most, self.permits.handle],
        }
        files = {self.board.handle, *(handle.file for handle in stores.values())}
        files |= set() if self.permits is None else {self.permits.handle}
        return ProcessHandle([int(number) for number in numbers], start, sorted(files))

    def _pause(self) -> None:
        time.sleep(LOOK_S)

    def _watch(self) -> bool:
        over = True
        self._relieve()
        for process in self.processes:
            process.send()
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

        Also called while this process waits for the lock of a replay itself. Nobody else would hear then that the sweep is to end.
        """
        limit_s = REPLACE_S if self.stop.reason is None else HASTE_S
        for process in self.processes:
            how = None if process.ended() is not None else self._how_it_blocks(process)
            before_s, now_s = process.blocked_s, process.blocks_for(how)
            if before_s <= SAY_AFTER_S < now_s:
                log.warning("%s, and others wait for it; it is replaced after %.0f s", how, REPLACE_S)
            if now_s > limit_s:
                log.warning("%s for %.0f s now; it is killed", how, now_s)
                process.kill()

    def _how_it_blocks(self, process: ProcessHandle) -> "Blockade | None":
        """What others may wait for; None if it does nothing of the kind."""
        holders = [store.lock.holder() for store in self._stores() if isinstance(store.lock, SharedLock)]
        taken = next((holder.taken for holder in holders if holder is not None and holder.pid == process.pid), None)
        blocks = {
            "is stopped": process.stopped,
            "holds the lock of the replay": taken is not None,
            "does not read its orders": not process.listens,
        }
        words = [word for word, holds in blocks.items() if holds]
        who = f"the process of members {process.numbers} (pid {process.pid})"
        return Blockade(f"{who} {' and '.join(words)}", taken) if words else None

    def _stop_all(self) -> None:
        for process in self.processes:
            if process.stopped:  # it would hear nothing, and may hold what the others need to end
                log.warning("the process of members %s (pid %d) is stopped; it is killed", process.numbers, process.pid)
                process.kill()
            process.order({"stop": self.stop.reason})
        deadline = time.monotonic() + STOP_S
        while (
            late := [process for process in self.processes if process.ended() is None]
        ) and time.monotonic() < deadline:
            for process in late:
                process.send()
            time.sleep(LOOK_S / 5)
        for process in late:
            log.warning(
                "the process of members %s has not ended in %.0f s; it is killed, and what it last published is saved",
                process.numbers,
                STOP_S,
            )
            process.kill()  # before anything is saved: it may be in the middle of an insert

    def _kill_all(self) -> None:
        for process in self.processes:
            process.kill()

    def _tell(self, exploit: Exploit) -> None:
        self._process_of(exploit.member).order({"exploit": order_of(exploit)})

    def _process_of(self, member: int) -> ProcessHandle:
        return next(process for process in self.processes if member in process.numbers)

    def _write_replays(self) -> Written:
        return self.directory.write_stores(self._stores(), self.parts.layout)

    def _fill_replays(self, loaded: Loaded) -> Mended | None:
        return self.directory.fill(self._stores(), self.parts.layout, loaded)

    def _stores(self) -> list[Replay]:
        return list({id(store): store for store in self.parts.stores if isinstance(store, Replay)}.values())


def _fresh(parts: GroupParts, place: int) -> bytes:
    return published(MemberTraining(parts.member(place, None)))  # type: ignore[arg-type]  # nobody acts here


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
    """Run a sweep over `count` processes; ConfigError for what cannot be sent to them."""
    if directory is None:
        raise ConfigError("a run in processes of its own needs a run directory: they meet there; give one")
    require_by_name(source, torso, "over several processes", "use processes=1 with objects of your own")
    others = [sink for sink in sinks if sink is not directory.log]  # the processes write into the log themselves
    return ProcessSupervisor(sweep, directory, count, sinks=others, callbacks=callbacks).run()
