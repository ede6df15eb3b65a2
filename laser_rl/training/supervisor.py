"""What whoever supervises a sweep does, wherever its members run: decides who copies whom, surveys, saves, passes rows on, and ends it.

Where members live, how they are started and what happens if they die is the business of `processes` and of `cluster.supervisor`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from laser_rl import checkpoint
from laser_rl.agent.parameters import load_network
from laser_rl.checkpoint import Loaded, Mended
from laser_rl.checkpoint.guarded import fitting
from laser_rl.checkpoint.snapshot import flat, grouped, member_name
from laser_rl.errors import ConfigError
from laser_rl.evaluation.statistics import evaluation_of
from laser_rl.metrics.log import read_from
from laser_rl.metrics.rows import Kind, Sink, Value, fitness, window_from
from laser_rl.networks.build import TorsoSource
from laser_rl.training.build import EnvironmentSource, derive
from laser_rl.training.build_group import GroupParts
from laser_rl.training.directory import Contents, RunDirectory, Written
from laser_rl.training.disk_space import SaveRetry
from laser_rl.training.duty_cycle import DutyCycle
from laser_rl.training.evaluate import Trained
from laser_rl.training.files import has_ended
from laser_rl.training.member_training import Callback, Progress
from laser_rl.training.pbt import Exploit, PbtState, Standing, decide
from laser_rl.training.result import MemberResult, Result
from laser_rl.training.saving import MENDED
from laser_rl.training.settings import SweepConfig
from laser_rl.training.shared_state import PUBLISH_S, MemberState, packed, parsed
from laser_rl.training.step_barrier import Steps
from laser_rl.training.stop import Stop, signals
from laser_rl.training.sweep_metrics import sweep_metrics

log = logging.getLogger("laser_rl.training")
SURVEY_S = 2.0
READ_SHARE, READ_MOST_S = 0.05, 60.0  # of the supervisor's time, at most, for reading large states
STOP_S = 7.0  # of the ten in which a run that was asked to stop has ended


class States(Protocol):
    """Every member as it was last published; `Board` is one."""

    members: int
    steps: Steps

    def get(self, member: int) -> bytes | None:
        """The newest state, whole; None if there is none yet."""

    def put(self, member: int, data: bytes) -> None:
        """What a member is to begin with."""


class SweepSupervisor(ABC):
    """A supervisor's view of a sweep.

    Args:
        sweep: all values.
        directory: of the sweep.
        parts: of all members; nobody acts or learns with them here.
        board: where their states are found.
        sinks: what else gets the rows that the members write.
        callbacks: see `Progress`.
    """

    def __init__(
        self,
        sweep: SweepConfig,
        directory: RunDirectory,
        parts: GroupParts,
        board: States,
        *,
        sinks: Sequence[Sink] = (),
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.sweep, self.directory, self.stop, self.parts = sweep, directory, Stop(), parts
        self._states, self._sinks, self._callbacks = board, list(sinks), list(callbacks)
        seed = sweep.base.run.seed
        self.pbt = PbtState(board.members, derive(seed, "pbt")) if sweep.pbt is not None else None
        self._random = np.random.Generator(np.random.PCG64(derive(seed, "survey")))
        self._tries, self._next_save = SaveRetry(), 0
        self._ended, self._saved_end = False, False  # all members have done their steps, and that was saved
        self._offset = directory.log.path.stat().st_size  # rows before it have been passed on
        self._surveys = DutyCycle(SURVEY_S, share=READ_SHARE, most_s=READ_MOST_S)
        self._decisions = DutyCycle(PUBLISH_S, share=READ_SHARE, most_s=READ_MOST_S)  # nothing new is published before

    @abstractmethod
    def _watch(self) -> bool:
        """See to it that everybody lives; True when all have ended."""

    @abstractmethod
    def _pause(self) -> None:
        """Between two looks."""

    @abstractmethod
    def _stop_all(self) -> None:
        """All end, of themselves or not, before the supervisor saves."""

    @abstractmethod
    def _kill_all(self) -> None:
        """At the very end, whatever it is."""

    @abstractmethod
    def _tell(self, exploit: Exploit) -> None:
        """A member is to copy another."""

    @abstractmethod
    def _write_replays(self) -> Written:
        """For a checkpoint: the ids held by each store, and the segments."""

    @abstractmethod
    def _fill_replays(self, loaded: Loaded) -> Mended | None:
        """From a checkpoint; says what is lost of a damaged one."""

    def run(self) -> Result:
        """Until all members have done their steps, the time is over or somebody asks to stop."""
        try:
            with signals(self.stop):
                while not self._look():
                    self._pause()
                interrupted = self.stop.interrupted
                self._pass_rows()
                self._survey()
                self._announce("finished" if interrupted is None else "stopped")
                self._tries.save(self.save, last=True)
                return self._end(interrupted)
        finally:
            self._kill_all()

    def _look(self) -> bool:
        """One round; True when everybody has ended."""
        if self.stop.reason is not None:
            self._stop_all()
            return True
        over = self._watch()
        self._pass_rows()
        if self._decisions.due():
            with self._decisions.measured():
                self._exploit()
        if self._surveys.due():
            self._survey()
        self._save_if_due()
        return over

    def _save_if_due(self) -> None:
        due = bool(self._next_save) and int(self._states.steps.min()) >= self._next_save
        if due:
            self._plan_save()
        if self._ended and not self._saved_end:  # an evaluation that fails must not cost what was learned
            due = self._saved_end = True
        if self._tries.due() if self._tries.failing else due:
            self._tries.save(self.save, last=False)

    def states(self) -> list[MemberState]:
        """Every member as it was last published."""
        return [self._state(number) for number in range(self._states.members)]

    def _state(self, number: int) -> MemberState:
        data = self._states.get(number)
        assert data is not None  # noqa: S101 - all are there before anybody is started
        return parsed(data)

    def _exploit(self) -> None:
        """Decide on what is published, and see to it that what was decided is done: who was killed is told again."""
        if self.pbt is None or self.sweep.pbt is None:
            return
        states, names = self.states(), self.sweep.pbt.tuned
        due = [exploit for exploit in self.pbt.history if not _applied(exploit, states)]
        # Not before what was decided is done, and not where nobody would hear it any more.
        if not due and int(self._states.steps.max()) < self.sweep.base.run.steps:
            standing = [_standing(number, state) for number, state in enumerate(states)]
            due = decide(standing, [_tuned(state, names) for state in states], self.sweep.pbt, self.pbt)
        for exploit in due:
            self._tell(exploit)

    def _survey(self) -> None:
        with self._surveys.measured():
            ended = []
            for number, learner in enumerate(self.parts.learners):  # one by one: large states are not held together
                state = self._state(number)
                load_network(learner.network, state.tensors["network"])
                learner.version = state.numbers["learner"]["version"]
                ended.append(has_ended(state.numbers["training"]))
            if not self.sweep.single:
                self._write("sweep", sweep_metrics(self.parts.learners, self.parts.stores, self._random))
        self._ended = all(ended)

    def _announce(self, event: str, values: dict[str, Value] | None = None) -> None:
        self._write("event", {"event": event, **(values or {})})
        self._pass_rows()

    def _write(self, kind: Kind, values: dict[str, Any]) -> None:
        updates = sum(learner.version for learner in self.parts.learners)
        self.directory.log.write(kind, int(self._states.steps.min()), updates, values)

    def _pass_rows(self) -> None:
        """What the members wrote since the last time, to whoever watches."""
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
        states = self.states()
        for number, state in enumerate(states):
            state.numbers["training"]["steps"] = int(self._states.steps[number])
        contents = Contents(
            step=int(self._states.steps.min()),
            tensors={member_name(number): flat(state.tensors) for number, state in enumerate(states)},
            members=[state.numbers for state in states],
            trainer={
                "surveyed": 0,
                "survey_random": self._random.bit_generator.state,
                "next_save": self._next_save,
                "pbt": None if self.pbt is None else self.pbt.state_dict(),
            },
        )
        return self.directory.write(contents, self._write_replays)

    def _go_on(self) -> Loaded | None:
        """Load the newest checkpoint that verifies; None if none was ever written."""
        loaded = checkpoint.latest(self.directory.path, replay="salvage")
        if loaded is None:
            if self._offset:  # an earlier start left rows, but no checkpoint: they are void
                for member in (None, *(() if self.sweep.single else range(self._states.members))):
                    self.directory.log.resumed(0, 0, member)
            return None
        with fitting(loaded.path):
            mended = self._fill_replays(loaded)
            for number, numbers in enumerate(loaded.state["members"]):
                tensors = grouped(loaded.tensors[member_name(number)])
                tensors["mixer"] = {name: tensor[:0] for name, tensor in tensors["mixer"].items()}
                self._states.put(number, packed(tensors, numbers))
                self._states.steps[number] = numbers["training"]["steps"]
            if self.pbt is not None and loaded.state["trainer"]["pbt"] is not None:
                self.pbt.load_state_dict(loaded.state["trainer"]["pbt"])
            updates = sum(numbers["learner"]["version"] for numbers in loaded.state["members"])
        self.directory.log.write("event", loaded.step, updates, {"event": "resumed"})
        if mended is not None:
            self.directory.log.write("event", loaded.step, updates, {"event": MENDED, **mended.values})
        return loaded

    def _plan_save(self) -> None:
        every = self.sweep.base.run.checkpoint_every_steps
        self._next_save = (int(self._states.steps.min()) // every + 1) * every if every else 0

    def _end(self, interrupted: str | None) -> Result:
        members, states = [], self.states()
        for number, (state, learner) in enumerate(zip(states, self.parts.learners, strict=True)):
            learner.load_state_dict(state.tensors, state.numbers["learner"])
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
                self.parts.spec,
            )
            played = evaluation_of(evaluated[-1][1]) if evaluated else None
            steps, mean = int(self._states.steps[number]), numbers.get("return_mean")
            settings = self.sweep.settings[number]
            members.append(MemberResult(number, settings, now, steps, learner.version, mean, played, trained))
        history = () if self.pbt is None else tuple(e for e in self.pbt.history if _applied(e, states))
        saved = checkpoint.latest(self.directory.path, replay="unread")
        return Result(tuple(members), history, interrupted, None if saved is None else saved.path)


def require_by_name(source: EnvironmentSource | None, torso: TorsoSource | None, where: str, instead: str) -> None:
    """ConfigError for an environment or a network that only this process has.

    >>> require_by_name("CartPole-v1", None, "elsewhere", "stay here")
    """
    if (source is not None and not isinstance(source, str)) or torso is not None:
        raise ConfigError(
            f"a run {where} needs an environment by id or 'module:callable' and one of our own networks; {instead}"
        )


def spent_s(loaded: Loaded | None) -> float:
    """Seconds of training before; none where no time was counted."""
    members = [] if loaded is None else loaded.state["members"]
    return max((float(numbers["training"].get("spent_seconds", 0.0)) for numbers in members), default=0.0)


def order_of(exploit: Exploit) -> dict[str, Any]:
    """As JSON; `exploit_of` is the inverse."""
    score = None if np.isnan(exploit.score) else exploit.score
    return exploit._replace(score=0.0)._asdict() | {"score": score}


def exploit_of(order: dict[str, Any]) -> Exploit:
    """The inverse of `order_of`.

    >>> exploit = Exploit(0, 500, 1, 2, float("nan"), 90.0, {"learning_rate": 1e-3}, {"learning_rate": 1.2e-3})
    >>> order_of(exploit)["score"] is None, exploit_of(order_of(exploit)).donor
    (True, 2)
    """
    return Exploit(**{**order, "score": float("nan") if order["score"] is None else order["score"]})


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
