"""The paper's propositions, by exact enumeration on small random processes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples import theory
from laser_rl.ops.vtrace import vtrace
from tests.ops.inputs import assert_same, examples, generator, importance_sampled, normal, seeds
from tests.references import tabular

CLIPS = [(1.0, 1.0), (2.0, 1.0), (1.0, 0.5), (4.0, 4.0), (0.7, 0.7)]


def random_case(seed, states=3, actions=2, *, sharpness=1.5, discount=0.8):
    rng = generator(seed)
    mdp = theory.random_mdp(states, actions, discount=discount, generator=rng)
    policy, behaviour = [theory.random_policy(states, actions, sharpness=sharpness, generator=rng) for _ in range(2)]
    return mdp, policy, behaviour, torch.randn(states, dtype=torch.float64, generator=rng)


def all_trajectories(mdp, policy, behaviour, trusted, value, start, steps):
    """Every trajectory as one column of a batch, with its probability under the behaviour."""
    columns = list(tabular.trajectories(mdp.transition.numpy(), behaviour.numpy(), start, steps))
    states = torch.tensor([states for states, _, _ in columns]).T
    actions = torch.tensor([actions for _, actions, _ in columns]).T
    visited = states[:-1]
    rows = (
        (policy / behaviour).log()[visited, actions],
        trusted[visited],
        mdp.reward[visited, actions],
        torch.full(visited.shape, mdp.discount, dtype=torch.float64),
        value[visited],
        value[states[1:]],
    )
    return rows, torch.tensor([probability for _, _, probability in columns], dtype=torch.float64)


def apply(operator, value):
    return operator.matrix @ value + operator.offset


@pytest.mark.parametrize("seed", range(4))
def test_values_agree_with_iterating_the_bellman_equation(seed):
    mdp, policy, _, _ = random_case(seed, 4, 3)
    value = theory.policy_value(mdp, policy)
    expected = tabular.policy_value(mdp.transition.numpy(), mdp.reward.numpy(), mdp.discount, policy.numpy())
    assert_same(value, expected)
    assert_same((policy * theory.action_values(mdp, value)).sum(-1), expected)


@pytest.mark.parametrize("seed", range(3))
def test_importance_sampling_is_unbiased(seed):
    mdp, policy, behaviour, _ = random_case(seed)
    value = theory.policy_value(mdp, policy)
    everywhere = torch.ones(3, dtype=torch.bool)
    for start in range(3):
        # The true value as bootstrap is the only one under which a finite unroll can be exact.
        rows, chance = all_trajectories(mdp, policy, behaviour, everywhere, value, start, 4)
        estimates = importance_sampled(*rows).target[0]
        assert (chance * estimates).sum().item() == pytest.approx(value[start].item(), abs=1e-10)
        assert estimates.std() > 0.01


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("estimator", ["vtrace", "importance"])
@pytest.mark.parametrize("clip", CLIPS)
def test_ops_average_to_the_operator_over_all_trajectories(seed, estimator, clip):
    mdp, policy, behaviour, value = random_case(seed)
    trusted = torch.tensor([True, True, seed % 2 == 0])
    clip_rho, clip_c = clip
    for start in range(3):
        rows, chance = all_trajectories(mdp, policy, behaviour, trusted, value, start, 4)
        one = (
            mdp.transition.numpy(),
            mdp.reward.numpy(),
            mdp.discount,
            policy.numpy(),
            behaviour.numpy(),
            trusted.numpy(),
            value.numpy(),
        )
        if estimator == "vtrace":
            estimate = vtrace(*rows, clip_rho=clip_rho, clip_c=clip_c)
            expected = tabular.expected_vtrace(*one, start, 4, clip_rho, clip_c)
        else:
            estimate = importance_sampled(*rows)
            expected = tabular.expected_is(*one, start, 4)
        operator = theory.expected_return(
            mdp, policy, behaviour, trusted, estimator=estimator, clip_rho=clip_rho, clip_c=clip_c, steps=4
        )
        assert (chance * estimate.target[0]).sum().item() == pytest.approx(expected, abs=1e-10)
        assert apply(operator, value)[start].item() == pytest.approx(expected, abs=1e-10)


@given(seeds, st.sampled_from(CLIPS), st.sampled_from([1, 2, 5, None]))
def test_proposition_1_vtraces_fixed_point_is_the_implied_policys_value(seed, clip, steps):
    mdp, policy, behaviour, value = random_case(seed, 4, 3)
    clip_rho, clip_c = clip
    everywhere = torch.ones(4, dtype=torch.bool)
    operator = theory.expected_return(mdp, policy, behaviour, everywhere, clip_rho=clip_rho, clip_c=clip_c, steps=steps)
    implied = theory.implied_policy(policy, behaviour, clip_rho=clip_rho)
    assert_same(theory.fixed_point(operator), theory.policy_value(mdp, implied), 1e-8)
    for _ in range(1500):
        value = apply(operator, value)
    assert_same(value, theory.fixed_point(operator), 1e-8)


def test_proposition_1_is_a_bias():
    mdp, policy, behaviour, _ = random_case(0)
    everywhere = torch.ones(3, dtype=torch.bool)
    fixed = theory.fixed_point(theory.expected_return(mdp, policy, behaviour, everywhere))
    unbiased = theory.fixed_point(theory.expected_return(mdp, policy, behaviour, everywhere, estimator="importance"))
    assert (fixed - theory.policy_value(mdp, policy)).abs().max() > 0.1
    assert_same(unbiased, theory.policy_value(mdp, policy), 1e-8)


def test_operator_defaults_are_the_papers():
    mdp, policy, behaviour, _ = random_case(1)
    trusted = torch.tensor([True, False, True])
    plain = theory.expected_return(mdp, policy, behaviour, trusted)
    explicit = theory.expected_return(
        mdp, policy, behaviour, trusted, estimator="vtrace", clip_rho=1.0, clip_c=1.0, steps=None
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, explicit, strict=True))
    long = theory.expected_return(mdp, policy, behaviour, trusted, steps=300)
    assert_same(plain.matrix, long.matrix)
    assert torch.equal(theory.distortion(policy, behaviour), theory.distortion(policy, behaviour, clip_rho=1.0))
    assert torch.equal(theory.implied_policy(policy, behaviour), theory.implied_policy(policy, behaviour, clip_rho=1.0))


def test_proposition_2s_counterexample():
    q = torch.tensor([[2.0, 5.0]], dtype=torch.float64)
    policy = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    behaviour = torch.tensor([[0.9, 0.1]], dtype=torch.float64)
    distorted = q * theory.distortion(policy, behaviour)
    assert_same(distorted, [[2.0, 1.0]])
    assert_same(distorted[0], tabular.distorted_q(q[0].numpy(), policy[0].numpy(), behaviour[0].numpy(), 1.0))
    assert theory.regret(q, distorted).item() == 3
    # The V-trace policy gradient itself, by enumeration: E_mu[rho · Q · ∇log pi] pushes towards the wrong action.
    logits = policy.log().clone().requires_grad_()
    log_pi = logits.log_softmax(-1)
    rho = (policy / behaviour).clamp(max=1.0)
    (behaviour * rho * q * log_pi).sum().backward()
    assert logits.grad[0, 0] > 0 > logits.grad[0, 1]


@given(seeds, st.sampled_from([0.5, 1.0, 2.0]))
def test_distortion_and_regret_agree_with_their_twins(seed, clip_rho):
    _, policy, behaviour, _ = random_case(seed, 4, 3)
    q = normal(seed, 4, 3)
    distorted = q * theory.distortion(policy, behaviour, clip_rho=clip_rho)
    regret = theory.regret(q, distorted)
    for s in range(4):
        expected = tabular.distorted_q(q[s].numpy(), policy[s].numpy(), behaviour[s].numpy(), clip_rho)
        assert_same(distorted[s], expected)
        assert_same(regret[s], tabular.regret(q[s].numpy(), expected))


@examples(300)
@given(seeds)
def test_proposition_3_above_the_bound_the_best_action_is_preserved_and_just_below_it_is_not(seed):
    _, policy, behaviour, _ = random_case(seed, 5, 4, sharpness=3.0)
    q = 3 + normal(seed, 5, 4)
    distorted = q * theory.distortion(policy, behaviour)
    on_policy, off_policy = theory.random_policy(2, 5, generator=generator(seed))
    bound = theory.alpha_bound(q, distorted, on_policy, off_policy)
    assert ((bound >= 0) & (bound < 1)).all()
    for s in range(5):
        weights = on_policy[s].item(), off_policy[s].item()
        for offset, preserved in ((1e-6, True), (-1e-6, False)):
            alpha = bound[s].item() + offset
            if 0 <= alpha <= 1:
                mixed = tabular.q_alpha(q[s].numpy(), distorted[s].numpy(), *weights, alpha)
                assert (int(np.argmax(mixed)) == int(q[s].argmax())) == preserved
        if bound[s] == 0:
            assert distorted[s].argmax() == q[s].argmax()
    assert_same(
        theory.mixed_values(q, distorted, on_policy, off_policy, bound)[0],
        tabular.q_alpha(q[0].numpy(), distorted[0].numpy(), on_policy[0].item(), off_policy[0].item(), bound[0].item()),
    )


def test_proposition_3_with_several_best_actions():
    q = torch.tensor([[5.0, 5.0, 1.0], [5.0, 5.0, 5.0]], dtype=torch.float64)
    distorted = torch.tensor([[0.5, 2.0, 3.0], [1.0, 2.0, 3.0]], dtype=torch.float64)
    one = torch.ones(2, dtype=torch.float64)
    # Against the better of the two best: (3 − 2) / (5 − 1) = 1/4, so α = 1/5. Where all are best nothing can be lost.
    assert_same(theory.alpha_bound(q, distorted, one, one), [0.2, 0.0])


@pytest.mark.parametrize("seed", range(3))
def test_state_distribution_is_the_discounted_share_of_visits(seed):
    mdp, policy, _, _ = random_case(seed, 4, 2)
    start = torch.tensor([0.7, 0.3, 0.0, 0.0], dtype=torch.float64)
    moves = torch.einsum("sa,sat->st", policy, mdp.transition)
    visits, now = torch.zeros_like(start), start
    for t in range(400):
        visits += (1 - mdp.discount) * mdp.discount**t * now
        now = now @ moves
    assert_same(theory.state_distribution(mdp, policy, start), visits)
    assert visits.sum().item() == pytest.approx(1)


def trusted_case(seed, estimator, clip, steps):
    """A process, four behaviours with random weights and masks, and everything Props. 4 and 5 speak of."""
    clip_rho, clip_c = clip
    rng = generator(seed)
    mdp, policy, _, value = random_case(seed, 3, 2, discount=0.9)
    behaviours = [theory.random_policy(3, 2, sharpness=1.5, generator=rng) for _ in range(4)]
    weights = torch.rand(4, dtype=torch.float64, generator=rng) + 0.01
    trusted = torch.rand(4, 3, generator=rng) < 0.6
    options = {"estimator": estimator, "clip_rho": clip_rho, "clip_c": clip_c, "steps": steps}
    operator = theory.trusted_operator(mdp, policy, behaviours, weights, trusted, **options)
    parts = [
        theory.expected_return(mdp, policy, mu, mask, **options) for mu, mask in zip(behaviours, trusted, strict=True)
    ]
    if estimator == "importance":
        points = [theory.policy_value(mdp, policy)] * 4
    else:
        points = [theory.policy_value(mdp, theory.implied_policy(policy, mu, clip_rho=clip_rho)) for mu in behaviours]
    return mdp, value, weights, trusted, operator, parts, points


@examples(200)
@given(seeds, st.sampled_from([1, 3, None]))
def test_proposition_4_trusted_importance_sampling_contracts_by_gamma(seed, steps):
    mdp, value, _, trusted, operator, _, points = trusted_case(seed, "importance", (1.0, 1.0), steps)
    distance = (value - points[0]).abs().max()
    new = apply(operator, value)
    somewhere = trusted.any(0)
    assert ((new - points[0]).abs()[somewhere] <= mdp.discount * distance + 1e-12).all()
    assert torch.equal(new[~somewhere], value[~somewhere])


@examples(200)
@given(seeds, st.sampled_from(CLIPS), st.sampled_from([1, 3, None]))
def test_proposition_5_trusted_vtrace_shrinks_towards_the_average_of_fixed_points(seed, clip, steps):
    _, value, weights, trusted, operator, parts, points = trusted_case(seed, "vtrace", clip, steps)
    somewhere = trusted.any(0)
    share = theory.conditional_share(weights, trusted)
    average = (share * torch.stack(points)).sum(0)
    rates = [
        theory.contraction_rate(part, mask) if mask.any() else 0.0 for part, mask in zip(parts, trusted, strict=True)
    ]
    assert all(rate < 1 for rate in rates)
    bounds = [rate * (value - point).abs().max() for rate, point in zip(rates, points, strict=True)]
    new = apply(operator, value)
    assert ((new - average).abs()[somewhere] <= max(bounds) + 1e-12).all()
    assert torch.equal(new[~somewhere], value[~somewhere])
    for part, mask, point, bound in zip(parts, trusted, points, bounds, strict=True):
        assert ((apply(part, value) - point).abs()[mask] <= bound + 1e-12).all()
        assert_same(apply(part, point), point, 1e-9)


@given(seeds)
def test_shares_are_conditional_probabilities(seed):
    rng = generator(seed)
    weights, trusted = torch.rand(3, dtype=torch.float64, generator=rng), torch.rand(3, 4, generator=rng) < 0.5
    share = theory.conditional_share(weights, trusted)
    for s in range(4):
        total = math.fsum(weights[z].item() for z in range(3) if trusted[z, s])
        for z in range(3):
            assert share[z, s].item() == pytest.approx(weights[z].item() / total if trusted[z, s] else 0.0)


def test_trust_brings_the_limit_of_vtrace_nearer_to_the_policys_value():
    closer = 0
    for seed in range(40):
        rng = generator(seed)
        mdp = theory.random_mdp(4, 3, generator=rng)
        policy, *others = [theory.random_policy(4, 3, sharpness=2.0, generator=rng) for _ in range(5)]
        behaviours, weights = [policy, *others], torch.full((5,), 0.2, dtype=torch.float64)
        implied = [theory.implied_policy(policy, mu) for mu in behaviours]
        relevance = torch.stack([(policy * (policy / table).log()).sum(-1) for table in implied])
        biases = []
        for bound in (math.inf, 0.03):
            operator = theory.trusted_operator(mdp, policy, behaviours, weights, relevance < bound)
            biases.append((theory.fixed_point(operator) - theory.policy_value(mdp, policy)).abs().max())
        closer += bool(biases[1] < biases[0])
    assert closer >= 38


def test_trusted_operator_is_the_average_of_its_parts_and_has_their_defaults():
    mdp, policy, behaviour, _ = random_case(3)
    behaviours, weights = [policy, behaviour], torch.tensor([0.3, 0.7], dtype=torch.float64)
    trusted = torch.tensor([[True, True, False], [True, False, False]])
    for options in ({}, {"steps": 2}, {"estimator": "importance"}, {"clip_rho": 2.0}, {"clip_c": 0.5}):
        operator = theory.trusted_operator(mdp, policy, behaviours, weights, trusted, **options)
        full = {"estimator": "vtrace", "clip_rho": 1.0, "clip_c": 1.0, "steps": None, **options}
        own, other = [
            theory.expected_return(mdp, policy, mu, mask, **full) for mu, mask in zip(behaviours, trusted, strict=True)
        ]
        assert_same(operator.matrix[0], 0.3 * own.matrix[0] + 0.7 * other.matrix[0])
        assert_same(operator.offset[0], 0.3 * own.offset[0] + 0.7 * other.offset[0])
        assert_same(operator.matrix[1], own.matrix[1])
        assert operator.matrix[2].tolist() == [0, 0, 1]
        assert operator.offset[2] == 0
        assert operator.matrix.dtype == torch.float64


def test_the_smallest_processes_work():
    mdp = theory.random_mdp(1, 1, discount=0.0, generator=generator(0))
    only = torch.ones(1, 1, dtype=torch.float64)
    assert_same(theory.policy_value(mdp, only), mdp.reward[0])
    single = theory.MDP(*[table.float() for table in mdp[:2]], 0.5)
    trusted = torch.tensor([[False]])
    assert (
        theory.trusted_operator(single, only.float(), [only.float()], torch.ones(1), trusted).matrix.dtype
        == torch.float32
    )


def test_random_processes_repeat_with_their_generator():
    one, same, other = [theory.random_mdp(3, 2, generator=generator(seed)) for seed in (0, 0, 1)]
    for part in ("transition", "reward"):
        assert torch.equal(getattr(one, part), getattr(same, part))
        assert not torch.equal(getattr(one, part), getattr(other, part))


def test_random_tables_are_what_they_say():
    mdp = theory.random_mdp(5, 3, generator=generator(0))
    assert mdp.discount == 0.9
    assert mdp.transition.shape == (5, 3, 5)
    assert_same(mdp.transition.sum(-1), np.ones((5, 3)))
    assert mdp.reward.min() < 0 < mdp.reward.max()
    plain = theory.random_policy(4000, 2, generator=generator(1))
    assert torch.equal(plain, theory.random_policy(4000, 2, sharpness=1.0, generator=generator(1)))
    assert_same(plain.sum(-1), np.ones(4000))
    assert plain[:, 0].var().item() == pytest.approx(1 / 12, rel=0.05)  # uniform on the simplex
    assert theory.random_policy(4000, 2, sharpness=4.0, generator=generator(1))[:, 0].var() > 1 / 7
