"""Each lane shows its column the rows of whole episodes, in order, none missing and none twice."""

from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from laser_rl.errors import ConfigError
from laser_rl.replay.lanes import Lanes
from laser_rl.replay.memory_layout import allocate
from laser_rl.replay.mixer import columns_of
from laser_rl.replay.store import Evicted, Replay
from tests.replay.inputs import CONTEXT, RECURRENT, Stream, Walk, assert_same, cycle_of

T = RECURRENT.steps


def walk_of(*lengths, layout=RECURRENT, capacity=100, unrolls=0, streams=3, **options):
    slots = [Stream(layout, name, cycle_of(*lengths), unrecorded=name) for name in range(streams)]
    walk = Walk(Replay(layout, capacity * layout.steps, **options), slots)
    for i in range(unrolls):
        walk.cut(i % streams)
    return walk


class Reader:
    """Follows one column, with nothing but what the learner sees."""

    def __init__(self, walk, column):
        self.walk, self.column = walk, column
        self.expected = None  # the row that comes next
        self.finished = []

    def see(self, batch, *, may_break=False):
        column, layout = self.column, self.walk.store.layout
        frames = batch.observation[:, column, -4:]  # the newest of a stack
        rows = [tuple(int(number) for number in frame) for frame in frames]
        unroll, real = int(batch.id[column]), batch.is_transition[:, column].tolist()
        assert rows == self.walk.rows[unroll]
        assert not batch.online[column]
        assert float(batch.weight[column]) == 1.0
        begins = 0
        if not batch.carried[column]:
            assert self.expected is None or may_break
            begins = real.index(True)
            assert rows[begins][3] == 0
            assert not columns_of(layout, batch, column, 1)["state"].any()
            self.expected, self.episode = rows[begins], rows[begins][:3]
        assert rows[begins] == self.expected
        # All that follows is as it was recorded, also behind the end.
        stored = [row[3] != self.walk.length(row) for row in rows[:-1]]
        assert real == [False] * begins + stored[begins:]
        for row in rows[begins:]:
            if row == (*self.episode, self.walk.length(row)) and row != rows[0]:
                self.finished.append((unroll, self.episode))
                self.expected = None
                return
        self.expected = rows[-1]


def replay(walk, lanes, fills, *, random=0, cut=lambda i: None, may_break=False, columns=None, first=0):
    generator, count = np.random.default_rng(random), len(lanes._lanes)
    batch = allocate(walk.store.layout, columns or count + first)
    readers = [Reader(walk, first + lane) for lane in range(count)]
    for i in range(fills):
        lanes.fill(count, generator, batch, first)
        for reader in readers:
            reader.see(batch, may_break=may_break)
        cut(i)
    return readers


@pytest.mark.parametrize("layout", [RECURRENT, CONTEXT], ids=["plain", "context"])
@pytest.mark.parametrize("lengths", [(1,), (2, 1, 3), (4,), (T - 1, 2 * T), (40, 3), (5, 1, 17, 2, 4)])
def test_a_lane_shows_every_row_of_its_episodes_in_order(lengths, layout):
    walk = walk_of(*lengths, layout=layout, unrolls=60)
    readers = replay(walk, Lanes(walk.store, 6), fills=50)
    assert all(reader.finished for reader in readers)
    whole = {walk.rows[first][row][:3] for first, row, *_ in walk.episodes()}
    assert {episode for reader in readers for _, episode in reader.finished} <= whole


@given(
    lengths=st.lists(st.integers(1, 15), min_size=1, max_size=5), capacity=st.integers(40, 50), seed=st.integers(0, 9)
)
def test_lanes_survive_whatever_the_streams_do(lengths, capacity, seed):
    """Unrolls are evicted under the lanes, and workers die."""
    walk, random = walk_of(*lengths, capacity=capacity, unrolls=40), np.random.default_rng(seed)
    lanes = Lanes(walk.store, 4)

    def go_on(_):
        for _ in range(random.integers(0, 4)):
            walk.cut(int(random.integers(3)))
        if random.random() < 0.1:
            walk.streams[int(random.integers(3))].restart(int(random.integers(6)))

    replay(walk, lanes, 25, cut=go_on, may_break=True)


def test_lanes_stay_in_their_columns_and_touch_no_other():
    walk = walk_of(9, 2, unrolls=30)
    batch = allocate(RECURRENT, 8)
    batch.observation.fill_(-7)
    lanes, random = Lanes(walk.store, 3), np.random.default_rng(0)
    readers = [Reader(walk, 4 + lane) for lane in range(3)]
    for _ in range(20):
        lanes.fill(3, random, batch, 4)
        for reader in readers:
            reader.see(batch)
        assert (batch.observation[:, [0, 1, 2, 3, 7]] == -7).all()


def test_every_episode_is_as_likely_as_any_other_however_long():
    walk = walk_of(1, 1, 2, 30, capacity=120, unrolls=140)
    lanes, batch, random = Lanes(walk.store, 400), allocate(RECURRENT, 400), np.random.default_rng(3)
    drawn = Counter()
    for _ in range(20):
        lanes.restart()
        lanes.fill(400, random, batch, 0)
        assert not batch.carried.any()
        drawn.update(zip(batch.id.tolist(), batch.is_transition.int().argmax(0).tolist(), strict=True))
    episodes = [episode[:2] for episode in walk.episodes()]
    assert len({walk.rows[first][row][:3] for first, row in episodes}) == len(episodes) > 20
    assert set(drawn) <= set(episodes)
    assert stats.chisquare([drawn[episode] for episode in episodes]).pvalue > 0.001


def test_a_lane_whose_next_unroll_has_left_draws_anew():
    walk = walk_of(39, capacity=14, unrolls=12, streams=1)
    lanes, batch, random = Lanes(walk.store, 1), allocate(RECURRENT, 1), np.random.default_rng(0)
    lanes.fill(1, random, batch, 0)
    lanes.fill(1, random, batch, 0)
    assert (batch.id.tolist(), batch.carried.tolist()) == ([1], [True])
    for _ in range(5):  # 3 to 16 are held: the lane's next has left, and with it the only whole episode
        walk.cut(0)
    with pytest.raises(ConfigError, match="leave the replay before they can be read"):
        lanes.fill(1, random, batch, 0)
    for _ in range(5):
        walk.cut(0)
    lanes.fill(1, random, batch, 0)
    assert (batch.id.tolist(), batch.carried.tolist()) == ([10], [False])


def test_a_lane_goes_on_when_only_what_it_has_seen_has_left():
    walk = walk_of(39, capacity=14, unrolls=14, streams=1)
    lanes, batch, random = Lanes(walk.store, 1), allocate(RECURRENT, 1), np.random.default_rng(0)
    for expected in range(10):
        lanes.fill(1, random, batch, 0)
        assert (batch.id.item(), batch.carried.item()) == (expected, expected > 0)
        walk.cut(0)
        assert walk.store.first_id == expected + 1


def test_nothing_is_drawn_before_an_episode_is_whole():
    walk = walk_of(11, streams=1)
    lanes, ready = Lanes(walk.store, 2), []
    for _ in range(4):
        ready.append(lanes.ready())
        walk.cut(0)
    assert [*ready, lanes.ready()] == [False, False, False, True, True]


def test_episodes_longer_than_the_store_are_refused_once_it_is_full():
    walk = walk_of(1000, capacity=5)
    lanes = Lanes(walk.store, 2)
    for i in range(4):
        assert not lanes.ready()
        walk.cut(i % 3)
    assert not lanes.ready()
    walk.cut(0)
    with pytest.raises(
        ConfigError, match=r"capacity of 20 steps; raise --replay\.capacity-steps or use --replay\.state stored"
    ):
        lanes.ready()


def test_where_there_have_been_episodes_learning_waits_for_the_next_and_says_so(caplog):
    walk = walk_of(3, 1000, capacity=5, streams=1)
    lanes = Lanes(walk.store, 2)
    while not lanes.ready():
        walk.cut(0)
    for _ in range(12):
        walk.cut(0)
        ready = lanes.ready()
    assert not ready
    assert [record.message for record in caplog.records if "learning waits until one has ended" in record.message] != []
    assert len(caplog.records) == 1  # once, not at every look


@pytest.mark.parametrize("moment", [0, 3, 7])
def test_resumed_lanes_go_on_with_the_same_batches(moment):
    walk = walk_of(5, 1, 17, 2, capacity=30, unrolls=28)
    lanes, random = Lanes(walk.store, 6), np.random.default_rng(4)
    batch, again = allocate(RECURRENT, 6), allocate(RECURRENT, 6)
    for i in range(moment):
        lanes.fill(6, random, batch, 0)
        walk.cut(i % 3)
    store = Replay(RECURRENT, 30 * T)
    resumed = Lanes(store, 6)
    resumed.load_state_dict(lanes.state_dict())
    store.begin_at(walk.store.first_id)
    store.insert(walk.store.export(np.array(walk.held())))
    other = np.random.default_rng()
    other.bit_generator.state = random.bit_generator.state
    for i in range(15):
        lanes.fill(6, random, batch, 0)
        resumed.fill(6, other, again, 0)
        assert_same(batch, again)
        walk.cut(i % 3)
        store.insert(walk.store.export(np.array([walk.store.next_id - 1])))
    before = lanes.state_dict()
    assert all(np.array_equal(before[name], array) for name, array in resumed.state_dict().items())


def test_a_state_that_was_not_kept_begins_anew_and_a_wrong_one_is_refused():
    walk = walk_of(39, unrolls=60)
    lanes, batch, random = Lanes(walk.store, 5), allocate(RECURRENT, 5), np.random.default_rng(0)
    lanes.fill(5, random, batch, 0)
    lanes.load_state_dict({name: array[:0] for name, array in lanes.state_dict().items()})
    lanes.fill(5, random, batch, 0)
    assert not batch.carried.any()
    with pytest.raises(ValueError, match="5 lanes, got one of 4"):
        lanes.load_state_dict({name: array[:4] for name, array in lanes.state_dict().items()})


def test_a_state_over_a_store_without_its_unrolls_begins_anew():
    walk, other = walk_of(39, unrolls=90), walk_of(39, unrolls=33)
    lanes, batch, random = Lanes(walk.store, 5), allocate(RECURRENT, 5), np.random.default_rng(0)
    while not (batch.id > 40).any():
        lanes.fill(5, random, batch, 0)
    state = lanes.state_dict()
    resumed = Lanes(other.store, 5)
    resumed.load_state_dict(state)
    resumed.fill(5, random, batch, 0)
    assert not batch.carried[state["next"] >= 33].any()


def test_the_state_does_not_change_with_the_lanes():
    walk = walk_of(39, unrolls=60)
    lanes, batch, random = Lanes(walk.store, 5), allocate(RECURRENT, 5), np.random.default_rng(0)
    lanes.fill(5, random, batch, 0)
    state = lanes.state_dict()
    kept = {name: array.copy() for name, array in state.items()}
    lanes.restart()
    lanes.fill(5, random, batch, 0)
    assert all(np.array_equal(state[name], array) for name, array in kept.items())


def test_unrolls_that_leave_while_they_are_gathered_are_drawn_anew():
    walk = walk_of(5, 9, capacity=20, unrolls=20)
    lanes, gather, late = Lanes(walk.store, 8), walk.store.gather, iter([0, 3, 0, 19, 2, 0, 5])

    def slowly(ids, batch, first_column):
        for i in range(next(late, 0)):
            walk.cut(i % 3)
        gather(ids, batch, first_column)

    with mock.patch.object(walk.store, "gather", slowly):
        replay(walk, lanes, 12, may_break=True)
    assert next(late, None) is None
    before = lanes.state_dict()
    with (
        mock.patch.object(walk.store, "gather", side_effect=Evicted),
        pytest.raises(ConfigError, match="again and again"),
    ):
        lanes.fill(8, np.random.default_rng(0), allocate(RECURRENT, 8), 0)
    assert all(np.array_equal(before[name], array) for name, array in lanes.state_dict().items())


def test_a_gather_that_failed_leaves_the_lanes_that_go_on_where_they_were():
    walk = walk_of(39, capacity=40, unrolls=40, streams=1)
    lanes, gather, failing = Lanes(walk.store, 3), walk.store.gather, iter([False, True, True, False])

    def fails(ids, batch, first_column):
        if next(failing, False):
            raise Evicted
        gather(ids, batch, first_column)

    with mock.patch.object(walk.store, "gather", fails):
        replay(walk, lanes, 30)


def test_lanes_of_a_shared_store_are_those_of_a_private_one():
    private = walk_of(5, 1, 17, 2, capacity=20, unrolls=20)
    shared = walk_of(5, 1, 17, 2, capacity=20, unrolls=20, shared=True)
    attached = Replay.attach(RECURRENT, shared.store.handle())
    left, right = Lanes(private.store, 6), Lanes(attached, 6)
    batches, random = [allocate(RECURRENT, 6) for _ in range(2)], [np.random.default_rng(4) for _ in range(2)]
    for i in range(30):
        for lanes, generator, batch in zip((left, right), random, batches, strict=True):
            lanes.fill(6, generator, batch, 0)
        assert_same(*batches)
        for walk in (private, shared):
            walk.cut(i % 3)
