"""Which shards there are and what each holds, as far as a learner knows, and uniform draws over the union of them.

A draw is one uniform integer over all unrolls that the shards have reported, counted through: each unroll is as likely as any other,
and a shard is drawn from in proportion to its fill, without drawing a shard first.

Between report and gather unrolls leave. What has left is drawn again **among what was reported and is still there** (`Spans.left`), not
among what is there now. That is rejection sampling: a draw that is kept has the law of a uniform draw given that it is kept, so all
unrolls reported and still held are equally likely. Were the second draw made over the newest report, unrolls that came meanwhile would
get a chance from second draws only, and everything in a shard that evicts would make room for them: unequal. So what is new waits for
the next report, as it would had it come a moment later; nothing is ever excluded for longer than one draw.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laser_rl.cluster.calls import ActorGone, Answer, AnswerLost, awaited
from laser_rl.cluster.shard import ShardClient, ShardReport, Span
from laser_rl.replay.records import Ids

log = logging.getLogger("laser_rl.training")
ANSWER_S = 60.0  # a shard that has not answered in this time is left out until it does
REFRESH_S = 0.2  # a draw sees what is at most this old, or as new as the last answer of any kind
REPORT_S = 1.0  # between two reports of a shard that answers gathers: for metrics
SHARD_BITS = 40  # a global id: the number of the shard above, the id in that shard below


def global_ids(shard: int, ids: Ids) -> Ids:
    """Ids of a shard's unrolls among those of all shards; those of shard 0 are its own.

    >>> global_ids(0, np.array([5])), global_ids(1, np.array([5]))
    (array([5]), array([1099511627781]))
    """
    return (shard << SHARD_BITS) + ids


@dataclass(frozen=True)
class Spans:
    """The ids that shards hold, from the first to before the end; in the order of the shards' numbers.

    >>> spans = Spans.of({4: (10, 13), 7: (0, 1)})
    >>> len(spans), spans.draw(6, np.random.default_rng(1))
    (4, [(4, array([11, 12, 10, 10])), (7, array([0, 0]))])
    """

    shards: tuple[int, ...]
    first: Ids
    end: Ids

    @classmethod
    def of(cls, held: Mapping[int, Span]) -> "Spans":
        """From the span of each shard; those that hold nothing are left out."""
        shards = tuple(sorted(shard for shard, (first, end) in held.items() if end > first))
        both = np.array([held[shard] for shard in shards], np.int64).reshape(-1, 2)
        return cls(shards, both[:, 0], both[:, 1])

    def __len__(self) -> int:
        return int((self.end - self.first).sum())

    def draw(self, count: int, random: np.random.Generator) -> list[tuple[int, Ids]]:
        """Uniform draws with replacement: the ids drawn of each shard, in the order drawn.

        Over one shard the generator is used just as `Replay.sample_into` uses it.
        """
        if not len(self):
            raise ValueError(f"asked for {count} unrolls of shards that hold none; wait for unrolls first")
        # Counted from the first id of the first shard, and not from 0: over one shard these *are* the ids.
        begin = int(self.first[0])
        place = random.integers(begin, begin + len(self), count)
        before = begin + np.concatenate([[0], (self.end - self.first).cumsum()])
        which = np.searchsorted(before, place, side="right") - 1
        ids = place - before[which] + self.first[which]
        return [(shard, ids[which == at]) for at, shard in enumerate(self.shards) if (which == at).any()]

    def left(self, now: Mapping[int, Span]) -> "Spans":
        """Of what was reported, what is still there by newer reports; a shard that is not in them is gone.

        >>> Spans.of({4: (10, 13), 7: (0, 1)}).left({4: (12, 15)})
        Spans(shards=(4,), first=array([12]), end=array([13]))
        """
        both = zip(self.shards, self.first.tolist(), self.end.tolist(), strict=True)
        return Spans.of({shard: (max(first, now[shard][0]), end) for shard, first, end in both if shard in now})


@dataclass
class _Known:
    """A shard as a learner knows it."""

    shard: ShardClient
    span: Span | None = None  # None: not heard of yet, or it does not answer
    report: ShardReport | None = None
    asked: Answer[ShardReport] | None = None
    asked_at: float = -REPORT_S
    heard_at: float = -REPORT_S

    def is_due(self, now: float) -> bool:
        """True if nothing has come from the shard for some time, or no report."""
        asked = now - self.asked_at
        return asked >= REPORT_S or min(now - self.heard_at, asked) >= REFRESH_S


class ShardDirectory:
    """What each shard holds: from every answer, and from reports asked for now and then. Thread safe.

    The first look waits for all shards: draws from some of them would not be uniform. Later ones wait only if `exact`.

    Args:
        shards: returns the shards that there are now, without waiting.
        exact: every look asks all shards, and waits for them.
    """

    def __init__(self, shards: Callable[[], Sequence[ShardClient]], *, exact: bool) -> None:
        self._present, self._exact = shards, exact
        self._lock = threading.RLock()
        self._known: dict[int, _Known] = {}
        self._gone: set[int] = set()
        self._begun = False  # all shards that were there at first have been heard
        self.lost_shards = self.lost_unrolls = 0

    def __str__(self) -> str:
        return f"{len(self._known)} shards, {sum(end - first for first, end in self.held().values()):,} unrolls"

    def shards(self) -> dict[int, ShardClient]:
        """Those that are not known to be lost, by number."""
        with self._lock:
            self._update()
            return {number: known.shard for number, known in sorted(self._known.items())}

    def spans(self) -> Spans:
        """What can be drawn from; asks the shards for reports that are due."""
        with self._lock:
            self._update()
            now = time.monotonic()
            for known in self._known.values():
                if known.asked is None and (self._exact or known.is_due(now)):
                    known.asked, known.asked_at = known.shard.report(), now
            for known in list(self._known.values()):
                self._listen(known)
            self._begun = self._begun or bool(self._known)
        return Spans.of(self.held())

    def held(self) -> dict[int, Span]:
        """The span of each shard, as last heard."""
        with self._lock:
            return {number: known.span for number, known in self._known.items() if known.span is not None}

    def reports(self) -> list[ShardReport]:
        """The newest of each shard, not older than a second or so."""
        self.spans()
        with self._lock:
            return [known.report for _, known in sorted(self._known.items()) if known.report is not None]

    def heard(self, number: int, span: Span) -> None:
        """A shard has said what it holds. Answers may come in any order: ids only grow."""
        with self._lock:
            known = self._known.get(number)
            if known is not None:
                first, end = known.span or span
                known.span, known.heard_at = (max(first, span[0]), max(end, span[1])), time.monotonic()

    def failed(self, number: int, error: Exception) -> None:
        """A call to a shard was not answered: the shard is lost, or nothing is drawn from it until it answers again."""
        with self._lock:
            known = self._known.get(number)
            if isinstance(error, ActorGone):
                self._lose(number)
            elif known is not None and known.span is not None:
                known.span = None
                log.warning("%s does not answer; learning goes on without it", known.shard)

    def _lose(self, number: int) -> None:
        self._gone.add(number)
        known = self._known.pop(number, None)
        if known is not None:
            first, end = known.span or (0, 0)
            self.lost_shards, self.lost_unrolls = self.lost_shards + 1, self.lost_unrolls + end - first
            log.warning(
                "%s is lost with about %s unrolls; learning goes on with the others", known.shard, f"{end - first:,}"
            )

    def _update(self) -> None:
        """Take up which shards have come and gone."""
        present = {shard.number: shard for shard in self._present() if shard.number not in self._gone}
        for number in self._known.keys() - present.keys():
            self._lose(number)
        for number, shard in present.items():
            self._known.setdefault(number, _Known(shard))

    def _listen(self, known: _Known) -> None:
        """Take up a report that has come; wait for it, if this has to be exact."""
        if known.asked is None:
            return
        number, wait = known.shard.number, self._exact or not self._begun
        if not wait and not known.asked.done():
            if time.monotonic() - known.asked_at > ANSWER_S:
                self.failed(number, TimeoutError())
            return
        asked, known.asked = known.asked, None
        try:
            report = awaited(asked, "the learner", f"{known.shard} to say what it holds", ANSWER_S)
        except (AnswerLost, TimeoutError) as error:
            self.failed(number, error)
        else:
            known.report = report
            self.heard(number, report.span)
