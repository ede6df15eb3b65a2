"""Shards, writers and the sharded replay on Ray: one small test on one node, and three nodes of which some are lost."""

import os
import signal
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from laser_rl.cluster.calls import on_node, ray, start_actor
from laser_rl.cluster.replays import ShardSupervisor
from laser_rl.cluster.runner import ReplayWriter
from laser_rl.cluster.shard import ShardClient, ShardPlan
from laser_rl.cluster.sharded import ShardedReplay
from laser_rl.replay.encoded_unrolls import seal
from laser_rl.replay.memory_layout import allocate, fields_of, pack
from tests.cluster.raylets import STORE_BYTES, needs_ray, require_token, send, three_raylets
from tests.replay.inputs import STACKED, VECTOR, numbered

pytestmark = needs_ray
ANSWER_S = 240.0  # before something is taken for hanging; on a busy machine a new worker of Ray takes a minute to begin
STREAM = 1_000_000  # numbers of one runner's unrolls; more than it sends in any time that a test may take


@pytest.fixture
def one_node():
    """The cluster that is there, or a small one."""
    require_token()
    started = not ray().is_initialized()
    if started:
        ray().init(
            address="local",  # not one that others have started on this machine
            num_cpus=1,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
    yield ray().get_runtime_context().get_node_id()
    if started:
        ray().shutdown()


@pytest.fixture
def raylets():
    return three_raylets()


@pytest.fixture
def started():
    """Actors to be ended with the test."""
    made = []
    yield made
    for actor in made:
        ray().kill(actor.actor if isinstance(actor, ShardClient) else actor)


def parcel_of(layout, numbers, codec):
    return seal(pack(layout, numbered(layout, numbers)), codec)


def plan_of(layout, number, unrolls=1000, codec="raw"):
    return ShardPlan(layout, unrolls * layout.steps, number, codec=codec, budget_bytes=10**7)


def test_a_shard_on_ray_takes_a_delivery_once_and_gives_it_back(one_node, started):
    shard = ShardClient.start(plan_of(STACKED, 0, codec="zstd"), one_node)
    started.append(shard)
    writer = ReplayWriter(lambda: [shard], "runner")
    assert writer.send(parcel_of(STACKED, range(6), "zstd"), ANSWER_S)
    for _ in range(2):
        assert shard.insert("runner", 1, parcel_of(STACKED, range(6, 8), "zstd")).result(ANSWER_S)
    assert shard.report().result(ANSWER_S).span == (0, 8)
    assert shard.mapped is not None  # it is on this node
    store, batch = ShardedReplay(STACKED, lambda: [shard], ahead=2), allocate(STACKED, 16)
    for _ in range(3):
        ids = store.sample_into(16, np.random.default_rng(0), batch, 0)
        assert batch.version.tolist() == ids.tolist()


def shards_on(raylets, started, layout=VECTOR, fills=(), codec="raw"):
    shards = [
        ShardClient.start(plan_of(layout, number, codec=codec), node) for number, node in enumerate(raylets.nodes())
    ]
    started += shards
    at = 0
    for shard, fill in zip(shards, fills, strict=bool(fills)):
        send(shard, parcel_of(layout, range(at, at + fill), codec))
        at += fill
    return shards


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_three_nodes_of_unequal_fill_are_drawn_from_uniformly(raylets, started, codec):
    shards = shards_on(raylets, started, fills=(5, 60, 235), codec=codec)
    assert [shard.mapped is not None for shard in shards] == [True, False, False]
    store, batch, random = ShardedReplay(VECTOR, lambda: shards), allocate(VECTOR, 256), np.random.default_rng(3)
    counts = np.zeros(300, np.int64)
    deadline = time.monotonic() + ANSWER_S
    while len(store) < 300:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for _ in range(60):
        store.sample_into(256, random, batch, 0)
        counts += np.bincount(batch.version.numpy(), minlength=300)
    assert stats.chisquare(counts).pvalue > 0.001


class Board:
    """An actor that knows the shards, as a learner does."""

    def __init__(self):
        self._shards = []

    def post(self, shards):
        self._shards = shards

    def shards(self):
        return self._shards


def send_all(board, stream, start, place, file, end):
    """A runner: parcels of four, to the first shard or to the last one, until the file `end` is there; returns how many it has sent.

    Who it is and what was acknowledged is in `file`. It does not end by itself: whoever wants to kill it finds it alive.
    """
    writer = ReplayWriter(lambda: ray().get(board.shards.remote(), timeout=ANSWER_S), stream, place)
    writer._number = start // 4
    first, at = STREAM * int(stream), start
    while not Path(end).exists():
        while not writer.send(parcel_of(VECTOR, range(first + at, first + at + 4), "raw"), 1.0):
            pass
        at += 4
        Path(file).write_bytes(struct.pack("qq", os.getpid(), at))
        time.sleep(0.02)
    return at


class Runners:
    """Three of them; who is killed is replaced, and sends again what came before the last acknowledgement that is known."""

    def __init__(self, raylets, board, folder):
        self.board, self.folder, self.nodes = board, folder, raylets.nodes()[:2]
        self.random, self.task = np.random.default_rng(0), ray().remote(num_cpus=1, max_retries=0)(send_all)
        self.running = {who: self.start(who, 0) for who in range(3)}

    def start(self, who, at):
        file, node = self.folder / str(who), self.nodes[who % 2]
        file.write_bytes(struct.pack("qq", 0, 0))
        return self.task.options(scheduling_strategy=on_node(node)).remote(
            self.board, str(who), at, -(who == 2), str(file), str(self.folder / "end")
        )

    def known(self, who):
        data = (self.folder / str(who)).read_bytes()
        return struct.unpack("qq", data) if len(data) == 16 else (0, 0)

    def kill(self, who):
        """Once it has begun, however long that takes."""
        deadline = time.monotonic() + ANSWER_S
        while not (known := self.known(who))[0]:
            assert time.monotonic() < deadline, f"runner {who} did not begin"
            time.sleep(0.02)
        pid, acknowledged = known
        os.kill(pid, signal.SIGKILL)
        self.running[who] = self.start(who, max(0, acknowledged - 4 * int(self.random.integers(4))))

    def await_more(self, supervisor):
        """Until something more of each is acknowledged: by living shards then, since nobody kills one any more."""
        before, deadline = {who: self.known(who)[1] for who in self.running}, time.monotonic() + ANSWER_S
        while any(self.known(who)[1] <= acknowledged for who, acknowledged in before.items()):
            assert time.monotonic() < deadline, f"nothing more was acknowledged than {before}"
            supervisor.look()
            time.sleep(0.05)

    def end(self):
        """All of them, in good order; how many each has sent."""
        (self.folder / "end").touch()
        return ray().get(list(self.running.values()), timeout=ANSWER_S)


def kill_a_shard(supervisor, shard):
    """And wait until it is replaced; its node goes on."""
    os.kill(ray().get(shard.actor.__ray_call__.remote(lambda _: os.getpid()), timeout=ANSWER_S), signal.SIGKILL)
    await_lost(supervisor)


def fullest(supervisor):
    """The shard that would take most along, once that is something."""
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        supervisor.look()
        spans = {one.shard: one.newest.span for one in supervisor._by_node.values() if one.newest is not None}
        held = {shard: end - first for shard, (first, end) in spans.items()}
        if max(held.values(), default=0) >= 40:
            return max(held, key=held.get)
        time.sleep(0.1)
    return pytest.fail("no shard got anything")


def await_lost(supervisor):
    deadline, before = time.monotonic() + ANSWER_S, len(supervisor.lost)
    while len(supervisor.lost) == before:
        assert time.monotonic() < deadline, "nobody saw that a shard was lost"
        supervisor.look()
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.fault(22)
def test_shards_runners_and_a_node_are_killed_while_a_learner_draws(raylets, started, tmp_path, figure):
    """What a living shard holds of a stream is without gaps and doubles, up to the stream's end; all else went with a shard that died."""
    board = start_actor(Board, strategy=on_node(raylets.head))
    started.append(board)
    supervisor = ShardSupervisor(plan_of(VECTOR, 0, unrolls=10_000), raylets.nodes)
    look, supervisor.lost = supervisor.look, []
    supervisor.look = lambda: (supervisor.lost.extend(look()), board.post.remote(supervisor.shards))
    supervisor.look()
    runners = Runners(raylets, board, tmp_path)
    store, batch, random = (
        ShardedReplay(VECTOR, lambda: supervisor.shards),
        allocate(VECTOR, 64),
        np.random.default_rng(3),
    )
    draws = killed = 0
    try:
        for turn in range(9):
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                draws += len(store.sample_into(64, random, batch, 0)) == 64
            if turn == 6:
                raylets.lose(raylets.nodes()[2])
                await_lost(supervisor)
            elif turn % 2:
                runners.kill(turn // 2 % 3)
                killed += 1
            else:
                kill_a_shard(supervisor, fullest(supervisor))
        runners.await_more(supervisor)
    finally:
        counts = runners.end()
    for _ in range(5):
        draws += len(store.sample_into(64, random, batch, 0)) == 64
    whole, sent = check_streams(supervisor.shards, counts), sum(counts)
    lost = store.directory.lost_shards
    supervisor.close()
    assert lost == len(supervisor.lost) == 5
    assert 160 <= sum(one.unrolls for one in supervisor.lost) <= sent
    assert whole < sent
    figure(
        f"Ray: {lost} shards, one of them with its node, and {killed} runners killed; {sent:,} unrolls acknowledged, "
        f"{whole:,} of them in living shards, 0 twice, 0 gaps; {draws} batches drawn meanwhile"
    )


def check_streams(shards, counts):
    """How many unrolls are held."""
    held, ends = 0, set()
    for shard in shards:
        first, end = shard.report().result(ANSWER_S).span
        gathered = shard.gather(np.arange(first, end)).result(ANSWER_S)
        versions = fields_of(gathered.encoded.records, VECTOR)["version"]
        held += len(versions)
        for who in range(3):
            own = (versions[versions // STREAM == who] - STREAM * who).tolist()
            assert own == list(range(own[0], own[0] + len(own))) if own else True
            ends |= {(who, own[-1])} if own else set()
    assert {(who, count - 1) for who, count in enumerate(counts)} <= ends
    return held
