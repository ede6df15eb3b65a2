"""The index knows just the episodes that a walk over all rows finds, however it was made."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.errors import ConfigError
from laser_rl.replay import lanes
from laser_rl.replay.lanes import EpisodeIndex
from laser_rl.replay.store import Evicted, Replay
from tests.replay.inputs import CONTEXT, RECURRENT, VECTOR, Stream, Walk, cycle_of, numbered

MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("cut"), st.integers(0, 2)),
        st.tuples(st.just("cut"), st.integers(0, 2)),
        st.tuples(st.just("cut"), st.integers(0, 2)),
        st.tuples(st.just("restart"), st.integers(0, 2)),
        st.tuples(st.just("refresh"), st.just(0)),
    ),
    max_size=60,
)
LENGTHS = st.lists(st.integers(1, 14), min_size=1, max_size=6)


def walk_of(layout, lengths, *, capacity, unrecorded=(0, 0, 0), **options):
    streams = [Stream(layout, name, cycle_of(*lengths), unrecorded=rows) for name, rows in enumerate(unrecorded)]
    return Walk(Replay(layout, capacity * layout.steps, **options), streams)


def following(index, unroll):
    after = int(index.successors(np.array([unroll]))[0])
    return None if after == -1 else after


def found(index):
    return [tuple(episode) for episode in index.table[["first", "row", "last", "end"]].tolist()]


def assert_indexed(index, walk):
    index.refresh()
    assert found(index) == walk.episodes()
    assert len(index) == len(found(index))
    for unroll in walk.held():
        assert following(index, unroll) == walk.following(unroll)
    first = walk.store.first_id
    for outside in (*range(max(0, first - walk.store.capacity), first), walk.store.next_id):
        assert following(index, outside) is None


@pytest.mark.parametrize("layout", [RECURRENT, CONTEXT], ids=["plain", "context"])
@given(
    moves=MOVES,
    lengths=LENGTHS,
    capacity=st.integers(1, 25),
    block=st.integers(1, 5),
    unrecorded=st.tuples(*[st.integers(0, 6)] * 3),
)
def test_an_index_grown_and_one_made_from_scratch_equal_the_walk(layout, moves, lengths, capacity, block, unrecorded):
    walk = walk_of(layout, lengths, capacity=capacity, unrecorded=unrecorded)
    index = EpisodeIndex(walk.store)
    with mock.patch.object(lanes, "BLOCK", block):
        for move, which in [*moves, ("refresh", 0)]:
            if move == "cut":
                walk.cut(which)
            elif move == "restart":
                walk.streams[which].restart(lost_rows=len(walk.rows) % 7)
            else:
                assert_indexed(index, walk)
                assert_indexed(EpisodeIndex(walk.store), walk)


@pytest.mark.parametrize(
    ("lengths", "unrolls", "expected"),
    [
        ([1], 2, [(0, 0, 0, 0), (0, 2, 0, 2), (1, 0, 1, 0), (1, 2, 1, 2)]),  # two in one unroll
        ([4], 3, [(0, 0, 0, 3), (1, 1, 2, 0), (2, 2, 3, 1)][:2]),  # ends exactly with the unroll
        ([2, 9], 4, [(0, 0, 0, 1), (0, 3, 2, 3), (3, 1, 3, 2)]),  # begins at row T-1
        ([3, 5], 3, [(0, 0, 0, 2), (1, 0, 2, 0)]),  # begins at row T, which is row 0 of the next
        ([40], 10, [(0, 0, 9, 3)]),
        ([40], 9, []),
    ],
)
def test_episodes_at_the_edges_of_unrolls(lengths, unrolls, expected):
    walk = walk_of(RECURRENT, lengths, capacity=50)
    for _ in range(unrolls):
        walk.cut(0)
    index = EpisodeIndex(walk.store)
    index.refresh()
    assert found(index) == expected == walk.episodes()


def test_an_unroll_that_does_not_go_on_ends_the_open_episode():
    for change in ("episode", "is_first"):
        walk = walk_of(RECURRENT, [6], capacity=50)
        store, (stream, *_) = walk.store, walk.streams
        store.insert(stream.cut()[0])
        broken = stream.cut()[0]
        if change == "episode":
            broken.episode[0] += 1
        else:
            broken.is_first[0, 0] = True
        store.insert(broken)
        index = EpisodeIndex(store)
        index.refresh()
        assert following(index, 0) is None
        assert (0, 0, 1, 1) not in found(index)


def test_streams_of_two_members_with_the_same_slot_are_two():
    streams = [Stream(RECURRENT, name, cycle_of(6)) for name in (3, 13)]
    store = Replay(RECURRENT, 100)
    for stream in (*streams, *streams):
        store.insert(stream.cut()[0])
    index = EpisodeIndex(store)
    index.refresh()
    assert (following(index, 0), following(index, 1)) == (2, 3)
    assert found(index) == [(0, 0, 2, 1), (1, 0, 3, 1)]


def test_a_shared_store_is_read_by_every_process_for_itself():
    walk = walk_of(RECURRENT, [3, 9, 1], capacity=12, shared=True)
    index = EpisodeIndex(Replay.attach(RECURRENT, walk.store.handle()))
    for i in range(40):
        walk.cut(i * i % 3)
        if i % 4 == 0:
            assert_indexed(index, walk)


def test_garbage_is_no_episode_twice():
    """Flags without sense: ends without beginnings and beginnings without ends."""
    store = Replay(VECTOR, 50 * VECTOR.steps)
    index = EpisodeIndex(store)
    for number in range(100):
        store.insert(numbered(VECTOR, [number], first_share=0.5))
        index.refresh()
        assert len({(first, row) for first, row, _, _ in found(index)}) == len(index)
        assert all((first, row) <= (last, end) for first, row, last, end in found(index))


def test_unrolls_that_leave_while_they_are_read_are_given_up():
    walk = walk_of(RECURRENT, [3, 9], capacity=6)
    for i in range(6):
        walk.cut(i % 3)
    index, read, late = EpisodeIndex(walk.store), walk.store.fields, iter([4, 1, 9])

    def slowly(ids, names):
        for i in range(next(late, 0)):
            walk.cut(i % 3)
        return read(ids, names)

    with mock.patch.object(walk.store, "fields", slowly), mock.patch.object(lanes, "BLOCK", 2):
        index.refresh()
    assert_indexed(index, walk)
    walk.cut(0)
    with (
        mock.patch.object(walk.store, "fields", side_effect=Evicted),
        pytest.raises(ConfigError, match=r"again and again: it holds only 6 .*--replay\.capacity-steps"),
    ):
        index.refresh()
