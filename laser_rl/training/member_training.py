"""What stands beside the ring of acting and learning: counting, reporting, evaluating, saving. Never in it."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from laser_rl.agent.actor import Actor
from laser_rl.errors import EnvironmentFailed
from laser_rl.evaluation.statistics import EvalResult, evaluation_of
from laser_rl.metrics.rows import EpisodeRows, EpisodeWindow, Kind, Sink, Value, memory_bytes
from laser_rl.training.budget import Budget
from laser_rl.training.build import Member, another, derive, slots_of
from laser_rl.training.evaluate import Unfinished, evaluate, trained_of
from laser_rl.training.files import EVALUATION_DUE
from laser_rl.training.stop import FINISHED, Stop, no_exit
from laser_rl.types import Episode

log = logging.getLogger("laser_rl.training")


@dataclass(frozen=True)
class Progress:
    """What a callback sees at every row of metrics."""

    step: int
    update: int
    kind: str
    values: dict[str, float]


Callback = Callable[[Progress], bool | None]


class MemberTraining:
    """One member on its way.

    Args:
        member: its parts.
        sinks: where rows of metrics go.
        callbacks: see `Progress`; one that returns False ends the run.
        stop: where an end is requested; None: one of its own.
        budget: the time that it shares with others; None: one of its own, as configured.
    """

    def __init__(
        self,
        member: Member,
        *,
        sinks: Sequence[Sink] = (),
        callbacks: Sequence[Callback] = (),
        stop: Stop | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.member, self.stop, self.steps = member, stop or Stop(), 0
        self.budget = Budget(member.config.run.budget_minutes) if budget is None else budget
        self.target = self.horizon = member.config.run.steps
        self.window = EpisodeWindow(_tasks_of(member))
        self._episodes = EpisodeRows()
        self.evaluations: list[tuple[int, EvalResult]] = []
        self.notes: dict[str, int] = {}  # of whoever runs this member, kept with its state
        self._evaluation_was_due = False
        self.moved: Callable[[int], None] = lambda steps: None  # hears how many steps are done
        self.extra: list[Callable[[], dict[str, float]]] = []  # more numbers for every row of metrics
        # Rows by the clock as well, for slow updates. Not where the same seed has to give the same rows.
        self.by_clock = member.config.run.runtime != "serial" or member.learner.device.type == "cuda"
        self.callbacks, self._sinks = list(callbacks), list(sinks)
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._logged_updates, self._logged_steps, self._logged_at = 0, 0, time.monotonic()
        self._next_evaluation = 0
        self._plan_evaluation()

    @property
    def update(self) -> int:
        """Updates so far, skipped ones included."""
        return self.member.learner.version

    @property
    def progress(self) -> float:
        """Share of the run that is done, by its steps or by its time."""
        return max(min(1.0, self.steps / self.horizon), self.budget.share)

    @property
    def done(self) -> bool:
        """Whether its steps, or its time, are used up."""
        return self.steps >= self.target or self.budget.over

    @property
    def steps_left(self) -> int:
        """To the target; none if the time is over."""
        return 0 if self.done else self.target - self.steps

    def extend(self, steps: int, stop: Stop, *, total: int | None = None) -> None:
        """Go on for `steps` more, after an end; schedules go by `total`."""
        self.target, self.stop, self._logged_at = self.steps + steps, stop, time.monotonic()
        self.horizon = total or self.target

    def begin_at(self, steps: int) -> None:
        """Count on from there: the parameters to begin with have so many steps behind them."""
        self.steps = self._logged_steps = steps
        self._plan_evaluation()

    def acted(self, steps: int, episodes: Iterable[Episode]) -> None:
        """Count what an actor did; any thread."""
        with self._lock:
            self.steps += steps
            for episode in episodes:
                self._ended(episode)
        self.moved(self.steps)
        self._tick()

    def _tick(self) -> None:
        """Whoever acts or learns hears at the next look at `stop` that the time is over; the run is then finished, not interrupted."""
        if self.budget.tick():
            self.stop.request(FINISHED)

    def _ended(self, episode: Episode) -> None:
        spec = self.member.environments.spec
        task = spec.task_of(episode.slot)
        self.window.add(episode.raw_return, task)
        values = {"return": episode.raw_return, "length": episode.length, "slot": episode.slot}
        row = self._episodes.add({**values, "task": spec.tasks[task]} if spec.tasks else values, self.window.episodes)
        if row is not None:
            self._write("episode", row)

    def learned(self) -> None:
        """After every update: a row of metrics, if one is due."""
        self._tick()
        run = self.member.config.run
        enough = run.runtime == "serial" and self.update - self._logged_updates >= run.log_every_updates
        if enough or (self.by_clock and time.monotonic() - self._logged_at >= run.log_every_s):
            self._report()

    def report(self) -> None:
        """The last rows: of episodes that wait for others to share a row with, and of the updates since the last one."""
        with self._lock:
            for row in self._episodes.rest():
                self._write("episode", row)
        self._report()

    def _report(self) -> None:
        """A row of metrics over the updates since the last one."""
        if self.update == self._logged_updates:
            return
        now = time.monotonic()
        seconds = max(now - self._logged_at, 1e-9)
        updates_per_second = (self.update - self._logged_updates) / seconds
        values = {
            **self.window.numbers(),
            **self.member.learner.report(),
            **self._state_of_replay(),
            "learning_rate": self.member.learner.learning_rate(self.progress),
            "entropy_cost": self.member.learner.loss.entropy_cost,
            "online_unrolls": self.member.counts.online,
            "replayed_unrolls": self.member.counts.replayed,
            "steps_per_second": (self.steps - self._logged_steps) / seconds,
            "updates_per_second": updates_per_second,
            "learned_steps_per_second": updates_per_second * self._steps_an_update,
            "memory_bytes": memory_bytes(),
            **{f"environment_{name}": count for name, count in self.member.faults().items()},
        }
        if self.budget.left_s is not None:
            values["budget_left_seconds"] = self.budget.left_s
        for more in self.extra:
            values |= more()
        self._logged_updates, self._logged_steps, self._logged_at = self.update, self.steps, now
        self._announce("train", {name: value for name, value in values.items() if not _undefined(value)})

    def between(self, locks: Sequence[contextlib.AbstractContextManager[None]] = ()) -> None:
        """Evaluate, if due. The locks stop the actor where evaluation plays in the environment that it steps."""
        self.check()
        self._tick()
        if not 0 < self._next_evaluation <= self.steps:
            return
        self._plan_evaluation()
        with contextlib.ExitStack() as stack:
            if slots_of(another(self.member.source)) is not None:
                for lock in locks:
                    stack.enter_context(lock)
            if self.evaluate() is None:
                self._next_evaluation = self.steps  # again, as soon as the run goes on

    def evaluate(self) -> EvalResult | None:
        """Play with the current parameters; the seed depends on nothing but run and step. None if somebody asks to stop meanwhile."""
        run = self.member.config.run
        seed = derive(run.seed, f"evaluation/{self.steps}")
        try:
            result = evaluate(
                trained_of(self.member, self.steps),
                episodes=run.evaluate_episodes,
                deterministic=run.evaluate_deterministic,
                seed=seed,
                goes_on=lambda: not self.stop.urgent,
            )
        except Unfinished:
            return None
        self.evaluations.append((self.steps, result))
        low, high = result.score_ci95
        values = {
            "mean": result.score,  # by which members are compared
            "iqm": result.iqm,
            "ci95_low": low,
            "ci95_high": high,
            "episodes": result.episodes,
            **(result.task_scores.numbers() if result.tasks else {}),
        }
        self._announce("evaluation", values)
        return result

    @property
    def last_evaluation(self) -> EvalResult | None:
        """Of the current parameters; None if they have not been played with yet."""
        return self.evaluations[-1][1] if self.evaluations and self.evaluations[-1][0] == self.steps else None

    def failed(self, error: BaseException) -> None:
        """Another thread met this; the learner's thread raises it."""
        self._error = error
        self.stop.request(f"error: {error}")

    def check(self) -> None:
        """Raise what another thread met."""
        if self._error is not None:
            raise self._error

    def state_dict(self) -> dict[str, Any]:
        """Counters, for a checkpoint."""
        # Only where time counts: what the clock says is not the same in two equal runs.
        spent = {} if self.budget.minutes is None else {"spent_seconds": self.budget.spent_s}
        return {
            **spent,
            **({"open_rows": rows} if (rows := self._episodes.state_dict()) else {}),
            "steps": self.steps,
            "window": self.window.state_dict(),
            "logged_updates": self._logged_updates,
            "logged_steps": self._logged_steps,
            "next_evaluation": self._next_evaluation,
            "evaluated": [[step, asdict(result)] for step, result in self.evaluations[-1:]],
            "notes": dict(self.notes),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting there."""
        self.steps = state["steps"]
        self.window.load_state_dict(state["window"])
        self._episodes.load_state_dict(state.get("open_rows", {}))
        self._logged_updates, self._logged_steps = state["logged_updates"], state["logged_steps"]
        self._next_evaluation, self.notes = state["next_evaluation"], dict(state["notes"])
        self.evaluations = [(step, evaluation_of(result)) for step, result in state["evaluated"]]
        self._evaluation_was_due = bool(self.notes.pop(EVALUATION_DUE, 0))
        self.budget.go_on(state.get("spent_seconds", 0.0))

    def announce(self, event: str, values: Mapping[str, Value] | None = None) -> None:
        """Tell the sinks; "resumed" makes rows of later steps void, and of later evaluations than the one that it names."""
        if (
            event == "resumed" and self._evaluation_was_due
        ):  # its row may be there already, and is going to be written again
            values = {**(values or {}), "evaluated": self.evaluations[-1][0] if self.evaluations else -1}
        with self._lock:
            for sink in self._sinks:
                sink.write("event", self.steps, self.update, {"event": event, **(values or {})})

    def _plan_evaluation(self) -> None:
        every = self.member.config.run.evaluate_every_steps
        self._next_evaluation = (self.steps // every + 1) * every if every else 0

    @property
    def _steps_an_update(self) -> int:
        """Steps in a batch, online and replayed."""
        loss = self.member.config.loss
        return loss.batch_unrolls * loss.unroll_steps

    def _state_of_replay(self) -> dict[str, float]:
        replay = self.member.replay
        if replay is None:
            return {}
        return {
            "replay_fill": replay.steps / self.member.config.replay.capacity_steps,
            "replay_steps": replay.steps,
            "replay_bytes": replay.nbytes,
        }

    def _announce(self, kind: Kind, values: dict[str, float]) -> None:
        with self._lock:
            self._write(kind, values)
        progress = Progress(self.steps, self.update, kind, values)
        if any(callback(progress) is False for callback in self.callbacks):
            self.stop.request("a callback")

    def _write(self, kind: Kind, values: Mapping[str, Value]) -> None:
        for sink in self._sinks:
            sink.write(kind, self.steps, self.update, values)


def evaluate_last(trainings: Sequence[MemberTraining], stop: Stop, save: Callable[[], object]) -> None:
    """Play with what members have at their end, unless that was done already or somebody asks to stop.

    What they have learned is saved before: an evaluation that fails, or is killed, must not cost a run that is done.
    """
    due = [training for training in trainings if training.last_evaluation is None]
    if not due or stop.interrupted is not None:
        return
    for training in due:
        training.notes[EVALUATION_DUE] = 1
    save()
    for training in due:
        if stop.interrupted is not None:
            return
        try:
            result = training.evaluate()
        except Exception:
            log.error(  # noqa: TRY400 - whoever catches it shows it
                "all steps are done; only the last evaluation is missing, which fails: see below. "
                "What was learned is kept if there is a run directory, and 'laser resume' then tries the evaluation again"
            )
            raise
        if result is not None:
            del training.notes[EVALUATION_DUE]


@contextlib.contextmanager
def steps_told(trainings: Sequence[MemberTraining]) -> Iterator[None]:
    """Around acting and learning: the error of an environment that ends the run says how many steps are missing."""
    try:
        with no_exit():
            yield
    except EnvironmentFailed as error:
        done, target = min((training.steps, training.target) for training in trainings)
        if done >= target:
            raise
        raise type(error)(
            f"the run ended after {done:,} of {target:,} steps, {target - done:,} are missing: {error}"
        ) from None


def _tasks_of(member: Member) -> tuple[str, ...]:
    """Those of a mixture. Unknown, but also of no use, where nobody acts: the parent of a sweep's processes has members without actors."""
    actor: Actor | None = member.actor
    return actor.environments.spec.tasks if actor else ()


def _undefined(value: float) -> bool:
    """A mean over nothing, such as the acceptance of a batch without replay."""
    return math.isnan(value)
