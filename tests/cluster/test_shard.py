"""A shard without Ray: deliveries that come again, and copies of what is held."""

import threading

import numpy as np
import pytest

from laser_rl.cluster.shard import Shard, ShardPlan
from laser_rl.cluster.shard import gathered as gathered_of
from laser_rl.replay.encoded_unrolls import Unpacking, seal, unseal
from laser_rl.replay.memory_layout import allocate, pack, parts_of, unpack
from laser_rl.replay.store import Replay
from tests.replay.inputs import LAYOUTS, STACKED, VECTOR, assert_column, assert_same, numbered

CODECS = pytest.mark.parametrize("codec", ["raw", "zstd"])


def parcel_of(layout, numbers, codec):
    return seal(pack(layout, numbered(layout, numbers)), codec)


def shard_of(layout, unrolls=100, codec="raw", number=0):
    return Shard(ShardPlan(layout, unrolls * layout.steps, number, codec=codec, budget_bytes=10**8))


@CODECS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_parcel_gives_back_every_byte_and_fills_columns_as_a_store_does(layout, codec):
    unrolls = numbered(layout, range(5))
    parcel = seal(pack(layout, unrolls), codec)
    assert_same(unpack(layout, unseal(layout, parcel)), unrolls)
    batch = allocate(layout, 7)
    Unpacking(layout).put(parcel, np.arange(10, 15), parts_of(layout, batch), 1)
    for column in range(5):
        assert_column(layout, batch, column + 1, unrolls, column)
    assert batch.id.tolist() == [0, 10, 11, 12, 13, 14, 0]
    assert not batch.online.any()
    assert batch.weight.tolist() == [0, 1, 1, 1, 1, 1, 0]


@CODECS
def test_what_comes_again_is_in_once(codec):
    shard = shard_of(STACKED, codec=codec)
    for stream, number, first in (("a", 0, 0), ("a", 0, 0), ("b", 7, 100), ("a", 1, 2), ("a", 0, 0), ("b", 7, 100)):
        assert shard.insert(stream, number, parcel_of(STACKED, [first, first + 1], codec))
    held = shard.gather(np.arange(9)).encoded
    assert_same(unpack(STACKED, unseal(STACKED, held)), numbered(STACKED, [0, 1, 100, 101, 2, 3]))
    assert shard.report().span == (0, 6)


@CODECS
@pytest.mark.parametrize("lent", [False, True])
def test_a_gather_gives_what_is_still_held_in_the_order_asked(codec, lent):
    shard = shard_of(STACKED, unrolls=5, codec=codec)
    shard.insert("a", 0, parcel_of(STACKED, range(8), codec))
    asked = np.array([7, 1, 3, 7, 8, 2])
    gathered = gathered_of(Replay.attach(STACKED, shard.lend()), asked) if lent else shard.gather(asked)
    assert gathered.held.tolist() == [True, False, True, True, False, False]
    assert gathered.span == (3, 8)
    assert gathered.encoded.codec == codec
    assert_same(unpack(STACKED, unseal(STACKED, gathered.encoded)), numbered(STACKED, [7, 3, 7]))
    assert shard.report().members == {0: 2, 1: 2, 2: 1}  # 3 to 7, by three members in turn


def test_inserts_gathers_and_reports_at_once_see_whole_unrolls():
    shard, ended = shard_of(VECTOR, unrolls=8), threading.Event()
    shard.insert("a", 0, parcel_of(VECTOR, range(4), "raw"))
    errors, seen = [], 0

    def write():
        for number in range(4, 400, 4):
            shard.insert("a", number, parcel_of(VECTOR, range(number, number + 4), "raw"))
        ended.set()

    def read():
        nonlocal seen
        while not ended.is_set():
            first, end = shard.report().span
            ids = np.arange(first, end)
            held, encoded, _ = shard.gather(ids)
            unrolls = unpack(VECTOR, unseal(VECTOR, encoded))
            if unrolls.version.tolist() != ids[held].tolist():
                errors.append((unrolls.version, ids[held]))
            seen += len(unrolls.version)

    threads = [threading.Thread(target=target) for target in (write, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert seen
    assert shard.report().span == (392, 400)
