"""The replay of a cluster as a learner sees it: one store, which lies in shards on several nodes.

Draws are uniform over the union of what all shards hold (`shard_directory`). The columns of the next batches are asked for ahead: several
gathers are under way at every shard while the learner learns, and each answer also says what its shard holds now. A shard on the learner's
own node is read where it lies, when the batch is filled.
A shard that is lost takes its unrolls with it: draws that it owed are made again from the others, and it is counted.

With `ahead` 0 nothing is asked for before it is needed, and every shard is asked what it holds before each draw: over one shard, in
lock-step, batches are then those of a `Replay`, bit for bit.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from laser_rl.cluster.calls import Answer, AnswerLost, awaited
from laser_rl.cluster.shard import Gathered, ShardClient
from laser_rl.cluster.shard_directory import ANSWER_S, ShardDirectory, Spans, global_ids
from laser_rl.replay.encoded_unrolls import Unpacking
from laser_rl.replay.records import Ids, allocate
from laser_rl.training.stall import PATIENCE_S, StallWarning
from laser_rl.types import Batch, UnrollLayout

AHEAD = 2  # draws under way beyond the one that is needed now


class _Draw(NamedTuple):
    """The columns of one batch on their way."""

    columns: int
    spans: Spans  # as they were when it was drawn
    pieces: list[tuple[ShardClient, Ids, Answer[Gathered]]]  # what each shard owes


class ShardedReplay:
    """What a `Mixer` and a `UniformSampler` draw from in place of a `Replay`; runners insert, by a `ReplayWriter` each. Thread safe.

    Args:
        layout: of the unrolls.
        shards: returns the shards that there are now, without waiting; a replacement has another number.
        ahead: draws under way beyond the one that is needed now; 0 for lock-step.
        empty_s: a draw that has waited so long for shards that hold nothing raises `Emptied`; None: it waits on.
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
        self._unpacking = Unpacking(layout)
        self._under_way: deque[_Draw] = deque()  # oldest first
        self._lock = threading.Lock()  # of what is under way
        self._redrawn = self._drawn = 0
        self._waited_s = 0.0

    def __len__(self) -> int:
        return len(self.directory.spans())

    @property
    def capacity(self) -> int:
        """Of all shards together, in unrolls."""
        return sum(shard.capacity for shard in self.directory.shards().values())

    @property
    def steps(self) -> int:
        """Steps held."""
        return len(self) * self.layout.steps

    @property
    def nbytes(self) -> int:
        """Bytes held in memory by all shards, as they last said."""
        return sum(report.bytes for report in self.directory.reports())

    def composition(self) -> dict[int, float]:
        """The share of each member in all that is held, as the shards last said."""
        members: dict[int, int] = {}
        for report in self.directory.reports():
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
            "replay_lost_shards": float(self.directory.lost_shards),
            "replay_lost_unrolls": float(self.directory.lost_unrolls),
            "replay_shards": float(len(self.directory.shards())),
        }
        for report in self.directory.reports():
            for name, count in report.counters.items():
                own[f"shards_{name}"] = own.get(f"shards_{name}", 0.0) + count
        return own

    def sample_into(self, count: int, random: np.random.Generator, batch: Batch, first_column: int) -> Ids:
        """Uniform draws over all shards with replacement, gathered into columns of a batch; returns their global ids.

        Columns of one shard lie side by side. What was drawn ahead is uniform over what was held then.
        """
        with self._lock:
            if self._under_way and self._under_way[0].columns != count:
                self._under_way.clear()
            while len(self._under_way) <= self._ahead:
                self._under_way.append(self._draw(self._spans(), count, random))
            draw = self._under_way.popleft()
        return self._fill(draw, random, batch, first_column)

    def sample_versions(self, count: int, random: np.random.Generator) -> Ids:
        """The versions of the parameters that made unrolls drawn now."""
        batch = allocate(self.layout, count, stacked=False)
        self._fill(self._draw(self._spans(), count, random), random, batch, 0)
        return batch.version.numpy().copy()

    def _spans(self) -> Spans:
        """What there is to draw from; waits until there is something."""
        spans, waiting, begun = self.directory.spans(), None, time.monotonic()
        while not len(spans):
            if self._empty_s is not None and time.monotonic() - begun > self._empty_s:
                raise Emptied(f"no shard of the replay has held anything for {self._empty_s:.0f} s ({self.directory})")
            waiting = waiting or StallWarning(
                "the learner", f"a shard of the replay that holds unrolls ({self.directory})"
            )
            waiting.again()
            time.sleep(PATIENCE_S / 10)
            spans = self.directory.spans()
        if waiting is not None:
            waiting.over()
        return spans

    def _draw(self, spans: Spans, count: int, random: np.random.Generator) -> _Draw:
        shards, pieces = self.directory.shards(), []
        for number, ids in spans.draw(count, random):
            if (shard := shards.get(number)) is not None:  # otherwise it has just been lost, and `_fill` draws again
                pieces.append((shard, ids, shard.gather(ids)))
        self._drawn += count
        return _Draw(count, spans, pieces)

    def _fill(self, draw: _Draw, random: np.random.Generator, batch: Batch, first_column: int) -> Ids:
        """Put what comes into columns; what has left its shard, or was lost with it, is drawn again."""
        at, end, found = first_column, first_column + draw.columns, [np.zeros(0, np.int64)]
        while True:
            for shard, asked, answer in draw.pieces:
                gathered = self._gathered(shard, answer)
                if gathered is not None:
                    ids = global_ids(shard.number, asked[gathered.held])
                    self._unpacking.put(gathered.encoded, ids, batch, at)
                    found.append(ids)
                    at += len(ids)
            missing = end - at
            if not missing:
                return np.concatenate(found)
            self._redrawn += missing
            left = draw.spans.left(self.directory.held())
            draw = self._draw(left if len(left) else self._spans(), missing, random)

    def _gathered(self, shard: ShardClient, answer: Answer[Gathered]) -> Gathered | None:
        """None if the shard did not answer."""
        begin = time.monotonic()
        try:
            gathered = awaited(answer, "the learner", f"unrolls from {shard}", ANSWER_S)
        except (AnswerLost, TimeoutError) as error:
            self.directory.failed(shard.number, error)
            return None
        finally:
            self._waited_s += time.monotonic() - begin
        self.directory.heard(shard.number, gathered.span)
        return gathered


class Emptied(TimeoutError):
    """All unrolls that could be drawn are gone, and no shard has reported new ones."""
