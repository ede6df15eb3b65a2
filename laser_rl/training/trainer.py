"""One run, of one agent or of a sweep: every member at the same speed, one stop, one checkpoint, and rows about all members together."""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from laser_rl.metrics.rows import Kind, Sink, Value, fitness
from laser_rl.replay.store import Replay
from laser_rl.training.budget import Budget
from laser_rl.training.build import derive
from laser_rl.training.disk_space import SaveRetry
from laser_rl.training.duty_cycle import DutyCycle
from laser_rl.training.member_group import MemberGroup, MemberSteps
from laser_rl.training.member_training import Callback, MemberTraining
from laser_rl.training.pbt import Exploit, PbtState, Standing, decide
from laser_rl.training.settings import SweepConfig
from laser_rl.training.step_barrier import StepBarrier, Steps
from laser_rl.training.stop import Stop
from laser_rl.training.sweep_metrics import sweep_metrics

SURVEY_SHARE = 0.01  # of the time, at most, for rows about all members together, where they come by the clock
TURNS_AHEAD = 4  # of members in other processes: one may learn for as long as others act
Locks = Sequence[contextlib.AbstractContextManager[None]]


class MemberSink:
    """Rows of one member on their way to a sink of the whole sweep."""

    def __init__(self, sink: Sink, member: int) -> None:
        self._sink, self._member = sink, member

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """With the member's number."""
        self._sink.write(kind, step, update, {"member": self._member, **values})

    def flush(self) -> None:
        """Passed on."""
        self._sink.flush()

    def close(self) -> None:
        """The trainer's owner closes its sinks."""


class Trainer:
    """The members of a group, and everything beside the ring of acting and learning.

    Args:
        settings: all values, of one agent or of a sweep.
        group: its members' parts.
        sinks: where rows of metrics go.
        callbacks: see `Progress`; one that returns False ends the run.
        save: writes a checkpoint; None if nothing is kept.
        numbers: of the group's members in the sweep; None: all of them.
        steps: of all members of the sweep, where other processes have some of them.
        budget: the time of the run, where other processes count it too; None: one of its own, as configured.
    """

    def __init__(
        self,
        settings: SweepConfig,
        group: MemberGroup,
        *,
        sinks: Sequence[Sink] = (),
        callbacks: Sequence[Callback] = (),
        save: "Callable[[Trainer], Path] | None" = None,
        numbers: Sequence[int] | None = None,
        steps: Steps | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.settings, self.group, self.sinks, self._save = settings, group, list(sinks), save
        base = group.members[0].config
        self.stop = Stop()
        self.budget = Budget(base.run.budget_minutes) if budget is None else budget
        self.saved: Path | None = None
        self._tries = SaveRetry()
        self.numbers = list(range(len(group.members)) if numbers is None else numbers)
        self.trainings = [
            MemberTraining(
                member,
                sinks=sinks_of(settings, sinks, number),
                callbacks=callbacks,
                stop=self.stop,
                budget=self.budget,
            )
            for number, member in zip(self.numbers, group.members, strict=True)
        ]
        self.pace = StepBarrier(
            np.zeros(len(self.numbers), np.int64) if steps is None else steps,
            self.numbers if steps is not None else range(len(self.numbers)),
            unroll_steps=base.loss.unroll_steps,
            slots=base.environment.slots,
            turns=0 if steps is None else TURNS_AHEAD,
        )
        for place, training in enumerate(self.trainings):
            training.moved = functools.partial(self.pace.move, place)
        seed = settings.base.run.seed
        self.pbt = PbtState(len(settings.settings), derive(seed, "pbt")) if settings.pbt is not None else None
        self._surveyed, self._survey_random = 0, np.random.Generator(np.random.PCG64(derive(base.run.seed, "survey")))
        self._survey_sparing = DutyCycle(base.run.log_every_s, share=SURVEY_SHARE, most_s=60.0)
        self._next_save = 0
        self._plan_save()

    @property
    def steps(self) -> int:
        """Of the slowest member here."""
        return min(training.steps for training in self.trainings)

    @property
    def updates(self) -> int:
        """Of all members here together."""
        return sum(training.update for training in self.trainings)

    def stores(self) -> list[Replay]:
        """The replays of these members, each once, in the order of the members."""
        own = (member.store for member in self.group.members)
        return list({id(store): store for store in own if store is not None}.values())

    def extend(self, steps: int, *, total: int | None = None) -> None:
        """Go on for `steps` more, after an end; schedules go by `total`."""
        self.stop = Stop()
        for training in self.trainings:
            training.extend(steps, self.stop, total=total)
        self.budget.pause()

    def begin_at(self, steps: int) -> None:
        """Count on from there: the parameters to begin with have so many steps behind them."""
        for training in self.trainings:
            training.begin_at(steps)
        self._plan_save()

    def goes_on(self) -> bool:
        """Until every member here has done its steps, the time is over or a stop is requested."""
        return self.stop.reason is None and not all(training.done for training in self.trainings)

    def turn(self) -> bool:
        """Each member that is not ahead acts, each that is ready learns; False if all here have to wait for members elsewhere."""
        done = [training.steps >= training.target for training in self.trainings]
        among = self.pace.among(done)
        if not any(among):
            return False
        for moves in self.group.act(among):
            self._acted(moves)
        while places := self.group.ready():
            self.group.learn(places, [self.trainings[place].progress for place in places])
            for place in places:
                self.trainings[place].learned()
            self._survey_if_due()
        return True

    def _acted(self, moves: MemberSteps) -> None:
        training = self.trainings[moves.place]
        training.acted(moves.steps, moves.episodes)
        if moves.unrolls is not None:
            training.member.mixer.offer(moves.unrolls)

    def between(self, locks: Locks = (), settle: Callable[[], None] = lambda: None) -> None:
        """Evaluate, exploit and save, if due; in this order, so that a checkpoint has all rows of its step before it.

        The locks stop the other threads while state is taken, after `settle`.
        """
        for training in self.trainings:
            training.between(locks)
        self.exploit()
        # Not at the very end: `launch` saves there, after the last rows. A checkpoint before them would let a resumed run write them twice.
        if self.goes_on() and self._save_is_due():
            with held(locks):
                settle()
                if self.goes_on():
                    self.save()

    def _save_is_due(self) -> bool:
        due = 0 < self._next_save <= self.steps
        if due:  # planned at once, so that a checkpoint does not ask for itself again
            self._plan_save()
        return self._tries.due() if self._tries.failing else due

    def _plan_save(self) -> None:
        every = self.settings.base.run.checkpoint_every_steps
        self._next_save = (self.steps // every + 1) * every if every else 0

    def exploit(self) -> list[Exploit]:
        """Decide which members copy which; copies are made at once, each whole or not at all."""
        if self.pbt is None or self.settings.pbt is None:
            return []
        config, episodes = self.settings.pbt, [training.window.episodes for training in self.trainings]
        since = [now - before for now, before in zip(episodes, self.pbt.decided_at, strict=True)]
        if max(since) < config.every_episodes:  # asked in every turn, so the usual answer has to be quick
            return []
        exploits = decide(
            self.standing(), [self.tuned(place) for place in range(len(self.trainings))], config, self.pbt
        )
        # What donors are is taken before anything changes.
        donors = {
            exploit.donor: self.trainings[exploit.donor].member.learner.state_dict().tensors for exploit in exploits
        }
        for exploit in exploits:
            become(self.trainings[exploit.member], exploit, donors[exploit.donor])
        return exploits

    def standing(self) -> list[Standing]:
        """Where each member is."""
        return [standing_of(number, training) for number, training in zip(self.numbers, self.trainings, strict=True)]

    def tuned(self, place: int) -> dict[str, float]:
        """Present values of what PBT moves."""
        return tuned_of(self.trainings[place], self.settings)

    def report(self) -> None:
        """The last rows."""
        for training in self.trainings:
            training.report()
        self._survey()

    def _survey_if_due(self) -> None:
        if self.settings.single:
            return
        run = self.settings.base.run
        enough = self.updates - self._surveyed >= run.log_every_updates * len(self.trainings)
        on_gpu = self.group.members[0].learner.device.type == "cuda"  # there no two runs are equal anyway
        if enough or (on_gpu and self._survey_sparing.due()):
            self._survey()

    def _survey(self) -> None:
        """A row about all members together; `update` counts those of all, so it grows with each of them."""
        if self.settings.single or self.updates == self._surveyed:
            return
        self._surveyed = self.updates
        members = self.group.members
        with self._survey_sparing.measured():
            values = sweep_metrics([m.learner for m in members], [m.replay for m in members], self._survey_random)
        self.write("sweep", values)

    def announce(self, event: str) -> None:
        """Tell the sinks, for every member and, in a sweep, for the rows about all of them."""
        for training in self.trainings:
            training.announce(event)
        if not self.settings.single:
            self.write("event", {"event": event})

    def write(self, kind: Kind, values: Mapping[str, Value]) -> None:
        """A row about the whole run."""
        for sink in self.sinks:
            sink.write(kind, self.steps, self.updates, values)

    def save(self) -> None:
        """Write a checkpoint, if anything is kept. If the disk is full it is tried again later; `NoSpace` if the run is at its end."""
        write = self._save
        if write is not None:
            self.saved = self._tries.save(lambda: write(self), last=not self.goes_on()) or self.saved

    def state_dict(self) -> dict[str, Any]:
        """Counters of the run itself."""
        return {
            "surveyed": self._surveyed,
            "survey_random": self._survey_random.bit_generator.state,
            "next_save": self._next_save,
            "pbt": None if self.pbt is None else self.pbt.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting there; the members have been loaded already."""
        self._surveyed, self._next_save = state["surveyed"], state["next_save"]
        self._survey_random.bit_generator.state = state["survey_random"]
        if self.pbt is not None and state["pbt"] is not None:
            self.pbt.load_state_dict(state["pbt"])
        for place, training in enumerate(self.trainings):
            self.pace.move(place, training.steps)


def sinks_of(settings: SweepConfig, sinks: Sequence[Sink], number: int) -> list[Sink]:
    """Where the rows of one member go: in a sweep with its number."""
    return list(sinks) if settings.single else [MemberSink(sink, number) for sink in sinks]


@contextlib.contextmanager
def held(locks: Locks) -> Iterator[None]:
    """All of these locks, in their order."""
    with contextlib.ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        yield


def become(training: MemberTraining, exploit: Exploit, tensors: Mapping[str, Any]) -> None:
    """A member becomes a changed copy of its donor, whose tensors these are."""
    training.member.learner.adopt(tensors)
    training.member.learner.tune(exploit.after)
    training.window.forget()
    values: dict[str, Value] = {"donor": exploit.donor, "score": exploit.score, "donor_score": exploit.donor_score}
    values |= {f"before_{name}": value for name, value in exploit.before.items()}
    values |= {f"after_{name}": value for name, value in exploit.after.items()}
    training.announce("exploit", values)


def standing_of(number: int, training: MemberTraining) -> Standing:
    """Where a member is."""
    score, learner = fitness(training.window.numbers()), training.member.learner
    if learner.recovery.counts.failing or not learner.flat.value.isfinite().all():
        score = math.nan  # its returns were good, but there is nothing left to copy
    return Standing(number, training.steps, training.window.episodes, score)


def tuned_of(training: MemberTraining, sweep: SweepConfig) -> dict[str, float]:
    """A member's present values of what PBT moves."""
    learner, names = training.member.learner, sweep.pbt.tuned if sweep.pbt else ()
    return {name: learner.setting(name) for name in names}


def run_in_turns(trainer: Trainer, wait_s: float = 0.0005) -> None:
    """The specification: act, insert, learn, one after the other, until the steps are done, the time is over or a stop is requested.

    In one process the same seed gives the same bits.
    """
    while trainer.goes_on():
        if not trainer.turn():
            trainer.pace.wait()
            time.sleep(wait_s)
        trainer.between()  # also while waiting: a member that waits must hear that it is to stop
