"""What the replay costs: inserting, drawing and gathering unrolls of 20 steps of Atari, beside a bare gather and other stores.

All candidates hold the same bytes (frames and a record of all else): real frames of random play, and of trained play with --policies.
They take turns within each round; rates are medians over rounds: compare ratios within one run. Peers that are not installed are left
out (extra `bench`).
Run: python benchmarks/replay.py [--fill 10M] [--policies FOLDER] [--csv FILE]
"""

import argparse
import csv
import ctypes
import gc
import os
import statistics
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from laser_rl import LASER
from laser_rl.agent.policy import Policy
from laser_rl.envs.make import make_environments
from laser_rl.replay.memory_layout import Packed, allocate, pack
from laser_rl.replay.mixer import Counts, Mixer
from laser_rl.replay.prioritised import Prioritised
from laser_rl.replay.shared import COMPRESSED
from laser_rl.replay.store import Replay
from laser_rl.training.evaluate import Player
from laser_rl.types import UnrollLayout, Unrolls, empty_unrolls

GAMES = ["breakout", "pong", "seaquest", "ms_pacman", "space_invaders", "yars_revenge"]
STEPS, ACTIONS = 20, 18
SINGLE = UnrollLayout(STEPS, 0, (1, 84, 84), "uint8", (), "int64", ACTIONS)
STACKED = UnrollLayout(STEPS, 3, (1, 84, 84), "uint8", (), "int64", ACTIONS)
SMALL = UnrollLayout(STEPS, 0, (4,), "float32", (), "int64", 2)
ENVIRONMENTS, BATCH, AT_ONCE = 8, 128, 16
ROUNDS, SECONDS_A_ROUND = 7, 0.25
UNRECORDED = 100  # steps before trained play is recorded
Call = Callable[[], Any]


class Candidate(NamedTuple):
    """A store under test: each call inserts AT_ONCE unrolls, or draws BATCH."""

    name: str
    insert: Call | None
    sample: Call


def frames(game: str, count: int, rows: int) -> NDArray[np.uint8]:
    """`count` runs of `rows` consecutive frames [count, rows, 1, 84, 84] of random play."""
    from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415

    environments = AtariVectorEnv(
        game, ENVIRONMENTS, stack_num=1, full_action_space=True, use_fire_reset=False, reward_clipping=False
    )
    random = np.random.default_rng(0)
    runs = -(-count // ENVIRONMENTS)
    observation, _ = environments.reset(seed=1)
    recorded = np.empty((ENVIRONMENTS, runs * rows, 1, 84, 84), np.uint8)
    for row in range(runs * rows):
        recorded[:, row] = observation
        observation, *_ = environments.step(random.integers(0, ACTIONS, ENVIRONMENTS))
    environments.close()
    return recorded.reshape(-1, rows, 1, 84, 84)[:count]


def trained_frames(path: Path, count: int, rows: int) -> NDArray[np.uint8]:
    """The same of the policy in a file of LASER.save, sampled, after some steps so that games have come apart."""
    agent = LASER.load(path)
    config, layout = agent.config, agent.member.layout
    environments = make_environments(
        config.environment.id, config.environment, seed=1, lockstep=True, slots=ENVIRONMENTS
    )
    policy = Policy(agent.member.learner.network, agent.member.learner.family, seed=1)
    player, runs = Player(policy, layout, ENVIRONMENTS), -(-count // ENVIRONMENTS)
    recorded = np.empty((ENVIRONMENTS, runs * rows, 1, 84, 84), np.uint8)
    current = environments.reset()
    for row in range(-UNRECORDED, runs * rows):
        if row >= 0:
            recorded[current.slots, row] = current.observation
        current = environments.step(current.slots, player(current))
    environments.close()
    agent.close()
    return recorded.reshape(-1, rows, 1, 84, 84)[:count]


def unrolls_of(layout: UnrollLayout, observation: NDArray[np.uint8]) -> Unrolls:
    """Frames with outcomes as random as they are in a game: numbers that do not compress."""
    unrolls, random = empty_unrolls(layout, len(observation)), np.random.default_rng(1)
    unrolls.behaviour[...] = random.normal(size=unrolls.behaviour.shape)
    unrolls.action[...] = random.integers(0, ACTIONS, unrolls.action.shape)
    unrolls.is_transition[...] = True
    return unrolls._replace(observation=np.ascontiguousarray(observation))


def part(unrolls: Unrolls, at: int, count: int) -> Unrolls:
    """Unrolls at..at+count-1."""
    return Unrolls(*(array[at : at + count] for array in unrolls))


def ours(name: str, unrolls: Unrolls, layout: UnrollLayout, *, stacked: bool = True, **options: Any) -> Candidate:
    """Our store, full."""
    count = len(unrolls.member)
    store, random = Replay(layout, count * STEPS, budget_bytes=4 * 10**9, **options), np.random.default_rng(2)
    blocks = [part(unrolls, at, AT_ONCE) for at in range(0, count - AT_ONCE, AT_ONCE)]
    batch, turn = allocate(layout, BATCH, stacked=stacked), iter(blocks * 1000)
    store.insert(unrolls)
    return Candidate(name, lambda: store.insert(next(turn)), lambda: store.sample_into(BATCH, random, batch, 0))


def bare(packed: Packed) -> Candidate:
    """Nothing but index_select of the same bytes: as fast as it gets."""
    sources = [torch.from_numpy(array.copy()) for array in (packed.records, packed.frames)]
    targets = [source[:BATCH].clone() for source in sources]

    def sample() -> None:
        index = torch.randint(len(sources[0]), (BATCH,))
        for source, target in zip(sources, targets, strict=True):
            torch.index_select(source, 0, index, out=target)

    return Candidate("bare index_select", None, sample)


def torchrl_buffer(packed: Packed) -> Candidate | None:
    """The TensorDictReplayBuffer of torchrl, over memory of its own."""
    try:
        from tensordict import TensorDict  # noqa: PLC0415
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer  # noqa: PLC0415
    except ImportError:
        return None
    data = TensorDict(
        {"record": torch.from_numpy(packed.records), "frames": torch.from_numpy(packed.frames)}, [len(packed.records)]
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(len(data)), batch_size=BATCH)
    buffer.extend(data)
    return Candidate("torchrl, raw", lambda: buffer.extend(data[:AT_ONCE]), buffer.sample)


def cpprb_buffer(packed: Packed) -> Candidate | None:
    """The ReplayBuffer of cpprb."""
    try:
        from cpprb import ReplayBuffer  # noqa: PLC0415
    except ImportError:
        return None
    shapes = {name: {"shape": array.shape[1:], "dtype": np.uint8} for name, array in packed._asdict().items()}
    buffer = ReplayBuffer(len(packed.records), shapes)
    buffer.add(**packed._asdict())
    block = {name: array[:AT_ONCE] for name, array in packed._asdict().items()}
    return Candidate("cpprb, raw", lambda: buffer.add(**block), lambda: buffer.sample(BATCH))


def rate(call: Call, seconds: float = SECONDS_A_ROUND) -> float:
    """Calls a second."""
    call()
    calls, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        call()
        calls += 1
    return calls / spent


def compare(pool: NDArray[np.uint8]) -> list[dict[str, Any]]:
    """Inserts and gathered unrolls a second of all candidates, in turns."""
    single = unrolls_of(SINGLE, pool[:, 3:])
    stacked, packed = unrolls_of(STACKED, pool), pack(SINGLE, single)
    candidates = [
        bare(packed),
        ours("ours, raw", single, SINGLE, codec="raw"),
        torchrl_buffer(packed),
        cpprb_buffer(packed),
        ours("ours, zstd", single, SINGLE, codec="zstd"),
        ours("ours, zstd, stacks of 4 to upload", stacked, STACKED, stacked=False),
        ours("ours, zstd, stacks of 4 rebuilt", stacked, STACKED),
    ]
    there = [candidate for candidate in candidates if candidate is not None]
    samples: dict[str, list[float]] = {candidate.name: [] for candidate in there}
    inserts: dict[str, list[float]] = {candidate.name: [] for candidate in there}
    for _ in range(ROUNDS):
        for candidate in there:
            samples[candidate.name].append(BATCH * rate(candidate.sample))
            if candidate.insert:
                inserts[candidate.name].append(AT_ONCE * rate(candidate.insert))
    fastest = samples["bare index_select"]
    print(
        f"\n| {len(pool)} unrolls of 6 games | inserts/s | gathered unrolls/s | frames/s | of the bare gather |\n|---|---|---|---|---|"
    )
    records = []
    for name, rates in samples.items():
        gathered, share = (
            statistics.median(rates),
            statistics.median(r / f for r, f in zip(rates, fastest, strict=True)),
        )
        inserted = statistics.median(inserts[name]) if inserts[name] else 0
        print(
            f"| {name} | {inserted:,.0f} | {gathered:,.0f} | {gathered * (STEPS + 1):,.0f} | {share:.2f} |", flush=True
        )
        records += [
            {"what": "insert", "variant": name, "value": round(inserted or 0), "unit": "unrolls/s"},
            {"what": "gather 128", "variant": name, "value": round(gathered), "unit": "unrolls/s"},
            {"what": "gather 128", "variant": name, "value": round(share, 3), "unit": "of the bare gather"},
        ]
    return records


def beside_python(pool: NDArray[np.uint8]) -> list[dict[str, Any]]:
    """Gathering while another thread computes in Python and gives up the interpreter lock only when it must."""
    candidate, stop = ours("ours", unrolls_of(SINGLE, pool[:, 3:]), SINGLE, codec="zstd"), threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(range(1000))

    alone = BATCH * rate(candidate.sample, 1.0)
    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    beside = BATCH * rate(candidate.sample, 1.0)
    stop.set()
    thread.join(timeout=10.0)
    print(f"\nzstd, 1 thread: {alone:,.0f} unrolls/s alone, {beside:,.0f} beside a thread that computes in Python")
    return [{"what": "gather beside Python", "variant": "ours, zstd", "value": round(beside), "unit": "unrolls/s"}]


def sizes(pools: dict[str, NDArray[np.uint8]]) -> list[dict[str, Any]]:
    """Bytes of a compressed frame, by game."""
    print("\n| random play | bytes a frame | ratio |\n|---|---|---|")
    records = []
    for game, pool in pools.items():
        store = Replay(SINGLE, len(pool) * STEPS, codec="zstd", budget_bytes=10**9)
        store.insert(unrolls_of(SINGLE, pool[:, 3:]))
        frame = store._room.words[COMPRESSED] / (len(pool) * (STEPS + 1))  # noqa: SLF001
        print(f"| {game} | {frame:.0f} | {84 * 84 / frame:.0f} |")
        records.append({"what": "bytes a frame", "variant": game, "value": round(frame, 1), "unit": "bytes"})
    return records


def resident() -> float:
    """Megabytes of memory of this process that are really there."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def growth(pool: NDArray[np.uint8], inserts: int) -> list[dict[str, Any]]:
    """Memory over many inserts of differently sized blocks into a full store."""
    unrolls, capacity = unrolls_of(STACKED, pool), 5000
    store, random, batch = Replay(STACKED, capacity * STEPS), np.random.default_rng(3), allocate(STACKED, 8)
    for at in range(capacity + 100):
        store.insert(part(unrolls, at % len(pool), 1))
    store.sample_into(8, random, batch, 0)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what earlier measurements left free would hide growth
    before, held = resident(), store.nbytes
    for i in range(inserts):
        store.insert(part(unrolls, int(random.integers(len(pool))), 1))
        if i % 100 == 0:
            store.sample_into(8, random, batch, 0)
    after = resident()
    print(
        f"\n{inserts:,} inserts into a full store of {capacity:,} unrolls: {before:.1f} MB before, {after:.1f} MB after; "
        f"the store {held / 1e6:.1f} MB before, {store.nbytes / 1e6:.1f} MB after"
    )
    return [{"what": "memory growth", "variant": f"{inserts} inserts", "value": round(after - before, 1), "unit": "MB"}]


def small() -> list[dict[str, Any]]:
    """CartPole: what a batch of 8 costs."""
    mixer = Mixer(SMALL, Replay(SMALL, 100_000), Counts.of(8, 0.875), np.random.Generator(np.random.PCG64(4)))
    batch, one, eight = allocate(SMALL, 8), empty_unrolls(SMALL, 1), empty_unrolls(SMALL, 5000)
    offered, filled = [], []
    for _ in range(ROUNDS):
        mixer.offer(eight)
        filled.append(_microseconds(lambda: mixer.fill(batch), 4000))
        offered.append(_microseconds(lambda: mixer.offer(one), 2000))
    print(
        f"\nCartPole: offer {statistics.median(offered):.0f} µs, fill a batch of 8 {statistics.median(filled):.0f} µs"
    )
    return [{"what": "fill", "variant": "CartPole, 8", "value": round(statistics.median(filled), 1), "unit": "µs"}]


def prioritised() -> list[dict[str, Any]]:
    """What a prioritised batch of 123 and its new priorities cost, with stores of two sizes; five unrolls come before each."""
    records, five = [], empty_unrolls(SMALL, 5)
    for unrolls in (10_000, 100_000):
        store, batch = Replay(SMALL, unrolls * STEPS), allocate(SMALL, 123)
        store.insert(empty_unrolls(SMALL, unrolls))
        sampler = Prioritised(store, exponent=0.6, importance_exponent=1.0, uniform_share=0.1)
        random, seconds = np.random.default_rng(7), []
        sampler.fill(123, random, batch, 0)
        sampler.prioritise(np.arange(unrolls), random.random(unrolls))  # all different, as they are after a while
        for _ in range(500):
            store.insert(five)
            begin = time.perf_counter()
            sampler.fill(123, random, batch, 0)
            sampler.prioritise(batch.id.numpy(), random.random(123))
            seconds.append(time.perf_counter() - begin)
        found = 1e3 * statistics.median(seconds)
        print(f"prioritised draws from {unrolls:,} unrolls: {found:.2f} ms a batch of 123")
        records.append({"what": "prioritised", "variant": f"{unrolls} unrolls", "value": round(found, 3), "unit": "ms"})
    return records


def _microseconds(call: Call, times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return 1e6 * (time.perf_counter() - begin) / times


def fill(pools: dict[str, NDArray[np.uint8]], steps: int) -> list[dict[str, Any]]:
    """A replay of `steps` steps, really filled."""
    pool = np.concatenate(list(pools.values()))
    unrolls, before, begin = unrolls_of(STACKED, pool), resident(), time.perf_counter()
    store, random = Replay(STACKED, steps), np.random.default_rng(5)
    while store.next_id < steps // STEPS:
        store.insert(part(unrolls, int(random.integers(len(pool) - AT_ONCE)), AT_ONCE))
    spent, compressed = time.perf_counter() - begin, store._room.words[COMPRESSED]  # noqa: SLF001
    batch = allocate(STACKED, BATCH, stacked=False)
    gathered = BATCH * rate(lambda: store.sample_into(BATCH, random, batch, 0), 3.0)
    print(
        f"\n{store.steps:,} steps in {spent:.0f} s, {len(pool)} distinct unrolls of {len(pools)} games inserted again and again: "
        f"{store.nbytes / 1e9:.2f} GB held, of that {compressed / 1e9:.2f} GB frames "
        f"({compressed / (len(store) * (STEPS + 4)):.0f} bytes each); process grew by {(resident() - before) / 1e3:.2f} GB; "
        f"{gathered:,.0f} gathered unrolls/s, 1 thread, not stacked"
    )
    return [
        {"what": "filled", "variant": f"{store.steps} steps", "value": round(store.nbytes / 1e9, 3), "unit": "GB"},
        {
            "what": "filled, gather 128",
            "variant": f"{store.steps} steps",
            "value": round(gathered),
            "unit": "unrolls/s",
        },
    ]


def main() -> None:
    """Record frames, then run what was asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-threads", type=int, default=1, help="more only on a machine that does nothing else")
    parser.add_argument("--fill", help="fill a replay of so many steps, such as 10M, and nothing else")
    parser.add_argument("--inserts", type=int, default=100_000, help="into a full store, to see memory grow")
    parser.add_argument("--unrolls", type=int, default=200, help="to record of each game")
    parser.add_argument("--policies", type=Path, help="a folder with files of LASER.save: frames of their play, too")
    parser.add_argument("--prioritised", action="store_true", help="prioritised draws, and nothing else")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="torchrl|tensordict")
    torch.set_num_threads(arguments.torch_threads)
    print(f"torch {torch.__version__}, {os.cpu_count()} cores; {STEPS}-step unrolls of 84x84")
    pools = (
        {}
        if arguments.prioritised
        else {game: frames(game, arguments.unrolls, STACKED.context + STEPS + 1) for game in GAMES}
    )
    for path in sorted(arguments.policies.glob("*.laser")) if arguments.policies else ():
        pools[f"{path.stem.lower()}, trained"] = trained_frames(path, arguments.unrolls, STACKED.context + STEPS + 1)
    pool = np.random.default_rng(6).permutation(np.concatenate(list(pools.values())) if pools else 0)
    if arguments.prioritised:
        records = prioritised()
    elif arguments.fill:
        scale = {"k": 10**3, "M": 10**6}.get(arguments.fill[-1], 1)
        records = fill(pools, int(float(arguments.fill.rstrip("kM")) * scale))
    else:
        records = [*compare(pool), *sizes(pools), *beside_python(pool), *small()]
        records += growth(pool, arguments.inserts)
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, records[0])
            writer.writeheader()
            writer.writerows(records)


if __name__ == "__main__":
    main()
