"""What the supervisor of a run does, wherever its members act and learn: decides which copy which, surveys, saves, passes rows on, ends it.

Where members live, how they are started and what happens if they die is the business of `process_supervisor` and of `cluster.supervisor`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from laser_rl import checkpoint
from laser_rl.checkpoint import Loaded, Mended
from laser_rl.checkpoint.guarded import fitting
from laser_rl.checkpoint.snapshot import flat, grouped, member_name
from laser_rl.errors import ConfigError
from laser_rl.metrics.log import read_from
from laser_rl.metrics.rows import Kind, Sink, Value
from laser_rl.networks.build import TorsoSource
from laser_rl.training.budget import DutyCycle
from laser_rl.training.build import EnvironmentSource, Member
from laser_rl.training.directory import RunDirectory
from laser_rl.training.evaluate import Result
from laser_rl.training.files import has_ended
from laser_rl.training.member_training import Callback, MemberTraining, Progress
from laser_rl.training.pbt import Exploit
from laser_rl.training.saving import MENDED, MemberState, Written, load_learner
from laser_rl.training.settings import SweepConfig
from laser_rl.training.shared_state import PUBLISH_S, packed, parsed
from laser_rl.training.stall import Steps
from laser_rl.training.stop import Stop, signals
from laser_rl.training.trainer import Run

SURVEY_S = 2.0
READ_SHARE, READ_MOST_S = 0.05, 60.0  # of the supervisor's time, at most, for reading large states
STOP_S = 7.0  # of the ten in which a run that was asked to stop has ended


class States(Protocol):
    """Every member as it was last published; `SharedStateStore` is one."""

    members: int
    steps: Steps

    def get(self, member: int) -> bytes | None:
        """The newest state, whole; None if there is none yet."""

    def put(self, member: int, data: bytes) -> None:
        """What a member is to begin with."""


class SweepSupervisor(Run, ABC):
    """A supervisor's view of a run. Its trainings are copies of the members, as these were last published.

    Args:
        sweep: all values.
        directory: of the run.
        members: all of them; nothing acts or learns with them here.
        states: where the members' states are found.
        sinks: what else gets the rows that the members write.
        callbacks: see `Progress`.
    """

    def __init__(
        self,
        sweep: SweepConfig,
        directory: RunDirectory,
        members: Sequence[Member],
        states: States,
        *,
        sinks: Sequence[Sink] = (),
        callbacks: Sequence[Callback] = (),
    ) -> None:
        super().__init__(
            sweep, [MemberTraining(member) for member in members], [directory.log], Stop(), self._checkpoint
        )
        self.sweep, self.directory, self.members = sweep, directory, members
        self._states, self._others, self._callbacks = states, list(sinks), list(callbacks)
        self._ended, self._saved_end = False, False  # all members have done their steps, and that was saved
        self._offset = directory.log.path.stat().st_size  # rows before it have been passed on
        self._surveys = DutyCycle(SURVEY_S, share=READ_SHARE, most_s=READ_MOST_S)
        self._decisions = DutyCycle(PUBLISH_S, share=READ_SHARE, most_s=READ_MOST_S)  # nothing new is published before

    @abstractmethod
    def _watch(self) -> bool:
        """See to it that all members live; True when all have ended."""

    @abstractmethod
    def _pause(self) -> None:
        """Between two looks."""

    @abstractmethod
    def _stop_all(self) -> None:
        """All members end, of themselves or not, before the supervisor saves."""

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

    @property
    def steps(self) -> int:
        """Of the slowest member; newer than its published state."""
        return int(self._states.steps.min())

    def run(self) -> Result:
        """Until all members have done their steps, the time is over or a stop is requested."""
        try:
            with signals(self.stop):
                while not self._look():
                    self._pause()
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
        """One round; True when all members have ended."""
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
        due = self._save_is_due()
        if self._ended and not self._saved_end:  # an evaluation that fails must not cost what was learned
            due = self._saved_end = True
        if due:
            self.save(last=False)

    def _state(self, number: int) -> MemberState:
        data = self._states.get(number)
        assert data is not None  # noqa: S101 - all are there before any member is started
        return parsed(data)

    def _load_published(self) -> None:
        """Load what is published into the copies, one by one: large states are not held together."""
        ended = []
        for number, training in enumerate(self.trainings):
            state = self._state(number)
            ended.append(has_ended(state.numbers["training"]))
            load_learner(training, state.tensors, state.numbers)
            training.steps = int(self._states.steps[number])
        self._ended = all(ended)

    def _applied(self, exploit: Exploit) -> bool:
        """Whether the member's own state says that it has made this copy."""
        return exploit.number <= self.trainings[exploit.member].notes.get("applied", -1)

    def _made(self) -> list[Exploit]:
        return [exploit for exploit in super()._made() if self._applied(exploit)]

    def _exploit(self) -> None:
        """Decide on what is published, and see to it that what was decided is done: a member that was killed is told again."""
        if self.pbt is None:
            return
        self._load_published()
        due = [exploit for exploit in self.pbt.history if not self._applied(exploit)]
        # Not before what was decided is done, and not where no member would hear it any more.
        if not due and int(self._states.steps.max()) < self.sweep.base.run.steps:
            due = self._decide()
        for exploit in due:
            self._tell(exploit)

    def _survey(self) -> None:
        with self._surveys.measured():
            self._load_published()
            if not self.sweep.single:
                self._write_sweep_row()

    def _announce(self, event: str, values: dict[str, Value] | None = None) -> None:
        self.write("event", {"event": event, **(values or {})})
        self._pass_rows()

    def _pass_rows(self) -> None:
        """What the members wrote since the last time, to sinks and callbacks here."""
        rows, self._offset = read_from(self.directory.log.path, self._offset)
        for row in rows:
            kind: Kind = row["kind"]  # type: ignore[assignment]
            step, update = int(row["step"]), int(row["update"])
            values = {name: value for name, value in row.items() if name not in {"kind", "step", "update", "time"}}
            for sink in self._others:
                sink.write(kind, step, update, values)
            if kind in {"train", "evaluation"}:
                numbers = {name: float(value) for name, value in values.items() if not isinstance(value, str)}
                if any(callback(Progress(step, update, kind, numbers)) is False for callback in self._callbacks):
                    self.stop.request("a callback")

    def _checkpoint(self) -> Path:
        """A checkpoint of what is published; open episodes and unrolls under way are not in it."""
        states = [self._state(number) for number in range(self._states.members)]
        for number, state in enumerate(states):
            state.numbers["training"]["steps"] = int(self._states.steps[number])
        tensors = {member_name(number): flat(state.tensors) for number, state in enumerate(states)}
        numbers = {"members": [state.numbers for state in states], "trainer": self.state_dict()}
        return self.directory.write(self.steps, tensors, numbers, self._write_replays)

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
                self._states.put(number, packed(MemberState(tensors, numbers)))
                self._states.steps[number] = numbers["training"]["steps"]
            self.load_state_dict(loaded.state["trainer"])
            self._load_published()
        self.write("event", {"event": "resumed"})
        if mended is not None:
            self.write("event", {"event": MENDED, **mended.values})
        return loaded


def require_by_name(source: EnvironmentSource | None, torso: TorsoSource | None, where: str, instead: str) -> None:
    """ConfigError for an environment or a network that only this process has."""
    if (source is not None and not isinstance(source, str)) or torso is not None:
        raise ConfigError(
            f"a run {where} needs an environment by id or 'module:callable' and one of our own networks; {instead}"
        )


def spent_s(loaded: Loaded | None) -> float:
    """Seconds of training before; none where no time was counted."""
    members = [] if loaded is None else loaded.state["members"]
    return max((float(numbers["training"].get("spent_seconds", 0.0)) for numbers in members), default=0.0)
