"""What a pool knows of one worker over all the processes that ever were it, and how often it may fail before the pool gives up."""

import time
from dataclasses import dataclass, field

from laser_rl.envs.process import LONGEST_PAUSE_S, WorkerProcess
from laser_rl.envs.slot import FIRST_PAUSE_S, MOST_FAILURES
from laser_rl.errors import EnvironmentFailed

MOST_KILLS = 50  # in a row, without one good step in between
LONGEST_PAUSE_AFTER_KILL_S = 0.5


@dataclass
class Supervised:
    """One worker. It is started again at once after its first failure, then after longer and longer pauses.

    A process that was killed from outside says nothing against its environment, so it may happen more often than failures of its own.

    >>> worker = Supervised(0, range(2))
    >>> worker.failed("worker 0 ended", name="Maze", killed=False)
    >>> worker.failures, worker.may_start()
    (1, True)
    >>> worker.failed("worker 0 ended", name="Maze", killed=False)
    >>> worker.failures, worker.may_start()
    (2, False)
    """

    index: int
    slots: range
    process: WorkerProcess | None = None
    ready: bool = False  # its environments are built
    command: bytes | None = None  # what it is doing, to be repeated by its successor
    owed: list[int] = field(default_factory=list)  # slots of that command
    queued: list[int] = field(default_factory=list)  # slots of the next one
    sent_at: float = 0.0
    failures: int = 0  # in a row, like kills
    kills: int = 0
    restart_at: float = 0.0
    last_error: str = ""

    def stepped(self) -> None:
        """A good step: what went wrong before is forgiven."""
        self.failures = self.kills = 0

    def failed(self, what: str, *, name: str, killed: bool) -> None:
        """Plan the next start; EnvironmentFailed if it was one failure too many."""
        self.failures, self.kills = self.failures + (not killed), self.kills + killed
        if self.failures >= MOST_FAILURES:
            raise EnvironmentFailed(
                f"{name}: {what}, the {self.failures}th failure in a row; "
                f"correct the environment, or raise its time limits\n\n{self.last_error}"
            )
        if self.kills >= MOST_KILLS:
            raise EnvironmentFailed(
                f"{name}: {what}, killed from outside {self.kills} times in a row without a step in between; "
                "find out who kills it: if the machine is out of memory, use fewer slots or workers"
            )
        count, longest_s = (self.kills, LONGEST_PAUSE_AFTER_KILL_S) if killed else (self.failures, LONGEST_PAUSE_S)
        self.restart_at = time.monotonic() + min(FIRST_PAUSE_S * (2 ** (count - 1) - 1), longest_s)

    def may_start(self) -> bool:
        """Whether the pause after a failure is over."""
        return time.monotonic() >= self.restart_at
