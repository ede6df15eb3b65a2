"""A sweep on a cluster: which actors exist, where, and what happens when one is lost; and the same in lock-step."""

import logging
import time
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from laser_rl.cluster.calls import Answer, AnswerLost, awaited, ray
from laser_rl.cluster.channels import LearnerLinks
from laser_rl.cluster.placement import HeadLost, MemberPlacement, NodeWatch, Shares, shares_of
from laser_rl.cluster.replays import Replays
from laser_rl.cluster.runner import AT_ONCE, ActorStart
from laser_rl.metrics.rows import Value
from laser_rl.metrics.standing import Exploit
from laser_rl.replay.mixer import Counts
from laser_rl.training.build_group import build_members, one_layout
from laser_rl.training.directory import RunDirectory
from laser_rl.training.files import command_for
from laser_rl.training.launch import Around
from laser_rl.training.member_process import States
from laser_rl.training.pbt import Standing
from laser_rl.training.process_handle import ProcessDied
from laser_rl.training.settings import ClusterSettings, SweepConfig
from laser_rl.training.stall import StepBarrier
from laser_rl.training.supervisor import STOP_S, SweepSupervisor
from laser_rl.training.trainer import TURNS_AHEAD

log = logging.getLogger("laser_rl.training")
LOOK_S, STEP_S = 0.2, 600.0


class ClusterSupervisor(SweepSupervisor):
    """The supervisor's view of a sweep on a cluster that has been joined; see `SweepSupervisor` for the arguments."""

    _look_s = LOOK_S

    def __init__(
        self, sweep: SweepConfig, directory: RunDirectory, cluster: ClusterSettings, **around: Unpack[Around]
    ) -> None:
        self.watch, members, base = NodeWatch(), len(sweep.settings), sweep.base
        self.in_step, self._shared = base.run.runtime == "serial", sweep.share == "shared"
        _, layout = one_layout(dict(enumerate(sweep.configs)), base.environment.id)
        slack = _slack(sweep, cluster.runners)
        # An actor sees the card that it has reserved as its only one, whatever its number is.
        there = sweep.with_base({"run.device": "cuda"}) if base.run.device.startswith("cuda") else sweep
        self._run = ActorStart(there, layout, cluster.runners, slack, self.in_step)
        self.known = States(members)
        self.placements: list[MemberPlacement] = []
        self.replays: Replays | None = None
        self.links = LearnerLinks(self.known.steps.tolist())
        try:
            self._shares = self._fitting()
            for number in range(members):
                place = MemberPlacement(self._run, number, self._shares, self._start, self.links.connect)
                self.placements.append(place)
            if any(Counts.of(c.loss.batch_unrolls, c.replay.fraction).replayed for c in sweep.configs):
                count = 1 if self._shared else members
                self.replays = Replays(sweep, layout, self.watch, count, directory, in_step=self.in_step)
            views = None if self.replays is None else self.replays.views(members)
            parts = build_members(sweep.with_base({"run.device": "cpu"}), stores=views)
            super().__init__(sweep, directory, parts, self.known, **around)
            self.stores = [] if self.replays is None else self.replays.stores
            self._begin()
            self.links.steps = self.known.steps.tolist()
            self._look_at_shards()
            for place in self.placements:
                place.begin()
        except BaseException:
            self._kill_all()
            raise

    def _fitting(self) -> Shares:
        cpus, gpus, run = self.watch.resource("CPU"), self.watch.resource("GPU"), self._run
        device = run.sweep.base.run.device
        return shares_of(cpus, gpus, members=self.known.members, runners=run.runners, device=device)

    def _start(self, member: int) -> ActorStart:
        return replace(
            self._run,
            member=member,
            steps=int(self.known.steps[member]),
            state=self.known.get(member),
            spent_s=self.budget.spent_s,
            shards=None if self.replays is None else self.links.shards[member],
        )

    def _watch(self) -> bool:
        self._require_head()
        self.budget.tick()
        for place in self.placements:
            for what in place.look(int(self.known.steps[place.member])):
                self._report_lost(what)
        self._look_at_shards()
        self._make_room()
        self._collect()
        return all(place.over for place in self.placements)

    def _look_at_shards(self) -> None:
        if self.replays is None:
            return
        lost = self.replays.look()
        for member in range(self.known.members):
            supervisor = self.replays.supervisors[0 if self._shared else member]
            self.links.shards[member] = supervisor.lists, supervisor.shards
        for one in lost:
            why = one.reports.gone or "its node is gone"
            self._report_lost(f"{one.unrolls:,} unrolls of {one.shard}: {why}", unrolls=one.unrolls)

    def _require_head(self) -> None:
        if self.watch.head_is_lost:
            raise HeadLost(
                "the head of the Ray cluster does not answer any more, so this run ends; start the cluster again, "
                f"then go on from the last checkpoint with: {command_for('resume', self.directory.path)}"
            )

    def _make_room(self) -> None:
        """With a node less there may be too few cores for what actors have reserved: then all start again with less."""
        if self.in_step or not self.watch.nodes():
            return
        shares = self._fitting()
        if shares.cpus < self._shares.cpus or shares.gpus < self._shares.gpus:
            self._shares = shares
            log.warning("the cluster has fewer cores than before: every member is started again with %s", shares)
            for place in self.placements:
                if not place.over:
                    place.begin_again(shares)

    def _report_lost(self, what: str, **values: Value) -> None:
        log.warning("lost: %s", what)
        self._announce("lost", {"what": what, **values})

    def _collect(self) -> None:
        rows, steps, states = self.links.collect()
        for row in rows:
            self.directory.log.write(*row)
        self.known.steps[:] = np.maximum(self.known.steps, steps)
        for member, state in states.items():
            self.known.put(member, state)

    def _stop_all(self) -> None:
        self.links.reason = self.stop.reason
        deadline = time.monotonic() + STOP_S
        while time.monotonic() < deadline and (late := [place for place in self.placements if not place.ended]):
            time.sleep(LOOK_S)
            self._collect()
        for place in late:
            log.warning("member %d has not ended in %.0f s; it is killed", place.member, STOP_S)
            place.end()
        self._collect()

    def _kill_all(self) -> None:
        self.watch.close()
        self.links.close()
        if self.watch.head_is_lost:
            return  # no actor would hear it
        for place in self.placements:
            place.leave()
        if self.replays is not None:
            self.replays.close()

    def _tell(self, exploit: Exploit) -> None:
        # In a list, so that Ray does not look into it.
        self.links.orders[exploit.member] = exploit, [ray().put(self.known.get(exploit.donor))]


def _slack(sweep: SweepConfig, runners: int) -> int:
    """Steps that a member may be ahead of the slowest: a few deliveries of its runners, so that it does not wait for every call."""
    base = sweep.base
    slots, steps = base.environment.slots, base.loss.unroll_steps
    delivery = min(AT_ONCE, -(-slots // runners)) * steps
    return max(steps, (TURNS_AHEAD + 1) * slots, 2 * runners * delivery)


class LockStep(ClusterSupervisor):
    """A `ClusterSupervisor` in lock-step: members take turns in the order of a sweep in one process, through the same actors and shards.

    So the same seed gives the same parameters as `serial` on one machine, to the last bit: what a cluster changes is where things happen,
    and nothing else. For tests and for doubts; it is slow, and nothing that is lost is replaced.
    """

    _barrier: StepBarrier | None = None  # made when all actors are prepared
    _look_s = 0.0  # there is always something to do

    def _watch(self) -> bool:
        self._require_head()
        if self._barrier is None:
            self._call_all("learner", "prepare")
            self._call_all("runner", "prepare")
            slots, steps = self.sweep.base.environment.slots, self.sweep.base.loss.unroll_steps
            self._barrier = StepBarrier(self.known.steps, range(self.known.members), unroll_steps=steps, slots=slots)
        self.budget.tick()
        if self.budget.over or all(self._done()):
            self._stop_all()
            return True
        self._turn(self._barrier)
        self._copies(self._call_all("learner", "look"))
        self._collect()
        if self._surveys.due() or 0 < self._next_save <= self.steps:  # both go by what is published
            for member, state in enumerate(self._call_all("learner", "publish")):
                self.known.put(member, state)
        return False

    def _turn(self, barrier: StepBarrier) -> None:
        """As `Trainer.turn`: each member that is not ahead acts, then each that is ready learns."""
        for member, may_act in enumerate(barrier.among(self._done())):
            if may_act:
                self._call(member, "runner", "step")
                barrier.move(member, int(self._call(member, "learner", "take")))
        self._call_all("learner", "learn")

    def _done(self) -> list[bool]:
        return [steps >= self.sweep.base.run.steps for steps in self.known.steps.tolist()]

    def _copies(self, looks: list[tuple[Standing, dict[str, float]]]) -> None:
        """As `Trainer.exploit`."""
        standing = [one for one, _ in looks]
        progress = [(one.steps, one.episodes) for one in standing]
        if self.population is None or not self.population.is_due(*zip(*progress, strict=True)):
            return
        exploits = self.population.decide(standing, [tuned for _, tuned in looks])
        donors = {exploit.donor: self._call(exploit.donor, "learner", "publish") for exploit in exploits}
        for exploit in exploits:
            self._call(exploit.member, "learner", "copy", exploit, donors[exploit.donor])

    def _exploit(self) -> None:
        """Decided in each turn, not by the clock."""

    def _stop_all(self) -> None:
        if self._barrier is not None:
            self._call_all("learner", "end")
        self._collect()

    def _call_all(self, who: str, method: str) -> list[Any]:
        return [self._call(member, who, method) for member in range(self.known.members)]

    def _call(self, member: int, who: str, method: str, *arguments: Any) -> Any:
        place = self.placements[member]
        actor = (place.learner if who == "learner" else place.runners[0]).actor
        answer: Answer[Any] = Answer(getattr(actor, method).remote(*arguments))
        try:
            return awaited(answer, "the sweep in lock-step", f"the {who} of member {member} to {method}", STEP_S)
        except AnswerLost as error:
            raise ProcessDied(
                f"the {who} of member {member} is gone ({error}); in lock-step nothing is replaced: go on from the last checkpoint "
                f"with: {command_for('resume', self.directory.path)}"
            ) from None
