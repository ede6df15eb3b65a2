"""Prop. 3 from estimates: the paper's bound where they are exact, and bounded where they are not."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laser_rl.ops import mixing
from laser_rl.research import theory
from tests.ops.inputs import assert_same, generator, normal, seeds
from tests.references import mixing as twin

STATES, ACTIONS = 5, 4


def case(seed, clip_rho=1.0):
    """Exact quantities of a random process: q, ω, how often π and μ visit each state, and the policy."""
    rng = generator(seed)
    mdp = theory.random_mdp(STATES, ACTIONS, discount=0.8, generator=rng)
    policy, behaviour = (theory.random_policy(STATES, ACTIONS, sharpness=2.0, generator=rng) for _ in range(2))
    start = torch.full((STATES,), 1 / STATES, dtype=torch.float64)
    q = theory.action_values(mdp, theory.policy_value(mdp, policy))
    omega = mixing.distortion(policy.log(), behaviour.log(), clip_rho=clip_rho)
    visits = [theory.state_distribution(mdp, chosen, start) for chosen in (policy, behaviour)]
    return q, omega, *visits, policy, behaviour


@given(seeds, st.sampled_from([0.7, 1.0, 2.0]))
def test_with_exact_values_it_is_the_papers_bound(seed, clip_rho):
    q, omega, on_policy, off_policy, policy, behaviour = case(seed, clip_rho)
    assert_same(omega, theory.distortion(policy, behaviour, clip_rho=clip_rho))
    odds = mixing.needed_odds(q, omega, visits=off_policy / on_policy)
    assert_same(mixing.share_of(odds), theory.alpha_bound(q, omega * q, on_policy, off_policy))


@given(seeds)
def test_above_the_bound_the_best_action_is_kept_and_below_it_is_not(seed):
    q, omega, on_policy, off_policy, *_ = case(seed)
    needed = mixing.share_of(mixing.needed_odds(q, omega, visits=off_policy / on_policy))
    for share, holds in ((needed + 1e-6, True), (needed - 1e-6, False)):
        kept = theory.mixed_values(q, omega * q, on_policy, off_policy, share).argmax(-1) == q.argmax(-1)
        assert (kept == holds)[needed > 1e-5].all()
    assert (needed > 1e-5).any() or seed  # some seeds need nothing anywhere, not the first


@given(seeds)
def test_the_share_that_serves_all_states_keeps_the_best_action_in_all(seed):
    q, omega, on_policy, off_policy, *_ = case(seed)
    odds = mixing.needed_odds(q, omega, visits=off_policy / on_policy)[None]
    share = mixing.share_of(mixing.served(odds, torch.ones_like(odds, dtype=torch.bool), 1.0)) + 1e-9
    mixed = theory.mixed_values(q, omega * q, on_policy, off_policy, share.expand(STATES))
    assert torch.equal(mixed.argmax(-1), q.argmax(-1))


@given(seeds, st.sampled_from([0.0, 0.1, 3.0]), st.booleans())
def test_needed_odds_agree_with_plain_loops(seed, resolution, rounded):
    q, omega, visits = normal(seed, 7, ACTIONS), normal(seed + 1, 7, ACTIONS).sigmoid(), normal(seed + 2, 7).exp()
    q = q.round() if rounded else q  # several best actions
    expected = [twin.needed_odds(*row, resolution, v) for *row, v in zip(q.numpy(), omega.numpy(), visits, strict=True)]
    assert_same(mixing.needed_odds(q, omega, resolution=resolution, visits=visits), expected)


def test_a_gap_that_cannot_be_resolved_asks_for_nothing():
    omega = torch.tensor([1.0, 0.5])
    near = torch.tensor([10.0, 10.0 + 1e-4])
    assert mixing.needed_odds(near, omega) > 1e4
    assert mixing.needed_odds(near, omega, resolution=0.1) < 0.1
    assert mixing.needed_odds(torch.tensor([10.0, 10.0]), omega) == 0
    assert mixing.needed_odds(torch.tensor([0.0, 1e-45]), omega, resolution=1.0).isfinite()


def test_the_bound_changes_with_a_constant():
    """So it matters whether Q or Q − V is meant; see docs/adaptive-alpha.md."""
    q, omega = torch.tensor([2.0, 5.0]), torch.tensor([1.0, 0.2])
    found = [mixing.share_of(mixing.needed_odds(q + constant, omega)).item() for constant in (-3.5, 0.0, 100.0)]
    assert found[0] == 0.0 < found[1] < 0.5 < found[2]


@given(seeds)
def test_with_a_baseline_two_actions_never_need_online_data(seed):
    """Σ π·A = 0: one advantage is not positive, and shrinking it or the other one leaves their order."""
    rng = generator(seed)
    mdp = theory.random_mdp(STATES, 2, generator=rng)
    policy, behaviour = (theory.random_policy(STATES, 2, sharpness=2.0, generator=rng) for _ in range(2))
    value = theory.policy_value(mdp, policy)
    advantage = theory.action_values(mdp, value) - value[:, None]
    assert mixing.needed_odds(advantage, mixing.distortion(policy.log(), behaviour.log())).max() < 1e-9


@given(seeds, st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.integers(1, 30))
def test_the_quantile_agrees_with_plain_counting(seed, level, rows):
    odds, counted = normal(seed, 2, rows).abs(), normal(seed + 1, 2, rows) > -0.5
    expected = [twin.served(*row, level) for row in zip(odds.numpy(), counted.numpy(), strict=True)]
    assert_same(mixing.served(odds, counted, level), expected)


@given(seeds, st.sampled_from([1, 20]))
def test_the_line_agrees_with_plain_sums_and_with_numpy(seed, correlated):
    x, y, weight = 3 * normal(seed, 2, 40), normal(seed + 1, 2, 40) + 5, normal(seed + 2, 2, 40).abs()
    sums = mixing.moments(x[:, :25], y[:, :25], weight[:, :25]) + mixing.moments(x[:, 25:], y[:, 25:], weight[:, 25:])
    line = mixing.fit(sums, correlated=correlated)
    for row in range(2):
        columns = x[row].numpy(), y[row].numpy(), weight[row].numpy()
        slope, error, noise = twin.line(*columns, correlated)
        assert_same(torch.stack([line.slope, line.error, line.noise])[:, row], [slope, error, noise], 1e-8)
        assert slope == pytest.approx(np.polyfit(columns[0], columns[1], 1, w=np.sqrt(columns[2]))[0])
        assert line.resolution[row].item() == pytest.approx(
            math.sqrt(2 * noise * correlated / weight[row].sum().item())
        )


def test_the_standard_error_is_the_spread_of_the_slopes():
    x = normal(0, 2000, 50)
    line = mixing.fit(mixing.moments(x, 0.3 * x + 2 * normal(1, 2000, 50), torch.ones_like(x)))
    assert line.slope.mean().item() == pytest.approx(0.3, abs=0.02)
    assert line.error.mean().item() == pytest.approx(line.slope.std().item(), rel=0.05)


def test_a_feature_that_does_not_vary_has_no_slope_and_no_confidence():
    one = torch.ones(1, 5)
    line = mixing.fit(mixing.moments(one, torch.arange(5.0)[None], one))
    assert (line.slope.item(), line.error.item(), mixing.confidence(line).item()) == (0.0, math.inf, 0.0)
    nothing = mixing.fit(torch.zeros(1, mixing.MOMENTS))
    assert mixing.confidence(nothing).item() == 0.0
    exact = mixing.fit(mixing.moments(torch.arange(5.0)[None], 2 * torch.arange(5.0)[None], one))
    assert mixing.confidence(exact).item() == pytest.approx(1.0)
    assert mixing.confidence(exact._replace(slope=-exact.slope)).item() == 0.0  # the policy prefers what is worse


@given(seeds)
def test_the_feature_is_the_derivative_by_a_factor_on_the_logits_and_centred(seed):
    logits = normal(seed, 3, ACTIONS)
    log_pi = logits.log_softmax(-1)
    factor = torch.ones((), dtype=torch.float64, requires_grad=True)
    jacobian = torch.autograd.functional.jacobian(lambda f: (f * logits).log_softmax(-1), factor)
    assert_same(mixing.centred(log_pi), jacobian)
    assert (log_pi.exp() * mixing.centred(log_pi)).sum(-1).abs().max() < 1e-12


@given(seeds, st.sampled_from([1.5, 4.0]))
def test_weights_agree_with_plain_ones(seed, heaviest):
    share, online, replayed = normal(seed, 6).sigmoid(), (5 * normal(seed + 1, 6)).round().abs(), 30 * torch.ones(6)
    found = mixing.share_weights(share, online, replayed.double(), heaviest=heaviest)
    rows = zip(share.tolist(), online.tolist(), replayed.tolist(), strict=True)
    assert_same(torch.stack(list(found), dim=1), [twin.weights(*row, heaviest) for row in rows])


def test_weights_give_the_share_and_keep_the_sum():
    share, online, replayed = torch.tensor([0.3, 0.7]), torch.tensor([20.0, 90.0]), torch.tensor([60.0, 70.0])
    weights = mixing.share_weights(share, online, replayed, heaviest=10.0)
    torch.testing.assert_close(mixing.weighted_share(weights, online, replayed), share)
    torch.testing.assert_close(weights.online * online + weights.replayed * replayed, online + replayed)


def test_the_share_moves_to_what_is_needed_as_far_as_that_is_believed():
    def moved(needed, plain, trust, rate=1.0):
        numbers = (torch.tensor([x], dtype=torch.float64) for x in (0.2, needed, plain, trust))
        return mixing.followed(*numbers, rate=rate, least=0.1, most=0.5).item()

    assert moved(0.4, 0.3, 1.0) == pytest.approx(0.4)
    assert moved(0.4, 0.3, 0.0) == pytest.approx(0.3)
    assert moved(0.4, 0.3, 0.5, rate=0.1) == pytest.approx(0.2 + 0.1 * 0.15)
    assert (moved(0.9, 0.3, 1.0), moved(0.0, 0.3, 1.0)) == (0.5, 0.1)
    assert moved(math.nan, 0.3, 1.0) == moved(0.4, math.nan, 1.0) == pytest.approx(0.2)
