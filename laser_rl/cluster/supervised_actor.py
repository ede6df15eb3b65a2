"""One actor of a run, seen from its supervisor: started, watched, started again, killed."""

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from laser_rl.cluster.actors import RayAnswer
from laser_rl.cluster.client import AnswerLost
from laser_rl.cluster.ray_import import ray
from laser_rl.cluster.runner import ActorEnded
from laser_rl.errors import ConfigError
from laser_rl.training.process_handle import MOST_RESTARTS, ProcessDied

log = logging.getLogger("laser_rl.training")
KILLED = -9
PAUSE_S = 1.0  # before the second restart in a row twice this, then twice as much each time
SHOWN = 2000  # characters of an error


class SupervisedActor:
    """A learner or a runner.

    Args:
        name: for messages, "runner 1 of member 0".
        launch: makes the actor, given the number of its life.
        runs: whether it works on its own; in lock-step it is called.
    """

    def __init__(self, name: str, launch: Callable[[int], Any], *, runs: bool = True) -> None:
        self.name, self._launch, self._runs = name, launch, runs
        self.life, self.restarts, self._steps = 0, 0, -1
        self._begin()

    def _begin(self) -> None:
        self._due: float | None = None
        self.actor = self._launch(self.life)
        self._pid: RayAnswer[int] = RayAnswer(self.actor.pid.remote())  # answered as soon as it lives
        self._answer: RayAnswer[ActorEnded] | None = RayAnswer(self.actor.run.remote()) if self._runs else None

    @property
    def pid(self) -> int | None:
        """None while it has none yet, or none any more."""
        with contextlib.suppress(AnswerLost):
            return self._pid.result(0.0) if self._due is None and self._pid.done() else None
        return None

    def ended(self) -> ActorEnded | None:
        """How it ended, None while it runs, or will."""
        if self._due is not None:
            if time.monotonic() >= self._due:
                self._begin()
            return None
        if self._answer is None or not self._answer.done():
            return None
        try:
            return self._answer.result(0.0)
        except AnswerLost as error:
            return ActorEnded(KILLED, str(error))

    def restart(self, ended: ActorEnded, steps: int) -> None:
        """Another life; `ProcessDied` if it dies again and again before its member has made a step.

        The first time at once, then later and later: Ray takes half a minute to see that a node is gone, and places actors there till then.
        """
        self.restarts = self.restarts + 1 if steps == self._steps else 1
        self._steps = steps
        if self.restarts > MOST_RESTARTS or ended.status == ConfigError.exit_status:
            raise ProcessDied(
                f"{self.name} ended with status {ended.status}, {self.restarts} times without a step of its member in between: "
                f"{ended.error[-SHOWN:].strip()}; 'laser resume' goes on from the last checkpoint"
            )
        log.warning("%s ended with status %s; it is started again (%s)", self.name, ended.status, _last_line(ended))
        self.kill()
        self.life += 1
        if self.restarts == 1:
            self._begin()
        else:
            self._due = time.monotonic() + PAUSE_S * 2.0 ** (self.restarts - 1)

    def kill(self) -> None:
        """End it and all that it started."""
        with contextlib.suppress(Exception):  # it is gone already
            ray().kill(self.actor, no_restart=True)


def _last_line(ended: ActorEnded) -> str:
    return next(iter(ended.error.strip().splitlines()[-1:]), "no error")
