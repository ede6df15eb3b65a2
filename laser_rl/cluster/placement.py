"""A member's place in the cluster: its placement group, its desk, its learner and its runners."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from laser_rl.cluster.actors import RayAnswer
from laser_rl.cluster.client import AnswerLost
from laser_rl.cluster.learner_actor import MemberHost, MemberStart
from laser_rl.cluster.member_coordinator import MemberCoordinator
from laser_rl.cluster.ray_import import ray
from laser_rl.cluster.resources import Group, Shares
from laser_rl.cluster.runner import Runner, RunnerStart
from laser_rl.cluster.supervised_actor import SupervisedActor
from laser_rl.training.process_handle import MOST_RESTARTS, ProcessDied
from laser_rl.training.settings import SweepConfig
from laser_rl.types import UnrollLayout

log = logging.getLogger("laser_rl.training")
PLACE_S = 120.0
ALIVE_S = 3600.0  # how long a question stays with a desk whose only answer is its death


@dataclass(frozen=True)
class Common:
    """What all members of a run have in common."""

    sweep: SweepConfig
    layout: UnrollLayout
    runners: int
    slack: int
    in_step: bool


class Begin(NamedTuple):
    """Where a member goes on, asked for whenever something of it is started."""

    state: bytes
    steps: int
    spent_s: float
    ledger: Any
    roster: Any  # a desk; None where nothing is replayed


class LostPart(NamedTuple):
    """Something of a member that is gone, and has been replaced."""

    what: str
    learner: bool  # then updates since it was last published are gone too


class Heartbeat:
    """Whether an actor that nobody waits for lives: a question that it never answers is with it."""

    def __init__(self, desk: Any) -> None:
        self.desk = desk
        self._asked: RayAnswer[Any] = RayAnswer(desk.stopped.remote(ALIVE_S))

    def lives(self) -> bool:
        """Costs no call."""
        if self._asked.done():
            try:
                self._asked.result(0.0)
            except AnswerLost:
                return False
            self._asked = RayAnswer(self.desk.stopped.remote(ALIVE_S))
        return True


class MemberPlacement:
    """See above; nothing is started before `sit`.

    Args:
        member: its number.
        common: of all members.
        shares: what each of its actors reserves.
        begin: where it goes on.
        on_desk: hears of every new desk.
    """

    def __init__(
        self,
        member: int,
        common: Common,
        shares: Shares,
        begin: Callable[[int], Begin],
        on_desk: Callable[[int, Any], None],
    ) -> None:
        self.member, self._common, self._shares = member, common, shares
        self._begin, self._on_desk = begin, on_desk
        self.learner: SupervisedActor | None = None
        self.runners: list[SupervisedActor] = []
        self._lives = 0  # of all that ever sat here, so that no life has an earlier one's name
        self._falls, self._fell_at = 0, -1
        self.over = False
        self.place(shares)

    def place(self, shares: Shares) -> None:
        """A group with a desk in it; before `sit`."""
        self._shares = shares
        self._group = Group(self.member, self._common.runners, shares)
        self._group.wait(PLACE_S)
        self._new_desk()

    def _new_desk(self) -> None:
        sweep, runners = self._common.sweep, self._common.runners
        config = sweep.configs[self.member]
        room = max(2, runners, config.run.queued_updates)
        actor = (
            ray()
            .remote(MemberCoordinator)
            .options(num_cpus=0, max_restarts=0, max_task_retries=0, **self._group.beside(0))
        )
        self.desk = actor.remote(room)
        self._watched = Heartbeat(self.desk)
        self._on_desk(self.member, self.desk)

    def sit(self) -> None:
        """Start learner and runners."""
        runs = not self._common.in_step
        self.learner = SupervisedActor(f"the learner of member {self.member}", self._learner, runs=runs)
        self.runners = [
            SupervisedActor(f"runner {number} of member {self.member}", partial(self._runner, number), runs=runs)
            for number in range(self._common.runners)
        ]

    def _learner(self, life: int) -> Any:
        begin, common = self._begin(self.member), self._common
        start = MemberStart(
            common.sweep, common.layout, self.member, self._lives + life, begin.state, begin.steps, begin.spent_s,
            common.slack, begin.ledger, self.desk, begin.roster, common.in_step, self._shares.threads,
        )  # fmt: skip
        return ray().remote(MemberHost).options(**self._group.options(0)).remote(start)

    def _runner(self, number: int, life: int) -> Any:
        begin, common = self._begin(self.member), self._common
        start = RunnerStart(
            common.sweep, common.layout, self.member, number, common.runners, self._lives + life, begin.steps,
            self.desk, begin.roster, common.in_step, self._shares.threads,
        )  # fmt: skip
        return ray().remote(Runner).options(**self._group.options(1 + number)).remote(start)

    def look(self, steps: int) -> list[LostPart]:
        """Replace what is gone, and say what that was. A desk takes its learner and its runners with it."""
        learner = self.learner
        if self.over or learner is None:
            return []
        if not self._watched.lives():
            self._count_fall(steps)
            self.sit_again()
            return [LostPart(f"the desk of member {self.member}", learner=True)]
        ended = learner.ended()
        if ended is not None and ended.status == 0:
            self.over = True
            self.end()
            return []
        lost = []
        if ended is not None:
            learner.restart(ended, steps)
            lost.append(LostPart(learner.name, learner=True))
        for runner in self.runners:
            gone = runner.ended()
            if gone is not None and gone.status != 0:  # 0: its learner has told it that it may end
                runner.restart(gone, steps)
                lost.append(LostPart(runner.name, learner=False))
        return lost

    def _count_fall(self, steps: int) -> None:
        self._falls = self._falls + 1 if steps == self._fell_at else 1
        self._fell_at = steps
        if self._falls > MOST_RESTARTS:
            raise ProcessDied(
                f"the desk of member {self.member} died {self._falls} times without a step in between; look at the logs of the cluster, "
                "then go on from the last checkpoint with 'laser resume'"
            )

    def sit_again(self, shares: Shares | None = None) -> None:
        """All of it anew, in another group if other shares are given."""
        self._lives += 1 + max(one.life for one in (self.learner, *self.runners) if one is not None)
        self.end()
        with contextlib.suppress(Exception):  # it is gone already
            ray().kill(self.desk, no_restart=True)
        if shares is None:
            self._new_desk()
        else:
            self._group.remove()
            self.place(shares)
        self.sit()

    def end(self) -> None:
        """Learner and runners."""
        for hosted in (self.learner, *self.runners):
            if hosted is not None:
                hosted.kill()

    def leave(self) -> None:
        """Everything."""
        self.end()
        self._group.remove()
