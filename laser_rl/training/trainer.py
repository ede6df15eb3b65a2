"""One run, of one agent or of a sweep: every member at the same speed, one stop, one checkpoint, and rows about all members together."""

import contextlib
import functools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from laser_rl.agent.learner import Learner
from laser_rl.metrics.rows import Kind, Sink, Value
from laser_rl.metrics.standing import Exploit
from laser_rl.ops import checks
from laser_rl.replay.memory_layout import allocate
from laser_rl.replay.store import Replay
from laser_rl.training.budget import Budget, DutyCycle
from laser_rl.training.build import derive, stores_of
from laser_rl.training.evaluate import Result
from laser_rl.training.member_group import MemberGroup
from laser_rl.training.member_training import Callback, MemberTraining, Pause
from laser_rl.training.pbt import PbtState
from laser_rl.training.saving import NoSpace, Writer
from laser_rl.training.search import SearchState
from laser_rl.training.settings import SweepConfig
from laser_rl.training.stall import StepBarrier, Steps
from laser_rl.training.stop import Stop
from laser_rl.types import Inputs

log = logging.getLogger("laser_rl.training")
FIRST_S, MOST_S = 2.0, 300.0  # between two tries to write a checkpoint; twice as long each time
SURVEY_SHARE = 0.01  # of the time, at most, for rows about all members together, where they come by the clock
SURVEY_UNROLLS, SURVEY_SAMPLE = 16, 256  # on whose states policies are compared, and whose age is looked at
PERCENTILES = (0, 25, 50, 75, 100)
WAIT_S = 0.0005  # between two looks at the steps of members elsewhere
TURNS_AHEAD = 4  # of members in other processes: one may learn for as long as others act


class Run:
    """What is done for all members of a run, wherever they act and learn: decisions, rows about all of them, checkpoints by `save`."""

    def __init__(
        self,
        settings: SweepConfig,
        trainings: Sequence[MemberTraining],
        sinks: Sequence[Sink],
        stop: Stop,
        save: Callable[[], Writer] | None,
    ) -> None:
        self.settings, self.trainings, self.sinks, self.stop = settings, list(trainings), list(sinks), stop
        self.stores = stores_of(training.member for training in self.trainings)
        self.saved: Path | None = None
        self._save, self._next_save = save, 0
        self._writer: Writer | None = None  # of the checkpoint under way
        self._pause_s = self._retry_at = 0.0  # while there is no space for a checkpoint
        seed = settings.base.run.seed
        self.population: PbtState | SearchState | None = None  # decides what members go on with
        if settings.pbt is not None:
            self.population = PbtState(settings.pbt, len(settings.settings), derive(seed, "pbt"))
        elif settings.search is not None:
            first, steps = settings.settings, settings.base.run.steps
            self.population = SearchState(settings.search, settings.random, first, derive(seed, "search"), steps)
        survey_seed = derive(self.trainings[0].member.config.run.seed, "survey")
        self._surveyed, self._survey_random = 0, np.random.Generator(np.random.PCG64(survey_seed))

    @property
    def steps(self) -> int:
        return min(training.steps for training in self.trainings)

    @property
    def updates(self) -> int:
        return sum(training.update for training in self.trainings)

    def _plan_save(self) -> None:
        every = self.settings.base.run.checkpoint_every_steps
        self._next_save = (self.steps // every + 1) * every if every else 0

    def _save_is_due(self) -> bool:
        due = 0 < self._next_save <= self.steps
        if due:  # planned at once, so that a checkpoint does not ask for itself again
            self._plan_save()
        return self._writer is None and time.monotonic() >= self._retry_at if self._pause_s else due

    def save(self, *, last: bool = True) -> None:
        """Begin a checkpoint, after the one before it; wait until it is written at the `last` chance."""
        if self._save is not None:
            self.settle()
            self._writer = self._save()
            self.settle(wait=last, last=last)

    def settle(self, *, wait: bool = True, last: bool = False) -> None:
        """The end of a checkpoint under way. A full disk is said once, then tried more and more seldom; `NoSpace` at the `last` chance."""
        if self._writer is None or (self._writer.is_alive() and not wait):
            return
        writer, self._writer = self._writer, None
        try:
            self.saved = writer.result()
        except NoSpace as error:
            if last:
                raise
            if not self._pause_s:
                again = f"first in {FIRST_S:.0f} s, then every {MOST_S:.0f} s at the latest; free some space"
                log.warning("%s. The run goes on and tries again, %s", error.said, again)
            self._pause_s = min(2 * self._pause_s, MOST_S) or FIRST_S
            self._retry_at = time.monotonic() + self._pause_s
            return
        if self._pause_s:
            log.warning("%s is written: there is space again", self.saved)
            self._pause_s = 0.0

    def _decide(self) -> list[Exploit]:
        if self.population is None:
            return []
        names, learners = self.population.tuned, [one.member.learner for one in self.trainings]
        tuned = [{name: learner.setting(name) for name in names} for learner in learners]
        return self.population.decide([one.standing() for one in self.trainings], tuned)

    def _write_sweep_row(self) -> None:
        """Each member's share of the replay, the age of its data, and the divergence of the policies."""
        members, values = [training.member for training in self.trainings], dict[str, float]()
        learners, store = [member.learner for member in members], members[0].replay
        if store is not None and len(store):
            values = composition([member.replay for member in members])
            values |= ages(learners, store, self._survey_random) | divergence(learners, store, self._survey_random)
        self.write("sweep", values)

    def write(self, kind: Kind, values: Mapping[str, Value]) -> None:
        for sink in self.sinks:
            sink.write(kind, self.steps, self.updates, values)

    def result(self, interrupted: str | None) -> Result:
        settings, made = self.settings.settings, [] if self.population is None else self.population.history
        members = tuple(training.result(settings[training.member.number]) for training in self.trainings)
        return Result(members, tuple(filter(self._applied, made)), interrupted, self.saved)

    def _applied(self, exploit: Exploit) -> bool:
        """Whether the member has made this copy; a supervisor asks the member's own state."""
        return True

    def state_dict(self) -> dict[str, Any]:
        return {
            "surveyed": self._surveyed,
            "survey_random": self._survey_random.bit_generator.state,
            "next_save": self._next_save,
            "pbt": None if self.population is None else self.population.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._surveyed, self._next_save = state["surveyed"], state["next_save"]
        self._survey_random.bit_generator.state = state["survey_random"]
        if self.population is not None and state["pbt"] is not None:
            self.population.load_state_dict(state["pbt"])


def composition(stores: Sequence[Replay | None]) -> dict[str, float]:
    each = list({id(store): store for store in stores if store is not None}.values())
    unrolls = sum(len(store) for store in each)
    shares = defaultdict[str, float](float)
    for store in each:
        for number, share in store.composition().items():
            shares[f"share_of_{number}"] += share * len(store) / unrolls
    capacity = sum(store.capacity for store in each)
    return {**shares, "replay_fill": unrolls / capacity, "replay_bytes": sum(store.nbytes for store in each)}


def ages(learners: Sequence[Learner], store: Replay, random: np.random.Generator) -> dict[str, float]:
    """Percentiles of the age of a sample, in updates of the member that has made most."""
    newest = max(learner.version for learner in learners)
    age = newest - store.sample_versions(SURVEY_SAMPLE, random)
    return {f"age_{q}": float(value) for q, value in zip(PERCENTILES, np.percentile(age, PERCENTILES), strict=True)}


@torch.inference_mode()
def divergence(learners: Sequence[Learner], store: Replay, random: np.random.Generator) -> dict[str, float]:
    """Mean KL(π_i ‖ π_j) over replayed states."""
    batch = allocate(store.layout, SURVEY_UNROLLS)
    store.sample_into(SURVEY_UNROLLS, random, batch, 0)
    policies, family = [], learners[0].family
    with checks.unchecked():
        for learner in learners:
            network, device = learner.network, learner.device
            rows = Inputs(*(part.to(device) for part in batch.inputs))
            # A memory starts from zeros at each unroll: the stored state belongs to the network that acted.
            output, _ = network(rows, network.initial_state(SURVEY_UNROLLS))
            policies.append(output.policy)
        return {
            f"divergence_{i}_{j}": float(family.kl(one, other).clamp(min=0.0).mean())
            for i, one in enumerate(policies)
            for j, other in enumerate(policies)
            if i != j
        }


class Trainer(Run):
    """Members that act and learn in this process, and everything beside that.

    Where other processes have some of the members, they share the `steps` of all of them, and the `budget` of time; a supervisor then
    writes the rows about all members.
    """

    def __init__(
        self,
        settings: SweepConfig,
        group: MemberGroup,
        *,
        sinks: Sequence[Sink] = (),
        callbacks: Sequence[Callback] = (),
        save: "Callable[[Trainer], Writer] | None" = None,
        steps: Steps | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.group, base, stop = group, group.members[0].config, Stop()
        self.budget = Budget(base.run.budget_minutes) if budget is None else budget
        every: dict[str, Any] = {"sinks": sinks, "callbacks": callbacks, "stop": stop, "budget": self.budget}
        trainings = [MemberTraining(member, numbered=not settings.single, **every) for member in group.members]
        super().__init__(settings, trainings, sinks, stop, None if save is None else functools.partial(save, self))
        self._surveys = steps is None and not settings.single
        numbers = [member.number for member in group.members]
        self.pace = StepBarrier(
            np.zeros(len(numbers), np.int64) if steps is None else steps,
            range(len(numbers)) if steps is None else numbers,
            unroll_steps=base.loss.unroll_steps,
            slots=base.environment.slots,
            turns=0 if steps is None else TURNS_AHEAD,
        )
        for place, training in enumerate(self.trainings):
            training.moved = functools.partial(self.pace.move, place)
        self._survey_clock = DutyCycle(base.run.log_every_s, share=SURVEY_SHARE, most_s=60.0)
        self._plan_save()

    def extend(self, steps: int, **call: Any) -> None:
        """Go on for `steps` more, after an end; the rest are arguments of `MemberTraining.extend`."""
        self.stop = Stop()
        for training in self.trainings:
            training.extend(steps, self.stop, **call)
        self.budget.pause()

    def begin_at(self, steps: int) -> None:
        """The parameters to begin with have so many steps behind them."""
        for training in self.trainings:
            training.begin_at(steps)
        self._plan_save()

    def goes_on(self) -> bool:
        return self.stop.reason is None and not all(training.done for training in self.trainings)

    def turn(self) -> bool:
        """Each member that is not ahead acts, each that is ready learns; False if all here have to wait for members elsewhere."""
        among = self.pace.among([training.steps >= training.target for training in self.trainings])
        if not any(among):
            return False
        for place, acted in self.group.act(among):
            training = self.trainings[place]
            training.acted(acted.steps, acted.episodes)
            if acted.unrolls is not None:
                training.member.mixer.offer(acted.unrolls)
        while places := self.group.ready():
            self.group.learn(places, [self.trainings[place].progress for place in places])
            for place in places:
                self.trainings[place].learned()
            self._survey()
        return True

    def between(self, paused: Pause = contextlib.nullcontext) -> None:
        """In this order, so that a checkpoint has all rows of its step before it; other threads are paused while state is taken."""
        for training in self.trainings:
            training.between(paused)
        self.settle(wait=False)
        self.exploit()
        # Not at the very end: `launch` saves there, after the last rows. A checkpoint before them would let a resumed run write them twice.
        if self.goes_on() and self._save_is_due():
            with paused():
                if self.goes_on():
                    self.save(last=False)

    def exploit(self) -> list[Exploit]:
        progress = [(training.steps, training.window.episodes) for training in self.trainings]
        if self.population is None or not self.population.is_due(*zip(*progress, strict=True)):
            return []
        exploits, learners = self._decide(), [training.member.learner for training in self.trainings]
        # Donors' parameters are copied before any member is overwritten.
        donors = {exploit.donor: learners[exploit.donor].state_dict().tensors for exploit in exploits}
        for exploit in exploits:
            self.trainings[exploit.member].become(exploit, donors[exploit.donor])
        return exploits

    def report(self) -> None:
        for training in self.trainings:
            training.report()
        self._survey(last=True)

    def _survey(self, *, last: bool = False) -> None:
        since = self.updates - self._surveyed
        enough = since >= (1 if last else self.settings.base.run.log_every_updates * len(self.trainings))
        on_gpu = self.group.members[0].learner.device.type == "cuda"  # no two runs are equal there: also by the clock
        if self._surveys and (enough or (on_gpu and since and self._survey_clock.due())):
            self._surveyed = self.updates
            with self._survey_clock.measured():
                self._write_sweep_row()

    def announce(self, event: str) -> None:
        for training in self.trainings:
            training.announce(event)
        if self._surveys:
            self.write("event", {"event": event})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for place, training in enumerate(self.trainings):
            self.pace.move(place, training.steps)


def run_in_turns(trainer: Trainer) -> None:
    """The specification: act, insert, learn, one after the other. In one process the same seed gives the same bits."""
    while trainer.goes_on():
        if not trainer.turn():
            trainer.pace.wait()
            time.sleep(WAIT_S)
        trainer.between()  # also while waiting: a member that waits must hear that it is to stop
