"""The replay of a cluster as a learner sees it: one store, which lies in shards on several nodes.

Draws are uniform over the union of what all shards hold (`spread`). The columns of the next batches are asked for ahead: several gathers
are under way at every shard while the learner learns, and each answer also says what its shard holds now. A shard on the learner's own
node is read where it lies (`window`), when the batch is filled.
A shard that is lost takes its unrolls with it: draws that it owed are made again from the others, and it is counted.

With `ahead` 0 nothing is asked for before it is needed, and every shard is asked what it holds before each draw: over one shard, in
lock-step, batches are then those of a `Replay`, bit for bit.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from laser_rl.cluster.client import Answer, AnswerLost, ShardClient, ShardLost, awaited
from laser_rl.cluster.replay_writer import ANSWER_S, ReplayWriter
from laser_rl.cluster.shard import Gathered, Receipt
from laser_rl.cluster.shard_directory import ShardDirectory
from laser_rl.cluster.spread import Spans, names
from laser_rl.replay.encoded_unrolls import Unpacking, seal
from laser_rl.replay.memory_estimate import Codec, resolve_codec
from laser_rl.replay.records import Packed, allocate, pack
from laser_rl.replay.shared import Ids
from laser_rl.training.stall import PATIENCE_S, StallWarning
from laser_rl.types import Batch, UnrollLayout, Unrolls

log = logging.getLogger("laser_rl.training")
AHEAD = 2  # draws under way beyond the one that is needed now
FRESH_S = 10.0  # draws made ahead for a count of columns that is hardly ever asked for are not kept longer
INSERT_S = 600.0


@dataclass
class _Piece:
    """What one shard owes to a draw."""

    shard: ShardClient
    ids: Ids
    answer: Answer[Gathered]


@dataclass
class _Draw:
    """The columns of one batch on their way."""

    count: int
    spans: Spans  # as they were when it was drawn
    pieces: list[_Piece]
    born: float


class Emptied(TimeoutError):
    """All that could be drawn is gone, and nothing has come since."""


class ShardedReplay:
    """For a `Mixer` and for `Uniform`, in place of a `Replay`; thread safe.

    Args:
        layout: of the unrolls.
        shards: who they are now. Asked all the time, so it must not wait; a replacement has another number.
        ahead: draws under way beyond the one that is needed now; 0 for lock-step.
        stream: a name for what this process itself inserts; nobody else may have it.
        home: the shard for that; the first if none is given.
        codec: of the shards.
        answer_s: a shard that has not answered in this time is left out until it does.
        empty_s: how long a draw waits for shards that hold nothing before it raises `Emptied`; None: as long as anybody waits.

    >>> from laser_rl.replay import Counts, Mixer
    >>> from laser_rl.cluster.in_process_shard import NearShard
    >>> from laser_rl.cluster.shard import Shard, ShardPlan
    >>> from laser_rl.types import empty_unrolls
    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> shards = [NearShard(Shard(ShardPlan(layout, 100, number=number))) for number in range(3)]
    >>> store = ShardedReplay(layout, lambda: shards, ahead=0)
    >>> mixer = Mixer(layout, store, Counts.of(8, 0.875), np.random.default_rng(0))
    >>> mixer.offer(empty_unrolls(layout, 2))
    >>> batch = allocate(layout, columns=8)
    >>> mixer.ready(), mixer.fill(batch), len(store)
    (True, None, 2)
    """

    def __init__(
        self,
        layout: UnrollLayout,
        shards: Callable[[], Sequence[ShardClient]],
        *,
        ahead: int = AHEAD,
        stream: str = "learner",
        home: Callable[[], ShardClient | None] | None = None,
        codec: Codec | None = None,
        answer_s: float = ANSWER_S,
        empty_s: float | None = None,
    ) -> None:
        self.layout = layout
        self.codec: Codec = codec or resolve_codec(layout, "auto")
        self.census = ShardDirectory(shards, exact=ahead == 0, answer_s=answer_s)
        self._depth, self._answer_s, self._empty_s = ahead, answer_s, empty_s
        self._unpacking = Unpacking(layout)
        self._under_way: dict[int, deque[_Draw]] = {}  # by their count of columns, oldest first
        self._lock = threading.Lock()  # of what is under way
        self._inserting = threading.Lock()
        self._inserted: list[Ids] = []
        self._courier = ReplayWriter(home or self._first, stream, on_receipt=self._receipt)
        self._redrawn = self._drawn = 0
        self._waited_s = 0.0

    def __len__(self) -> int:
        return len(self.census.spans())

    @property
    def capacity(self) -> int:
        """Of all shards together, in unrolls."""
        return self.census.capacity

    @property
    def steps(self) -> int:
        """Steps held."""
        return len(self) * self.layout.steps

    @property
    def nbytes(self) -> int:
        """Bytes held in memory by all shards, as they last said."""
        return sum(report.bytes for report in self.census.reports())

    def composition(self) -> dict[int, float]:
        """The share of each member in all that is held, as the shards last said."""
        members: dict[int, int] = {}
        for report in self.census.reports():
            for member, count in report.members.items():
                members[member] = members.get(member, 0) + count
        held = sum(members.values())
        return {member: count / held for member, count in sorted(members.items())}

    def counters(self) -> dict[str, float]:
        """For metrics: draws, draws made again, seconds waited for shards, what was lost, and the sums of what the shards count."""
        own = {
            "replay_drawn": float(self._drawn),
            "replay_redrawn": float(self._redrawn),
            "replay_waited_s": self._waited_s,
            "replay_lost_shards": float(self.census.lost_shards),
            "replay_lost_unrolls": float(self.census.lost_unrolls),
            "replay_shards": float(len(self.census.shards())),
        }
        for report in self.census.reports():
            for name, count in report.counters.items():
                own[f"shards_{name}"] = own.get(f"shards_{name}", 0.0) + count
        return own

    def insert(self, unrolls: Unrolls) -> Ids:
        """Add unrolls and return their names among all shards; waits until they are in. A runner uses a `ReplayWriter` instead."""
        return self.insert_packed(pack(self.layout, unrolls))

    def insert_packed(self, packed: Packed) -> Ids:
        """The same for unrolls that `pack` has checked already."""
        with self._inserting:
            self._inserted.clear()
            parcel = seal(packed, self.codec)
            if not (self._courier.send(parcel, INSERT_S) and self._courier.flush(INSERT_S)):
                raise TimeoutError(
                    f"no shard of the replay took {parcel.unrolls} unrolls in {INSERT_S:.0f} s; look at `ray status`"
                )
            return np.concatenate([np.zeros(0, np.int64), *self._inserted])

    def _receipt(self, shard: ShardClient, receipt: Receipt) -> None:
        self.census.heard(shard.number, receipt.span)
        self._inserted.append(names(shard.number, receipt.ids))

    def _first(self) -> ShardClient | None:
        return next(iter(self.census.shards()), None)

    def sample_into(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> Ids:
        """Uniform draws over all shards with replacement, gathered into columns of a batch; returns their names.

        Columns of one shard lie side by side. What was drawn ahead is uniform over what was held then.
        """
        with self._lock:
            waiting = self._under_way.setdefault(count, deque())
            while waiting and time.monotonic() - waiting[0].born > FRESH_S:
                waiting.popleft()
            while len(waiting) <= self._depth:
                waiting.append(self._ask(self._spans(), count, random))
            draw = waiting.popleft()
        return self._fill(draw, random, batch, first_column)

    def sample_versions(self, count: int, random: np.random.Generator) -> Ids:
        """Of the parameters that made unrolls drawn now."""
        batch = allocate(self.layout, count, stacked=False)
        self._fill(self._ask(self._spans(), count, random), random, batch, 0)
        return batch.version.numpy().copy()

    def forget(self) -> None:
        """Drop what was drawn ahead: the next batches are drawn from what is held then."""
        with self._lock:
            self._under_way.clear()

    def _spans(self) -> Spans:
        """What there is to draw from; waits until there is something."""
        spans, waiting, begun = self.census.spans(), None, time.monotonic()
        while not len(spans):
            if self._empty_s is not None and time.monotonic() - begun > self._empty_s:
                raise Emptied(f"no shard of the replay has held anything for {self._empty_s:.0f} s ({self.census})")
            waiting = waiting or StallWarning(
                "the learner", f"a shard of the replay that holds unrolls ({self.census})"
            )
            waiting.again()
            time.sleep(PATIENCE_S / 10)
            spans = self.census.spans()
        if waiting is not None:
            waiting.over()
        return spans

    def _ask(self, spans: Spans, count: int, random: np.random.Generator) -> _Draw:
        shards = {shard.number: shard for shard in self.census.shards()}
        pieces = []
        for number, ids in spans.draw(count, random):
            if (shard := shards.get(number)) is not None:  # otherwise it has just been lost, and `_fill` draws again
                pieces.append(_Piece(shard, ids, shard.gather(ids)))
        self._drawn += count
        return _Draw(count, spans, pieces, time.monotonic())

    def _fill(self, draw: _Draw, random: np.random.Generator, batch: Batch, first_column: int) -> Ids:
        """Put what comes into columns; what has left its shard, or was lost with it, is drawn again."""
        at, found = first_column, [np.zeros(0, np.int64)]
        while True:
            for piece in draw.pieces:
                gathered = self._answer(piece)
                if gathered is not None:
                    ids = names(piece.shard.number, piece.ids[gathered.held])
                    self._unpacking.put(gathered.parcel, ids, batch, at)
                    found.append(ids)
                    at += len(ids)
            missing = first_column + draw.count - at
            if not missing:
                return np.concatenate(found)
            self._redrawn += missing
            left = draw.spans.left(self.census.held())
            again = self._ask(left if len(left) else self._spans(), missing, random)
            draw = _Draw(draw.count, again.spans, again.pieces, draw.born)

    def _answer(self, piece: _Piece) -> Gathered | None:
        """None if the shard owes nothing any more."""
        begin, shard = time.monotonic(), piece.shard
        whom = f"unrolls from shard {shard.number} of the replay on {shard.where}"
        try:
            gathered = awaited(piece.answer, "the learner", whom, self._answer_s)
        except ShardLost:
            self.census.lost(shard.number)
        except (AnswerLost, TimeoutError):
            self.census.silent(shard.number)
        else:
            self.census.heard(shard.number, gathered.span)
            return gathered
        finally:
            self._waited_s += time.monotonic() - begin
        return None
