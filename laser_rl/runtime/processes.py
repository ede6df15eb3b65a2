"""A sweep over several processes of one machine: who exists, what they share, and what happens when one is killed.

The parent owns the directory, the replay's memory and the board. It starts the processes, starts again those that die, decides who copies
whom, writes checkpoints from the board (nobody stops for them) and shows the rows that the processes write. Not deterministic.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from laser_rl import checkpoint
from laser_rl.agent.learner import load_network
from laser_rl.checkpoint import Loaded, Snapshot
from laser_rl.checkpoint.guarded import fitting
from laser_rl.errors import ConfigError
from laser_rl.evaluation.statistics import evaluation_of
from laser_rl.metrics.log import read_from
from laser_rl.metrics.sink import Kind, Sink
from laser_rl.metrics.window import fitness, window_from
from laser_rl.networks.build import TorsoSource
from laser_rl.runtime.board import PUBLISH_S, ROOM_FOR_NUMBERS, Board, MemberState, packed, parsed, published
from laser_rl.runtime.budget import Budget
from laser_rl.runtime.build import EnvironmentSource, derive
from laser_rl.runtime.child import ShareProcess
from laser_rl.runtime.cores import cores_of_each, within
from laser_rl.runtime.crew_build import Parts, build_parts
from laser_rl.runtime.evaluate import Trained
from laser_rl.runtime.permits import Permits
from laser_rl.runtime.results import MemberResult, SweepEnd
from laser_rl.runtime.saving import MENDED
from laser_rl.runtime.space import Tries
from laser_rl.runtime.sparing import Sparing
from laser_rl.runtime.stop import Stop, signals
from laser_rl.runtime.survey import survey
from laser_rl.runtime.sweep_directory import SweepDirectory, flat, grouped
from laser_rl.runtime.training import Callback, Progress, Training
from laser_rl.runtime.warm_start import warm_start
from laser_rl.sweep.pbt import Exploit, PbtState, Standing, decide
from laser_rl.sweep.settings import SweepConfig

log = logging.getLogger("laser_rl.runtime")
LOOK_S = 0.1
SURVEY_S = 2.0
READ_SHARE, READ_MOST_S = 0.05, 60.0  # of the parent's time, at most, for reading large states off the board
STOP_S = 7.0  # of the ten in which a run that was asked to stop has ended
MOST_UPDATES = 3  # at a time on one card: 1 leaves gaps, 9 slow each other down (benchmarks/kernels.md)
BYTES_A_RETURN = 64  # in the JSON of an evaluation, generously


class Supervisor:
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
        directory: SweepDirectory,
        count: int,
        *,
        sinks: Sequence[Sink] = (),
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.sweep, self.directory, self.stop = sweep, directory, Stop()
        self._sinks, self._callbacks = list(sinks), list(callbacks)
        self.parts: Parts = build_parts(sweep, shared=True)
        members = len(sweep.settings)
        seed = sweep.base.run.seed
        self.pbt = PbtState(members, derive(seed, "pbt")) if sweep.pbt is not None else None
        self._random = np.random.Generator(np.random.PCG64(derive(seed, "survey")))
        first = [self._fresh(place) for place in range(members)]
        numbers = ROOM_FOR_NUMBERS + BYTES_A_RETURN * sweep.base.run.evaluate_episodes
        self.board = Board(members, 2 * max(map(len, first)) + numbers)
        self._offset = self.directory.log.path.stat().st_size
        self._tries = Tries()
        loaded = self._go_on()
        if loaded is None:
            for store in self._stores():
                warm_start(store, sweep.base, members=members)
            for number, data in enumerate(first):
                self.board.put(number, data)
        self._next_save = 0
        self._plan_save()
        self._surveys = Sparing(SURVEY_S, share=READ_SHARE, most_s=READ_MOST_S)
        self._decisions = Sparing(PUBLISH_S, share=READ_SHARE, most_s=READ_MOST_S)  # nothing new is on the board before
        self.budget = Budget(sweep.base.run.budget_minutes, spent_s=_spent_s(loaded))
        on_card = count > 1 and self.parts.learners[0].device.type == "cuda"
        self.permits = Permits(MOST_UPDATES) if on_card else None
        self.budget.tick()  # for all processes, also those that are started again later
        self.processes = [self._process(share, count) for share in np.array_split(np.arange(members), count)]

    def _fresh(self, place: int) -> bytes:
        return published(Training(self.parts.member(place, None)))  # type: ignore[arg-type]  # nobody acts here

    def _process(self, numbers: "np.ndarray[Any, Any]", count: int) -> ShareProcess:
        stores = {str(number): store.handle() for number, store in enumerate(self.parts.stores) if store is not None}
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
        return ShareProcess([int(number) for number in numbers], start, sorted(files))

    def run(self) -> SweepEnd:
        """Until all members have done their steps, the time is over or somebody asks to stop."""
        try:
            with signals(self.stop):
                while not self._look():
                    time.sleep(LOOK_S)
                interrupted = self.stop.interrupted
                self._pass_rows()
                self._survey()
                self._announce("finished" if interrupted is None else "stopped")
                self._tries.save(self.save, last=True)
                return self._end(interrupted)
        finally:
            for process in self.processes:
                process.kill()

    def _look(self) -> bool:
        """One round; True when everybody has ended."""
        if self.stop.reason is not None:
            self._stop_all()
            return True
        over = True
        for process in self.processes:
            status = process.ended()
            if status is None:
                over = False
            elif status != 0:
                process.restart(int(self.board.steps[process.numbers].sum()))
                over = False
        self._pass_rows()
        if self._decisions.due():
            with self._decisions.measured():
                self._exploit()
        if self._surveys.due():
            self._survey()
        due = bool(self._next_save) and int(self.board.steps.min()) >= self._next_save
        if due:
            self._plan_save()
        if self._tries.due() if self._tries.failing else due:
            self._tries.save(self.save, last=False)
        return over

    def _stop_all(self) -> None:
        for process in self.processes:
            process.order({"stop": self.stop.reason})
        deadline = time.monotonic() + STOP_S
        while (
            late := [process for process in self.processes if process.ended() is None]
        ) and time.monotonic() < deadline:
            time.sleep(LOOK_S / 5)
        for process in late:
            log.warning(
                "the process of members %s has not ended in %.0f s; it is killed, and what it last published is saved",
                process.numbers,
                STOP_S,
            )
            process.kill()  # before anything is saved: it may be in the middle of an insert

    def states(self) -> list[MemberState]:
        """Every member as it was last published."""
        return [self._state(number) for number in range(self.board.members)]

    def _state(self, number: int) -> MemberState:
        data = self.board.get(number)
        assert data is not None  # noqa: S101 - all are there before the first process is
        return parsed(data)

    def _exploit(self) -> None:
        """Decide on what is published, and see to it that what was decided is done: a killed process is told again."""
        if self.pbt is None or self.sweep.pbt is None:
            return
        states, names = self.states(), self.sweep.pbt.tuned
        due = [exploit for exploit in self.pbt.history if not _applied(exploit, states)]
        # Not before what was decided is done, and not where nobody would hear it any more.
        if not due and int(self.board.steps.max()) < self.sweep.base.run.steps:
            standing = [_standing(number, state) for number, state in enumerate(states)]
            due = decide(standing, [_tuned(state, names) for state in states], self.sweep.pbt, self.pbt)
        for exploit in due:
            self._process_of(exploit.member).order({"exploit": _order(exploit)})

    def _process_of(self, member: int) -> ShareProcess:
        return next(process for process in self.processes if member in process.numbers)

    def _survey(self) -> None:
        with self._surveys.measured():
            for number, learner in enumerate(self.parts.learners):  # one by one: large states are not held together
                state = self._state(number)
                load_network(learner.network, state.tensors["network"])
                learner.version = state.numbers["learner"]["version"]
            values = survey(self.parts.learners, self.parts.stores, self._random)
        updates = sum(learner.version for learner in self.parts.learners)
        self.directory.log.write("sweep", int(self.board.steps.min()), updates, values)

    def _announce(self, event: str) -> None:
        updates = sum(learner.version for learner in self.parts.learners)
        self.directory.log.write("event", int(self.board.steps.min()), updates, {"event": event})
        self._pass_rows()

    def _pass_rows(self) -> None:
        """What the processes wrote since the last time, to whoever watches."""
        rows, self._offset = read_from(self.directory.log.path, self._offset)
        for row in rows:
            kind: Kind = row["kind"]  # type: ignore[assignment]
            step, update = int(row["step"]), int(row["update"])
            values = {name: value for name, value in row.items() if name not in {"kind", "step", "update", "time"}}
            for sink in self._sinks:
                sink.write(kind, step, update, values)
            if kind in {"train", "evaluation"}:
                numbers = {name: float(value) for name, value in values.items() if not isinstance(value, str)}
                if any(callback(Progress(step, update, kind, numbers)) is False for callback in self._callbacks):
                    self.stop.request("a callback")

    def save(self) -> Path:
        """A checkpoint of what is published; open episodes and unrolls under way are not in it."""
        states, directory = self.states(), self.directory
        for number, state in enumerate(states):
            state.numbers["training"]["steps"] = int(self.board.steps[number])
        step = int(self.board.steps.min())
        with directory.all_or_nothing(step):
            snapshot = Snapshot(
                step=step,
                tensors={f"member-{number:02d}": flat(state.tensors) for number, state in enumerate(states)},
                state={
                    "members": [state.numbers for state in states],
                    "sweep": {
                        "surveyed": 0,
                        "survey_random": self._random.bit_generator.state,
                        "next_save": self._next_save,
                        "pbt": None if self.pbt is None else self.pbt.state_dict(),
                    },
                    "replays": directory.write_stores(self._stores(), self.parts.layout),
                },
                segments=directory.segments(),
            )
            directory.log.flush()
            return checkpoint.write(directory.path, snapshot, keep=self.sweep.base.run.keep_checkpoints)

    def _stores(self) -> list[Any]:
        return list({id(store): store for store in self.parts.stores if store is not None}.values())

    def _go_on(self) -> Loaded | None:
        loaded = checkpoint.latest(self.directory.path, replay="salvage")
        if loaded is None:
            if self._offset:  # an earlier start left rows, but no checkpoint: they are void
                for member in (None, *range(self.board.members)):
                    self.directory.log.resumed(0, 0, member)
            return None
        with fitting(loaded.path):
            mended = self.directory.fill(self._stores(), self.parts.layout, loaded)
            for number, numbers in enumerate(loaded.state["members"]):
                tensors = grouped(loaded.tensors[f"member-{number:02d}"])
                tensors["mixer"] = {name: tensor[:0] for name, tensor in tensors["mixer"].items()}
                self.board.put(number, packed(tensors, numbers))
                self.board.steps[number] = numbers["training"]["steps"]
            if self.pbt is not None and loaded.state["sweep"]["pbt"] is not None:
                self.pbt.load_state_dict(loaded.state["sweep"]["pbt"])
            updates = sum(numbers["learner"]["version"] for numbers in loaded.state["members"])
        self.directory.log.write("event", loaded.step, updates, {"event": "resumed"})
        if mended is not None:
            self.directory.log.write("event", loaded.step, updates, {"event": MENDED, **mended.values})
        return loaded

    def _plan_save(self) -> None:
        every = self.sweep.base.run.checkpoint_every_steps
        self._next_save = (int(self.board.steps.min()) // every + 1) * every if every else 0

    def _end(self, interrupted: str | None) -> SweepEnd:
        members, states = [], self.states()
        for number, (state, learner) in enumerate(zip(states, self.parts.learners, strict=True)):
            learner.load(state.tensors, state.numbers["learner"])
            counted, config = state.numbers["training"], self.parts.configs[number]
            numbers, evaluated = window_from(counted["window"]).numbers(), counted["evaluated"]
            now = config.model_copy(update={"loss": learner.loss, "optimiser": learner.rates})
            trained = Trained(
                learner.network,
                learner.family,
                self.parts.layout,
                self.parts.source,
                config.environment,
                counted["steps"],
            )
            played = evaluation_of(evaluated[-1][1]) if evaluated else None
            mean = numbers.get("return_mean")
            settings = self.sweep.settings[number]
            members.append(
                MemberResult(
                    number, settings, now, int(self.board.steps[number]), learner.version, mean, played, trained
                )
            )
        history = () if self.pbt is None else tuple(e for e in self.pbt.history if _applied(e, states))
        saved = checkpoint.latest(self.directory.path, replay="unread")
        return SweepEnd(tuple(members), history, interrupted, None if saved is None else saved.path)


def run_processes(
    sweep: SweepConfig,
    directory: SweepDirectory | None,
    count: int,
    *,
    source: EnvironmentSource | None = None,
    torso: TorsoSource | None = None,
    sinks: Sequence[Sink] = (),
    callbacks: Sequence[Callback] = (),
) -> SweepEnd:
    """Run a sweep over `count` processes; ConfigError for what cannot be sent to them."""
    if directory is None:
        raise ConfigError("a sweep over several processes needs a run directory: they meet there; give one")
    if (source is not None and not isinstance(source, str)) or torso is not None:
        raise ConfigError(
            "a sweep over several processes needs an environment by id or 'module:callable' and one of our own networks; "
            "use processes=1 with objects of your own"
        )
    others = [sink for sink in sinks if sink is not directory.log]  # the processes write into the log themselves
    return Supervisor(sweep, directory, count, sinks=others, callbacks=callbacks).run()


def _spent_s(loaded: Loaded | None) -> float:
    """Seconds of training before; none where no time was counted."""
    members = [] if loaded is None else loaded.state["members"]
    return max((float(numbers["training"].get("spent_seconds", 0.0)) for numbers in members), default=0.0)


def _applied(exploit: Exploit, states: Sequence[MemberState]) -> bool:
    """Whether the member's own state says that it has made this copy."""
    newest: int = states[exploit.member].numbers["training"]["notes"].get("applied", -1)
    return exploit.number <= newest


def _standing(number: int, state: MemberState) -> Standing:
    window = window_from(state.numbers["training"]["window"])
    score = fitness(window.numbers())
    whole = all(bool(tensor.isfinite().all()) for tensor in state.tensors["network"].values())
    if not whole or state.numbers["learner"]["failing"]:
        score = float("nan")  # nothing left to copy
    return Standing(number, state.numbers["training"]["steps"], window.episodes, score)


def _tuned(state: MemberState, names: Sequence[str]) -> dict[str, float]:
    learner = state.numbers["learner"]
    sections = {**learner["optimiser"], **learner["loss"]}
    return {name: sections[name.rpartition(".")[2]] for name in names}


def _order(exploit: Exploit) -> dict[str, Any]:
    score = None if np.isnan(exploit.score) else exploit.score
    return exploit._replace(score=0.0)._asdict() | {"score": score}
