"""What a call to a shard costs through Ray, at the shard and at the learner: the calibration of `simulate.py`.

A learner's process asks one full shard for unrolls, some at a time, with several calls under way, and unpacks the answers. The CPU time of
both processes is read from the operating system: other work on the machine disturbs it less than the clock on the wall. A straight line
over the unrolls a call asks for gives seconds a call and seconds an unroll.
Run: python -m benchmarks.simulate_calls [--smoke] [--csv FILE]
"""

import argparse
import csv
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cluster import ANSWER_S, AT_ONCE, cluster, from_afar
from benchmarks.replay import GAMES, STACKED, STEPS, frames, part, unrolls_of
from laser_rl.cluster.calls import Answer, on_node, ray, start_actor
from laser_rl.cluster.runner import ReplayWriter
from laser_rl.cluster.shard import THREADS, Shard, ShardClient, ShardPlan
from laser_rl.replay.encoded_unrolls import Unpacking, seal
from laser_rl.replay.memory_layout import allocate, pack, parts_of

SIZES = (1, 2, 4, 8, 16, 32, 64, 123)
UNDER_WAY, UNROLLS, ROUNDS, SECONDS = 8, 1024, 5, 1.0


class Cost(NamedTuple):
    """Of a call, in seconds."""

    wall: float
    shard: float  # CPU
    learner: float  # CPU


class TimedShard(Shard):
    """A shard that says how much CPU time its process has used."""

    def cpu_s(self) -> float:
        """All threads, Ray's own too."""
        return time.process_time()


def measured(
    cpu: Callable[[], float], ask: Callable[[], Answer[Any]], use: Callable[[Any], None], seconds: float
) -> Cost:
    """Calls for so long, several under way."""
    waiting = deque(ask() for _ in range(UNDER_WAY))
    use(waiting.popleft().result(ANSWER_S))  # the first pays for connections
    waiting.append(ask())
    there, here, begin, calls = cpu(), time.process_time(), time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        use(waiting.popleft().result(ANSWER_S))
        waiting.append(ask())
        calls += 1
    spent = time.perf_counter() - begin
    cost = Cost(spent / calls, (cpu() - there) / calls, (time.process_time() - here) / calls)
    for answer in waiting:
        answer.result(ANSWER_S)
    return cost


def costs(node: str, pool: Any, rounds: int, seconds: float) -> dict[str, Cost]:
    """Medians over rounds, for reports and for gathers by how many unrolls they ask for."""
    plan = ShardPlan(STACKED, UNROLLS * STEPS, 0, budget_bytes=10**9)
    actor = start_actor(TimedShard, plan, strategy=on_node(node), concurrency_groups=THREADS)
    started = from_afar(ShardClient(actor, plan, node, "this machine"))
    unrolls, writer = unrolls_of(STACKED, pool), ReplayWriter(lambda: [started], "fill")
    for at in range(0, UNROLLS, AT_ONCE):
        writer.send(seal(pack(STACKED, part(unrolls, at % len(pool), AT_ONCE)), "zstd"), ANSWER_S)
    batch, unpacking = allocate(STACKED, max(SIZES), stacked=False), Unpacking(STACKED)
    parts, random = parts_of(STACKED, batch), np.random.default_rng(0)

    def cpu() -> float:
        return float(ray().get(started.actor.cpu_s.remote(), timeout=ANSWER_S))

    found: dict[str, list[Cost]] = {}
    for _ in range(rounds):
        found.setdefault("report", []).append(measured(cpu, started.report, lambda _: None, seconds))
        for size in SIZES:

            def ask(size: int = size) -> Answer[Any]:
                return started.gather(random.integers(0, UNROLLS, size))

            def use(answer: Any) -> None:
                unpacking.put(answer.encoded, np.arange(answer.encoded.unrolls), parts, 0)

            found.setdefault(f"gather {size}", []).append(measured(cpu, ask, use, seconds))
    return {
        name: Cost(*(statistics.median(values) for values in zip(*rows, strict=True))) for name, rows in found.items()
    }


def line(found: dict[str, Cost], of: str) -> tuple[float, float]:
    """Seconds a call and seconds an unroll, by least squares weighted so that small calls count as much as large ones."""
    sizes = np.array(SIZES, float)
    seconds = np.array([getattr(found[f"gather {size}"], of) for size in SIZES])
    unroll, call = np.polyfit(sizes, seconds, 1, w=1 / seconds)
    return float(call), float(unroll)


def main() -> None:
    """Entry."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="one short round")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    games, rounds, seconds = (GAMES[:1], 1, 0.1) if arguments.smoke else (GAMES, ROUNDS, SECONDS)
    pool = np.concatenate([frames(game, 768 // len(games) // AT_ONCE * AT_ONCE, STEPS + 4) for game in games])
    pool = pool[np.random.default_rng(3).permutation(len(pool))]
    with cluster(1) as ids:
        found = costs(ids[0], pool, rounds, seconds)
    rows = [(name, of, 1e6 * value) for name, cost in found.items() for of, value in cost._asdict().items()]
    for of in ("shard", "learner"):
        rows += [(what, of, 1e6 * value) for what, value in zip(("a call", "an unroll"), line(found, of), strict=True)]
    print("| | where | µs |\n|---|---|---|")
    for name, of, value in rows:
        print(f"| {name} | {of} | {value:,.1f} |")
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("what", "where", "microseconds"))
            writer.writerows((name, of, round(value, 2)) for name, of, value in rows)


if __name__ == "__main__":
    main()
