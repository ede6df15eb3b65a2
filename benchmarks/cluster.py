"""What the way from a runner to a learner costs on Ray: through the sharded replay, beside plain put and get of the same bytes.

Unrolls of 20 steps of Atari, real frames of random play. Everything takes turns within each round on one cluster; rates are medians over
rounds: compare ratios within one run. "Plain Ray" is what Ray itself can do: an actor that answers with a batch of the same bytes, raw
and unstacked, the next ones asked for ahead, as many as the replay asks for. The learner's side of both ends with a batch filled in its
own memory. With three nodes there are three shards and three runners, and a batch is drawn from all; all nodes are on this machine, so
what a network would take is not in it: bytes on the wire say what it would carry.
Run: python -m benchmarks.cluster [--nodes 1 3] [--smoke] [--csv FILE]
"""

import argparse
import csv
import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.replay import GAMES, STACKED, STEPS, frames, part, unrolls_of
from laser_rl.cluster.calls import Answer, on_node, ray
from laser_rl.cluster.runner import ReplayWriter
from laser_rl.cluster.shard import ShardClient, ShardPlan
from laser_rl.cluster.sharded import AHEAD, ShardedReplay
from laser_rl.replay.encoded_unrolls import Unpacking, seal
from laser_rl.replay.memory_layout import Packed, allocate, pack, parts_of
from laser_rl.replay.store import Replay

BATCH, AT_ONCE = 128, 16
ROUNDS, SECONDS = 5, 1.0  # as many rounds as there are ways to read: each is first once
SETTLE_S = 0.5
ANSWER_S = 60.0
STORE_BYTES = 400 << 20
UNROLLS = 1024  # in all shards together
SHARDS = "drawn from the shards, ahead"  # a shard of this node is read where it lies
BOTH = SHARDS + ", while runners deliver"


class Row(NamedTuple):
    """One line of the table."""

    what: str
    unrolls: float  # a second
    wire: float  # bytes an unroll


@contextmanager
def cluster(nodes: int) -> Iterator[list[str]]:
    """Raylets on this machine; ids of the nodes, ours first."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray()
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    options = {"num_cpus": 4, "object_store_memory": STORE_BYTES}
    made = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            made.add_node(**options)
        ray().init(address=made.address, log_to_driver=False, logging_level="ERROR")
        own = ray().get_runtime_context().get_node_id()
        alive = [node["NodeID"] for node in ray().nodes() if node["Alive"]]
        yield sorted(alive, key=lambda node: (node != own, node))
    finally:
        ray().shutdown()
        made.shutdown()


def from_afar(shard: ShardClient) -> ShardClient:
    """The same as processes of other nodes see it: every gather is a call."""
    far = ShardClient(shard.actor, shard.plan, shard.node, shard.where)
    far.mapped = None
    return far


class Source:
    """A runner without an emulator: delivers the same unrolls over and over, or hands out batches of bytes as they are."""

    def __init__(self, parcels: list[Packed], raw: Packed) -> None:
        self._parcels, self._raw = parcels, raw

    def deliver(self, shard: ShardClient, stream: str, seconds: float) -> float:
        """Unrolls a second through a writer."""
        writer, end, turn, sent = ReplayWriter(lambda: [shard], stream), time.perf_counter() + seconds, 0, 0
        begin = time.perf_counter()
        while time.perf_counter() < end:
            parcel = self._parcels[turn % len(self._parcels)]
            if writer.send(parcel, ANSWER_S):
                turn, sent = turn + 1, sent + parcel.unrolls
        return sent / (time.perf_counter() - begin)

    def put(self, seconds: float) -> float:
        """Unrolls a second into the object store, raw, as many at once as a parcel has."""
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            kept = ray().put(self._raw.frames[:AT_ONCE])
            count += AT_ONCE
        del kept
        return count / (time.perf_counter() - begin)

    def batch(self) -> Packed:
        """A batch of raw bytes, as an answer."""
        return self._raw


def rate(call: Callable[[], Any], seconds: float) -> float:
    """Batches a second."""
    call()
    calls, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        call()
        calls += 1
    return calls / spent


def plain(sources: list[Any]) -> Callable[[], None]:
    """Batches of raw bytes from other actors, the next ones under way, put into the learner's memory."""
    parts, unpacking = parts_of(STACKED, allocate(STACKED, BATCH, stacked=False)), Unpacking(STACKED)
    ids, turn = np.arange(BATCH), 0
    waiting: list[Answer[Packed]] = []

    def take() -> None:
        nonlocal turn
        while len(waiting) <= AHEAD:
            waiting.append(Answer(sources[turn % len(sources)].batch.remote()))
            turn += 1
        unpacking.put(waiting.pop(0).result(ANSWER_S), ids, parts, 0)

    return take


def drawing(store: ShardedReplay | Replay) -> Callable[[], None]:
    """Batches from a replay."""
    batch, random = allocate(STACKED, BATCH, stacked=False), np.random.default_rng(0)

    def take() -> None:
        store.sample_into(BATCH, random, batch, 0)

    return take


class Bench:
    """Shards and runners on every node, and one learner here; all shards are full."""

    def __init__(self, nodes: list[str], pool: Any) -> None:
        unrolls, each = unrolls_of(STACKED, pool), -(-UNROLLS // len(nodes))
        self.parcels = [seal(pack(STACKED, part(unrolls, at, AT_ONCE)), "zstd") for at in range(0, len(pool), AT_ONCE)]
        self.raw = seal(pack(STACKED, part(unrolls, 0, BATCH)), "raw")
        plans = [ShardPlan(STACKED, each * STEPS, number, budget_bytes=10**9) for number in range(len(nodes))]
        self.shards = [ShardClient.start(plan, node) for plan, node in zip(plans, nodes, strict=True)]
        maker = ray().remote(num_cpus=1)(Source)
        self.sources = [
            maker.options(scheduling_strategy=on_node(node)).remote(self.parcels, self.raw) for node in nodes
        ]
        self.local = Replay(STACKED, each * len(nodes) * STEPS, budget_bytes=10**9)
        for at in range(UNROLLS // AT_ONCE):
            self.local.insert_packed(self.parcels[at % len(self.parcels)])
        for number, shard in enumerate(self.shards):
            self._fill(shard, f"fill {number}", each // AT_ONCE)

    def _fill(self, shard: ShardClient, stream: str, parcels: int) -> None:
        writer = ReplayWriter(lambda: [shard], stream)
        for at in range(parcels):
            writer.send(self.parcels[at % len(self.parcels)], ANSWER_S)

    def wire(self, what: str) -> float:
        """Bytes of an unroll on its way."""
        if "no Ray" in what:
            return 0.0
        if ", raw" in what or "of raw" in what:  # "drawn" has these letters too
            return sum(part.nbytes for part in self.raw) / BATCH
        return statistics.mean(sum(part.nbytes for part in parcel) / parcel.unrolls for parcel in self.parcels)

    def reads(self) -> dict[str, Callable[[], None]]:
        """What takes one batch, by name."""

        def sharded(among: Sequence[ShardClient], ahead: int = AHEAD) -> Callable[[], None]:
            return drawing(ShardedReplay(STACKED, lambda: among, ahead=ahead))

        far = [from_afar(shard) for shard in self.shards]

        return {
            "drawn in one process, no Ray": drawing(self.local),
            "plain Ray, batches of raw bytes, ahead": plain(self.sources),
            SHARDS: sharded(self.shards),
            "drawn from the shards, by calls also within the node, ahead": sharded(far),
            "drawn from the shards, by calls also within the node, one at a time": sharded(far, 0),
        }

    def put(self, turn: int, seconds: float) -> list[Any]:
        """All runners put raw bytes for so long; their rates will come."""
        return [source.put.remote(seconds) for source in self.sources]

    def deliver(self, turn: int, seconds: float) -> list[Any]:
        """All runners deliver to the shards of their nodes for so long; their rates will come."""
        both = enumerate(zip(self.sources, self.shards, strict=True))
        return [source.deliver.remote(shard, f"runner {at} {turn}", seconds) for at, (source, shard) in both]


def measured(nodes: list[str], pool: Any, rounds: int, seconds: float) -> list[Row]:
    """All rates of one cluster."""
    bench = Bench(nodes, pool)
    reads, writes = (
        bench.reads(),
        {"put into the object store, raw": bench.put, "delivered to the shards": bench.deliver},
    )
    found: dict[str, list[float]] = {name: [] for name in (*writes, *reads, BOTH)}
    for turn in range(rounds):
        for name, begin in writes.items():
            found[name].append(sum(ray().get(begin(turn, seconds), timeout=ANSWER_S + 10 * seconds)))
        time.sleep(SETTLE_S)
        names = list(reads)
        # Whoever came first in every round would be measured while the runners' last parcels are still being put away.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(BATCH * rate(reads[name], seconds))
        writing = bench.deliver(rounds + turn, seconds)
        found[BOTH].append(BATCH * rate(reads[SHARDS], seconds))
        ray().get(writing, timeout=ANSWER_S + 10 * seconds)
    return [Row(name, statistics.median(rates), bench.wire(name)) for name, rates in found.items()]


def report(nodes: int, rows: list[Row]) -> list[dict[str, Any]]:
    """Print a table; the same as records."""
    raw = next(row.wire for row in rows if "raw" in row.what)
    print(
        f"\n| {nodes} node{'s' if nodes > 1 else ''} | unrolls/s | GB/s of raw frames | bytes an unroll on the wire |\n|---|---|---|---|"
    )
    records = []
    for what, unrolls, wire in rows:
        print(f"| {what} | {unrolls:,.0f} | {unrolls * raw / 1e9:.2f} | {wire:,.0f} |", flush=True)
        for value, unit in ((unrolls, "unrolls/s"), (unrolls * raw / 1e9, "GB/s"), (wire, "bytes/unroll")):
            records.append({"what": what, "variant": f"{nodes} nodes", "value": round(value, 3), "unit": unit})
    return records


def main() -> None:
    """Entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--smoke", action="store_true", help="one short round on one node")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    games, rounds, seconds, sizes = GAMES, ROUNDS, SECONDS, arguments.nodes
    if arguments.smoke:
        games, rounds, seconds, sizes = GAMES[:1], 1, 0.2, [1]
    rows = STEPS + 4
    pool = np.concatenate([frames(game, 768 // len(games) // AT_ONCE * AT_ONCE, rows) for game in games])
    pool = pool[np.random.default_rng(3).permutation(len(pool))]
    records = []
    for nodes in sizes:
        with cluster(nodes) as ids:
            records += report(nodes, measured(ids, pool, rounds, seconds))
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["what", "variant", "value", "unit"])
            writer.writeheader()
            writer.writerows(records)


if __name__ == "__main__":
    main()
