"""A replay in several shards, as a mixer sees it, over shards in this process."""

import logging
import threading
import time

import numpy as np
import pytest
from scipy import stats

from laser_rl.cluster import sharded
from laser_rl.cluster.calls import AnswerLost
from laser_rl.cluster.runner import ReplayWriter
from laser_rl.cluster.shard import Shard, ShardPlan
from laser_rl.cluster.sharded import SHARD_BITS, ShardedReplay
from laser_rl.replay.encoded_unrolls import seal
from laser_rl.replay.memory_layout import allocate, pack
from laser_rl.replay.mixer import Counts, Mixer
from laser_rl.replay.store import Replay
from tests.cluster.raylets import NearShard, send
from tests.replay.inputs import STACKED, VECTOR, assert_column, assert_same, numbered

CODECS = pytest.mark.parametrize("codec", ["raw", "zstd"])


def near(layout, number, unrolls=100, codec="raw"):
    return NearShard(ShardPlan(layout, unrolls * layout.steps, number, codec=codec, budget_bytes=10**8))


def filled(layout, fills, **more):
    """Shards of which each unroll's version says who it is."""
    shards, at = [], 0
    for number, fill in enumerate(fills):
        shard = near(layout, number, **more)
        send(shard, seal(pack(layout, numbered(layout, range(at, at + fill))), shard.plan.codec))
        shards.append(shard)
        at += fill
    return shards


@CODECS
@pytest.mark.parametrize("layout", [VECTOR, STACKED])
def test_in_lock_step_over_one_shard_batches_are_those_of_a_replay(layout, codec):
    """Bit for bit, the random numbers included, while unrolls leave."""
    counts, shard = Counts.of(8, 0.75), near(layout, 0, unrolls=12, codec=codec)
    sharded = ShardedReplay(layout, lambda: [shard], ahead=0)
    plain = Replay(layout, 12 * layout.steps, codec=codec, budget_bytes=10**8)
    mixers = [Mixer(layout, store, counts, np.random.default_rng(3), min_unrolls=4) for store in (plain, sharded)]
    batches = [allocate(layout, 8) for _ in mixers]
    for at in range(0, 60, 2):
        packed = pack(layout, numbered(layout, [at, at + 1]))
        plain.insert_packed(packed)
        send(shard, seal(packed, codec), number=at)
        for mixer in mixers:
            mixer.queue(packed)
        assert mixers[0].ready() == mixers[1].ready() == (at > 0)
        if at:
            for mixer, batch in zip(mixers, batches, strict=True):
                mixer.fill(batch)
            assert_same(*batches)
    assert mixers[0].state_dict()["random"] == mixers[1].state_dict()["random"]
    assert len(sharded) == len(plain) == 12
    assert sharded.composition() == plain.composition()


@CODECS
@pytest.mark.parametrize("ahead", [0, 3])
def test_every_column_is_the_unroll_that_its_name_says(codec, ahead):
    shards = filled(STACKED, [3, 40, 11], codec=codec)
    store = ShardedReplay(STACKED, lambda: shards, ahead=ahead)
    batch, random, offset = allocate(STACKED, 34), np.random.default_rng(1), np.array([0, 3, 43])
    everything = numbered(STACKED, range(54))
    for _ in range(4):
        ids = store.sample_into(32, random, batch, 2)
        assert batch.id[2:].tolist() == ids.tolist()
        shard, local = ids >> SHARD_BITS, ids & ((1 << SHARD_BITS) - 1)
        assert (offset[shard] + local).tolist() == batch.version[2:].tolist()
        for column in range(2, 34):
            assert_column(STACKED, batch, column, everything, int(batch.version[column]))
    assert set(store.sample_versions(64, random).tolist()) <= set(range(54))


@pytest.mark.parametrize("ahead", [0, 2])
def test_unrolls_of_unequal_shards_are_equally_likely_while_others_leave_and_come(ahead):
    """One shard drops 40 of 60 after each report, and has 30 new ones: those that stay must be drawn as often as those of other shards."""
    shards = filled(VECTOR, [5, 90, 135], unrolls=200)
    store, random = ShardedReplay(VECTOR, lambda: shards, ahead=ahead), np.random.default_rng(9)
    changing, encoded, report = shards[1].shard, shards[1].shard._store.parcel, shards[1].shard.report

    def without_the_oldest(ids):
        held, found = encoded(ids[ids >= 40])
        there = ids >= 40
        there[there] = held
        return there, found

    changing._store.parcel = without_the_oldest
    changing.report = lambda: report()._replace(span=(0, 60))
    changing.gather = lambda ids: Shard.gather(changing, ids)._replace(span=(40, 90))
    counts, batch = np.zeros(230, np.int64), allocate(VECTOR, 100)
    store.directory.spans()
    wait_until(lambda: len(store) == 200)
    for _ in range(300):
        store.directory._known[1].span = (0, 60)  # as the newest report said
        ids = store.sample_into(100, random, batch, 0)
        shard, local = ids >> SHARD_BITS, ids & ((1 << SHARD_BITS) - 1)
        assert (np.array([0, 5, 95])[shard] + local).tolist() == batch.version.tolist()
        counts += np.bincount(batch.version.numpy(), minlength=230)
    assert not counts[5:45].any()
    assert not counts[65:95].any()
    assert stats.chisquare(np.concatenate([counts[:5], counts[45:65], counts[95:]])).pvalue > 0.001
    assert store.redrawn > 4000


def test_the_first_draw_waits_until_all_shards_have_said_what_they_hold():
    shards = filled(VECTOR, [20, 30])
    report, asked = shards[1].shard.report, []
    shards[1].shard.report = lambda: (asked.append(1), time.sleep(0.3), report())[2]
    store, batch = ShardedReplay(VECTOR, lambda: shards, ahead=2), allocate(VECTOR, 50)
    store.sample_into(50, np.random.default_rng(0), batch, 0)
    assert asked
    assert (batch.version >= 20).any()


def test_a_lost_shard_takes_its_unrolls_and_a_replacement_is_drawn_from(caplog):
    shards = filled(VECTOR, [20, 30])
    store, random, batch = (
        ShardedReplay(VECTOR, lambda: shards, ahead=2),
        np.random.default_rng(0),
        allocate(VECTOR, 50),
    )
    store.sample_into(50, random, batch, 0)
    assert (len(store), store.capacity) == (50, 200)
    shards[1].lose()
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            ids = store.sample_into(50, random, batch, 0)
    assert set(batch.version.tolist()) <= set(range(20))
    assert not (ids >> SHARD_BITS).any()
    assert (store.directory.lost_shards, store.directory.lost_unrolls) == (1, 30)
    assert (
        sum("shard 1 of the replay on this node is lost with about 30 unrolls" in line for line in caplog.messages) == 1
    )
    shards[1] = near(VECTOR, 7)
    send(shards[1], seal(pack(VECTOR, numbered(VECTOR, range(100, 160))), "raw"))
    wait_until(lambda: len(store) == 80)
    store._under_way.clear()  # what was drawn before
    store.sample_into(50, random, batch, 0)
    assert (batch.version >= 100).any()
    assert {int(name) >> SHARD_BITS for name in batch.id} == {0, 7}


def test_a_shard_that_does_not_answer_is_left_out_until_it_does(caplog, monkeypatch):
    monkeypatch.setattr(sharded, "ANSWER_S", 0.3)
    shards = filled(VECTOR, [20, 30])
    store, random, batch = (
        ShardedReplay(VECTOR, lambda: shards, ahead=0),
        np.random.default_rng(0),
        allocate(VECTOR, 50),
    )
    asleep, gather = threading.Event(), shards[1].shard.gather
    shards[1].shard.gather = lambda *arguments: (asleep.wait(30), gather(*arguments))[1]
    store.sample_into(50, random, batch, 0)
    assert set(batch.version.tolist()) <= set(range(20))
    assert "shard 1 of the replay on this node does not answer" in caplog.text
    assert store.directory.lost_shards == 0
    asleep.set()
    store.sample_into(50, random, batch, 0)
    assert (batch.version >= 20).any()


def test_who_waits_for_unrolls_says_so_and_gives_up(monkeypatch):
    monkeypatch.setattr("laser_rl.training.stall.GIVE_UP_S", 0.2)
    shard = near(VECTOR, 0)
    store = ShardedReplay(VECTOR, lambda: [shard])
    with pytest.raises(
        TimeoutError, match=r"the learner has waited .* for a shard of the replay that holds unrolls \(1 shards"
    ):
        store.sample_into(4, np.random.default_rng(0), allocate(VECTOR, 4), 0)


def test_draws_made_ahead_are_used_once_and_in_order():
    shards = filled(VECTOR, [50])
    ahead, plain = (ShardedReplay(VECTOR, lambda: shards, ahead=depth) for depth in (3, 0))
    batch, randoms = allocate(VECTOR, 10), [np.random.default_rng(4) for _ in range(2)]
    drawn = [
        [store.sample_into(10, random, batch, 0).tolist() for _ in range(6)]
        for store, random in zip((ahead, plain), randoms, strict=True)
    ]
    assert drawn[0] == drawn[1]


class Lossy(NearShard):
    """Its process dies after some calls, and some answers are lost; `shards` has its replacements after it."""

    def __init__(self, shards, random):
        super().__init__(ShardPlan(VECTOR, 10_000 * VECTOR.steps, len(shards), codec="raw", budget_bytes=10**8))
        self._shards, self._random = shards, random

    def _call(self, *arguments):
        answer, luck = super()._call(*arguments), self._random.random()
        if luck < 0.02:
            answer.result(10)
            self.lose()
            self._shards.append(Lossy(self._shards, self._random))
        return Late(answer, luck < 0.1)


class Late:
    def __init__(self, answer, lost):
        self._answer, self._lost = answer, lost

    def done(self):
        return self._answer.done()

    def result(self, timeout):
        found = self._answer.result(timeout)
        if self._lost:
            raise AnswerLost("somewhere on the way")
        return found


def test_each_unroll_arrives_once_however_many_shards_and_answers_are_lost():
    """All that a shard has is in order and without gaps; what none has was acknowledged by one that is gone, or is in it unacknowledged."""
    shards = []
    shards.append(Lossy(shards, np.random.default_rng(8)))
    writer, at = ReplayWriter(lambda: [shards[-1]], "runner"), 0
    while at < 1200:
        at += 4 * writer.send(seal(pack(VECTOR, numbered(VECTOR, range(at, at + 4))), "raw"), 10.0)
    assert len(shards) > 3
    assert sum(shard.calls["insert"] for shard in shards) > 303  # some were sent again
    held = [shard.held().version.tolist() for shard in shards]
    for versions in held:
        assert versions == list(range(versions[0], versions[-1] + 1)) if versions else True
    assert held[-1][-1] == 1199
    assert sorted(set().union(*held)) == list(range(1200))  # each was once in some shard


def wait_until(holds, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
