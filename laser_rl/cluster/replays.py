"""The replays of a run on a cluster: one for all members, in a shard on every node; or one each, in one shard.

A `ShardSupervisor` starts the shards of one replay, sees which are lost, replaces them, and tells all readers and writers.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from laser_rl.checkpoint import Loaded, Mended, SegmentEntry
from laser_rl.cluster.calls import AnswerLost, Backoff, LongPoll, call, kill
from laser_rl.cluster.coordinator import SHARDS
from laser_rl.cluster.nodes import NodeWatch
from laser_rl.cluster.replay_files import ReplayFiles, ShardFiller
from laser_rl.cluster.shard import ShardClient, ShardPlan, ShardReport
from laser_rl.cluster.sharded import ShardedReplay
from laser_rl.errors import ConfigError
from laser_rl.replay.memory_estimate import estimate, resolve_codec
from laser_rl.replay.store import Replay
from laser_rl.training.build import Store
from laser_rl.training.directory import RunDirectory
from laser_rl.training.saving import fill_stores, warm_start
from laser_rl.training.settings import SweepConfig
from laser_rl.types import UnrollLayout

log = logging.getLogger("laser_rl.training")
STEADY_S = 60.0  # a shard that dies sooner than this may do so again: too little memory, a node that is going
NUMBERS = 10_000  # of shards, that each of several stores has to itself


@dataclass(frozen=True)
class LostShard:
    """A shard that is gone, as it was last known."""

    number: int
    unrolls: int
    by: str  # what became of its place: a shard with which number, or none


@dataclass
class _Supervised:
    shard: ShardClient
    started: float
    reports: LongPoll[ShardReport]
    newest: ShardReport | None = None


class ShardSupervisor:
    """Keeps one shard on each of some nodes; used by one thread, which calls `look` now and then.

    Args:
        plan: of each shard; its number is that of the first one. Capacity and budget are those of one shard.
        nodes: returns the nodes that are to have a shard.
    """

    def __init__(self, plan: ShardPlan, nodes: Callable[[], Sequence[str]]) -> None:
        self._plan, self._nodes = plan, nodes
        self._number = plan.number
        self._told: Any = None  # the coordinator that knows the shards
        self._lists = 0  # of shards, that were told
        self._by_node: dict[str, _Supervised] = {}
        self._deaths: dict[str, Backoff] = {}  # by node
        self.lost: list[LostShard] = []
        for node in nodes():
            self._start(node)

    @property
    def shards(self) -> list[ShardClient]:
        """Those that are not known to be lost."""
        return [one.shard for one in self._by_node.values()]

    def look(self, coordinator: Any) -> list[LostShard]:
        """Replace lost shards and give new nodes a shard; returns what was lost. The coordinator tells readers and writers.

        A shard that dies soon after it was started is replaced later and later: starting one costs seconds of a core.
        """
        for one in self._by_node.values():
            one.newest = one.reports.poll() or one.newest
        alive = set(self._nodes())
        found = [node for node, one in self._by_node.items() if node not in alive or one.reports.gone]
        gone = [(node, self._by_node.pop(node)) for node in found]
        for node, one in gone:
            self._count_death(node, one.started)
        new = [node for node in self._nodes() if node not in self._by_node and self._pause_s(node) <= 0]
        for node in new:
            self._start(node)
        lost = [self._lost(node, one) for node, one in gone]
        self.lost += lost
        if lost or new or coordinator is not self._told:
            self._tell(coordinator)
        return lost

    def _tell(self, coordinator: Any) -> None:
        self._told = None
        with contextlib.suppress(AnswerLost):  # the next look tells its successor
            self._lists += 1
            asked = coordinator.post.remote(SHARDS, self._lists, self.shards)
            call(asked, "the supervisor", "a coordinator to hear of the shards")
            self._told = coordinator

    def close(self) -> None:
        """End all shards."""
        for shard in self.shards:
            kill(shard.actor)
        self._by_node.clear()

    def _start(self, node: str) -> None:
        shard = ShardClient.start(replace(self._plan, number=self._number), node)
        self._number += 1
        self._by_node[node] = _Supervised(shard, time.monotonic(), LongPoll(shard.report))

    def _count_death(self, node: str, started: float) -> None:
        lived_well = time.monotonic() - started >= STEADY_S
        self._deaths.setdefault(node, Backoff()).count(started if lived_well else 0.0)

    def _pause_s(self, node: str) -> float:
        """Seconds until the node gets another shard."""
        return self._deaths[node].pause_s() if node in self._deaths else 0.0

    def _lost(self, node: str, one: _Supervised) -> LostShard:
        first, end = (0, 0) if one.newest is None else one.newest.span
        if node in self._by_node:
            by = f"shard {self._by_node[node].shard.number}"
        elif node in self._nodes():
            by = f"another in {self._pause_s(node):.0f} s, after {self._deaths[node].in_a_row} in a row died soon"
        else:
            by = "none: its node is gone"
        why, unrolls = one.reports.gone or "its node is gone", f"{end - first:,}"
        log.warning("%s is lost (%s) with about %s unrolls; its place is taken by %s", one.shard, why, unrolls, by)
        return LostShard(one.shard.number, end - first, by)


class Replays:
    """Starts, watches, saves and fills the shards of all replays of a run.

    There is one replay for all members, or one of each. `in_step` it has one shard.
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
        self._sweep, self._layout, self._directory = sweep, layout, directory
        self._codec = resolve_codec(layout, sweep.base.replay.codec)
        one_node = in_step or sweep.share == "separate"
        self.supervisors: list[ShardSupervisor] = []
        self._files: list[ReplayFiles] = []
        for number in range(count):
            nodes: Callable[[], Sequence[str]] = _OneNode(watch, number) if one_node else watch.nodes
            plan = self._plan(number, 1 if one_node else len(watch.nodes()))
            self._require_room(plan, watch)
            supervisor = ShardSupervisor(plan, nodes)
            files = ReplayFiles(directory.path, layout, number, lambda one=supervisor: one.shards)  # type: ignore[misc]
            directory.keep(number, files)
            self.supervisors.append(supervisor)
            self._files.append(files)

    def _plan(self, number: int, shards: int) -> ShardPlan:
        replay, layout = self._sweep.base.replay, self._layout
        steps = -(-replay.capacity_steps // layout.steps // shards) * layout.steps
        budget = None if replay.budget_gb is None else int(replay.budget_gb * 1e9 / shards)
        return ShardPlan(layout, steps, number * NUMBERS, codec=replay.codec, budget_bytes=budget)

    def _require_room(self, plan: ShardPlan, watch: NodeWatch) -> None:
        need = estimate(self._layout, plan.capacity_steps, plan.codec, plan.budget_bytes)
        smallest = min(watch.resource("memory"))
        if smallest and need.total > smallest:
            raise ConfigError(
                f"a shard of the replay needs {need.total / 1e9:.1f} GB, the smallest node of the cluster has {smallest / 1e9:.1f} GB; "
                "lower --replay.capacity-steps or --replay.budget-gb, or add nodes"
            )

    def views(self, members: int) -> list[Store]:
        """For each member a store to draw from; one for all, where they share one."""
        views = [
            cast("Store", ShardedReplay(self._layout, lambda one=one: one.shards, ahead=0))  # type: ignore[misc]
            for one in self.supervisors
        ]
        return views if len(views) == members else views * members

    def look(self, coordinators: Sequence[Any]) -> list[LostShard]:
        """See `ShardSupervisor.look`."""
        both = zip(self.supervisors, coordinators, strict=True)
        return [lost for supervisor, coordinator in both for lost in supervisor.look(coordinator)]

    def write(self) -> tuple[list[dict[str, int]], tuple[SegmentEntry, ...]]:
        """For a checkpoint."""
        return [files.write() for files in self._files], self._directory.segments()

    def fill(self, loaded: Loaded) -> Mended | None:
        """From a checkpoint of a cluster or of one machine."""
        fillers, ids = self._fillers(), loaded.state["replays"]
        both = list(zip(self._files, fillers, strict=True))
        mended = fill_stores(
            loaded, [(files, cast("Replay", filler), ids[at]) for at, (files, filler) in enumerate(both)]
        )
        for files, filler in both:
            files.reached(filler)
        return mended

    def warm_start(self, members: int) -> None:
        """With the replay of an earlier run, if one is named."""
        for filler in self._fillers():
            warm_start(cast("Replay", filler), self._sweep.base, members=members)

    def _fillers(self) -> list[ShardFiller]:
        return [ShardFiller(self._layout, self._codec, supervisor.shards) for supervisor in self.supervisors]

    def close(self) -> None:
        """End all shards."""
        for supervisor in self.supervisors:
            supervisor.close()


class _OneNode:
    """One node, which stays the same as long as it lives."""

    def __init__(self, watch: NodeWatch, number: int) -> None:
        self._watch, self._number, self._node = watch, number, ""

    def __call__(self) -> list[str]:
        nodes = self._watch.nodes()
        if self._node not in nodes and nodes:
            self._node = nodes[self._number % len(nodes)]
        return [self._node] if nodes else []
