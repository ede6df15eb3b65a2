"""The replays of a run on a cluster: one for all members, in a shard on every node; or one each, in one shard; or none."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from laser_rl.checkpoint import Loaded, Mended, SegmentEntry
from laser_rl.cluster.nodes import NodeWatch
from laser_rl.cluster.replay_files import ReplayFiles, Spreading
from laser_rl.cluster.shard import ShardPlan
from laser_rl.cluster.shard_supervisor import Lost, ShardSupervisor
from laser_rl.cluster.sharded import ShardedReplay
from laser_rl.errors import ConfigError
from laser_rl.replay.memory_estimate import estimate, resolve_codec
from laser_rl.replay.store import Replay
from laser_rl.training.directory import RunDirectory
from laser_rl.training.saving import fill_stores
from laser_rl.training.settings import SweepConfig
from laser_rl.training.warm_start import warm_start
from laser_rl.types import UnrollLayout

NUMBERS = 10_000  # of shards, that each of several stores has to itself


class Replays:
    """Keeps the shards, saves and fills them.

    Args:
        sweep: all values.
        layout: of the unrolls.
        watch: knows the nodes.
        desks: where the rosters go: one for all members, or that of each.
        directory: of the sweep.
        in_step: one shard only.
    """

    def __init__(
        self,
        sweep: SweepConfig,
        layout: UnrollLayout,
        watch: NodeWatch,
        desks: Sequence[Any],
        directory: RunDirectory,
        *,
        in_step: bool,
    ) -> None:
        self._sweep, self._layout, self._directory = sweep, layout, directory
        self._codec = resolve_codec(layout, sweep.base.replay.codec)
        one_node = in_step or sweep.share == "separate"
        self.keepers: list[ShardSupervisor] = []
        for number, desk in enumerate(desks):
            nodes: Callable[[], Sequence[str]] = _Sticky(watch, number) if one_node else watch.nodes
            plan = self._plan(number, 1 if one_node else len(watch.nodes()))
            self._require_room(plan, watch)
            self.keepers.append(ShardSupervisor(plan, desk, nodes=nodes))
        self._mirrors = [self._mirror(number, keeper) for number, keeper in enumerate(self.keepers)]

    def _plan(self, number: int, shards: int) -> ShardPlan:
        replay, layout = self._sweep.base.replay, self._layout
        steps = -(-replay.capacity_steps // layout.steps // shards) * layout.steps
        budget = None if replay.budget_gb is None else int(replay.budget_gb * 1e9 / shards)
        return ShardPlan(layout, steps, number * NUMBERS, codec=replay.codec, budget_bytes=budget)

    def _require_room(self, plan: ShardPlan, watch: NodeWatch) -> None:
        need = estimate(self._layout, plan.capacity_steps, plan.codec, plan.budget_bytes)
        smallest = min(watch.memory())
        if smallest and need.total > smallest:
            raise ConfigError(
                f"a shard of the replay needs {need.total / 1e9:.1f} GB, the smallest node of the cluster has {smallest / 1e9:.1f} GB; "
                "lower --replay.capacity-steps or --replay.budget-gb, or add nodes"
            )

    def _mirror(self, number: int, keeper: ShardSupervisor) -> ReplayFiles:
        mirror = ReplayFiles(self._directory.path, self._layout, number, lambda: keeper.shards)
        self._directory.keep(number, mirror)
        return mirror

    def views(self, members: int) -> list[ShardedReplay]:
        """For each member a store to draw from; one for all, where they share one."""
        stores = [
            ShardedReplay(
                self._layout,
                lambda keeper=keeper: keeper.shards,  # type: ignore[misc]
                ahead=0,
                stream="supervisor",
                codec=self._codec,
            )
            for keeper in self.keepers
        ]
        return stores if len(stores) == members else stores * members

    def look(self) -> list[Lost]:
        """Replace lost shards."""
        return [lost for keeper in self.keepers for lost in keeper.look()]

    def write(self) -> tuple[list[dict[str, int]], tuple[SegmentEntry, ...]]:
        """For a checkpoint."""
        ids = [mirror.write() for mirror in self._mirrors]
        return ids, self._directory.segments()

    def fill(self, loaded: Loaded) -> Mended | None:
        """From a checkpoint, of here or of one machine."""
        spread = [self._spreading(keeper) for keeper in self.keepers]
        ids = loaded.state["replays"]
        stores = [(mirror, cast("Replay", store)) for mirror, store in zip(self._mirrors, spread, strict=True)]
        mended = fill_stores(loaded, [(*both, ids[number]) for number, both in enumerate(stores)])
        for mirror, store in zip(self._mirrors, spread, strict=True):
            mirror.reached(store)
        return mended

    def warm_start(self, members: int) -> None:
        """With the replay of an earlier run, if one is named."""
        for keeper in self.keepers:
            warm_start(cast("Replay", self._spreading(keeper)), self._sweep.base, members=members)

    def _spreading(self, keeper: ShardSupervisor) -> Spreading:
        return Spreading(self._layout, self._codec, keeper.shards)

    def close(self) -> None:
        """End all shards."""
        for keeper in self.keepers:
            keeper.close()


class _Sticky:
    """One node, which stays the same as long as it lives."""

    def __init__(self, watch: NodeWatch, number: int) -> None:
        self._watch, self._number, self._node = watch, number, ""

    def __call__(self) -> list[str]:
        nodes = self._watch.nodes()
        if self._node not in nodes and nodes:
            self._node = nodes[self._number % len(nodes)]
        return [self._node] if nodes else []
