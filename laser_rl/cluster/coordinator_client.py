"""A learner's line to the desk of its run: news go there and replies come back in a thread of their own, whatever the learner does."""

import threading
import time
from collections.abc import Mapping
from typing import Any

from laser_rl.cluster.actors import RayAnswer
from laser_rl.cluster.channels import CALL_S, GONE
from laser_rl.cluster.client import AnswerLost, ShardLost, awaited
from laser_rl.cluster.run_coordinator import MetricsRow, News, Reply
from laser_rl.metrics.rows import Kind, Value
from laser_rl.training.stall import join
from laser_rl.training.stop import Stop

BEAT_S = 0.25  # between two calls
HURRY_S = 0.05  # at least, where the member moves fast, or waits for others
CALLS_PER_S = 1000  # of all members together, so that one desk is enough


class CoordinatorClient:
    """A `Sink` for the member's rows, and what else its learner says and hears. Any thread may use it.

    Args:
        ledger: desk of the run.
        member: number in the sweep.
        life: of this learner.
        stop: hears the run's reason to stop.
        members: of the sweep.
        steps: of the member, to begin with.
        often: steps of the member after which others should hear of it.
    """

    def __init__(
        self, ledger: Any, member: int, life: int, stop: Stop, members: int, steps: int, often: int = 1
    ) -> None:
        self._ledger, self._member, self._life, self._stop = ledger, member, life, stop
        self._every_s, self._least_s = (max(least, members / CALLS_PER_S) for least in (BEAT_S, HURRY_S))
        self._often, self._said_steps = often, steps
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._lines: list[MetricsRow] = []
        self._state: bytes | None = None
        self._steps, self._number, self._closing = steps, 0, False
        self.gone = False  # whether the desk does not answer any more
        self.slowest = 0  # of all members, as last heard
        self.order: Mapping[str, Any] | None = None  # the newest
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    def write(self, kind: Kind, step: int, update: int, values: Mapping[str, Value]) -> None:
        """A row."""
        with self._lock:
            self._lines.append(MetricsRow(kind, step, update, dict(values)))

    def flush(self) -> None:
        """Nothing is kept back longer than a beat."""

    def move(self, steps: int) -> None:
        """The member has got so far."""
        self._steps = steps
        if steps - self._said_steps >= self._often:
            self.hurry()

    def hurry(self) -> None:
        """Somebody waits for news, of this member or of others."""
        self._wake.set()

    def publish(self, state: bytes) -> None:
        """Its state, see `board.published`; the newest counts."""
        with self._lock:
            self._state = state

    def close(self) -> None:
        """Say what there is to say, and end."""
        self._closing = True
        self._wake.set()
        join(self._thread, f"the learner of member {self._member}", "the desk of the run to hear its last rows")

    def _run(self) -> None:
        over, last = False, time.monotonic()
        while not over:
            self._wake.wait(self._every_s)
            if not self._closing:
                time.sleep(max(0.0, last + self._least_s - time.monotonic()))
            self._wake.clear()
            over, last = self._closing, time.monotonic()
            with self._lock:
                news = News(self._number, self._steps, self._lines, self._state)
                self._lines, self._state = [], None
            self._said_steps = news.steps
            self._number += 1
            if not self._said(news):
                self.gone = True
                self._stop.interrupt(GONE)
                return

    def _said(self, news: News) -> bool:
        """Whether it has been heard; an answer that is lost is asked for again, and the desk knows the number."""
        while True:
            answer: RayAnswer[Reply] = RayAnswer(self._ledger.enter.remote(self._member, self._life, news))
            try:
                reply = awaited(answer, f"the learner of member {self._member}", "the desk of the run", CALL_S)
            except (ShardLost, TimeoutError):
                return False
            except AnswerLost:
                continue
            self.slowest, self.order = reply.slowest, reply.order
            if reply.reason is not None:
                self._stop.interrupt(reply.reason)
            return True
