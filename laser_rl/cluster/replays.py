"""The replays of a run on a cluster: one for all members, in a shard on every node; or one each, in one shard.

A `ShardSupervisor` starts the shards of one replay, sees which are lost, and replaces them.

On disk they lie in the files that one machine writes (`ReplayFiles`): any run directory can go on here and there. The supervisor asks the
shards for what is new and writes it; no file system is shared. Unrolls get numbers of their own on disk, in the order in which they are
written, and as many of the newest are kept as the shards hold. So where shards were lost, older unrolls of the others that are still held
may not be in a checkpoint, and some that were lost may.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from laser_rl.checkpoint import Mended, SegmentEntry
from laser_rl.cluster.calls import AnswerLost, Backoff, LongPoll, awaited, kill
from laser_rl.cluster.placement import NodeWatch
from laser_rl.cluster.shard import ShardClient, ShardPlan, ShardReport
from laser_rl.cluster.sharded import ANSWER_S, ShardedReplay
from laser_rl.errors import ConfigError
from laser_rl.replay.encoded_unrolls import seal, unseal
from laser_rl.replay.memory_estimate import estimate, resolve_codec
from laser_rl.replay.memory_layout import Codec, pack, unpack
from laser_rl.replay.store import Replay
from laser_rl.training.directory import RunDirectory
from laser_rl.training.saving import SEGMENT_UNROLLS, Segments
from laser_rl.training.settings import SweepConfig
from laser_rl.types import UnrollLayout, Unrolls

log = logging.getLogger("laser_rl.training")
STEADY_S = 60.0  # a shard that dies sooner than this may do so again: too little memory, a node that is going
NUMBERS = 10_000  # of shards, that each of several stores has to itself
WHO = "the checkpoint"
Shards = Callable[[], Sequence[ShardClient]]  # those that there are now


class ReplayFiles(Segments):
    """The files of one replay store that lies in `shards`."""

    def __init__(self, run_dir: Path, layout: UnrollLayout, store: int, shards: Shards) -> None:
        super().__init__(run_dir, layout, store)
        self._shards = shards

    def write(self, replay: Replay | None = None) -> dict[str, int]:
        """Write what is new in all shards; returns what `fill` needs to know. A shard that is lost meanwhile is left out."""
        self._before = self._written()
        count = sum(self._write_shard(shard) for shard in self._shards())
        self._first = max(self._first, self._next - count)
        self.entries = [entry for entry in self.entries if entry.last_id - self._base >= self._first]
        return {"first_id": self._first, "next_id": self._next}

    def _write_shard(self, shard: ShardClient) -> int:
        try:
            first, end = awaited(shard.report(), WHO, str(shard), ANSWER_S).span
            start = max(first, self._until.get(shard.number, 0))
            for begin in range(start, end, SEGMENT_UNROLLS):
                ids = np.arange(begin, min(begin + SEGMENT_UNROLLS, end))
                gathered = awaited(shard.gather(ids), WHO, str(shard), ANSWER_S)
                unrolls = unpack(self._layout, unseal(self._layout, gathered.encoded))
                self._append(self._next, unrolls, oldest=self._first)
                self._next += len(unrolls.member)
                self._until[shard.number] = int(ids[-1]) + 1
        except (AnswerLost, TimeoutError) as error:
            log.warning("%s is not in this checkpoint, or not all of it: %s", shard, error)
            return 0
        return end - first

    def fill(
        self, replay: Replay, entries: tuple[SegmentEntry, ...], ids: Mapping[str, int], damaged: Collection[str] = ()
    ) -> Mended | None:
        """As `Segments.fill`, of a `ShardFiller`; then what the shards hold is on disk, under these numbers."""
        mended = super().fill(replay, entries, ids, damaged)
        self._first, self._next = replay.first_id, replay.next_id
        if not self.entries:  # a damaged replay was mended: its unrolls are to be written anew
            self._first = replay.next_id
            return mended
        for shard in self._shards():
            self._until[shard.number] = awaited(shard.report(), WHO, str(shard), ANSWER_S).span[1]
        return mended


class ShardFiller:
    """What `Segments.fill` and `warm_start` need of an empty `Replay`; what is inserted goes to all shards, which are empty, evenly."""

    def __init__(self, layout: UnrollLayout, codec: Codec, shards: Sequence[ShardClient]) -> None:
        self.layout, self._codec, self._shards = layout, codec, shards
        self.first_id = self.next_id = 0
        self._turn = 0

    def __len__(self) -> int:
        return self.next_id - self.first_id

    def begin_at(self, first_id: int) -> None:
        self.first_id = self.next_id = first_id

    def insert(self, unrolls: Unrolls) -> None:
        """Insert some into each shard; the shards take turns to get one more."""
        for part, rows in enumerate(np.array_split(np.arange(len(unrolls.member)), len(self._shards))):
            if len(rows):
                at = (part + self._turn) % len(self._shards)
                encoded = seal(pack(self.layout, Unrolls(*(field[rows] for field in unrolls))), self._codec)
                answer = self._shards[at].insert("checkpoint", self._turn, encoded)
                awaited(answer, WHO, f"{self._shards[at]} to take {len(rows)} unrolls", timeout_s=600.0)
        self._turn += 1
        self.next_id += len(unrolls.member)


@dataclass
class SupervisedShard:
    """A shard, and what was last heard of it."""

    shard: ShardClient
    started: float
    reports: LongPoll[ShardReport]
    newest: ShardReport | None = None

    @property
    def unrolls(self) -> int:
        first, end = (0, 0) if self.newest is None else self.newest.span
        return end - first


class ShardSupervisor:
    """Keeps a shard of this plan on each node, numbered from the plan's on; used by one thread, which calls `look`.

    With a `place` there is one shard: on the node of this place among all, as long as that lives.
    """

    def __init__(self, plan: ShardPlan, nodes: Callable[[], Sequence[str]], place: int | None = None) -> None:
        self._plan, self._nodes, self._place = plan, nodes, place
        self._number = plan.number
        self.lists = 0  # how often the shards have changed
        self._by_node: dict[str, SupervisedShard] = {}
        self._deaths: defaultdict[str, Backoff] = defaultdict(Backoff)  # by node
        self._start_missing()

    @property
    def shards(self) -> list[ShardClient]:
        return [one.shard for one in self._by_node.values()]

    def look(self) -> list[SupervisedShard]:
        """Replace lost shards, those that die soon later and later, and give new nodes a shard; returns what was lost."""
        for one in self._by_node.values():
            one.newest = one.reports.poll() or one.newest
        alive = set(self._nodes())
        found = [node for node, one in self._by_node.items() if node not in alive or one.reports.gone]
        gone = [(node, self._by_node.pop(node)) for node in found]
        for node, one in gone:
            lived_well = time.monotonic() - one.started >= STEADY_S
            self._deaths[node].count(one.started if lived_well else 0.0)
        started = self._start_missing()
        self.lists += bool(gone or started)
        return [one for _, one in gone]

    def close(self) -> None:
        for shard in self.shards:
            kill(shard.actor)
        self._by_node.clear()

    def _start_missing(self) -> bool:
        free = [node for node in self._nodes() if node not in self._by_node and self._deaths[node].pause_s() <= 0]
        if self._place is not None:
            free = free[self._place % len(free) :][:1] if free and not self._by_node else []
        for node in free:
            shard = ShardClient.start(replace(self._plan, number=self._number), node)
            self._number += 1
            self._by_node[node] = SupervisedShard(shard, time.monotonic(), LongPoll(shard.report))
        return bool(free)


class Replays:
    """Starts and watches the shards of the replay of all members, or of one replay each; `in_step` it has one shard.

    The run directory writes and fills them as `stores`.
    """

    def __init__(
        self,
        sweep: SweepConfig,
        layout: UnrollLayout,
        watch: NodeWatch,
        count: int,
        directory: RunDirectory,
        *,
        in_step: bool,
    ) -> None:
        self._sweep, self._layout, codec = sweep, layout, resolve_codec(layout, sweep.base.replay.codec)
        one_node = in_step or sweep.share == "separate"
        self.supervisors: list[ShardSupervisor] = []
        self.stores: list[Replay] = []
        for number in range(count):
            plan = self._plan(number, watch, 1 if one_node else len(watch.nodes()))
            supervisor = ShardSupervisor(plan, watch.nodes, number if one_node else None)
            files = ReplayFiles(directory.path, layout, number, lambda one=supervisor: one.shards)  # type: ignore[misc]
            directory.segments[number] = files
            self.supervisors.append(supervisor)
            self.stores.append(cast("Replay", ShardFiller(layout, codec, supervisor.shards)))

    def _plan(self, number: int, watch: NodeWatch, shards: int) -> ShardPlan:
        replay, layout = self._sweep.base.replay, self._layout
        steps = -(-replay.capacity_steps // layout.steps // shards) * layout.steps
        budget = None if replay.budget_gb is None else int(replay.budget_gb * 1e9 / shards)
        need = estimate(layout, steps, replay.codec, budget)
        smallest = min(watch.resource("memory"))
        if smallest and need.total > smallest:
            raise ConfigError(
                f"a shard of the replay needs {need.total / 1e9:.1f} GB, the smallest node of the cluster has {smallest / 1e9:.1f} GB; "
                "lower --replay.capacity-steps or --replay.budget-gb, or add nodes"
            )
        return ShardPlan(layout, steps, number * NUMBERS, codec=replay.codec, budget_bytes=budget)

    def views(self, members: int) -> list[Replay]:
        shards: list[Shards] = [lambda one=one: one.shards for one in self.supervisors]  # type: ignore[misc]
        views = [cast("Replay", ShardedReplay(self._layout, one, ahead=0)) for one in shards]
        return views if len(views) == members else views * members

    def look(self) -> list[SupervisedShard]:
        return [lost for supervisor in self.supervisors for lost in supervisor.look()]

    def close(self) -> None:
        for supervisor in self.supervisors:
            supervisor.close()
