"""A shard that is read where it lies, if it can be reached; and long polls."""

import gc
import time
import weakref
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from laser_rl.cluster import shard as shard_module
from laser_rl.cluster.calls import ActorGone, LongPoll, awaited
from laser_rl.cluster.runner import ReplayWriter
from laser_rl.cluster.shard import ShardClient, ShardPlan
from laser_rl.cluster.sharded import ShardedReplay
from laser_rl.errors import ConfigError
from laser_rl.replay import shared
from laser_rl.replay.encoded_unrolls import seal
from laser_rl.replay.memory_layout import allocate, fields_of, pack
from laser_rl.replay.store import Replay
from tests.cluster.raylets import NearActor, NearShard, send
from tests.replay.inputs import STACKED, VECTOR, numbered


def seen(layout, numbers, number=0, codec="raw", unrolls=100):
    shard = NearShard(ShardPlan(layout, unrolls * layout.steps, number, codec=codec, budget_bytes=10**7))
    send(shard, seal(pack(layout, numbered(layout, numbers)), codec))
    return shard


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_calls_until_it_has_lent_and_none_afterwards(codec):
    shard, random, batch = seen(STACKED, range(20), codec=codec), np.random.default_rng(0), allocate(STACKED, 8)
    store = ShardedReplay(STACKED, lambda: [shard], ahead=2)
    for _ in range(3):
        assert store.sample_into(8, random, batch, 0).tolist() == batch.version.tolist()
    called = shard.calls["gather"]
    assert called == 5  # three batches and two ahead
    shard.lend()
    for _ in range(20):
        assert store.sample_into(8, random, batch, 0).tolist() == batch.version.tolist()
    assert shard.calls["gather"] == called


@pytest.fixture
def client(monkeypatch):
    """A client on the node of its shard, which is called in threads of this process."""
    here = SimpleNamespace(get_node_id=lambda: "node")
    monkeypatch.setattr(shard_module, "ray", lambda: SimpleNamespace(get_runtime_context=lambda: here))
    shard = seen(VECTOR, range(20)).shard
    return ShardClient(NearActor(shard), shard.plan, "node", "where")


def test_a_shard_of_this_node_is_read_and_one_of_another_node_or_container_is_called(client, monkeypatch):
    def versions(one):
        return fields_of(one.gather(np.array([3, 5])).result(10.0).encoded.records, VECTOR)["version"].tolist()

    elsewhere = ShardClient(client.actor, client.plan, "another node", "where")
    assert (versions(client), versions(elsewhere)) == ([3, 5], [3, 5])
    assert client.mapped is not None
    assert elsewhere.mapped is None

    def unreachable(layout, lent):
        raise ConfigError("it is in another container")

    monkeypatch.setattr(Replay, "attach", unreachable)
    contained = ShardClient(client.actor, client.plan, "node", "where")
    assert versions(contained) == [3, 5]
    assert contained.mapped is None


def test_the_memory_of_a_lost_shard_goes_with_the_last_who_holds_it(client):
    """At once, and not with the next collection of cycles: it may be gigabytes, and its replacement needs as much."""
    store = weakref.ref(client.mapped)
    gc.disable()
    try:
        del client.mapped
        assert store() is None
    finally:
        gc.enable()


def test_what_leaves_between_draw_and_read_is_drawn_again_without_a_bias():
    """Three shards of unequal fill, read late: the smallest evicts an unroll between every draw and its read."""
    shards = [
        seen(VECTOR, numbers, at, unrolls=40) for at, numbers in enumerate((range(10), range(10, 40), range(40, 80)))
    ]
    for shard in shards[:2]:
        shard.lend()
    random, batch, counts, came = np.random.default_rng(5), allocate(VECTOR, 64), np.zeros(80, np.int64), 40
    store = ShardedReplay(VECTOR, lambda: shards, ahead=2)
    for turn in range(300):
        if turn % 3 == 0:
            send(shards[2], seal(pack(VECTOR, numbered(VECTOR, [40 + came % 40])), "raw"), number=came)
            came += 1
        store.sample_into(64, random, batch, 0)
        counts += np.bincount(batch.version.numpy(), minlength=80)
    assert store.redrawn > 0
    assert stats.chisquare(counts).pvalue > 0.001


def test_a_holder_of_the_lock_that_has_stopped_costs_one_batch_its_shard(monkeypatch):
    """Its unrolls are drawn from the others, as if the shard did not answer; afterwards it is drawn from again."""
    monkeypatch.setattr(shared, "LOCK_S", 0.2)
    shards = [seen(VECTOR, range(20)), seen(VECTOR, range(20, 40), 1)]
    for shard in shards:
        shard.lend()
    store, random, batch = ShardedReplay(VECTOR, lambda: shards), np.random.default_rng(0), allocate(VECTOR, 64)
    store.sample_into(64, random, batch, 0)
    begin = time.monotonic()
    with shards[0].shard._store.lock:  # another open file than the reader's: another process, to it
        store.sample_into(64, random, batch, 0)
        assert set(batch.version.tolist()) <= set(range(20, 40))
    store._under_way.clear()  # what was drawn before
    while set(batch.version.tolist()) <= set(range(20, 40)):
        assert time.monotonic() < begin + 20
        store.sample_into(64, random, batch, 0)


def test_a_delivery_is_in_once_after_a_reader_that_had_stopped_goes_on(monkeypatch):
    monkeypatch.setattr(shared, "LOCK_S", 0.2)
    shard = seen(VECTOR, range(4))
    writer, reader = ReplayWriter(lambda: [shard], "t"), Replay.attach(VECTOR, shard.shard.lend())
    encoded = seal(pack(VECTOR, numbered(VECTOR, range(4, 9))), "raw")
    with reader.lock:
        assert not any(writer.send(encoded, 0.3) for _ in range(3))
    assert any(writer.send(encoded, 1.0) for _ in range(20))
    assert shard.calls["insert"] > 2  # sent again
    assert shard.span() == (0, 9)


def test_a_shard_that_waits_for_its_lock_is_not_taken_for_dead():
    waits, gone, calls = Future(), Future(), []
    waits.set_exception(TimeoutError("the lock"))
    gone.set_exception(ActorGone("out of memory"))
    poll = LongPoll(lambda: (calls.append(1), waits if len(calls) == 1 else gone)[1])
    assert poll.poll() is None
    assert (poll.gone, len(calls)) == ("", 1)
    assert poll.poll() is None  # it is asked again
    assert (poll.gone, len(calls)) == ("out of memory", 2)


def test_an_answer_that_is_late_is_not_lost():
    """The deliveries that it brings have left the coordinator."""
    answer = Future()
    poll = LongPoll(lambda: answer)
    assert poll.poll(0.01) is None
    answer.set_result(["delivery"])
    assert poll.poll(0.01) == ["delivery"]


def test_who_was_asked_and_has_waited_in_vain_is_not_asked_for_longer():
    answer = Future()
    answer.set_exception(TimeoutError("the lock"))
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match="the lock"):
        awaited(answer, "a learner", "a shard", 60.0)
    assert time.monotonic() - begin < 10
