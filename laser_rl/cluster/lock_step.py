"""A sweep on a cluster in lock-step: members take turns in the order of a sweep in one process, through the same actors, ports and shards.

So the same seed gives the same parameters as `serial` on one machine, to the last bit: what a cluster changes is where things happen, and
nothing else. For tests and for doubts; it is slow, and nothing that is lost is replaced.
"""

from typing import Any

from laser_rl.cluster.calls import Answer, AnswerLost, awaited
from laser_rl.cluster.supervisor import ClusterSupervisor
from laser_rl.errors import UserError
from laser_rl.training.files import command_for
from laser_rl.training.pbt import Standing, decide
from laser_rl.training.stall import StepBarrier

STEP_S = 600.0


class StepLost(UserError):
    """An actor of a run in lock-step is gone."""

    exit_status = 4


class LockStep(ClusterSupervisor):
    """A `ClusterSupervisor` that says whose turn it is; see there for the arguments."""

    _barrier: StepBarrier | None = None  # made when all actors are prepared
    _over = False  # the learners have ended

    def _pause(self) -> None:
        """There is always something to do."""

    def _watch(self) -> bool:
        self._require_head()
        barrier = self._barrier = self._barrier or self._prepared()
        self.budget.tick()
        if self.budget.over or all(self._done()):
            self._stop_all()
            return True
        self._turn(barrier)
        self._copies(self._call_all("learner", "look"))
        self._collect()
        return False

    def _prepared(self) -> StepBarrier:
        self._call_all("learner", "prepare")
        self._call_all("runner", "prepare")
        slots, steps = self.sweep.base.environment.slots, self.sweep.base.loss.unroll_steps
        return StepBarrier(self.known.steps, range(self.known.members), unroll_steps=steps, slots=slots)

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
        if self.pbt is None or self.sweep.pbt is None:
            return
        standing = [one for one, _ in looks]
        since = [now.episodes - before for now, before in zip(standing, self.pbt.decided_at, strict=True)]
        if max(since) < self.sweep.pbt.every_episodes:
            return
        exploits = decide(standing, [tuned for _, tuned in looks], self.sweep.pbt, self.pbt)
        donors = {exploit.donor: self._call(exploit.donor, "learner", "publish") for exploit in exploits}
        for exploit in exploits:
            self._call(exploit.member, "learner", "copy", exploit, donors[exploit.donor])

    def _exploit(self) -> None:
        """Decided in each turn, not by the clock."""

    def _save_if_due(self) -> None:
        if self._next_save and int(self.known.steps.min()) >= self._next_save:
            self._refresh()
        super()._save_if_due()

    def _survey(self) -> None:
        self._refresh()
        super()._survey()

    def _stop_all(self) -> None:
        if self._barrier is not None:
            self._call_all("learner", "end")
            self._over = True
        self._collect()

    def _refresh(self) -> None:
        """Take up the present state of all members."""
        if self._barrier is not None and not self._over:
            for member, state in enumerate(self._call_all("learner", "publish")):
                self.known.put(member, state)

    def _call_all(self, who: str, method: str) -> list[Any]:
        """Call the learners, or the runners, of all members side by side."""
        answers = [self._asked(member, who, method) for member in range(self.known.members)]
        return [self._awaited(answer, member, who, method) for member, answer in enumerate(answers)]

    def _call(self, member: int, who: str, method: str, *arguments: Any) -> Any:
        return self._awaited(self._asked(member, who, method, *arguments), member, who, method)

    def _asked(self, member: int, who: str, method: str, *arguments: Any) -> Answer[Any]:
        place = self.placements[member]
        actor = (place.learner if who == "learner" else place.runners[0]).actor
        return Answer(getattr(actor, method).remote(*arguments))

    def _awaited(self, answer: Answer[Any], member: int, who: str, method: str) -> Any:
        try:
            return awaited(answer, "the sweep in lock-step", f"the {who} of member {member} to {method}", STEP_S)
        except AnswerLost as error:
            raise StepLost(
                f"the {who} of member {member} is gone ({error}); in lock-step nothing is replaced: go on from the last checkpoint with: "
                f"{command_for('resume', self.directory.path)}"
            ) from None
