"""Which shards there are and what each holds, as far as a learner knows: from every answer, and from reports asked for now and then."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from laser_rl.cluster.client import Answer, AnswerLost, ShardClient, ShardLost, awaited
from laser_rl.cluster.shard import ShardReport
from laser_rl.cluster.spread import Spans, newest

log = logging.getLogger("laser_rl.training")
REFRESH_S = 0.2  # a draw sees what is at most this old, or as new as the last answer of any kind
REPORT_S = 1.0  # between two reports of a shard that is heard of otherwise: for metrics
Span = tuple[int, int]


class ShardDirectory:
    """Thread safe. The first look waits for all shards: draws from some of them would not be uniform. Later ones only if `exact`.

    Args:
        shards: who they are now; must not wait.
        exact: every look asks all shards, and waits for them.
        answer_s: a shard that has not reported in this time is left out until it does.

    >>> from laser_rl.cluster.in_process_shard import NearShard
    >>> from laser_rl.cluster.shard import Shard, ShardPlan
    >>> from laser_rl.types import UnrollLayout
    >>> shards = [NearShard(Shard(ShardPlan(UnrollLayout(2, 0, (4,), "float32", (), "int64", 2), 100, number=3)))]
    >>> census = ShardDirectory(lambda: shards, exact=True)
    >>> len(census.spans()), census.capacity, str(census)
    (0, 50, '1 shards, 0 unrolls')
    """

    def __init__(self, shards: Callable[[], Sequence[ShardClient]], *, exact: bool, answer_s: float = 60.0) -> None:
        self._roster, self._exact, self._answer_s = shards, exact, answer_s
        self._lock = threading.RLock()
        self._shards: dict[int, ShardClient] = {}
        self._held: dict[int, Span] = {}
        self._reports: dict[int, ShardReport] = {}
        self._asked: dict[int, tuple[float, Answer[ShardReport]]] = {}
        self._last_asked: dict[int, float] = {}
        self._last_heard: dict[int, float] = {}
        self._gone: set[int] = set()
        self._begun = False  # everybody who was there at first has been heard
        self.lost_shards = self.lost_unrolls = 0

    def __str__(self) -> str:
        with self._lock:
            return f"{len(self._shards)} shards, {sum(end - first for first, end in self._held.values()):,} unrolls"

    @property
    def capacity(self) -> int:
        """Of all shards, in unrolls."""
        return sum(shard.capacity for shard in self.shards())

    def shards(self) -> list[ShardClient]:
        """Those that are not known to be lost, in the order of their numbers."""
        with self._lock:
            self._muster()
            return [self._shards[number] for number in sorted(self._shards)]

    def spans(self) -> Spans:
        """What can be drawn from."""
        with self._lock:
            self._muster()
            self._ask()
            self._listen()
            self._begun = self._begun or bool(self._shards)
        return Spans.of(self.held())

    def held(self) -> dict[int, Span]:
        """By shard, without asking anybody."""
        with self._lock:
            return dict(self._held)

    def reports(self) -> list[ShardReport]:
        """The newest of each shard, not older than a second or so."""
        self.spans()
        with self._lock:
            return [self._reports[number] for number in sorted(self._reports)]

    def heard(self, number: int, span: Span) -> None:
        """A shard has said what it holds; answers may come in any order."""
        with self._lock:
            if number in self._shards:
                self._held[number] = newest([span, self._held.get(number, span)])
                self._last_heard[number] = time.monotonic()

    def silent(self, number: int) -> None:
        """A shard does not answer: nothing is drawn from it until it does."""
        with self._lock:
            shard = self._shards.get(number)
            if self._held.pop(number, None) is not None and shard is not None:
                log.warning(
                    "shard %d of the replay on %s does not answer; learning goes on without it", number, shard.where
                )

    def lost(self, number: int) -> None:
        """A shard is gone for good."""
        with self._lock:
            shard = self._shards.pop(number, None)
            self._asked.pop(number, None)
            self._gone.add(number)
            if shard is None:
                return
            first, end = self._held.pop(number, (0, 0))
            self._reports.pop(number, None)
            self.lost_shards, self.lost_unrolls = self.lost_shards + 1, self.lost_unrolls + end - first
            log.warning(
                "shard %d of the replay on %s is lost with about %s unrolls; learning goes on with the others",
                number, shard.where, f"{end - first:,}",
            )  # fmt: skip

    def _muster(self) -> None:
        """Take up who has come and gone."""
        roster = {shard.number: shard for shard in self._roster() if shard.number not in self._gone}
        for number in [number for number in self._shards if number not in roster]:
            self.lost(number)
        self._shards = roster

    def _ask(self) -> None:
        now = time.monotonic()
        for number, shard in self._shards.items():
            if number not in self._asked and (self._exact or self._due(number, now)):
                self._asked[number], self._last_asked[number] = (now, shard.report()), now

    def _due(self, number: int, now: float) -> bool:
        """Whether nothing has come from a shard for some time, or no report."""
        heard, asked = (now - at.get(number, -REPORT_S) for at in (self._last_heard, self._last_asked))
        return asked >= REPORT_S or min(heard, asked) >= REFRESH_S

    def _listen(self) -> None:
        """Take up the reports that have come; all that were asked for, if it is to be exact."""
        for number, (asked, answer) in list(self._asked.items()):
            wait = self._exact or not self._begun
            if not wait and not answer.done():
                if time.monotonic() - asked > self._answer_s:
                    self.silent(number)
                continue
            self._asked.pop(number, None)
            try:
                whom = f"shard {number} of the replay on {self._shards[number].where} to say what it holds"
                report = awaited(answer, "the learner", whom, self._answer_s)
            except ShardLost:
                self.lost(number)
            except (AnswerLost, TimeoutError):
                self.silent(number)
            else:
                self._reports[number] = report
                self.heard(number, report.span)
