"""A shard without Ray: deliveries that come again, and copies of what is held."""

import threading

import numpy as np
import pytest

from laser_rl.cluster.shard import Shard, ShardPlan
from laser_rl.cluster.shard import gathered as gathered_of
from laser_rl.replay.encoded_unrolls import EncodedUnrolls, Unpacking, seal, unseal
from laser_rl.replay.records import allocate, pack, unpack
from laser_rl.replay.store import borrow
from tests.replay.inputs import LAYOUTS, PICTURE, STACKED, VECTOR, assert_column, assert_same, numbered

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
    assert_same(unpack(layout, unseal(layout, parcel.after(2))), numbered(layout, range(2, 5)))
    batch = allocate(layout, 7)
    Unpacking(layout).put(parcel, np.arange(10, 15), batch, 1)
    for column in range(5):
        assert_column(layout, batch, column + 1, unrolls, column)
    assert batch.id.tolist() == [0, 10, 11, 12, 13, 14, 0]
    assert not batch.online.any()
    assert batch.weight.tolist() == [0, 1, 1, 1, 1, 1, 0]


def test_a_damaged_parcel_is_refused_and_nothing_is_inserted():
    shard, good = shard_of(STACKED, codec="zstd"), parcel_of(STACKED, range(3), "zstd")
    short = EncodedUnrolls(good.records, good.frames[:-1], good.lengths)
    other = EncodedUnrolls(good.records, *parcel_of(PICTURE, range(3), "zstd")[1:])
    for bad in (short, other, EncodedUnrolls(good.records[:, :-64], good.frames, good.lengths)):
        with pytest.raises(ValueError, match="expected"):
            shard.insert("s", 0, bad, 0)
    assert shard.report().span == (0, 0)
    assert shard.insert("s", 0, good, 0) == 3


@CODECS
def test_what_comes_again_is_in_once_and_what_comes_too_early_is_not_taken(codec):
    shard = shard_of(STACKED, codec=codec)
    assert shard.insert("a", 2, parcel_of(STACKED, [2, 3], codec), 0) == 0
    assert shard.insert("a", 0, parcel_of(STACKED, range(3), codec), 0) == 3
    assert shard.report().span == (0, 3)
    assert shard.insert("a", 0, parcel_of(STACKED, range(3), codec), 0) == 3
    assert shard.insert("a", 1, parcel_of(STACKED, range(1, 6), codec), 1) == 6
    # Another stream, of which a lost shard had seven.
    assert shard.insert("b", 9, parcel_of(STACKED, [109], codec), 7) == 7
    assert shard.insert("b", 7, parcel_of(STACKED, [107], codec), 7) == 8
    # It went to another shard meanwhile, which had two more, and comes back.
    assert shard.insert("b", 10, parcel_of(STACKED, [110], codec), 10) == 11
    assert shard.insert("b", 7, parcel_of(STACKED, [107], codec), 7) == 11  # a call of before that comes late
    held = shard.gather(np.arange(9)).encoded
    assert_same(unpack(STACKED, unseal(STACKED, held)), numbered(STACKED, [0, 1, 2, 3, 4, 5, 107, 110]))
    counters = shard.report().counters
    assert [counters[name] for name in ("inserted", "repeated", "early", "skipped")] == [8, 6, 3, 2]


@CODECS
@pytest.mark.parametrize("lent", [False, True])
def test_a_gather_gives_what_is_still_held_in_the_order_asked(codec, lent):
    shard = shard_of(STACKED, unrolls=5, codec=codec)
    shard.insert("a", 0, parcel_of(STACKED, range(8), codec), 0)
    asked = np.array([7, 1, 3, 7, 8, 2])
    gathered = gathered_of(borrow(STACKED, shard.lend()), asked) if lent else shard.gather(asked)
    assert gathered.held.tolist() == [True, False, True, True, False, False]
    assert gathered.span == (3, 8)
    assert gathered.encoded.codec == codec
    assert_same(unpack(STACKED, unseal(STACKED, gathered.encoded)), numbered(STACKED, [7, 3, 7]))
    assert shard.report().members == {0: 2, 1: 2, 2: 1}  # 3 to 7, by three members in turn


def test_inserts_gathers_and_reports_at_once_see_whole_unrolls():
    shard, ended = shard_of(VECTOR, unrolls=8), threading.Event()
    shard.insert("a", 0, parcel_of(VECTOR, range(4), "raw"), 0)
    errors, seen = [], 0

    def write():
        for number in range(4, 400, 4):
            shard.insert("a", number, parcel_of(VECTOR, range(number, number + 4), "raw"), number)
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
