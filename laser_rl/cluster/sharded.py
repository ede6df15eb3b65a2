"""The replay of a cluster as a learner sees it: one store, which lies in shards on several nodes.

A draw is one uniform integer over all unrolls that the shards have reported, counted through: each unroll is as likely as any other,
and a shard is drawn from in proportion to its fill, without drawing a shard first.

Between report and gather unrolls leave. What has left is drawn again **among what was reported and is still there** (`Spans.left`), not
among what is there now. That is rejection sampling: a draw that is kept has the law of a uniform draw given that it is kept, so all
unrolls reported and still held are equally likely. Over the newest report, unrolls that came meanwhile would get a chance from second
draws only: unequal. So what is new waits for the next report.

The columns of the next batches are asked for ahead: several gathers are under way at every shard while the learner learns, and each answer
also says what its shard holds now. A shard on the learner's own node is read where it lies, when the batch is filled.
A shard that is lost takes its unrolls with it: draws that it owed are made again from the others, and it is counted.

With `ahead` 0 nothing is asked for before it is needed, and every shard is asked what it holds before each draw: over one shard, in
lock-step, batches are then those of a `Replay`, bit for bit.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from laser_rl.cluster.calls import ActorGone, Answer, AnswerLost, awaited
from laser_rl.cluster.shard import Gathered, ShardClient, ShardReport, Span
from laser_rl.replay.encoded_unrolls import Unpacking
from laser_rl.replay.memory_layout import Ids, allocate, parts_of
from laser_rl.training.stall import PATIENCE_S, StallWarning
from laser_rl.types import Batch, UnrollLayout

log = logging.getLogger("laser_rl.training")
AHEAD = 2  # draws under way beyond the one that is needed now
ANSWER_S = 60.0  # a shard that has not answered in this time is left out until it does
REFRESH_S = 0.2  # between two reports of a shard; its answers to gathers also say what it holds
SHARD_BITS = 40  # a global id: the number of the shard above, the id in that shard below


@dataclass(frozen=True)
class Spans:
    """The ids that shards hold, from the first to before the end; in the order of the shards' numbers."""

    shards: tuple[int, ...]
    first: Ids
    end: Ids

    @classmethod
    def of(cls, held: Mapping[int, Span]) -> "Spans":
        shards = tuple(sorted(shard for shard, (first, end) in held.items() if end > first))
        both = np.array([held[shard] for shard in shards], np.int64).reshape(-1, 2)
        return cls(shards, both[:, 0], both[:, 1])

    def __len__(self) -> int:
        return int((self.end - self.first).sum())

    def draw(self, count: int, random: np.random.Generator) -> list[tuple[int, Ids]]:
        """Uniform draws with replacement: the ids drawn of each shard, in the order drawn."""
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
        """Of what was reported, what is still there by newer reports; a shard that is not in them is gone."""
        both = zip(self.shards, self.first.tolist(), self.end.tolist(), strict=True)
        return Spans.of({shard: (max(first, now[shard][0]), end) for shard, first, end in both if shard in now})


@dataclass
class _Known:
    shard: ShardClient
    span: Span | None = None  # None: not heard of yet, or it does not answer
    report: ShardReport | None = None
    asked: Answer[ShardReport] | None = None
    asked_at: float = -REFRESH_S


class ShardDirectory:
    """What each shard holds: from every answer, and from reports asked for now and then. Thread safe.

    The first look waits for all shards: draws from some of them would not be uniform. Later ones ask and wait every time only if `exact`.
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
        with self._lock:
            self._update()
            return {number: known.shard for number, known in sorted(self._known.items())}

    def spans(self) -> Spans:
        """What can be drawn from; asks the shards for reports that are due."""
        with self._lock:
            self._update()
            now = time.monotonic()
            for known in self._known.values():
                if known.asked is None and (self._exact or now - known.asked_at >= REFRESH_S):
                    known.asked, known.asked_at = known.shard.report(), now
            for known in list(self._known.values()):
                self._listen(known)
            self._begun = self._begun or bool(self._known)
        return Spans.of(self.held())

    def held(self) -> dict[int, Span]:
        with self._lock:
            return {number: known.span for number, known in self._known.items() if known.span is not None}

    def reports(self) -> list[ShardReport]:
        self.spans()
        with self._lock:
            return [known.report for _, known in sorted(self._known.items()) if known.report is not None]

    def heard(self, number: int, span: Span) -> None:
        """A shard has said what it holds. Answers may come in any order: ids only grow."""
        with self._lock:
            known = self._known.get(number)
            if known is not None:
                first, end = known.span or span
                known.span = max(first, span[0]), max(end, span[1])

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
            log.warning("%s is lost with about %d unrolls; learning goes on with the others", known.shard, end - first)

    def _update(self) -> None:
        present = {shard.number: shard for shard in self._present() if shard.number not in self._gone}
        for number in self._known.keys() - present.keys():
            self._lose(number)
        for number, shard in present.items():
            self._known.setdefault(number, _Known(shard))

    def _listen(self, known: _Known) -> None:
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


class _Draw(NamedTuple):
    columns: int
    spans: Spans  # as they were when it was drawn
    pieces: list[tuple[ShardClient, Ids, Answer[Gathered]]]  # what each shard owes


class ShardedReplay:
    """What a `Mixer` and a `UniformSampler` draw from in place of a `Replay`; runners insert, by a `ReplayWriter` each. Thread safe.

    `shards` returns those that there are now, without waiting. A draw raises `Emptied` if none has held anything for `empty_s`.
    """

    def __init__(
        self,
        layout: UnrollLayout,
        shards: Callable[[], Sequence[ShardClient]],
        *,
        ahead: int = AHEAD,
        empty_s: float | None = None,
    ) -> None:
        self.layout = layout
        self.directory = ShardDirectory(shards, exact=ahead == 0)
        self._ahead, self._empty_s = ahead, empty_s
        self._unpacking, self._under_way = Unpacking(layout), deque[_Draw]()  # oldest first
        self._lock = threading.Lock()  # of what is under way
        self.redrawn = 0  # of what was drawn had left its shard meanwhile

    def __len__(self) -> int:
        return len(self.directory.spans())

    @property
    def capacity(self) -> int:
        return sum(shard.capacity for shard in self.directory.shards().values())

    @property
    def steps(self) -> int:
        return len(self) * self.layout.steps

    @property
    def nbytes(self) -> int:
        return sum(report.bytes for report in self.directory.reports())

    def composition(self) -> dict[int, float]:
        members = sum((Counter(report.members) for report in self.directory.reports()), Counter[int]())
        return {member: count / members.total() for member, count in sorted(members.items())}

    def sample_into(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> Ids:
        """Uniform draws over all shards with replacement, into columns of a batch, those of one shard side by side; returns global ids."""
        with self._lock:
            if self._under_way and self._under_way[0].columns != count:
                self._under_way.clear()
            while len(self._under_way) <= self._ahead:
                self._under_way.append(self._draw(self._spans(), count, random))
            draw = self._under_way.popleft()
        return self._fill(draw, random, batch, first_column)

    def sample_versions(self, count: int, random: np.random.Generator) -> Ids:
        batch = allocate(self.layout, count, stacked=False)
        self._fill(self._draw(self._spans(), count, random), random, batch, 0)
        return batch.version.numpy().copy()

    def _spans(self) -> Spans:
        spans, begun = self.directory.spans(), time.monotonic()
        waiting = StallWarning("the learner", f"a shard of the replay that holds unrolls ({self.directory})")
        while not len(spans):
            if self._empty_s is not None and time.monotonic() - begun > self._empty_s:
                raise Emptied(f"no shard of the replay has held anything for {self._empty_s:.0f} s ({self.directory})")
            waiting.again()
            time.sleep(PATIENCE_S / 10)
            spans = self.directory.spans()
        waiting.over()
        return spans

    def _draw(self, spans: Spans, count: int, random: np.random.Generator) -> _Draw:
        shards, pieces = self.directory.shards(), []
        for number, ids in spans.draw(count, random):
            if (shard := shards.get(number)) is not None:  # otherwise it has just been lost, and `_fill` draws again
                pieces.append((shard, ids, shard.gather(ids)))
        return _Draw(count, spans, pieces)

    def _fill(self, draw: _Draw, random: np.random.Generator, batch: Batch, first_column: int) -> Ids:
        """Put what comes into columns; what has left its shard, or was lost with it, is drawn again."""
        at, end, found = first_column, first_column + draw.columns, [np.zeros(0, np.int64)]
        while True:
            for shard, asked, answer in draw.pieces:
                gathered = self._gathered(shard, answer)
                if gathered is not None:
                    ids = (shard.number << SHARD_BITS) + asked[gathered.held]
                    self._unpacking.put(gathered.encoded, ids, parts_of(self.layout, batch), at)
                    found.append(ids)
                    at += len(ids)
            missing = end - at
            if not missing:
                return np.concatenate(found)
            self.redrawn += missing
            left = draw.spans.left(self.directory.held())
            draw = self._draw(left if len(left) else self._spans(), missing, random)

    def _gathered(self, shard: ShardClient, answer: Answer[Gathered]) -> Gathered | None:
        try:
            gathered = awaited(answer, "the learner", f"unrolls from {shard}", ANSWER_S)
        except (AnswerLost, TimeoutError) as error:
            self.directory.failed(shard.number, error)
            return None
        self.directory.heard(shard.number, gathered.span)
        return gathered


class Emptied(TimeoutError):
    """All unrolls that could be drawn are gone, and no shard has reported new ones."""
