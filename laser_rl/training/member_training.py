"""The bookkeeping of one member: it counts, reports and evaluates. The loops that act and learn call it; it is no part of them."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from laser_rl.errors import ConfigError, EnvironmentFailed
from laser_rl.evaluation.statistics import EvalResult, evaluation_of
from laser_rl.metrics.machine import memory_bytes
from laser_rl.metrics.rows import EpisodeRows, EpisodeWindow, Kind, Sink, Value, fitness
from laser_rl.metrics.standing import Exploit
from laser_rl.training.budget import Budget
from laser_rl.training.build import Member, another, derive, fresh_state, slots_of
from laser_rl.training.evaluate import MemberResult, Trained, Unfinished, evaluate, trained_of
from laser_rl.training.files import EVALUATION_DUE
from laser_rl.training.pbt import Standing
from laser_rl.training.stop import FINISHED, Stop, no_exit
from laser_rl.types import Episode

log = logging.getLogger("laser_rl.training")
Pause = Callable[[], contextlib.AbstractContextManager[None]]  # the other threads of a member wait within it


@dataclass(frozen=True)
class Progress:
    """What a callback sees at every row of metrics: `kind` is "train" or "evaluation", `values` are its numbers by name."""

    step: int
    update: int
    kind: str
    values: dict[str, float]
    member: int | None = None
    """The agent's number in a sweep."""
    training: "MemberTraining | None" = field(default=None, repr=False, compare=False)

    @property
    def agent(self) -> Trained:
        """The agent as it is now; `progress.agent.save(path)` writes a file for `LASER.load`."""
        training = self._training()
        return trained_of(training.member, training.steps)

    def evaluate(self, episodes: int | None = None) -> None:
        """Ask for an evaluation before the next step; its row comes to all callbacks. None: `run.evaluate_episodes`."""
        self._training().asked_episodes = episodes or self._training().member.config.run.evaluate_episodes

    def told(self, callbacks: "Sequence[Callback]") -> bool:
        """Call all of them; False if one wants the run to end."""
        return False not in [callback(self) is not False for callback in callbacks]

    def _training(self) -> "MemberTraining":
        if self.training is None:
            raise ConfigError(
                "a callback asked for an agent that learns in another process, expected one of this process; use processes=1 without a "
                "cluster, or run.evaluate_every_steps and run.checkpoint_every_steps with a run directory"
            )
        return self.training


Callback = Callable[[Progress], bool | None]


class MemberTraining:
    """One member on its way; its rows are `numbered` in a sweep. Members share `stop`, where an end is requested, and `budget`."""

    def __init__(
        self,
        member: Member,
        *,
        sinks: Sequence[Sink] = (),
        callbacks: Sequence[Callback] = (),
        numbered: bool = False,
        stop: Stop | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.member, self.stop, self.steps = member, stop or Stop(), 0
        self.budget = Budget(member.config.run.budget_minutes) if budget is None else budget
        self.target = self.horizon = member.config.run.steps
        self.window = EpisodeWindow(member.spec.tasks)
        self._episodes = EpisodeRows()
        self.evaluations: list[tuple[int, EvalResult]] = []
        self.notes: dict[str, int] = {}  # kept with its state: the last copy that was made, an evaluation that is due
        self._evaluation_was_due = False
        self.moved: Callable[[int], None] = lambda steps: None  # hears how many steps are done
        self.extra: dict[str, Callable[[], dict[str, float]]] = {}  # more numbers for every row of metrics
        # Rows by the clock as well, for slow updates. Not where the same seed has to give the same rows.
        self.by_clock = member.config.run.runtime != "serial" or member.learner.device.type == "cuda"
        self.callbacks, self._sinks, self._more_sinks = list(callbacks), list(sinks), list[Sink]()
        self._log_every_steps: int | None = None  # between rows, instead of what the configuration says
        self.asked_episodes: int | None = None  # of an evaluation that a callback has asked for
        self._label: dict[str, Value] = {"member": member.number} if numbered else {}
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._logged_updates, self._logged_steps, self._logged_at = 0, 0, time.monotonic()
        self._next_evaluation = 0
        self._plan_evaluation()

    @property
    def update(self) -> int:
        return self.member.learner.version

    @property
    def progress(self) -> float:
        """Share of the run that is done, by its steps or by its time."""
        time_share = 0.0 if self.budget.minutes is None else self.budget.spent_s / (60 * self.budget.minutes)
        return min(1.0, max(self.steps / self.horizon, time_share))

    @property
    def done(self) -> bool:
        return self.steps >= self.target or self.budget.over

    def extend(
        self,
        steps: int,
        stop: Stop,
        *,
        total: int | None,
        callbacks: Sequence[Callback] = (),
        sinks: Sequence[Sink] = (),
        log_every: int | None = None,
    ) -> None:
        self.target, self.stop, self._logged_at = self.steps + steps, stop, time.monotonic()
        self.horizon = total or self.target
        self.callbacks, self._more_sinks, self._log_every_steps = list(callbacks), list(sinks), log_every

    def begin_at(self, steps: int) -> None:
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
        if self.budget.tick():  # actor and learner see it at their next look; the run is then finished, not interrupted
            self.stop.request(FINISHED)

    def _ended(self, episode: Episode) -> None:
        spec = self.member.spec
        task = spec.task_of(episode.slot)
        self.window.add(episode.raw_return, task)
        values = {"return": episode.raw_return, "length": episode.length, "slot": episode.slot}
        row = self._episodes.add({**values, "task": spec.tasks[task]} if spec.tasks else values, self.window.episodes)
        if row is not None:
            self._write("episode", row)

    def learned(self) -> None:
        self._tick()
        run = self.member.config.run
        enough = run.runtime == "serial" and self.update - self._logged_updates >= run.log_every_updates
        if self._log_every_steps is not None:
            if self.steps - self._logged_steps >= self._log_every_steps:
                self._report()
        elif enough or (self.by_clock and time.monotonic() - self._logged_at >= run.log_every_s):
            self._report()

    def report(self) -> None:
        """The last rows: of episodes that wait for others to share a row with, and of the updates since the last one."""
        with self._lock:
            for row in self._episodes.rest():
                self._write("episode", row)
        self._report()
        if self.asked_episodes is not None:  # by that last row
            self.evaluate()

    def _report(self) -> None:
        if self.update == self._logged_updates:
            return
        now, member = time.monotonic(), self.member
        seconds = max(now - self._logged_at, 1e-9)
        updates_per_second = (self.update - self._logged_updates) / seconds
        # Members side by side share one set of environments, and have some of its slots each.
        survived = member.actor.environments.counters(np.flatnonzero(member.actor.member == member.number))
        loss, replay, replayed = member.config.loss, member.replay, dict[str, float]()
        if replay is not None:
            fill = replay.steps / member.config.replay.capacity_steps
            replayed = {"replay_fill": fill, "replay_steps": replay.steps, "replay_bytes": replay.nbytes}
        values = {
            **self.window.numbers(),
            **member.learner.report(),
            **replayed,
            "learning_rate": member.learner.learning_rate(self.progress),
            "entropy_cost": member.learner.loss.entropy_cost,
            "online_unrolls": member.mixer.counts.online,
            "replayed_unrolls": member.mixer.counts.replayed,
            "steps_per_second": (self.steps - self._logged_steps) / seconds,
            "updates_per_second": updates_per_second,
            "learned_steps_per_second": updates_per_second * loss.batch_unrolls * loss.unroll_steps,
            "memory_bytes": memory_bytes(),
            **{f"environment_{name}": count for name, count in survived.items()},
        }
        if self.budget.left_s is not None:
            values["budget_left_seconds"] = self.budget.left_s
        for more in self.extra.values():
            values |= more()
        self._logged_updates, self._logged_steps, self._logged_at = self.update, self.steps, now
        # A mean over nothing is not a number, such as the acceptance of a batch without replay.
        self._announce("train", {name: value for name, value in values.items() if not math.isnan(value)})

    def between(self, paused: Pause = contextlib.nullcontext) -> None:
        """Evaluate, if due; with the actor paused where evaluation plays in the environment that it steps."""
        self.check()
        self._tick()
        planned = 0 < self._next_evaluation <= self.steps
        if not planned and self.asked_episodes is None:
            return
        self._plan_evaluation()
        with contextlib.nullcontext() if slots_of(another(self.member.source)) is None else paused():
            if self.evaluate() is None and planned:
                self._next_evaluation = self.steps  # again, as soon as the run goes on

    def evaluate(self) -> EvalResult | None:
        """Play with the current parameters; the seed depends on nothing but run and step. None if a stop is requested meanwhile."""
        run = self.member.config.run
        episodes, self.asked_episodes = self.asked_episodes or run.evaluate_episodes, None
        try:
            result = evaluate(
                trained_of(self.member, self.steps),
                episodes=episodes,
                deterministic=run.evaluate_deterministic,
                seed=derive(run.seed, f"evaluation/{self.steps}"),
                goes_on=lambda: not self.stop.urgent,
            )
        except Unfinished:
            return None
        self.evaluations.append((self.steps, result))
        low, high = result.score_ci95
        values = {
            "mean": result.score, "iqm": result.iqm, "ci95_low": low, "ci95_high": high, "episodes": result.episodes
        }  # fmt: skip
        self._announce("evaluation", {**values, **(result.task_scores.numbers() if result.tasks else {})})
        return result

    def failed(self, error: BaseException) -> None:
        """Another thread met this; the learner's thread raises it."""
        self._error = error
        self.stop.request(f"error: {error}")

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def standing(self) -> Standing:
        score, learner = fitness(self.window.numbers()), self.member.learner
        if learner.recovery.counts.failing or not learner.flat.value.isfinite().all():
            score = math.nan  # its returns were good, but there is nothing left to copy
        return Standing(self.member.number, self.steps, self.window.episodes, score)

    def result(self, settings: dict[str, Any]) -> MemberResult:
        learner = self.member.learner
        config = self.member.config.model_copy(update={"loss": learner.loss, "optimiser": learner.rates})
        return MemberResult(
            **{**vars(trained_of(self.member, self.steps)), "config": config}, number=self.member.number,
            settings=settings, updates=self.update, return_mean=self.window.numbers().get("return_mean"),
            evaluation=self.evaluations[-1][1] if self.evaluations else None
        )  # fmt: skip

    def has_applied(self, exploit: Exploit) -> bool:
        return exploit.number <= self.notes.get("applied", -1)

    def become(self, exploit: Exploit, tensors: Mapping[str, Any]) -> None:
        """Go on with the donor's parameters, or where a trial begins without a donor with new ones; without both as before."""
        if exploit.trial is not None and exploit.donor == exploit.member:
            tensors = fresh_state(self.member, f"trial/{exploit.trial}")
        if exploit.trial is not None or exploit.donor != exploit.member:
            self.member.learner.adopt(tensors)
            self.window.forget()
        self.member.learner.tune(exploit.after)
        self.notes["applied"] = exploit.number
        self.announce("exploit", exploit.row())

    def state_dict(self) -> dict[str, Any]:
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
        row: dict[str, Value] = {"event": event, **(values or {})}
        if event == "resumed" and self._evaluation_was_due:  # its row may be there, and is going to be written again
            row["evaluated"] = self.evaluations[-1][0] if self.evaluations else -1
        with self._lock:
            self._write("event", row)

    def _plan_evaluation(self) -> None:
        every = self.member.config.run.evaluate_every_steps
        self._next_evaluation = (self.steps // every + 1) * every if every else 0

    def _announce(self, kind: Kind, values: dict[str, float]) -> None:
        with self._lock:
            self._write(kind, values)
        number = self.member.number if self._label else None
        if not Progress(self.steps, self.update, kind, values, number, self).told(self.callbacks):
            self.stop.request("a callback")

    def _write(self, kind: Kind, values: Mapping[str, Value]) -> None:
        for sink in (*self._sinks, *self._more_sinks):
            sink.write(kind, self.steps, self.update, {**self._label, **values})


def evaluate_last(trainings: Sequence[MemberTraining], stop: Stop, save: Callable[[], object]) -> None:
    """Save before: an evaluation that fails, or is killed, must not cost a run that is done."""
    due = [one for one in trainings if not one.evaluations or one.evaluations[-1][0] < one.steps]
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
            log.error(  # noqa: TRY400 - the caller shows it
                "all steps are done; only the last evaluation is missing, which fails: see below. "
                "What was learned is kept if there is a run directory, and 'laser resume' then tries the evaluation again"
            )
            raise
        if result is not None:
            del training.notes[EVALUATION_DUE]


@contextlib.contextmanager
def steps_told(trainings: Sequence[MemberTraining]) -> Iterator[None]:
    """The error of an environment that ends the run says how many steps are missing."""
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
