"""What goes into the replay comes out of it, for as long as it should, equally often."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from laser_rl.errors import ConfigError
from laser_rl.replay import encoded_unrolls
from laser_rl.replay.encoded_unrolls import Unpacking
from laser_rl.replay.memory_estimate import estimate
from laser_rl.replay.memory_layout import DeviceBatch, allocate, pack, parts_of
from laser_rl.replay.store import Evicted, Replay
from laser_rl.types import UnrollLayout
from tests.replay.inputs import (
    LAYOUTS,
    PICTURE,
    STACKED,
    VECTOR,
    assert_column,
    assert_same,
    compressed_bytes,
    numbered,
    take,
)

CODECS = ["raw", "zstd"]
layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.observation_shape}x{layout.stack}")
codecs = pytest.mark.parametrize("codec", CODECS)


@layouts
@codecs
def test_export_is_what_was_inserted(layout, codec):
    store, unrolls = Replay(layout, 100 * layout.steps, codec=codec, budget_bytes=10**7), numbered(layout, range(30))
    ids = store.insert(unrolls)
    assert_same(store.export(ids), unrolls)
    assert_same(store.export(ids[[7, 3, 3]]), take(unrolls, [7, 3, 3]))
    assert_same(store.export(ids[:0]), take(unrolls, slice(0)))
    assert np.array_equal(store.fields(ids, ["member"])["member"], unrolls.member)
    assert np.array_equal(store.fields(ids[5:], ["version"])["version"], unrolls.version[5:])


@layouts
@codecs
def test_gathered_columns_equal_the_loops(layout, codec):
    store = Replay(layout, 100 * layout.steps, codec=codec, budget_bytes=10**7)
    unrolls = numbered(layout, range(25))
    ids = store.insert(unrolls)[np.random.default_rng(1).integers(0, 25, 11)]
    batch = allocate(layout, columns=13)
    batch.observation.fill_(77)  # what an earlier use left behind
    batch.online.fill_(True)
    store.gather(ids, batch, first_column=2)
    for column, number in enumerate(ids, start=2):
        assert_column(layout, batch, column, unrolls, number)
    assert batch.online.tolist() == [True] * 2 + [False] * 11
    assert (batch.observation[:, :2] == 77).all()


@layouts
@codecs
def test_put_and_gather_and_upload_give_the_same_bytes(layout, codec):
    store, unrolls = (
        Replay(layout, 100 * layout.steps, codec=codec, budget_bytes=10**7),
        numbered(layout, range(9), first_share=0.4),
    )
    ids = store.insert(unrolls)
    gathered, direct, single = allocate(layout, 9), allocate(layout, 9), allocate(layout, 9, stacked=False)
    store.gather(ids, gathered, 0)
    Unpacking(layout).put(pack(layout, unrolls), np.full(9, -1), parts_of(layout, direct), 0)
    store.gather(ids, single, 0)
    assert not gathered.online.any()
    assert direct.online.all()
    assert (direct.id == -1).all()
    assert gathered.id.tolist() == ids.tolist()
    assert (gathered.weight == 1).all()
    assert_same(direct._replace(id=gathered.id, online=gathered.online), gathered)
    assert_same(DeviceBatch(layout, single, "cpu").copy_from(single), gathered)
    assert_same(DeviceBatch(layout, gathered, "cpu").copy_from(gathered), gathered)


@given(firsts=st.lists(st.booleans(), min_size=10, max_size=10), codec=st.sampled_from(CODECS))
def test_stacks_are_cut_at_every_pattern_of_first_rows(firsts, codec):
    unrolls = numbered(STACKED, [6])
    unrolls.is_first[0] = firsts
    store, batch = Replay(STACKED, 100, codec=codec), allocate(STACKED, 1)
    store.gather(store.insert(unrolls), batch, 0)
    assert_column(STACKED, batch, 0, unrolls, 0)


@codecs
@given(sizes=st.lists(st.integers(0, 9), max_size=12), capacity=st.integers(1, 7))
def test_first_in_first_out_by_capacity(codec, sizes, capacity):
    store, model, number = Replay(VECTOR, capacity * VECTOR.steps, codec=codec, budget_bytes=10**6), deque(), 0
    model = deque(maxlen=capacity)
    for size in sizes:
        ids = store.insert(numbered(VECTOR, range(number, number + size)))
        assert ids.tolist() == list(range(number, number + size))
        model.extend(ids.tolist())
        number += size
        assert (len(store), store.next_id) == (len(model), number)
        assert store.steps == len(model) * VECTOR.steps
        if model:
            assert store.first_id == model[0]
            assert store.export(np.array(model)).version.tolist() == list(model)


@given(
    numbers=st.lists(st.integers(0, 6), min_size=1, max_size=40),
    budget=st.integers(3_100, 9_000),
    chunk=st.integers(1, 9),
)
def test_first_in_first_out_by_bytes(numbers, budget, chunk):
    store, model = Replay(PICTURE, 20 * PICTURE.steps, codec="zstd", budget_bytes=budget), deque()
    unrolls = numbered(PICTURE, numbers)
    for at in range(0, len(numbers), chunk):
        block = take(unrolls, slice(at, at + chunk))
        ids = store.insert(block)
        frames = block.observation.reshape(len(ids), -1)
        for i, blob in zip(ids.tolist(), encoded_unrolls.compress(frames), strict=True):
            model.append((i, blob.nbytes))
            while len(model) > 20 or sum(size for _, size in model) > budget:
                model.popleft()
        held = [i for i, _ in model]
        assert (store.first_id, len(store)) == (held[0], len(held))
        assert compressed_bytes(store) == sum(size for _, size in model) <= budget
        assert_same(store.export(np.array(held)), take(unrolls, held))


@codecs
def test_memory_does_not_grow_once_full(codec):
    store = Replay(PICTURE, 40 * PICTURE.steps, codec=codec, budget_bytes=60_000)
    unrolls, sizes = numbered(PICTURE, range(35)), set()
    for i in range(400):
        store.insert(take(unrolls, np.arange(i, i + 1 + i % 5) % 35))
        if i > 40:
            sizes.add(store.nbytes)
    assert max(sizes) - min(sizes) < 4_000  # the end of the ring that no block happened to reach before
    assert max(sizes) <= estimate(PICTURE, 40 * PICTURE.steps, codec, 60_000).total


@pytest.mark.parametrize("field", ["observation", "reward", "last_reward", "behaviour"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nothing_that_is_not_finite_enters(field, value):
    store, unrolls = Replay(VECTOR, 100), numbered(VECTOR, range(3))
    getattr(unrolls, field)[2].flat[-1] = value
    with pytest.raises(ValueError, match=field):
        store.insert(unrolls)
    assert (len(store), store.next_id) == (0, 0)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("reward", np.zeros((3, 5), np.float64)),
        ("reward", np.zeros((3, 4), np.float32)),
        ("reward", np.zeros((2, 5), np.float32)),
        ("observation", np.zeros((3, 6, 5), np.float32)),
        ("seed", np.zeros(3, np.int32)),
    ],
)
def test_malformed_unrolls_are_refused_by_name(field, wrong):
    with pytest.raises(ValueError, match=rf"{field}: expected .* got {wrong.dtype}"):
        Replay(VECTOR, 100).insert(numbered(VECTOR, range(3))._replace(**{field: wrong}))


def test_later_changes_of_the_arrays_do_not_reach_the_store():
    store, unrolls = Replay(VECTOR, 100, codec="raw"), numbered(VECTOR, range(3))
    ids = store.insert(unrolls)
    for array in unrolls:
        array[...] = 0
    assert_same(store.export(ids), numbered(VECTOR, range(3)))


def test_the_drawn_are_uniform_over_all_held_and_repeat_with_the_seed():
    store = Replay(VECTOR, 50 * VECTOR.steps)
    store.insert(numbered(VECTOR, range(73)))
    batch, random, again = allocate(VECTOR, 500), np.random.default_rng(5), np.random.default_rng(5)
    counts = np.zeros(73, np.int64)
    for _ in range(20):
        ids = store.sample_into(500, random, batch, 0)
        assert np.array_equal(ids, again.integers(store.first_id, store.next_id, 500))
        assert np.array_equal(ids, batch.version.numpy())
        np.add.at(counts, ids, 1)
    assert (counts[:23] == 0).all()
    assert stats.chisquare(counts[23:]).pvalue > 0.001


@codecs
def test_single_fields_are_those_of_the_unrolls_asked(codec):
    store, unrolls = Replay(VECTOR, 6 * VECTOR.steps, codec=codec), numbered(VECTOR, range(9))
    store.insert(unrolls)
    fields = store.fields(np.array([8, 3, 3]), ["is_first", "slot", "last_reward"])
    assert list(fields) == ["is_first", "slot", "last_reward"]
    for name, array in fields.items():
        assert np.array_equal(array, getattr(unrolls, name)[[8, 3, 3]])
        array[...] = 0  # copies
        assert np.array_equal(store.fields(np.array([8]), [name])[name], getattr(unrolls, name)[[8]])


def test_unrolls_that_have_left_or_never_came_are_refused():
    store, batch = Replay(VECTOR, 4 * VECTOR.steps), allocate(VECTOR, 2)
    store.insert(numbered(VECTOR, range(6)))
    for ids in ([1, 3], [3, 6]):
        with pytest.raises(Evicted, match="2 to 5 held"):
            store.gather(np.array(ids), batch, 0)
        with pytest.raises(Evicted, match="2 to 5 held"):
            store.fields(np.array(ids), ["slot"])
    with pytest.raises(ValueError, match="batch of 2"):
        store.gather(np.array([2, 3]), batch, 1)
    with pytest.raises(ValueError, match="empty"):
        Replay(VECTOR, 100).sample_into(1, np.random.default_rng(0), allocate(VECTOR, 1), 0)


@codecs
def test_a_restored_store_goes_on_as_the_original(codec):
    arguments = {"codec": codec, "budget_bytes": 16_000}
    original = Replay(PICTURE, 15 * PICTURE.steps, **arguments)
    original.insert(numbered(PICTURE, range(40)))
    restored = Replay(PICTURE, 15 * PICTURE.steps, **arguments)
    restored.begin_at(original.first_id)
    for at in range(original.first_id, original.next_id, 4):
        restored.insert(original.export(np.arange(at, min(at + 4, original.next_id))))
    for number in range(40, 90):
        for store in (original, restored):
            store.insert(numbered(PICTURE, [number]))
        assert (restored.first_id, restored.next_id) == (original.first_id, original.next_id)
    left, right = allocate(PICTURE, 30), allocate(PICTURE, 30)
    original.sample_into(30, np.random.default_rng(1), left, 0)
    restored.sample_into(30, np.random.default_rng(1), right, 0)
    assert_same(left, right)
    with pytest.raises(ValueError, match="empty replay"):
        restored.begin_at(0)


def test_composition_counts_what_is_held():
    store = Replay(VECTOR, 4 * VECTOR.steps)
    assert store.composition() == {}
    store.insert(numbered(VECTOR, [0, 0, 0, 1, 2, 1]))
    assert store.composition() == {0: 0.25, 1: 0.5, 2: 0.25}


def test_pictures_are_compressed_and_vectors_are_not():
    atari = UnrollLayout(20, 3, (1, 84, 84), "uint8", (), "int64", 18)
    assert Replay(atari, 200).codec == "zstd"
    assert Replay(VECTOR, 200).codec == "raw"
    assert Replay(VECTOR, 1).capacity == 1
    with pytest.raises(ConfigError, match=r"1,000 bytes cannot hold one unroll.*budget-gb"):
        Replay(atari, 200, budget_bytes=1000)
