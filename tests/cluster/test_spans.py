"""Draws over several shards: each unroll of the union equally likely, whatever the shards' fill, and whatever leaves meanwhile."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from laser_rl.cluster.sharded import SHARD_BITS, Spans, global_ids
from laser_rl.replay.records import allocate
from laser_rl.replay.store import Replay
from laser_rl.types import UnrollLayout, empty_unrolls

LAYOUT = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
UNEQUAL = {0: (0, 1), 3: (50, 57), 4: (9, 9), 9: (1000, 1100), 12: (5, 1005)}


def named(drawn):
    return np.concatenate([global_ids(shard, ids) for shard, ids in drawn])


def everything(spans):
    both = zip(spans.shards, spans.first, spans.end, strict=True)
    return np.concatenate([global_ids(shard, np.arange(first, end)) for shard, first, end in both])


def counted(drawn, among):
    """How often each was drawn; nothing else may be."""
    found, times = np.unique(drawn, return_counts=True)
    assert np.isin(found, among).all()
    counts = np.zeros(len(among), np.int64)
    counts[np.searchsorted(np.sort(among), found)] = times
    return counts


def test_every_unroll_of_very_unequal_shards_is_equally_likely():
    spans, random = Spans.of(UNEQUAL), np.random.default_rng(11)
    drawn = np.concatenate([named(spans.draw(128, random)) for _ in range(1000)])
    assert stats.chisquare(counted(drawn, everything(spans))).pvalue > 0.001
    by_shard = np.bincount(drawn >> SHARD_BITS, minlength=13)[[0, 3, 9, 12]]
    assert stats.chisquare(by_shard, len(drawn) * np.array([1, 7, 100, 1000]) / 1108).pvalue > 0.001


def drawn_with_evictions(spans, now, count, random):
    """What `ShardedReplay._fill` does: what has left is drawn again among what was reported and is still there."""
    drawn = [named(spans.draw(count, random))]
    while True:
        shard, ids = drawn[-1] >> SHARD_BITS, drawn[-1] & ((1 << SHARD_BITS) - 1)
        first = np.array([now.get(int(one), (2**39, 0))[0] for one in shard])
        drawn[-1] = drawn[-1][ids >= first]
        missing = count - sum(map(len, drawn))
        if not missing:
            return np.concatenate(drawn)
        drawn.append(named(spans.left(now).draw(missing, random)))


def test_what_has_left_between_report_and_gather_is_drawn_again_without_a_bias():
    """Half of one shard and most of another have left, new ones have come, one shard is gone altogether."""
    spans, random = Spans.of(UNEQUAL), np.random.default_rng(12)
    now = {0: (0, 4), 3: (54, 90), 9: (1090, 1190), 12: (400, 1400)}
    del now[0]
    drawn = np.concatenate([drawn_with_evictions(spans, now, 128, random) for _ in range(500)])
    assert stats.chisquare(counted(drawn, everything(spans.left(now)))).pvalue > 0.001


@given(st.integers(0, 2**33), st.integers(1, 2**33), st.integers(1, 200), st.integers(0, 2**31), st.integers(0, 5))
def test_over_one_shard_the_generator_is_used_as_a_replay_uses_it(first, held, count, seed, shard):
    ours, theirs = np.random.default_rng(seed), np.random.default_rng(seed)
    (drawn,) = Spans.of({shard: (first, first + held)}).draw(count, ours)
    assert (drawn[0], drawn[1].tolist()) == (shard, theirs.integers(first, first + held, count).tolist())
    assert ours.bit_generator.state == theirs.bit_generator.state


def test_over_one_shard_the_draws_are_those_of_a_replay():
    store, batch = Replay(LAYOUT, 20), allocate(LAYOUT, 6)
    store.insert(empty_unrolls(LAYOUT, 25))
    ours, theirs = np.random.default_rng(5), np.random.default_rng(5)
    for _ in range(4):
        ids = store.sample_into(6, theirs, batch, 0)
        (drawn,) = Spans.of({0: (store.first_id, store.next_id)}).draw(6, ours)
        assert global_ids(0, drawn[1]).tolist() == ids.tolist()
    assert ours.bit_generator.state == theirs.bit_generator.state


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=5), st.integers(0, 99)
)
def test_only_what_is_held_is_drawn_and_each_shard_once(held, seed):
    spans = Spans.of({shard: (first, first + size) for shard, (first, size) in held.items()})
    assert len(spans) == sum(size for _, size in held.values())
    if not len(spans):
        with pytest.raises(ValueError, match="hold none"):
            spans.draw(3, np.random.default_rng(seed))
        return
    drawn = spans.draw(40, np.random.default_rng(seed))
    assert [shard for shard, _ in drawn] == sorted({shard for shard, _ in drawn})
    assert sum(len(ids) for _, ids in drawn) == 40
    assert all(held[shard][0] <= ids.min() and ids.max() < sum(held[shard]) for shard, ids in drawn)
