"""A run whose members act and learn elsewhere: in processes of this machine, or (`cluster.supervisor`) on a cluster.

The supervisor owns the run directory. It decides which members copy which, surveys, writes checkpoints from the states that members publish
(none of them stops for that), passes rows on and ends the run. Of processes it also owns the replay's memory and the shared states; it
starts them, and starts again those that die. Not deterministic.
"""

import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Unpack

import numpy as np

from laser_rl import checkpoint
from laser_rl.checkpoint import Loaded
from laser_rl.checkpoint.guarded import fitting
from laser_rl.checkpoint.snapshot import grouped, member_name
from laser_rl.errors import ConfigError
from laser_rl.metrics.log import read_from
from laser_rl.metrics.rows import Kind, Value
from laser_rl.metrics.standing import Exploit
from laser_rl.replay.shared import SharedLock
from laser_rl.replay.store import Replay
from laser_rl.training.budget import Budget, DutyCycle
from laser_rl.training.build import Member
from laser_rl.training.build_group import build_members
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import Result
from laser_rl.training.files import has_ended
from laser_rl.training.launch import Around
from laser_rl.training.member_process import GpuSemaphore, SharedStateStore, States
from laser_rl.training.member_training import MemberTraining, Progress
from laser_rl.training.pbt import order_of
from laser_rl.training.process_handle import ProcessHandle
from laser_rl.training.saving import MENDED, MemberState, Writer, load_learner, packed, parsed, published, warm_start
from laser_rl.training.settings import SweepConfig
from laser_rl.training.stall import SAY_AFTER_S, StallWarning
from laser_rl.training.stop import Stop, signals
from laser_rl.training.trainer import Run
from laser_rl.trust import HERE

log = logging.getLogger("laser_rl.training")
LOOK_S = 0.1
STOP_S = 7.0  # to wait for processes to stop; the whole run promises ten
MOST_UPDATES = 3  # at a time on one card: 1 leaves gaps, 9 slow each other down (benchmarks/kernels.md)
REPLACE_S = 30.0  # a process that blocks the others for so long is killed and started again; others give up after 60 s
HASTE_S = 1.0  # instead, once the run is to end


class SweepSupervisor(Run, ABC):
    """A supervisor's view of a run. Its trainings are copies of the members, as these were last published in `states`.

    Nothing acts or learns with its `members`. `sinks` get the rows that the members write into the log of the `directory`.
    """

    _look_s = LOOK_S  # between two looks at the members

    def __init__(
        self,
        sweep: SweepConfig,
        directory: RunDirectory,
        members: Sequence[Member],
        states: States,
        **around: Unpack[Around],
    ) -> None:
        trainings = [MemberTraining(member) for member in members]
        super().__init__(sweep, trainings, [directory.log], Stop(), self._checkpoint)
        self.sweep, self.directory, self.members, self._states = sweep, directory, members, states
        # The supervisor or the members themselves write into the log.
        self._others = [sink for sink in around.get("sinks", ()) if sink is not directory.log]
        self._callbacks = around.get("callbacks", ())
        self._ended, self._saved_end = False, False  # all members have done their steps, and that was saved
        self._offset = directory.log.path.stat().st_size  # rows before it have been passed on
        self._surveys = DutyCycle(2.0, share=0.05, most_s=60.0)  # large states are read more seldom

    @abstractmethod
    def _watch(self) -> bool:
        """See to it that all members live; True when all have ended."""

    @abstractmethod
    def _stop_all(self) -> None:
        """All members end, of themselves or not, before the supervisor saves."""

    @abstractmethod
    def _kill_all(self) -> None: ...

    @abstractmethod
    def _tell(self, exploit: Exploit) -> None: ...

    @property
    def steps(self) -> int:
        """Of the slowest member; newer than its published state."""
        return int(self._states.steps.min())

    def run(self) -> Result:
        try:
            with signals(self.stop):
                while not self._look():
                    time.sleep(self._look_s)
                self._pass_rows()
                self._survey()
                interrupted = self.stop.interrupted
                self._announce("finished" if interrupted is None else "stopped")
                self.save()
                self._load_published()
                return self.result(interrupted)
        finally:
            self._kill_all()

    def _look(self) -> bool:
        if self.stop.reason is not None:
            self._stop_all()
            return True
        over = self._watch()
        self._pass_rows()
        # Not before a step is made: on a cluster a survey would wait for shards that start, and the next one be due much later for it.
        if self._states.steps.any() and self._surveys.due():
            self._survey()
        self._save_if_due()
        return over

    def _save_if_due(self) -> None:
        due = self._save_is_due()
        if self._ended and not self._saved_end:  # an evaluation that fails must not cost what was learned
            due = self._saved_end = True
        if due:
            self.save(last=False)

    def _load_published(self) -> None:
        """Load what is published into the copies, one by one: large states are not held together."""
        ended = []
        for number, training in enumerate(self.trainings):
            state = parsed(self._states.get(number))
            ended.append(has_ended(state.numbers["training"]))
            load_learner(training, state.tensors, state.numbers)
            training.steps = int(self._states.steps[number])
        self._ended = all(ended)

    def _applied(self, exploit: Exploit) -> bool:
        return self.trainings[exploit.member].has_applied(exploit)

    def _exploit(self) -> None:
        """Decide on what is published, and see to it that what was decided is done: a member that was killed is told again."""
        if self.population is None or self.stop.reason is not None:
            return
        due = [exploit for exploit in self.population.history if not self._applied(exploit)]
        # Not before what was decided is done, and not where no member would hear it any more.
        if not due and int(self._states.steps.max()) < self.sweep.base.run.steps:
            due = self._decide()
        for exploit in due:
            self._tell(exploit)

    def _survey(self) -> None:
        with self._surveys.measured():
            self._load_published()
            self._exploit()
            if not self.sweep.single:
                self._write_sweep_row()

    def _announce(self, event: str, values: dict[str, Value] | None = None) -> None:
        self.write("event", {"event": event, **(values or {})})
        self._pass_rows()

    def _pass_rows(self) -> None:
        rows, self._offset = read_from(self.directory.log.path, self._offset)
        for row in rows:
            kind: Kind = row["kind"]  # type: ignore[assignment]
            step, update = int(row["step"]), int(row["update"])
            values = {name: value for name, value in row.items() if name not in {"kind", "step", "update", "time"}}
            for sink in self._others:
                sink.write(kind, step, update, values)
            if kind in {"train", "evaluation"}:
                numbers = {name: float(value) for name, value in values.items() if not isinstance(value, str)}
                member = None if self.sweep.single else int(numbers["member"])
                if not Progress(step, update, kind, numbers, member).told(self._callbacks):
                    self.stop.request("a callback")

    def _checkpoint(self) -> Writer:
        """Write what is published, here: no member waits for it; open episodes and unrolls under way are not in it."""
        states = [parsed(self._states.get(number)) for number in range(self._states.members)]
        for number, state in enumerate(states):
            state.numbers["training"]["steps"] = int(self._states.steps[number])
        return self.directory.write(self, states, {})

    def _begin(self) -> None:
        """Publish what members begin with: the newest checkpoint that verifies or, if none was ever written, their first parameters."""
        loaded = checkpoint.latest(self.directory.path, replay="salvage")
        if loaded is None:
            if self._offset:  # an earlier start left rows, but no checkpoint: they are void
                for member in (None, *(() if self.sweep.single else range(self._states.members))):
                    self.directory.log.resumed(0, 0, member)
            for store in self.stores:
                warm_start(store, self.sweep.base, members=len(self.members))
            for number, training in enumerate(self.trainings):
                self._states.put(number, published(training))
        else:
            self._go_on(loaded)
        self._plan_save()
        spent = [] if loaded is None else [one["training"].get("spent_seconds", 0.0) for one in loaded.state["members"]]
        self.budget = Budget(self.sweep.base.run.budget_minutes, spent_s=max(spent, default=0.0))

    def _go_on(self, loaded: Loaded) -> None:
        with fitting(loaded.path):
            mended = self.directory.fill(self.stores, loaded)
            for number, numbers in enumerate(loaded.state["members"]):
                state = MemberState(grouped(loaded.tensors[member_name(number)]), numbers)
                self._states.put(number, packed(state))
                self._states.steps[number] = numbers["training"]["steps"]
            self.load_state_dict(loaded.state["trainer"])
            self._load_published()
        self.write("event", {"event": "resumed"})
        if mended is not None:
            self.write("event", {"event": MENDED, **mended.values})


def require_by_name(sweep: SweepConfig, where: str, instead: str, **around: Unpack[Around]) -> None:
    source, torso = around.get("source"), around.get("torso")
    functions = [name for one in sweep.configs for name in (one.loss.trust, one.optimiser.schedule)]
    passed = any(name.startswith(HERE) for name in functions)
    if (source is not None and not isinstance(source, str)) or torso is not None or passed:
        raise ConfigError(
            f"a run {where} needs an environment by id or 'module:callable', one of our own networks, and functions that can be imported; "
            f"{instead}"
        )


class ProcessSupervisor(SweepSupervisor):
    """The parent's view of a run over `count` processes."""

    def __init__(self, sweep: SweepConfig, directory: RunDirectory, count: int, **around: Unpack[Around]) -> None:
        members = build_members(sweep, shared=True)
        largest = max(len(published(MemberTraining(member))) for member in members)
        # Counters, windows of all tasks and settings take up to 100 kilobytes, a return of an evaluation less than 64 bytes.
        numbers = (1 << 18) + 64 * sweep.base.run.evaluate_episodes
        self.board, self.orders = (SharedStateStore(len(members), size) for size in (2 * largest + numbers, 1 << 14))
        super().__init__(sweep, directory, members, self.board, **around)
        self._begin()
        self.budget.tick()  # for all processes, also those that are started again later
        on_card = count > 1 and members[0].learner.device.type == "cuda"
        self.permits = GpuSemaphore(MOST_UPDATES) if on_card else None
        self.processes = [self._process(own.tolist(), count) for own in np.array_split(np.arange(len(members)), count)]
        # By pid: acquisition of a lock, and for how long.
        self._blocking: dict[int, tuple[int | None, StallWarning]] = {}
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
        files = {self.board.handle, self.orders.handle}
        files |= set() if self.permits is None else {self.permits.handle}
        return ProcessHandle(numbers, start, sorted(files))

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
        """Name a process that blocks the others, and kill it in the end; also while this process waits for a replay's lock itself."""
        limit_s = REPLACE_S if self.stop.reason is None else HASTE_S
        taken = dict(store.lock.holder() for store in self.stores if isinstance(store.lock, SharedLock))
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
            log.warning("%s has not ended in %.0f s; it is killed, and its last state is saved", process.name, STOP_S)
            process.kill()  # before anything is saved: it may be in the middle of an insert

    def _kill_all(self) -> None:
        for process in self.processes:
            process.kill()

    def _tell(self, exploit: Exploit) -> None:
        self.orders.put(exploit.member, json.dumps(order_of(exploit)).encode())


def _within(sweep: SweepConfig, cores: int) -> SweepConfig:
    """For one of several processes: emulators that would take all cores of the machine have so many threads, or workers."""
    environment = sweep.base.environment
    workers, threads = environment.workers or min(cores, environment.slots), environment.atari.threads or cores
    return sweep.with_base({"environment.workers": workers, "environment.atari.threads": threads})
