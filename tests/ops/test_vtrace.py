import math

import pytest
import torch
from hypothesis import given

from laser_rl.ops.vtrace import clipped_ratio, vtrace
from tests.ops.inputs import Rows, assert_same, clips, importance_sampled, make_rows, rows
from tests.references import returns


def twin_arguments(batch: Rows):
    return tuple(x.numpy() for x in (batch.log_ratio.exp(), batch.learnable, batch.reward, batch.discount, batch.value))


@given(rows(), clips())
def test_vtrace_agrees_with_the_double_sum(batch, clip):
    clip_rho, clip_c = clip
    estimate = vtrace(*batch.arguments, clip_rho=clip_rho, clip_c=clip_c)
    twin = twin_arguments(batch)
    assert_same(estimate.target, returns.vtrace_target(*twin, clip_rho, clip_c))
    assert_same(estimate.advantage, returns.vtrace_advantage(*twin, clip_rho, clip_c))
    assert_same(estimate.rho, returns.clipped(twin[0], clip_rho))


@given(rows())
def test_importance_sampling_agrees_with_the_double_sum(batch):
    estimate = importance_sampled(*batch.arguments)
    twin = twin_arguments(batch)
    assert_same(estimate.target, returns.is_target(*twin))
    assert_same(estimate.advantage, returns.is_advantage(*twin))
    assert_same(estimate.rho, twin[0])


@given(rows())
def test_on_policy_and_all_trusted_is_the_plain_return(batch):
    batch = batch._replace(log_ratio=torch.zeros_like(batch.log_ratio), learnable=torch.ones_like(batch.learnable))
    plain = returns.n_step_return(batch.reward.numpy(), batch.discount.numpy(), batch.value.numpy())
    assert_same(vtrace(*batch.arguments).target, plain)
    assert_same(importance_sampled(*batch.arguments).target, plain)


def test_clipping_defaults_are_the_papers():
    batch = make_rows(9, 3, 1)
    explicit = vtrace(*batch.arguments, clip_rho=1.0, clip_c=1.0)
    assert all(torch.equal(a, b) for a, b in zip(vtrace(*batch.arguments), explicit, strict=True))


@pytest.mark.parametrize("function", [vtrace, importance_sampled])
def test_whatever_stands_in_a_row_that_is_not_learnable_stays_there(function):
    batch = make_rows(10, 4, 3)
    off = ~batch.learnable
    poisoned = batch._replace(
        log_ratio=batch.log_ratio.masked_fill(off, math.nan),
        reward=batch.reward.masked_fill(off, math.inf),
        discount=batch.discount.masked_fill(off, math.nan),
    )
    clean, dirty = function(*batch.arguments), function(*poisoned.arguments)
    assert torch.equal(clean.target, dirty.target)
    assert torch.equal(clean.advantage[batch.learnable], dirty.advantage[batch.learnable])


def test_after_a_truncation_the_episodes_own_last_value_is_used():
    # Row 1 is the last step of an episode that was cut off, row 2 is not a transition, row 3 starts the next episode.
    batch = make_rows(4, 1, 4, kept=1.0)._replace(
        learnable=torch.tensor([[True], [True], [False], [True]]),
        discount=torch.full((4, 1), 0.9, dtype=torch.float64),
        log_ratio=torch.zeros(4, 1, dtype=torch.float64),
    )
    last = batch.reward[1] + 0.9 * batch.value[2]
    estimate = vtrace(*batch.arguments)
    assert_same(estimate.target[1], last)
    assert_same(estimate.target[0], batch.reward[0] + 0.9 * last)
    elsewhere = batch.value.clone()
    elsewhere[3:] = 77.0  # the next episode
    assert torch.equal(vtrace(*batch._replace(value=elsewhere).arguments).target[:2], estimate.target[:2])


def test_after_a_termination_nothing_counts():
    batch = make_rows(3, 2, 5, kept=1.0)
    batch.discount[0] = 0
    batch.log_ratio[0] = 0
    estimate = vtrace(*batch.arguments)
    assert_same(estimate.target[0], batch.reward[0])
    assert_same(estimate.advantage[0], batch.reward[0] - batch.value[0])


def test_no_gradient_flows_through_an_estimate():
    batch = make_rows(5, 2, 6)
    arguments = [x.requires_grad_() if x.is_floating_point() else x for x in batch.arguments]
    for estimate in (vtrace(*arguments), importance_sampled(*arguments)):
        assert not any(part.requires_grad for part in estimate)


def test_float32_stays_float32_and_close():
    batch = make_rows(20, 8, 7)
    single = vtrace(*[x.float() if x.is_floating_point() else x for x in batch.arguments])
    assert {part.dtype for part in single} == {torch.float32}
    torch.testing.assert_close(single.target.double(), vtrace(*batch.arguments).target, rtol=1e-5, atol=1e-5)


def test_ratios_do_not_overflow_before_they_are_clipped():
    assert clipped_ratio(torch.tensor([1e4, -1e4]), 3.0).tolist() == pytest.approx([3.0, 0.0])
