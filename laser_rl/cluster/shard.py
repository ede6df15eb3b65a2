"""One shard of the replay: it holds the unrolls that some runners delivered. Other processes call it through `ShardClient`.

`Shard` is a plain class, of which `ShardClient.start` makes a Ray actor. It is thread safe. Compressed blocks are stored and sent without
decompression.

A shard stores each delivery exactly once. Here a stream is what one `ReplayWriter` sends, one numbered delivery after the other. A shard
knows the number of each stream's newest delivery, and ignores one that is sent again. Numbers and rows change under one lock, and both are
lost if the process dies.
"""

import functools
import logging
import threading
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laser_rl.cluster.calls import Answer, AnswerLost, awaited, on_node, ray, start_actor
from laser_rl.errors import ConfigError
from laser_rl.replay.memory_estimate import unrolls_of
from laser_rl.replay.memory_layout import Codec, Ids, Packed
from laser_rl.replay.shared import Handle
from laser_rl.replay.store import Replay
from laser_rl.types import UnrollLayout

log = logging.getLogger("laser_rl.training")
INSERT, GATHER, WATCH = "insert", "gather", "watch"
# Threads of a shard. Inserts are in order, and a gather must not wait for a compressed batch of another learner.
THREADS = {INSERT: 1, GATHER: 2, WATCH: 1}

Span = tuple[int, int]  # ids held: the first, and one past the last


@dataclass(frozen=True)
class ShardPlan:
    """The settings of a shard. `number` is unique within a run: a replacement gets a new one."""

    layout: UnrollLayout
    capacity_steps: int
    number: int
    codec: Literal["auto"] | Codec = "auto"
    budget_bytes: int | None = None


class Gathered(NamedTuple):
    """The answer to a gather."""

    held: NDArray[np.bool_]  # which of the ids asked for were still there
    encoded: Packed  # those, in the order asked
    span: Span


class ShardReport(NamedTuple):
    """What a shard says of itself."""

    span: Span
    members: dict[int, int]  # unrolls held by member
    bytes: int


class Shard:
    """A `Replay` with numbered deliveries."""

    def __init__(self, plan: ShardPlan) -> None:
        self.plan = plan
        self._store = Replay(
            plan.layout, plan.capacity_steps, codec=plan.codec, budget_bytes=plan.budget_bytes, shared=True
        )
        self._order = threading.Lock()  # streams and rows move together
        self._streams: dict[str, int] = {}  # number of the newest delivery of each

    def insert(self, stream: str, number: int, encoded: Packed) -> bool:
        """Add a stream's delivery with this number, and acknowledge it; may be repeated at will."""
        with self._order:
            if number > self._streams.get(stream, -1):
                self._store.insert_packed(encoded)
                self._streams[stream] = number
        return True

    def gather(self, ids: Ids) -> Gathered:
        return gathered(self._store, ids)

    def lend(self) -> Handle:
        return self._store.handle()

    def report(self) -> ShardReport:
        first, end = self._store.span()
        composition = self._store.composition() if len(self._store) else {}
        members = {member: round(share * (end - first)) for member, share in composition.items()}
        return ShardReport((first, end), members, self._store.nbytes)


def gathered(store: Replay, ids: Ids) -> Gathered:
    """Copy the unrolls of these ids that a shard's store still holds, in the shard's process or in another."""
    held, encoded = store.parcel(ids)
    return Gathered(held, encoded, store.span())


class ShardClient:
    """Calls the methods of a `Shard`, which is an actor on the node with this id. Can be sent to other processes.

    A call costs both sides about a millisecond, and what it brings is copied into Ray's object store and out of it. A client on
    the shard's node reads the shared memory instead, as the members of a sweep on one machine do. Inserts are always calls: the shard has
    to compare their numbers.
    """

    def __init__(self, actor: Any, plan: ShardPlan, node: str, where: str) -> None:
        self.actor, self.plan, self.node, self.where = actor, plan, node, where
        self.number, self.capacity = plan.number, unrolls_of(plan.layout, plan.capacity_steps)

    @classmethod
    def start(cls, plan: ShardPlan, node: str) -> "ShardClient":
        """Start a shard on a node; it reserves no core, since copying takes a small part of one."""
        nodes = ray().nodes()
        address = next((one["NodeManagerAddress"] for one in nodes if one["NodeID"] == node), "an unknown node")
        actor = start_actor(Shard, plan, strategy=on_node(node), concurrency_groups=THREADS)
        return cls(actor, plan, node, f"{address} (node {node[:8]})")

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardClient, (self.actor, self.plan, self.node, self.where)

    def __str__(self) -> str:
        return f"shard {self.number} of the replay on {self.where}"

    def insert(self, stream: str, number: int, encoded: Packed) -> Answer[bool]:
        return self._call("insert", INSERT, stream, number, encoded)

    def gather(self, ids: Ids) -> Answer[Gathered]:
        """See `Shard.gather`; the first one of a shard on this node asks where its memory is."""
        return self._call("gather", GATHER, ids) if self.mapped is None else _LocalRead(self.mapped, ids)

    def report(self) -> Answer[ShardReport]:
        return self._call("report", WATCH)

    @functools.cached_property
    def mapped(self) -> Replay | None:
        """The shard's memory, mapped into this process; None if the shard is on another node, or in another container."""
        if ray().get_runtime_context().get_node_id() != self.node:
            return None
        try:
            lent = awaited(self._call("lend", WATCH), "a learner", f"{self} to say where its memory is")
            return Replay.attach(self.plan.layout, lent)
        except (AnswerLost, TimeoutError, ConfigError, OSError) as error:
            log.info("%s is called for every batch: %s", self, error)
            return None

    def _call(self, method: str, group: str, *arguments: Any) -> Answer[Any]:
        return Answer(getattr(self.actor, method).options(concurrency_group=group).remote(*arguments))


class _LocalRead(Answer[Gathered]):
    """An `Answer` whose `result` reads the shard's shared memory in the caller's thread."""

    def __init__(self, store: Replay, ids: Ids) -> None:
        self._store, self._ids = store, ids

    def done(self) -> bool:
        return True

    def result(self, timeout: float) -> Gathered:
        """Raises TimeoutError, whatever the timeout, if a process that has stopped holds the lock of the store."""
        return gathered(self._store, self._ids)
