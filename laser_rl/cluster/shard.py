"""One shard of the replay: what the runners of one node have delivered.

A plain class: a Ray actor is made of it in `actors`, and tests use it as it is. Thread safe: inserts, gathers and reports come in
threads of their own, so that none waits long for another. The store's lock is held while bytes are copied; compressed blocks come in
and go out as they are. The store lies in shared memory: who is on the same machine may read it there (`lend`).

Exactly once: deliveries are numbered by stream. A stream is what one `Courier` sends, in order, without gaps. A shard knows of each
stream the number of the unroll that comes next, and takes that one only: what comes again is left out, what comes too early is not taken,
and the answer says in any case what comes next. Numbers and rows move under one lock, and die together with the process.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from laser_rl.checkpoint.segments import SegmentEntry
from laser_rl.replay.encoded_unrolls import EncodedUnrolls
from laser_rl.replay.lending import LentBlock, lend
from laser_rl.replay.memory_estimate import Codec
from laser_rl.replay.shared import Ids
from laser_rl.replay.store import Replay
from laser_rl.training.saving import Segments
from laser_rl.types import UnrollLayout, Unrolls


@dataclass(frozen=True)
class ShardPlan:
    """What a shard is made of; `number` is never given twice in a run, also not to a replacement.

    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> ShardPlan(layout, capacity_steps=10, number=3).capacity
    5
    """

    layout: UnrollLayout
    capacity_steps: int
    number: int
    codec: Literal["auto"] | Codec = "auto"
    budget_bytes: int | None = None

    @property
    def capacity(self) -> int:
        """In unrolls."""
        return max(1, self.capacity_steps // self.layout.steps)


class Receipt(NamedTuple):
    """The answer to a delivery."""

    expected: int | None  # number of the stream's next unroll; None if the shard does not know the stream: `open` it
    ids: Ids  # of what was inserted just now
    span: tuple[int, int]


class Gathered(NamedTuple):
    """The answer to a gather."""

    held: NDArray[np.bool_]  # which of the ids asked for were still there
    parcel: EncodedUnrolls  # those, in the order asked
    span: tuple[int, int]


class ShardReport(NamedTuple):
    """A shard about itself."""

    number: int
    span: tuple[int, int]  # ids held, from the first to before the end
    members: dict[int, int]  # unrolls held by member
    bytes: int
    counters: dict[str, float]


class Shard:
    """A `Replay` with numbered deliveries.

    >>> from laser_rl.replay.encoded_unrolls import seal
    >>> from laser_rl.replay.records import pack
    >>> from laser_rl.types import empty_unrolls
    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> shard, parcel = Shard(ShardPlan(layout, 20, number=0)), seal(pack(layout, empty_unrolls(layout, 3)), "raw")
    >>> shard.open("runner 5", 0)
    0
    >>> shard.insert("runner 5", 0, parcel).expected, shard.insert("runner 5", 1, parcel)  # two of them for the second time
    (3, Receipt(expected=4, ids=array([3]), span=(0, 4)))
    >>> shard.gather(np.array([3, 9])).held
    array([ True, False])
    """

    def __init__(self, plan: ShardPlan) -> None:
        self.plan = plan
        self._store = Replay(
            plan.layout,
            plan.capacity_steps,
            codec=plan.codec,
            budget_bytes=plan.budget_bytes,
            shared=True,
        )
        self._order = threading.Lock()  # streams and rows move together
        self._streams: dict[str, int] = {}
        self._count = dict.fromkeys(("inserted", "repeated", "early", "skipped", "gathered", "gone"), 0)
        self._busy = {"insert_s": 0.0, "gather_s": 0.0}
        self._segments: Segments | None = None

    def open(self, stream: str, number: int) -> int:
        """The number of the stream's next unroll here. A stream that is not known, or not so far, goes on at `number`.

        What was acknowledged by a shard that is gone is not asked for again: that would need every runner to keep all it ever sent.
        """
        with self._order:
            known = self._streams.get(stream)
            self._streams[stream] = number if known is None else max(known, number)
            self._count["skipped"] += 0 if known is None else max(0, number - known)
            return self._streams[stream]

    def insert(self, stream: str, number: int, parcel: EncodedUnrolls) -> Receipt:
        """Unrolls of a stream, the first as `number`; may be repeated at will. See `Receipt` for what became of it."""
        begin = time.perf_counter()
        with self._order:
            expected, ids = self._streams.get(stream), np.zeros(0, np.int64)
            if expected is not None and number <= expected:
                there = min(parcel.unrolls, expected - number)
                ids = self._store.insert_parcel(parcel.after(there))
                expected = max(expected, number + parcel.unrolls)
                self._streams[stream] = expected
                self._count["inserted"] += len(ids)
                self._count["repeated"] += there
            else:
                self._count["early"] += parcel.unrolls
            receipt = Receipt(expected, ids, self.span())
        self._busy["insert_s"] += time.perf_counter() - begin
        return receipt

    def gather(self, ids: Ids) -> Gathered:
        """Copies of what of these is still held."""
        begin = time.perf_counter()
        found = gathered(self._store, ids)
        self._count["gathered"] += found.parcel.unrolls
        self._count["gone"] += len(ids) - found.parcel.unrolls
        self._busy["gather_s"] += time.perf_counter() - begin
        return found

    def lend(self) -> LentBlock:
        """Where its memory is, for processes of the same machine: see `Window`. What they read is not counted here."""
        return lend(self._store)

    def span(self) -> tuple[int, int]:
        """Ids held."""
        return span_of(self._store)

    def report(self) -> ShardReport:
        """What others need to draw, and what a user wants to see."""
        span, composition = self.span(), self._store.composition() if len(self._store) else {}
        held = span[1] - span[0]
        members = {member: round(share * held) for member, share in composition.items()}
        return ShardReport(self.plan.number, span, members, self._store.nbytes, {**self._count, **self._busy})

    def save(self, run_dir: str) -> dict[str, Any]:
        """Write what is new as segments of the run directory, which all nodes must see; returns what `load` needs, as JSON.

        Unrolls that come while it writes are not in it, and neither are their numbers.
        """
        if self._segments is None:
            self._segments = Segments(Path(run_dir), self.plan.layout, self.plan.number)
        with self._order:
            until, streams = _Until(self._store), dict(self._streams)
        ids = self._segments.write(cast("Replay", until))
        return {**ids, "streams": streams, "segments": [asdict(entry) for entry in self._segments.entries]}

    def load(self, run_dir: str, state: Mapping[str, Any], number: int) -> int:
        """Begin with what shard `number` had saved; how many unrolls that is.

        Files keep their names: ids in files go by the number of the shard that wrote them.
        """
        segments = Segments(Path(run_dir), self.plan.layout, number)
        entries = tuple(SegmentEntry(**entry) for entry in state["segments"])
        with self._order:
            segments.fill(self._store, entries, {name: state[name] for name in ("first_id", "next_id")})
            self._streams.update(state["streams"])
        return len(self._store)


def span_of(store: Replay) -> tuple[int, int]:
    """Ids held. Without the lock: the first is read first, so that it is never too new for the end."""
    first = store.first_id
    return first, max(first, store.next_id)


def gathered(store: Replay, ids: Ids) -> Gathered:
    """Copies of what of these the store of a shard still holds; it may be read in another process than the shard's.

    >>> from laser_rl.types import empty_unrolls
    >>> layout = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
    >>> store = Replay(layout, capacity_steps=10)
    >>> _ = store.insert(empty_unrolls(layout, 6))
    >>> gathered(store, np.array([0, 5])).held
    array([False,  True])
    """
    held, parcel = store.parcel(ids)
    return Gathered(held, parcel, span_of(store))


class _Until:
    """A store as it is now, for whoever writes it down: what comes later is not seen."""

    def __init__(self, store: Replay) -> None:
        self._store, self.next_id, self.capacity = store, store.next_id, store.capacity

    @property
    def first_id(self) -> int:
        return self._store.first_id

    def export(self, ids: Ids) -> Unrolls:
        return self._store.export(ids)
