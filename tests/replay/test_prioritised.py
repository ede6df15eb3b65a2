"""Draws follow the priorities, weights correct for them, and no priority ever lands on another unroll or episode."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from laser_rl.errors import ConfigError
from laser_rl.replay.memory_layout import allocate, pack
from laser_rl.replay.mixer import Counts, Mixer, columns_of
from laser_rl.replay.prioritised import Prioritised, SumTree
from laser_rl.replay.store import Evicted, Replay
from tests.replay.inputs import RECURRENT, VECTOR, numbered

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


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_tree_finds_what_a_running_sum_finds(places, seed):
    random = np.random.default_rng(seed)
    tree, plain = SumTree(places), np.zeros(places)
    for _ in range(6):
        changed = random.integers(0, places, random.integers(0, 9))
        values = random.random(len(changed)) * random.integers(0, 2, len(changed))
        plain[changed] = values
        tree.put(changed, plain[changed])  # a place that comes twice has one number
        assert tree.total == pytest.approx(plain.sum())
        np.testing.assert_array_equal(tree.at(np.arange(places)), plain)
        if plain.any():
            reach = random.random(200) * plain.sum()
            near = np.abs(plain.cumsum()[:, None] - reach).min(0) < 1e-12  # rounding decides
            found = tree.find(reach)
            np.testing.assert_array_equal(found[~near], np.searchsorted(plain.cumsum(), reach, side="right")[~near])
            assert plain[tree.find(np.array([0.0, np.nextafter(tree.total, 0.0), 2 * tree.total]))].all()


def test_a_resumed_sampler_draws_what_the_other_draws_and_nothing_that_has_left():
    one, batch = Prioritised(store := store_of(43, capacity=30), **PLAIN), allocate(VECTOR, 64)
    one.fill(64, np.random.default_rng(0), batch, 0)
    one.prioritise(np.arange(13, 43), np.random.default_rng(1).random(30))
    other = Prioritised(store, **PLAIN)
    other.load_state_dict(one.state_dict())
    store.insert(numbered(VECTOR, range(43, 50)))  # 13 to 19 leave
    seen = []
    for sampler in (one, other):
        sampler.fill(64, np.random.default_rng(2), batch, 0)
        seen.append((batch.id.tolist(), batch.weight.tolist()))
    assert seen[0] == seen[1]
    assert set(seen[0][0]) <= set(range(20, 50))


@pytest.mark.parametrize("state", ["stored", "zero"])
def test_the_stored_state_is_kept_or_cleared(state):
    store, batch = store_of(9, layout=RECURRENT), allocate(RECURRENT, 6)
    columns_of(RECURRENT, batch, 0, 6)["state"][...] = 5.0
    online, random = store.export(np.array([3])), np.random.default_rng(1)
    mixer = Mixer(
        RECURRENT, store, Counts(1, 4), random, sampler=Prioritised(store, **PLAIN), zero_state=state == "zero"
    )
    mixer.queue(pack(RECURRENT, online))
    mixer.fill(batch)
    fields = columns_of(RECURRENT, batch, 0, 6)
    expected = store.export(batch.id[1:5].numpy()).state if state == "stored" else np.zeros((4, 3))
    assert np.array_equal(fields["state"][1:5], expected)
    assert np.array_equal(fields["state"][:1], online.state)
    assert (fields["state"][5] == 5.0).all()


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


def test_a_state_that_was_not_kept_begins_anew():
    store = store_of(20)
    sampler, batch = Prioritised(store, **PLAIN), allocate(VECTOR, 6)
    drawn(sampler, store, fills=1)
    sampler.prioritise(np.arange(20), np.arange(20.0))
    state = sampler.state_dict()
    sampler.load_state_dict(
        {name: value[:0] if isinstance(value, np.ndarray) else value for name, value in state.items()}
    )
    assert len(sampler.state_dict()["priority"]) == 0
    sampler.fill(6, np.random.default_rng(0), batch, 0)
    assert batch.weight.tolist() == [1.0] * 6
