"""Numbers of a sweep: each cell is of the members it says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.metrics import read
from laser_rl.metrics.sweep_curves import (
    Copy,
    acceptance_by_age,
    acceptance_matrix,
    acceptance_over_time,
    age_percentiles,
    by_member,
    composition,
    copies,
    divergence_matrix,
    founders,
    member_returns,
    own_and_others,
    own_and_others_of,
    spread,
)
from tests.metrics.test_sweep_rows import TIMES, a_sweep, trust


@pytest.fixture(scope="module", params=[3, 9])
def sweep(request, tmp_path_factory):
    run_dir = a_sweep(tmp_path_factory.mktemp("sweep"), request.param, pbt=True)
    return read(run_dir), request.param


def row(step, member, **values):
    return {"kind": "train", "step": step, "update": step, "member": member, **values}


def test_the_best_is_a_maximum_at_each_step_and_says_whose():
    ramps = {2: (0.0, 1.0), 5: (30.0, 0.0), 7: (10.0, 0.5)}
    rows = [row(step, k, return_mean=start + slope * step) for step in range(0, 101, 5) for k, (start, slope) in ramps.items()]  # fmt: skip
    found = spread(member_returns(rows))
    values = np.array([start + slope * found.steps for start, slope in ramps.values()])
    np.testing.assert_allclose(found.best, values.max(0))
    np.testing.assert_allclose(found.mean, values.mean(0))
    np.testing.assert_allclose(found.low, values.min(0))
    assert found.best_member[[0, -1]].tolist() == [5, 2]
    assert 7 not in found.best_member
    assert (found.best >= found.mean).all()


def test_no_member_has_no_spread():
    assert spread({}).steps.size == 0


def test_a_member_without_reported_returns_has_those_of_its_own_episodes():
    rows = [{"kind": "episode", "step": n, "update": 0, "member": n % 2, "return": float(n % 2)} for n in range(10)]
    assert {k: set(values.tolist()) for k, (_, values) in member_returns(rows).items()} == {0: {0.0}, 1: {1.0}}


def test_learner_is_down_and_source_across(sweep):
    rows, members = sweep
    expected = [[trust(i, j) for j in range(members)] for i in range(members)]
    np.testing.assert_allclose(acceptance_matrix(rows, members, last=1), expected)


def test_a_cell_is_the_mean_of_the_last_rows_that_have_it():
    rows = [row(10, 0, acceptance_from_1=0.0), row(20, 0, acceptance_from_1=0.4), row(30, 0), row(40, 0, acceptance_from_1=0.8),
            row(50, 1, acceptance_from_1=0.1), row(60, 0, acceptance_from_1=float("nan"))]  # fmt: skip
    assert acceptance_matrix(rows, 2, last=4)[0, 1] == pytest.approx(0.6)
    assert acceptance_matrix(rows, 2, last=4, until=20)[0, 1] == pytest.approx(0.2)
    assert np.isnan(acceptance_matrix(rows, 2, last=1)[0, 1])


def test_over_time_no_matrix_looks_ahead(sweep):
    rows, members = sweep
    steps, matrices = acceptance_over_time(rows, members, times=3, last=1)
    np.testing.assert_allclose(steps, [20_000, 40_000, 60_000])
    for step, matrix in zip(steps, matrices, strict=True):
        time = step / (1000 * TIMES)
        np.testing.assert_allclose(matrix, [[trust(i, j, time) for j in range(members)] for i in range(members)])


def test_own_and_others_agree_with_the_matrix(sweep):
    rows, members = sweep
    matrix = acceptance_matrix(rows, members, last=1)
    for member in range(members):
        own, others = own_and_others(rows, member)
        expected = np.mean([trust(member, j) for j in range(members) if j != member])
        assert len(own[0]) == len(others[0]) == TIMES
        assert (own[1][-1], others[1][-1]) == pytest.approx((trust(member, member), expected))
        assert own_and_others_of(matrix, member) == pytest.approx((trust(member, member), expected))


def test_nobody_else_is_no_number():
    own, others = own_and_others([row(10, 0, acceptance_from_0=0.9)], 0)
    assert (own[1].tolist(), others[1].tolist()) == ([0.9], [])
    assert np.isnan(own_and_others_of(np.array([[0.9]]), 0)[1])


def test_ages_shares_and_divergences_are_in_their_places(sweep):
    rows, members = sweep
    expected = [[0.98 - 0.02 * k - 0.12 * age for age in range(5)] for k in range(members)]
    np.testing.assert_allclose(acceptance_by_age(rows, members), expected)
    expected = [[0.05 * abs(i - j) + 0.01 * (i > j) for j in range(members)] for i in range(members)]
    np.testing.assert_allclose(divergence_matrix(rows, members), expected)
    steps, shares = composition(rows, members)
    np.testing.assert_allclose(shares.sum(0), 1)
    assert shares.shape == (members, TIMES)
    assert steps[-1] == members * 60_000
    assert (np.diff(age_percentiles(rows)[1], axis=0) >= 0).all()


def test_copies_know_what_moved(sweep):
    rows, members = sweep
    history = copies(rows)
    assert {copy.member for copy in history} == set(range(members))
    assert all(copy.member != copy.donor for copy in history)
    first = history[0]
    assert first.score == 10 + first.member
    assert set(first.before) == set(first.after) == {"learning_rate", "entropy_cost"}
    newest = {k: own[-1] for k, own in by_member(r for r in rows if r["kind"] == "train").items()}
    last = {copy.member: copy for copy in history}
    for member, copy in last.items():
        if copy.step < 60_000:  # an exploit at the very end is in no row any more
            assert newest[member]["learning_rate"] == copy.after["learning_rate"]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda pair: pair[0] != pair[1]), max_size=20))
def test_founders_are_what_copying_marked_cards_gives(moves):
    history = [Copy(step, member, donor, 0.0, 1.0, {}, {}) for step, (member, donor) in enumerate(moves, start=1)]
    cards = list(range(5))
    for member, donor in moves:
        cards[member] = cards[donor]
    found = founders(history, 5)
    assert [found[member][-1][1] for member in range(5)] == cards
    assert sum(len(changes) for changes in found.values()) == 5 + len(moves)
