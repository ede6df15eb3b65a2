"""Draws follow the priorities, weights correct for them, and no priority ever lands on another unroll or episode."""

import numpy as np
import pytest
from scipy import stats

from laser_rl.errors import ConfigError
from laser_rl.replay.mixer import columns_of
from laser_rl.replay.prioritised import Prioritised, PrioritisedLanes
from laser_rl.replay.records import allocate
from laser_rl.replay.store import Evicted, Replay
from tests.replay.inputs import RECURRENT, VECTOR, Stream, Walk, assert_same, cycle_of, numbered

PLAIN = {"exponent": 1.0, "importance_exponent": 1.0, "uniform_share": 0.0}


def store_of(count, *, capacity=50, layout=VECTOR):
    store = Replay(layout, capacity * layout.steps)
    store.insert(numbered(layout, range(count)))
    return store


def chances(priority, exponent, uniform_share):
    powered = [p**exponent for p in priority]
    return [(1 - uniform_share) * p / sum(powered) + uniform_share / len(priority) for p in powered]


def drawn(sampler, store, *, fills=20, seed=0):
    """How often each id comes in batches of 500, and its weight, which must not vary."""
    batch, random, weight = allocate(store.layout, 500), np.random.default_rng(seed), {}
    counts = np.zeros(store.next_id, np.int64)
    for _ in range(fills):
        sampler.fill(500, random, batch, 0)
        np.add.at(counts, batch.id.numpy(), 1)
        for i, w in zip(batch.id.tolist(), batch.weight.tolist(), strict=True):
            assert weight.setdefault(i, w) == w
    return counts, weight


@pytest.mark.parametrize(
    ("exponent", "beta", "share"), [(1.0, 1.0, 0.0), (0.6, 0.5, 0.1), (2.0, 0.0, 0.5), (0.0, 1.0, 0.0)]
)
def test_draws_and_weights_follow_the_formula(exponent, beta, share):
    store = store_of(43, capacity=30)  # 13 to 42 are held
    sampler = Prioritised(store, exponent=exponent, importance_exponent=beta, uniform_share=share)
    drawn(sampler, store, fills=1)
    priority = np.random.default_rng(1).random(30) * 5 + 0.1
    order = np.random.default_rng(2).permutation(30)
    sampler.prioritise(order + 13, priority[order])
    counts, weight = drawn(sampler, store)
    expected = chances(priority.tolist(), exponent, share)
    assert not counts[:13].any()
    assert stats.chisquare(counts[13:], np.array(expected) * counts.sum()).pvalue > 0.001
    for i, w in weight.items():
        assert w == pytest.approx((30 * expected[i - 13]) ** -beta, rel=1e-6)


def test_what_is_new_has_the_largest_priority_ever_seen():
    store = store_of(3)
    sampler = Prioritised(store, **PLAIN)
    assert set(drawn(sampler, store)[1].values()) == {1.0}
    sampler.prioritise(np.array([0, 1]), np.array([0.5, 0.0]))  # the third keeps the least of new ones: 1
    assert drawn(sampler, store)[1] == pytest.approx({0: 1.5 / 3 / 0.5, 2: 1.5 / 3})
    sampler.prioritise(np.array([0]), np.array([8.0]))
    sampler.prioritise(np.array([0]), np.array([0.0]))
    store.insert(numbered(VECTOR, [3]))  # by whom ever: another member, another process
    assert drawn(sampler, store)[1] == pytest.approx({2: 9 / 4, 3: 9 / 4 / 8})


def test_a_priority_never_lands_on_the_unroll_that_has_replaced_it():
    """Priorities indexed by the wrong counter: by column, by place in the ring, by age."""
    store = store_of(10, capacity=10)
    sampler = Prioritised(store, **PLAIN)
    drawn(sampler, store, fills=1)
    store.insert(numbered(VECTOR, range(10, 15)))  # in the places of 0 to 4
    drawn(sampler, store, fills=1)
    sampler.prioritise(np.arange(10), np.array([0.0] * 5 + [0.5] * 5))
    _, weight = drawn(sampler, store)
    assert weight == pytest.approx({i: 7.5 / 10 / (0.5 if i < 10 else 1.0) for i in range(5, 15)})
    sampler.prioritise(np.array([20, 12]), np.array([0.0, 0.0]))  # 20 never came
    assert set(drawn(sampler, store)[1]) == set(range(5, 15)) - {12}


def test_what_was_replaced_between_two_draws_keeps_nothing():
    store = store_of(4, capacity=4)
    sampler = Prioritised(store, **PLAIN)
    drawn(sampler, store, fills=1)
    sampler.prioritise(np.arange(4), np.array([0.0, 0.25, 0.25, 0.25]))
    store.insert(numbered(VECTOR, [4]))
    assert drawn(sampler, store)[1] == pytest.approx({1: 1.75, 2: 1.75, 3: 1.75, 4: 1.75 / 4})


def test_while_all_priorities_are_zero_draws_are_uniform():
    store = store_of(5)
    sampler = Prioritised(store, **PLAIN)
    drawn(sampler, store, fills=1)
    sampler.prioritise(np.arange(5), np.zeros(5))
    counts, weight = drawn(sampler, store)
    assert stats.chisquare(counts).pvalue > 0.001
    assert set(weight.values()) == {1.0}


class Constant:
    """A generator of one number."""

    def __init__(self, number):
        self.number = number

    def random(self, count):
        return np.full(count, self.number)


def test_what_has_no_chance_is_not_drawn_even_by_the_lowest_and_highest_numbers():
    store, batch = store_of(7), allocate(VECTOR, 3)
    for scale in np.random.default_rng(0).random(100):
        sampler = Prioritised(store, **PLAIN)
        sampler.fill(3, np.random.default_rng(0), batch, 0)
        sampler.prioritise(np.arange(7), np.array([0.0, 2.0, 0.1, 3.0, 0.7, 0.0, 0.0]) * scale)
        for number, expected in ((0.0, 1), (np.nextafter(1.0, 0.0), 4)):
            sampler.fill(3, Constant(number), batch, 0)
            assert batch.id.tolist() == [expected] * 3


@pytest.mark.parametrize("state", ["stored", "zero"])
def test_the_stored_state_is_kept_or_cleared(state):
    store, batch = store_of(9, layout=RECURRENT), allocate(RECURRENT, 6)
    columns_of(RECURRENT, batch, 0, 6)["state"][...] = 5.0
    Prioritised(store, **PLAIN, state=state).fill(4, np.random.default_rng(1), batch, 1)
    fields = columns_of(RECURRENT, batch, 0, 6)
    expected = store.export(batch.id[1:5].numpy()).state if state == "stored" else np.zeros((4, 3))
    assert np.array_equal(fields["state"][1:5], expected)
    assert (fields["state"][[0, 5]] == 5.0).all()


def test_unrolls_that_leave_while_they_are_gathered_are_drawn_anew(monkeypatch):
    store, batch = store_of(10, capacity=10), allocate(VECTOR, 40)
    sampler, gather, number = Prioritised(store, **PLAIN), store.gather, iter(range(10, 16))

    def slowly(ids, batch, first_column):
        if (new := next(number, None)) is not None:
            store.insert(numbered(VECTOR, [new]))
        gather(ids, batch, first_column)

    monkeypatch.setattr(store, "gather", slowly)
    sampler.fill(40, np.random.default_rng(0), batch, 0)
    assert set(batch.id.tolist()) <= set(range(6, 16))
    assert batch.version.tolist() == batch.id.tolist()

    def never(ids, batch, first_column):
        raise Evicted

    monkeypatch.setattr(store, "gather", never)
    with pytest.raises(ConfigError, match="again and again"):
        sampler.fill(40, np.random.default_rng(0), batch, 0)
    with pytest.raises(ValueError, match="empty"):
        Prioritised(Replay(VECTOR, 100), **PLAIN).fill(1, np.random.default_rng(0), batch, 0)


# Lanes


def walk_of(*lengths, unrolls, capacity=100, streams=2):
    slots = [Stream(RECURRENT, name, cycle_of(*lengths)) for name in range(streams)]
    walk = Walk(Replay(RECURRENT, capacity * RECURRENT.steps), slots)
    for i in range(unrolls):
        walk.cut(i % streams)
    return walk


def loss(unroll, episode):
    """Of an unroll, in one episode."""
    return 0.1 + (unroll * 7 + episode[0] * 3 + episode[1]) % 11


def episodes_of(walk):
    """(first, row) of each whole episode, with the unrolls that it runs through."""
    through = {}
    for first, row, last, _ in walk.episodes():
        through[first, row] = [first]
        while through[first, row][-1] != last:
            through[first, row].append(walk.following(through[first, row][-1]))
    return through


class Learner:
    """Reports the loss of every column, `late` batches after it was filled."""

    def __init__(self, sampler, count, late=0, seed=0):
        self.sampler, self.count, self.late = sampler, count, late
        self.random, self.batch = np.random.default_rng(seed), allocate(RECURRENT, count)
        self.lanes, self.waiting, self.seen = [None] * count, [], []

    def update(self):
        batch = self.batch
        self.sampler.fill(self.count, self.random, batch, 0)
        begins, ids = batch.is_transition.int().argmax(0).tolist(), batch.id.tolist()
        for lane, (unroll, row, carried) in enumerate(zip(ids, begins, batch.carried.tolist(), strict=True)):
            if not carried:
                self.lanes[lane] = (unroll, row)
                self.seen.append((self.lanes[lane], float(batch.weight[lane])))
        report = [loss(unroll, episode) for unroll, episode in zip(ids, self.lanes, strict=True)]
        self.waiting.append((batch.id.numpy().copy(), np.array(report)))
        if len(self.waiting) > self.late:
            self.sampler.prioritise(*self.waiting.pop(0))


def assert_priorities(walk, sampler, through, *, known=None):
    state = sampler.state_dict()
    found = {
        (last, end): p
        for last, end, p in zip(state["last"].tolist(), state["end"].tolist(), state["priority"].tolist(), strict=True)
    }
    ends = {episode[:2]: episode[2:] for episode in walk.episodes()}
    for episode, unrolls in through.items():
        if known is None or episode in known:
            assert found.pop(ends[episode]) == pytest.approx(np.mean([loss(unroll, episode) for unroll in unrolls]))
    assert not found


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("lengths", [(1, 2), (9, 1, 14)])
def test_an_episode_has_the_mean_of_its_unrolls(late, lengths):
    walk = walk_of(*lengths, unrolls=14)
    through = episodes_of(walk)
    sampler = PrioritisedLanes(walk.store, 8, exponent=0.5, importance_exponent=1.0, uniform_share=0.3)
    learner = Learner(sampler, 8, late)
    for _ in range(60):
        learner.update()
    assert_priorities(walk, sampler, through)


def test_episodes_are_drawn_by_their_priorities_and_weighted_to_their_end():
    walk = walk_of(2, 9, 1, unrolls=12)
    through = episodes_of(walk)
    sampler = PrioritisedLanes(walk.store, 60, exponent=0.7, importance_exponent=0.5, uniform_share=0.2)
    learner = Learner(sampler, 60)
    for _ in range(30):
        learner.update()
    assert_priorities(walk, sampler, through)
    means = [float(np.mean([loss(unroll, episode) for unroll in unrolls])) for episode, unrolls in through.items()]
    chance = dict(zip(through, chances(means, 0.7, 0.2), strict=True))
    learner.seen, weights = [], {}
    sampler.restart()
    for _ in range(100):
        learner.update()
        for lane, weight in zip(learner.lanes, learner.batch.weight.tolist(), strict=True):
            assert weights.setdefault(lane, weight) == weight
    counts = [sum(episode == one for one, _ in learner.seen) for episode in through]
    assert stats.chisquare(counts, np.array(list(chance.values())) * sum(counts)).pvalue > 0.001
    for episode, weight in weights.items():
        assert weight == pytest.approx((len(through) * chance[episode]) ** -0.5, rel=1e-6)


def test_an_episode_never_replayed_has_the_largest_priority():
    walk = walk_of(3, unrolls=1, streams=1)
    sampler = PrioritisedLanes(walk.store, 2, **PLAIN)
    batch, random = allocate(RECURRENT, 2), np.random.default_rng(0)
    for priority in (6.0, 2.0):
        sampler.fill(2, random, batch, 0)
        sampler.prioritise(batch.id.numpy(), np.full(2, priority))
    walk.cut(0)
    weights = {}
    for _ in range(20):
        sampler.fill(2, random, batch, 0)
        weights.update(zip(batch.id.tolist(), batch.weight.tolist(), strict=True))
    assert weights == {0: 2.0, 1: pytest.approx(8 / 6 / 2)}
    assert sampler.state_dict()["largest"] == 6.0


def test_reports_that_do_not_come_or_fit_no_batch_are_left_out():
    walk = walk_of(11, unrolls=3, streams=1)  # one episode of three unrolls
    sampler, batch = PrioritisedLanes(walk.store, 1, **PLAIN), allocate(RECURRENT, 1)
    random = np.random.default_rng(0)
    for _ in range(4):
        sampler.fill(1, random, batch, 0)
    sampler.prioritise(np.array([5]), np.array([100.0]))  # no such batch
    sampler.prioritise(np.array([0]), np.array([3.0]))
    sampler.prioritise(np.array([2]), np.array([5.0]))  # nothing came for 1
    state = sampler.state_dict()
    assert state["priority"].tolist() == [4.0]
    sampler.prioritise(np.array([0]), np.array([9.0]))  # begun again, not finished yet
    assert sampler.state_dict()["priority"].tolist() == [4.0]


def test_lanes_that_are_restarted_begin_their_sums_anew():
    walk = walk_of(7, unrolls=2, streams=1)
    sampler, batch = PrioritisedLanes(walk.store, 1, **PLAIN), allocate(RECURRENT, 1)
    for unroll, priority in ((0, 50.0), (0, 1.0), (1, 3.0)):
        sampler.fill(1, np.random.default_rng(0), batch, 0)
        assert batch.id.item() == unroll
        sampler.prioritise(batch.id.numpy(), np.array([priority]))
        if priority == 50.0:
            sampler.restart()
    assert sampler.state_dict()["priority"].tolist() == [2.0]


def test_priorities_stay_with_their_episodes_while_others_leave():
    walk = walk_of(2, 9, 1, unrolls=30, capacity=30)
    sampler = PrioritisedLanes(walk.store, 12, exponent=0.5, importance_exponent=1.0, uniform_share=0.5)
    learner, done = Learner(sampler, 12), {}
    for i in range(80):
        through = episodes_of(walk)
        learner.update()
        for lane, unroll in zip(learner.lanes, learner.batch.id.tolist(), strict=True):
            if lane in through and through[lane][-1] == unroll:
                done[lane] = True
        if i % 10 == 9:
            assert_priorities(walk, sampler, through, known=done)
        walk.cut(i % 2)
        sampler.ready()  # forgets what has left


@pytest.mark.parametrize("kind", ["unrolls", "lanes"])
def test_a_resumed_sampler_goes_on_with_the_same_batches(kind):
    def make(store):
        options = {"exponent": 0.8, "importance_exponent": 0.5, "uniform_share": 0.1}
        return Prioritised(store, **options) if kind == "unrolls" else PrioritisedLanes(store, 6, **options)

    walk = walk_of(2, 9, 1, unrolls=20, capacity=20)
    sampler = make(walk.store)
    original = Learner(sampler, 6)
    for i in range(25):
        original.update()
        walk.cut(i % 2)
    store = Replay(RECURRENT, 20 * RECURRENT.steps)
    resumed = Learner(make(store), 6)
    resumed.random.bit_generator.state, resumed.lanes = original.random.bit_generator.state, list(original.lanes)
    resumed.sampler.load_state_dict(sampler.state_dict())  # before the store is filled
    store.begin_at(walk.store.first_id)
    store.insert(walk.store.export(np.array(walk.held())))
    for i in range(25):
        original.update()
        resumed.update()
        assert_same(original.batch, resumed.batch)
        walk.cut(i % 2)
        store.insert(walk.store.export(np.array([walk.store.next_id - 1])))
    left, right = sampler.state_dict(), resumed.sampler.state_dict()
    assert left.keys() == right.keys()
    assert all(np.array_equal(value, right[name]) for name, value in left.items())


def test_what_comes_for_batches_before_a_state_was_loaded_is_ignored():
    walk = walk_of(3, unrolls=1, streams=1)
    sampler, batch = PrioritisedLanes(walk.store, 1, **PLAIN), allocate(RECURRENT, 1)
    sampler.fill(1, np.random.default_rng(0), batch, 0)
    sampler.load_state_dict(sampler.state_dict())
    sampler.prioritise(batch.id.numpy(), np.array([5.0]))
    assert len(sampler.state_dict()["priority"]) == 0


@pytest.mark.parametrize("kind", ["unrolls", "lanes"])
def test_a_state_that_was_not_kept_begins_anew(kind):
    walk = walk_of(2, 9, 1, unrolls=20, capacity=20)
    sampler = Prioritised(walk.store, **PLAIN) if kind == "unrolls" else PrioritisedLanes(walk.store, 6, **PLAIN)
    learner = Learner(sampler, 6)
    for _ in range(9):
        learner.update()
    state = sampler.state_dict()
    sampler.load_state_dict(
        {name: value[:0] if isinstance(value, np.ndarray) else value for name, value in state.items()}
    )
    assert len(sampler.state_dict()["priority"]) == 0
    learner.batch.carried.fill_(True)
    learner.update()
    assert learner.batch.weight.tolist() == [1.0] * 6
    assert not learner.batch.carried.any()
