import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples import theory
from laser_rl.ops import trust_region
from laser_rl.ops.distributions import Categorical, MultiCategorical
from laser_rl.ops.gaussian import DiagonalGaussian
from tests.ops.inputs import assert_same, generator, normal, seeds
from tests.references import distributions as twin_distributions
from tests.references import trust_region as twin


def implied_kl(policy, behaviour, **options):
    return trust_region.kl_to_implied(Categorical(policy.shape[-1]), policy, behaviour, **options)


clip_rhos = st.sampled_from([0.5, 1.0, 2.0, 4.0])


@given(seeds, st.integers(1, 6), clip_rhos, st.sampled_from([0.1, 1.0, 4.0]))
def test_implied_policy_and_its_divergence_agree_with_the_definition(seed, actions, clip_rho, spread):
    policy, behaviour = spread * normal(seed, 3, actions), spread * normal(seed + 1, 3, actions)
    ours = theory.implied_policy(policy.softmax(-1), behaviour.softmax(-1), clip_rho=clip_rho)
    divergence = implied_kl(policy, behaviour, clip_rho=clip_rho)
    for row in range(3):
        pi, mu = twin_distributions.softmax(policy[row].numpy()), twin_distributions.softmax(behaviour[row].numpy())
        assert_same(ours[row], twin.implied_policy(pi, mu, clip_rho))
        assert_same(divergence[row], twin.kl_to_implied(pi, mu, clip_rho))


def test_mass_common_to_both_is_one_minus_total_variation():
    policy, behaviour = normal(0, 5, 4), normal(1, 5, 4)
    pi, mu = policy.softmax(-1), behaviour.softmax(-1)
    mass = 1 - 0.5 * (pi - mu).abs().sum(-1)
    excess = (pi * (pi.log() - mu.log()).clamp(min=0)).sum(-1)
    assert_same(implied_kl(policy, behaviour), mass.log() + excess)


@given(st.floats(1e-6, 0.5))
def test_mirrored_policies_imply_the_uniform_one_and_stay_below_log_two(phi):
    mu = torch.tensor([phi, 1 - phi], dtype=torch.float64)
    assert_same(theory.implied_policy(mu.flip(0)[None], mu[None])[0], [0.5, 0.5], 1e-9)
    assert implied_kl(mu.flip(0).log(), mu.log()) <= math.log(2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_ten_thousand_are_no_trouble(dtype):
    policy = torch.tensor([[1e4, -1e4, 0.0], [1e4, -1e4, 0.0]], dtype=dtype)
    behaviour = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]], dtype=dtype)
    divergence = implied_kl(policy, behaviour)
    assert divergence[0] == 0
    assert divergence.isfinite().all()
    assert trust_region.kl_to_behaviour(Categorical(3), policy, behaviour)[1] == pytest.approx(2e4)


@pytest.mark.parametrize("clip_rho", [0.5, 1.0, 2.0])
def test_drawn_actions_give_an_estimate_that_converges_to_the_exact_one(clip_rho, monkeypatch):
    policy, behaviour = 1.5 * normal(0, 6), 1.5 * normal(1, 6)
    exact = implied_kl(policy, behaviour, clip_rho=clip_rho).item()
    monkeypatch.setattr(trust_region, "ENUMERABLE", 0)
    drawn = implied_kl(policy, behaviour, clip_rho=clip_rho, draws=200_000, generator=generator(0))
    assert drawn == pytest.approx(exact, abs=0.01)


def test_a_product_of_categoricals_is_judged_as_the_joint_it_is():
    family, flat = MultiCategorical((2, 3)), Categorical(6)
    policy, behaviour = normal(0, 4, 5), normal(1, 4, 5)
    joint = family.joint_log_probs(policy), family.joint_log_probs(behaviour)
    ours = trust_region.kl_to_implied(family, policy, behaviour, clip_rho=1.5)
    assert_same(ours, trust_region.kl_to_implied(flat, *joint, clip_rho=1.5))
    halves = [Categorical(2), policy[:, :2], behaviour[:, :2]], [Categorical(3), policy[:, 2:], behaviour[:, 2:]]
    assert not torch.allclose(ours, sum(trust_region.kl_to_implied(*half, clip_rho=1.5) for half in halves))


def test_the_largest_enumerable_space_is_exact_and_the_next_is_drawn():
    largest, larger = MultiCategorical((32, 32)), MultiCategorical((25, 41))
    assert (largest.joint_size, larger.joint_size) == (trust_region.ENUMERABLE, trust_region.ENUMERABLE + 1)
    for family, drawn in ((largest, False), (larger, True)):
        policy, behaviour = normal(0, family.parameter_size), normal(1, family.parameter_size)
        results = {
            trust_region.kl_to_implied(family, policy, behaviour, generator=generator(seed)).item() for seed in range(3)
        }
        assert (len(results) > 1) == drawn


@given(seeds, st.integers(1, 9), clip_rhos)
def test_continuous_actions_are_drawn_from_the_policy_as_often_as_asked(seed, draws, clip_rho):
    family = DiagonalGaussian(low=(-1.0, -2.0), high=(1.0, 2.0))
    policy, behaviour, options = normal(seed, 3, 4), normal(seed + 1, 3, 4), {"clip_rho": clip_rho, "draws": draws}
    ours = trust_region.kl_to_implied(family, policy, behaviour, generator=generator(5), **options)
    action = family.sample(policy.expand(draws, 3, 4), generator(5))
    twins = [family.log_prob(each.expand(draws, 3, 4), action) for each in (policy, behaviour)]
    for row in range(3):
        samples = [log_probs[:, row].numpy() for log_probs in twins]
        assert_same(ours[row], max(0.0, twin.kl_to_implied_mc(*samples, clip_rho)))
    assert (ours >= 0).all()
    default = trust_region.kl_to_implied(family, policy, behaviour, generator=generator(5))
    explicit = trust_region.kl_to_implied(family, policy, behaviour, clip_rho=1.0, draws=32, generator=generator(5))
    assert torch.equal(default, explicit)


def test_relevance_of_a_policy_to_itself_is_zero_and_no_gradient_flows():
    for family in (Categorical(4), MultiCategorical((2, 2)), DiagonalGaussian(low=(-1.0,) * 2, high=(1.0,) * 2)):
        policy = normal(0, 3, family.parameter_size).requires_grad_()
        for relevance in (
            trust_region.kl_to_implied(family, policy, policy),
            trust_region.kl_to_behaviour(family, policy, policy),
        ):
            assert_same(relevance, [0.0, 0.0, 0.0])
            assert not relevance.requires_grad
            assert (relevance >= 0).all()


def test_the_defaults_are_those_of_the_paper():
    family, policy, behaviour = Categorical(4), normal(0, 3, 4), normal(1, 3, 4)
    explicit = trust_region.kl_to_implied(family, policy, behaviour, clip_rho=1.0)
    assert torch.equal(trust_region.kl_to_implied(family, policy, behaviour), explicit)
    assert not torch.equal(explicit, trust_region.kl_to_implied(family, policy, behaviour, clip_rho=2.0))


def test_the_bound_itself_is_outside():
    relevance = torch.tensor([0.0, 0.0999, 0.1, 0.2, math.inf, math.nan])
    assert trust_region.within(relevance, 0.1).tolist() == [True, True, False, False, False, False]
    assert trust_region.within(relevance, torch.tensor(0.15)).tolist() == [True, True, True, False, False, False]


@given(
    st.floats(1e-6, 100),
    st.one_of(st.floats(0, 1), st.just(math.nan)),
    st.floats(0, 1),
    st.floats(1e-3, 20),
)
def test_bound_adapts_as_its_twin(bound, accepted, target, rate):
    options = {"target": target, "rate": rate, "lowest": 1e-3, "highest": 5.0}
    ours = trust_region.adapt_bound(
        torch.tensor(bound, dtype=torch.float64), torch.tensor(accepted, dtype=torch.float64), **options
    )
    assert_same(ours, twin.adapted_bound(bound, accepted, **{**options, "target": target}))


def test_one_draw_and_a_fixed_bound_are_allowed():
    family, policy = DiagonalGaussian((-1.0,), (1.0,)), normal(0, 3, 2)
    assert_same(trust_region.kl_to_implied(family, policy, normal(1, 3, 2), draws=1), [0.0, 0.0, 0.0])
    fixed = trust_region.adapt_bound(torch.tensor(0.1), torch.tensor(0.5), target=0.9, lowest=0.2, highest=0.2)
    assert fixed == pytest.approx(0.2)


def test_bound_settles_at_the_target_acceptance():
    relevance = torch.rand(4000, generator=generator(0)) ** 4  # its 0.7-quantile is 0.7⁴ = 0.24
    counted = torch.ones_like(relevance, dtype=torch.bool)
    bound = torch.tensor(1e-4)
    for _ in range(3000):
        accepted = (trust_region.within(relevance, bound) & counted).sum() / counted.sum()
        bound = trust_region.adapt_bound(bound, accepted, target=0.7, rate=0.05)
    assert accepted == pytest.approx(0.7, abs=0.01)


def test_bound_defaults():
    bound, accepted = torch.tensor(0.1), torch.tensor(0.0)
    explicit = trust_region.adapt_bound(bound, accepted, target=1.0, rate=0.01, lowest=1e-5, highest=10.0)
    assert trust_region.adapt_bound(bound, accepted, target=1.0) == explicit
    assert explicit == pytest.approx(0.1 * math.exp(0.01))
    ends = [
        trust_region.adapt_bound(torch.tensor(b), torch.tensor(a), target=1 - a).item()
        for b, a in ((1e-9, 1.0), (1e9, 0.0))
    ]
    assert ends == pytest.approx([1e-5, 10.0])
    assert not trust_region.adapt_bound(bound.requires_grad_(), accepted, target=1.0).requires_grad
