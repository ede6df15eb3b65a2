"""A sweep on a cluster in lock-step: members take turns in the order of a sweep in one process, through the same actors, ports and shards.

So the same seed gives the same parameters as `serial` on one machine, to the last bit: what a cluster changes is where things happen, and
nothing else. For tests and for doubts; it is slow, and nothing that is lost is replaced.
"""

from typing import Any

from laser_rl.cluster.actors import RayAnswer
from laser_rl.cluster.client import AnswerLost, awaited
from laser_rl.cluster.supervisor import ClusterSupervisor
from laser_rl.errors import UserError
from laser_rl.training.files import command_for
from laser_rl.training.pbt import Standing, decide
from laser_rl.training.step_barrier import StepBarrier

CALL_S = 600.0


class StepLost(UserError):
    """Something of a run in lock-step is gone."""

    exit_status = 4


class LockStep(ClusterSupervisor):
    """A `ClusterSupervisor` that says whose turn it is; see there for the arguments."""

    _prepared = False

    def _pause(self) -> None:
        """There is always something to do."""

    def _watch(self) -> bool:
        self._require_head()
        base = self.sweep.base
        if not self._prepared:
            self._prepare()
            slots, steps = base.environment.slots, base.loss.unroll_steps
            self._pace = StepBarrier(self.known.steps, range(self.known.members), unroll_steps=steps, slots=slots)
        self.budget.tick()
        if self.budget.over or all(self._done()):
            self._call_all("learner", "end")
            self._refresh(say=False)
            self._collect()
            return True
        self._turn()
        self._copies([self._call(member, "learner", "look") for member in range(self.known.members)])
        self._collect()
        return False

    def _prepare(self) -> None:
        self._call_all("learner", "prepare")
        self._call_all("runner", "prepare")
        self._prepared = True

    def _turn(self) -> None:
        """As `Trainer.turn`: whoever is not ahead acts, whoever is ready learns."""
        for member, may in enumerate(self._pace.among(self._done())):
            if may:
                self._call(member, "runner", "step")
                self._pace.move(member, int(self._call(member, "learner", "take")))
        everybody = range(self.known.members)
        while ready := [member for member in everybody if self._call(member, "learner", "ready")]:
            for member in ready:
                self._call(member, "learner", "learn")

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
        if self._prepared:
            self._call_all("learner", "end")
            self._refresh(say=False)
        self._collect()

    def _refresh(self, *, say: bool = True) -> None:
        """Everybody's state, as it is now."""
        if self._prepared and say and not self._over:
            for member in range(self.known.members):
                self.known.put(member, self._call(member, "learner", "publish"))
        self._over = self._over or not say

    _over = False

    def _call_all(self, who: str, method: str) -> None:
        answers = [(member, self._asked(member, who, method)) for member in range(self.known.members)]
        for member, answer in answers:
            self._awaited(answer, member, who, method)

    def _call(self, member: int, who: str, method: str, *arguments: Any) -> Any:
        return self._awaited(self._asked(member, who, method, *arguments), member, who, method)

    def _asked(self, member: int, who: str, method: str, *arguments: Any) -> RayAnswer[Any]:
        seat = self.seats[member]
        hosted = seat.learner if who == "learner" else seat.runners[0]
        assert hosted is not None  # noqa: S101 - all sit
        return RayAnswer(getattr(hosted.actor, method).remote(*arguments))

    def _awaited(self, answer: RayAnswer[Any], member: int, who: str, method: str) -> Any:
        try:
            return awaited(answer, "the sweep in lock-step", f"the {who} of member {member} to {method}", CALL_S)
        except AnswerLost as error:
            raise StepLost(
                f"the {who} of member {member} is gone ({error}); in lock-step nothing is replaced: go on from the last checkpoint with: "
                f"{command_for('resume', self.directory.path)}"
            ) from None
