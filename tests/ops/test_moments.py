import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.ops import moments
from tests.ops.inputs import assert_same, normal, seeds
from tests.references import moments as twin

SPREAD = torch.tensor([1.0, 1e-3, 50.0], dtype=torch.float64)
OFFSET = torch.tensor([0.0, 7.0, -3000.0], dtype=torch.float64)


def batches(seed, count=4):
    """Of different sizes, [T, B, 3], with numbers of very different means and spreads."""
    shapes = [(1 + (seed + i) % 5, 1 + (seed // 3 + i) % 4, 3) for i in range(count)]
    return [OFFSET + SPREAD * normal(seed + i, *shape) for i, shape in enumerate(shapes)]


def standardise(state, rows):
    return moments.standardise(rows, *(part.to(rows.dtype) for part in moments.scaling(state)))


def every(rows):
    return torch.ones(rows.shape[1], dtype=torch.bool)


def merged(parts, start=None):
    state = start or moments.initial((3,))
    for rows in parts:
        state = moments.merge(state, moments.sums(state.mean, rows, every(rows)))
    return state


@given(seeds)
def test_batches_one_by_one_agree_with_the_twin_of_all_rows_at_once(seed):
    parts = batches(seed % 1000)
    state, rows = merged(parts), torch.cat([part.flatten(0, 1) for part in parts])
    means, variances = twin.moments(rows.tolist())
    assert state.number == len(rows)
    assert_same(state.mean, means)
    torch.testing.assert_close(
        state.spread / state.number, torch.tensor(variances, dtype=torch.float64), rtol=1e-8, atol=1e-12
    )
    expected = [twin.standardised(row, means, variances) for row in rows.tolist()]
    torch.testing.assert_close(
        standardise(state, rows), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-8
    )


@given(seeds, st.permutations(range(4)))
def test_the_order_of_batches_does_not_matter(seed, order):
    parts = batches(seed % 1000)
    for one, other in zip(merged(parts), merged([parts[i] for i in order]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@given(seeds)
def test_sums_of_the_parts_of_a_batch_add_up(seed):
    start, rows = merged(batches(seed % 1000)), normal(seed, 3, 6, 3)
    parts = [moments.sums(start.mean, part, every(part)) for part in rows.split(2, dim=1)]
    assert_same(sum(parts), moments.sums(start.mean, rows, every(rows)))


def test_only_the_columns_seen_count_and_no_row_leaves_all_as_it_was():
    rows, seen = normal(1, 3, 4, 3), torch.tensor([True, False, True, False])
    dirty = rows.clone()
    dirty[:, ~seen] = torch.nan
    start = merged(batches(5))
    chosen = moments.merge(start, moments.sums(start.mean, dirty, seen))
    for one, other in zip(chosen, merged([rows[:, seen]], start), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    for one, other in zip(moments.merge(start, moments.sums(start.mean, rows, ~seen & seen)), start, strict=True):
        assert torch.equal(one, other)


def test_before_the_first_row_observations_pass_and_are_only_limited():
    rows = torch.tensor([[0.5, -99.0, 3.0]])
    assert torch.equal(standardise(moments.initial((3,)), rows), torch.tensor([[0.5, -10.0, 3.0]]))


@pytest.mark.parametrize("constant", [0.0, 1.0, -1e-6, 123.456, 3e4])
def test_a_number_that_never_changes_becomes_nothing(constant):
    rows = torch.full((20, 1, 3), constant)
    state = merged([rows] * 3)
    assert torch.equal(standardise(state, rows[0]), torch.zeros(1, 3))
    assert standardise(state, rows[0] + 1e6).tolist() == [[10.0] * 3]


def test_a_spread_survives_a_mean_a_hundred_thousand_times_as_large():
    rows = 1e5 + normal(0, 50, 4, 3)
    state = merged(rows.split(5))
    torch.testing.assert_close(
        state.spread / state.number, (rows - 1e5).flatten(0, 1).var(0, correction=0), rtol=1e-5, atol=0
    )


def test_gradients_pass_to_the_observation_by_the_scale_and_not_beyond_the_limit():
    state = merged([normal(0, 9, 4, 3)])
    rows = torch.tensor([[0.1, 0.2, 1e6]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: standardise(state, x), rows)
    standardise(state, rows).sum().backward()
    assert rows.grad[0, 2] == 0
    assert (rows.grad[0, :2] > 0).all()
