"""The online share of every batch is exact, each unroll is online at most once, and a resumed mixer makes the same batches."""

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.errors import ConfigError
from laser_rl.replay.lanes import Lanes
from laser_rl.replay.memory_layout import allocate, pack
from laser_rl.replay.mixer import Counts, Mixer, UniformSampler
from laser_rl.replay.prioritised import Prioritised
from laser_rl.replay.store import Replay
from tests.replay.inputs import (
    PICTURE,
    RECURRENT,
    STACKED,
    VECTOR,
    Stream,
    assert_column,
    assert_same,
    cycle_of,
    numbered,
    take,
)


def mixer_of(layout=VECTOR, *, batch=8, fraction=0.75, seed=1, capacity=50, **options):
    counts = Counts.of(batch, fraction)
    store = Replay(layout, capacity * layout.steps, budget_bytes=10**6) if counts.replayed else None
    return Mixer(layout, store, counts, np.random.Generator(np.random.PCG64(seed)), **options)


@pytest.mark.parametrize(
    ("size", "fraction", "replayed"),
    [
        (128, 0.96, 123),
        (128, 0.875, 112),
        (128, 0.0, 0),
        (128, 1.0, 128),
        (8, 0.875, 7),
        (2, 0.5, 1),
        (1, 1.0, 1),
        (1, 0.0, 0),
    ],
)
def test_the_papers_fractions(size, fraction, replayed):
    assert Counts.of(size, fraction) == Counts(size - replayed, replayed)


@given(size=st.integers(2, 512), fraction=st.floats(0, 1))
def test_counts_are_nearest_with_at_least_one_of_each(size, fraction):
    counts = Counts.of(size, fraction)
    assert counts.online + counts.replayed == size
    assert (counts.replayed > 0) == (fraction > 0)
    assert (counts.online > 0) == (fraction < 1)
    error = abs(counts.replayed - Fraction(fraction) * size)
    assert error <= Fraction(1, 2) + Fraction(1, 10**9) or 1 in {counts.online, counts.replayed}
    assert error < 1


def test_one_unroll_cannot_be_online_and_replayed():
    with pytest.raises(ConfigError, match="use 0 or 1"):
        Counts.of(1, 0.5)


@given(offers=st.lists(st.integers(0, 5), min_size=5, max_size=15), new=st.integers(2, 5), minimum=st.integers(1, 9))
def test_every_batch_has_its_newest_online_and_its_replay_from_the_store(offers, new, minimum):
    mixer, batch = mixer_of(new_unrolls_per_update=new, min_unrolls=minimum), allocate(VECTOR, 8)
    offered = updates = 0
    for size in offers:
        mixer.offer(numbered(VECTOR, range(offered, offered + size)))
        offered += size
        while mixer.ready():
            assert offered >= minimum
            mixer.fill(batch)
            updates += 1
            newest = updates * new
            assert batch.version[:2].tolist() == [newest - 2, newest - 1]
            assert batch.online.tolist() == [True] * 2 + [False] * 6
            assert (batch.version[2:] < offered).all()
        assert mixer.pending == offered - updates * new
        assert offered < minimum or mixer.pending < new


@pytest.mark.parametrize("layout", [VECTOR, PICTURE, STACKED], ids=["vector", "picture", "stacked"])
def test_columns_hold_what_was_offered(layout):
    mixer, batch, unrolls = mixer_of(layout, fraction=0.5), allocate(layout, 8), numbered(layout, range(30))
    mixer.offer(unrolls)
    for _ in range(3):
        mixer.fill(batch)
        for column in range(8):
            assert_column(layout, batch, column, unrolls, int(batch.version[column]))
    mixer.fill(batch)
    assert batch.version[:4].tolist() == [12, 13, 14, 15]


def test_later_changes_of_the_arrays_do_not_reach_a_batch():
    mixer, batch, unrolls = mixer_of(), allocate(VECTOR, 8), numbered(VECTOR, range(2))
    mixer.offer(unrolls)
    for array in unrolls:
        array[...] = 0
    mixer.fill(batch)
    for column in range(8):
        assert_column(VECTOR, batch, column, numbered(VECTOR, range(2)), int(batch.version[column]))


def test_online_unrolls_survive_their_eviction_from_a_small_store():
    mixer, batch, unrolls = mixer_of(capacity=2), allocate(VECTOR, 8), numbered(VECTOR, range(10))
    mixer.offer(unrolls)
    mixer.fill(batch)
    assert batch.version[:2].tolist() == [0, 1]
    assert set(batch.version[2:].tolist()) <= {8, 9}
    assert_column(VECTOR, batch, 0, unrolls, 0)


def test_without_replay_and_with_nothing_else():
    batch = allocate(VECTOR, 4)
    online = mixer_of(batch=4, fraction=0.0)
    online.offer(numbered(VECTOR, range(5)))
    online.fill(batch)
    assert batch.version.tolist() == [0, 1, 2, 3]
    assert (online.store, online.pending, online.ready()) == (None, 1, False)
    replayed = mixer_of(batch=4, fraction=1.0, min_unrolls=3)
    for number, ready in enumerate([False, False, True]):
        replayed.offer(numbered(VECTOR, [number]))
        assert replayed.ready() == ready
    replayed.fill(batch)
    assert not batch.online.any()
    assert replayed.pending == 2  # one new unroll for each update, even if none is online


@pytest.mark.parametrize("pending", [0, 3])
def test_a_resumed_mixer_makes_the_same_batches(pending):
    original = mixer_of(STACKED)
    original.offer(numbered(STACKED, range(10)))
    batch, again = allocate(STACKED, 8), allocate(STACKED, 8)
    for _ in range(5):
        original.fill(batch)
    original.offer(numbered(STACKED, range(10, 10 + pending)))
    state = original.state_dict()
    arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
    rest = json.loads(json.dumps({name: value for name, value in state.items() if name not in arrays}))
    resumed = mixer_of(STACKED, seed=99)
    resumed.store.insert(original.store.export(np.arange(10 + pending)))
    resumed.queue(pack(STACKED, numbered(STACKED, [99])))  # forgotten by loading
    resumed.load_state_dict({**arrays, **rest})
    assert resumed.pending == pending
    more = numbered(STACKED, range(20, 40))
    for at in range(0, 20, 2):
        for mixer, target in ((original, batch), (resumed, again)):
            mixer.offer(take(more, slice(at, at + 2)))
            mixer.fill(target)
        assert_same(batch, again)


def test_uniform_draws_consume_the_random_numbers_of_the_store_alone():
    """What a run of an earlier release drew, it draws again."""
    mixer, batch, random = mixer_of(), allocate(VECTOR, 8), np.random.Generator(np.random.PCG64(1))
    mixer.offer(numbered(VECTOR, range(10)))
    for filled in range(5):
        assert mixer.filled == filled
        mixer.fill(batch)
        assert batch.id[2:].tolist() == random.integers(mixer.store.first_id, mixer.store.next_id, 6).tolist()
        mixer.prioritise(batch.id, batch.weight)
        mixer.restart()
        assert mixer.state_dict()["random"] == random.bit_generator.state


def sampled(make, *, seed=1):
    """A mixer whose replayed columns a sampler fills."""
    store = Replay(RECURRENT, 30 * RECURRENT.steps)
    random = np.random.Generator(np.random.PCG64(seed))
    sampler = make(store)
    return Mixer(RECURRENT, store, Counts(2, 6), random, sampler=sampler, zero_state=type(sampler) is UniformSampler)


PRIORITISED = {"exponent": 0.7, "importance_exponent": 0.5, "uniform_share": 0.1}
SAMPLERS = {
    "zero": UniformSampler,
    "lanes": lambda store: Lanes(store, 6),
    "prioritised": lambda store: Prioritised(store, **PRIORITISED),
}
samplers = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


def streams():
    return [Stream(RECURRENT, name, cycle_of(2, 11, 1, 5), unrecorded=name) for name in range(2)]


def offer(mixers, slots, number):
    unrolls = slots[number % 2].cut()[0]
    for mixer in mixers:
        mixer.offer(unrolls)


def learn(mixer, batch):
    """A loss that depends on the unroll."""
    mixer.fill(batch)
    mixer.prioritise(batch.id, np.where(batch.online, 1e9, batch.id % 5))


@samplers
def test_a_sampler_fills_the_columns_behind_the_online_ones(make):
    mixer, batch, slots = sampled(make), allocate(RECURRENT, 9), streams()
    for number in range(40):
        offer([mixer], slots, number)
        while mixer.ready():
            learn(mixer, batch)
            assert batch.online.tolist() == [True] * 2 + [False] * 7
            assert batch.id[:2].tolist() == [-1, -1]
            assert batch.weight[:2].tolist() == [1, 1]
            assert not batch.carried[:2].any()
            assert (batch.id[2:8] >= mixer.store.first_id).all()
    assert mixer.filled == 20


@samplers
def test_a_resumed_mixer_goes_on_where_its_sampler_was(make):
    original, batch, again, slots = sampled(make), allocate(RECURRENT, 8), allocate(RECURRENT, 8), streams()
    for number in range(45):
        offer([original], slots, number)
        if original.ready():
            learn(original, batch)
    state = original.state_dict()
    arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
    rest = json.loads(json.dumps({name: value for name, value in state.items() if name not in arrays}))
    resumed = sampled(make, seed=99)
    resumed.load_state_dict({**arrays, **rest})
    assert resumed.filled == original.filled > 0
    held = np.arange(original.store.first_id, original.store.next_id)
    resumed.store.begin_at(original.store.first_id)
    resumed.store.insert(original.store.export(held))
    for number in range(45, 85):
        offer([original, resumed], slots, number)
        if original.ready():
            for mixer, target in ((original, batch), (resumed, again)):
                learn(mixer, target)
            assert_same(batch, again)
    assert original.filled == resumed.filled > 30


def test_the_mixer_waits_for_a_whole_episode():
    mixer = sampled(SAMPLERS["lanes"])
    slot = Stream(RECURRENT, 0, cycle_of(22))
    ready = []
    for _ in range(6):
        mixer.offer(slot.cut()[0])
        ready.append(mixer.ready())
    assert ready == [False] * 5 + [True]


def test_restarted_lanes_begin_anew_in_the_next_batch():
    mixer, batch = sampled(SAMPLERS["lanes"]), allocate(RECURRENT, 8)
    slots = [Stream(RECURRENT, name, cycle_of(39)) for name in range(2)]
    for number in range(28):
        offer([mixer], slots, number)
    for restarted in (True, False, True, False):
        if restarted:
            mixer.restart()
        learn(mixer, batch)
        assert batch.carried.tolist() == [False] * 2 + [not restarted] * 6


def test_priorities_are_taken_up_as_they_were_reported():
    mixer, batch = sampled(SAMPLERS["prioritised"]), allocate(RECURRENT, 8)
    for number in range(6):
        offer([mixer], streams(), number)
    mixer.fill(batch)
    ids, priority = batch.id.clone(), batch.id.double() + 2
    priority[:2] = 50.0  # of online unrolls
    mixer.prioritise(ids, priority)
    ids.fill_(0)
    priority.fill_(77.0)  # the batch is filled again while the report waits
    state = mixer.state_dict()
    found = dict(zip(state["sampler.id"].tolist(), state["sampler.priority"].tolist(), strict=True))
    drawn = set(batch.id[2:].tolist())
    assert found == {i: i + 2.0 if i in drawn else 1.0 for i in range(6)}
    assert state["sampler.largest"] == max(drawn) + 2.0
    for wrong in (np.nan, np.inf, -1.0):
        with pytest.raises(ValueError, match="finite priority of at least 0 for each of 1"):
            mixer.prioritise([3], [wrong])
    with pytest.raises(ValueError, match="each of 2"):
        mixer.prioritise([3, 4], [1.0])


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match="at least 2 new unrolls per update for 2 online"):
        mixer_of(new_unrolls_per_update=1)
    with pytest.raises(ConfigError, match=r"the replay holds 50; lower --replay\.warmup-steps"):
        mixer_of(min_unrolls=51)
