"""What the critic changes: gradient ascent on exact expectations, against enumeration and the best policy of small processes."""

import pytest
import torch
from torch.testing import assert_close

from examples import theory


def best_values(mdp):
    value = torch.zeros(len(mdp.reward), dtype=torch.float64)
    for _ in range(2_000):
        value = theory.action_values(mdp, value).amax(-1)
    return value


def bandit(q):
    return theory.MDP(torch.ones(1, q.shape[1], 1, dtype=torch.float64), q, 0.0)


def drawn(seed, states, actions):
    generator = torch.Generator().manual_seed(seed)
    mdp = theory.random_mdp(states, actions, generator=generator)
    behaviour = theory.random_policy(states, actions, sharpness=2.0, generator=generator)
    return mdp, behaviour, torch.full((states,), 1 / states, dtype=torch.float64)


@pytest.mark.parametrize("alpha", [0.0, 0.125])
@pytest.mark.parametrize("clip_rho", [1.0, 2.0])
def test_the_gradient_of_a_logit_is_its_own_weight_times_its_own_advantage(alpha, clip_rho):
    # The statement of docs/theory.md, by automatic differentiation of the surrogate Σ w·(Q − v)·log π, w and v held fixed.
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        q = torch.randn(5, dtype=torch.float64, generator=generator)
        behaviour = theory.random_policy(1, 5, generator=generator)[0]
        logits = torch.randn(5, dtype=torch.float64, generator=generator, requires_grad=True)
        policy = logits.softmax(-1)
        weight = (alpha * policy + (1 - alpha) * torch.minimum(policy, clip_rho * behaviour)).detach()
        value = (weight * q).sum() / weight.sum()
        (weight * (q - value) * policy.log()).sum().backward()
        assert_close(logits.grad, weight * (q - value))
        assert logits.grad[q.argmax()] >= 0 >= logits.grad[q.argmin()]


def test_in_bandits_the_critic_takes_the_regret_away():
    lost = {True: 0.0, False: 0.0}
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        q = torch.rand(1, 4, dtype=torch.float64, generator=generator) + 1
        behaviour = theory.random_policy(1, 4, sharpness=2.0, generator=generator)
        for baseline in lost:
            policy = theory.converged_policy(
                bandit(q), behaviour, torch.ones(1, dtype=torch.float64), baseline=baseline
            )
            lost[baseline] += float(q.amax() - (policy * q).sum())
    assert lost[True] < 1e-6
    assert lost[False] > 0.5


@pytest.mark.parametrize("seed", [1, 2])
def test_in_processes_it_ends_at_the_best_policy(seed):
    mdp, behaviour, start = drawn(seed, 4, 3)
    values = [
        theory.policy_value(mdp, theory.converged_policy(mdp, behaviour, start, baseline=baseline))
        for baseline in (True, False)
    ]
    assert_close(values[0], best_values(mdp), atol=1e-6, rtol=0)
    assert (best_values(mdp) - values[1]).amax() > 0.5


def test_online_data_alone_is_the_policy_gradient():
    mdp, behaviour, start = drawn(5, 4, 3)
    policy = theory.converged_policy(mdp, behaviour, start, alpha=1.0, baseline=False)
    assert_close(theory.policy_value(mdp, policy), best_values(mdp), atol=1e-6, rtol=0)


def enumerated(policy, q, weight, features, parameters, value):
    """The same gradient by automatic differentiation, a state and an action at a time."""
    parameters = parameters.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for state, row in enumerate(features):
        logits = sum(row[place] * parameters[place] for place in range(len(row)))
        for action in range(q.shape[1]):
            total = (
                total
                + weight[state, action] * (q[state, action] - value[state]) * (logits - logits.logsumexp(0))[action]
            )
    total.backward()
    return parameters.grad


@pytest.mark.parametrize("seed", range(4))
def test_ascent_is_the_gradient_with_the_critics_fixed_point_in_shared_features(seed):
    generator = torch.Generator().manual_seed(seed)
    features, parameters = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((5, 3), (3, 4)))
    policy, q = (features @ parameters).softmax(-1), torch.randn(5, 4, dtype=torch.float64, generator=generator)
    weight = torch.minimum(policy, theory.random_policy(5, 4, generator=generator)) * torch.rand(
        5, 1, generator=generator
    )
    # The critic's fixed point: expected TD errors, W·(Q − v), are 0 in the direction of each feature.
    found = theory.ascent(policy, q, weight, features)
    left, right = torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for row, of, values in zip(features, weight, q, strict=True):
        for one, value in zip(of, values, strict=True):
            left, right = left + one * torch.outer(row, row), right + one * value * row
    value = features @ torch.linalg.solve(left, right)
    assert_close(found, enumerated(policy, q, weight, features, parameters, value))
    without = theory.ascent(policy, q, weight, features, baseline=False)
    assert_close(without, enumerated(policy, q, weight, features, parameters, torch.zeros(5, dtype=torch.float64)))


@pytest.mark.parametrize("seed", range(6))
def test_what_the_proof_for_one_state_uses_holds_at_random_points_and_the_end_is_the_best_action(seed):
    generator = torch.Generator().manual_seed(seed)
    clip_rho, alpha, actions = (0.5, 1.0, 3.0)[seed % 3], (0.0, 0.125)[seed % 2], 3 + seed % 4
    q = torch.randn(1, actions, dtype=torch.float64, generator=generator)
    behaviour = theory.random_policy(1, actions, sharpness=2.0, generator=generator)
    logits = 3 * torch.randn(1, actions, dtype=torch.float64, generator=generator)
    kappa = alpha + (1 - alpha) * float((clip_rho * behaviour).clamp(max=1.0).amin())
    one, best = torch.ones(1, 1, dtype=torch.float64), q.argmax()
    for _ in range(1_500):
        policy = logits.softmax(-1)
        weight = alpha * policy + (1 - alpha) * torch.minimum(policy, clip_rho * behaviour)
        assert (weight >= (kappa - 1e-12) * policy).all()
        assert (weight <= policy + 1e-12).all()
        moved = theory.ascent(policy, q, weight, one)
        value = (weight * q).sum() / weight.sum()
        assert_close((q * moved).sum(), (weight * (q - value) ** 2).sum())  # Σ Q·θ rises
        assert moved[0, best] >= 0 >= moved[0, q.argmin()]
        # Another action rises at most as fast as the ones below the value fall, and that is at most C times as fast as the best one rises.
        falls = float((weight * (value - q).clamp(min=0)).sum())
        for action in [place for place in range(actions) if q[0, place] < q.amax() and moved[0, place] > 0]:
            assert moved[0, action] <= falls + 1e-12
            lower = q[0] < q[0, action]
            ratio = float((policy[0, best] / policy[0, lower]).amin())
            most = actions * float(q.amax() - q.amin()) / (kappa * ratio * float(q.amax() - q[0, action]))
            assert falls <= most * moved[0, best] + 1e-12
        logits = logits + moved / moved.abs().amax().clamp(min=1e-300) * 0.1
    assert logits.softmax(-1)[0, best] > 0.999


def test_states_that_share_parameters_need_their_visits_and_their_ratios_corrected():
    transition = torch.zeros(5, 2, 5, dtype=torch.float64)
    transition[0, 0, 1], transition[0, 1, 2:4], transition[1:, :, 4] = 1, 0.5, 1
    reward = torch.tensor([[0.3, 0], [1, 0], [0, 1], [0, 1], [0, 0]], dtype=torch.float64)
    rooms = theory.MDP(transition, reward, 0.9)
    other = torch.tensor([[0.1, 0.9]] * 4 + [[0.5, 0.5]], dtype=torch.float64)
    start, alike = torch.eye(5, dtype=torch.float64)[0], torch.eye(3, dtype=torch.float64)[[0, 1, 1, 1, 2]]

    def reached(**options):
        found = theory.converged_policy(rooms, other, start, **options)
        return round(theory.policy_value(rooms, found)[0].item(), 2)

    assert best_values(rooms)[0].item() == pytest.approx(1.2)
    both = {"corrected": True, "clip_rho": 10.0}
    assert reached() == 1.2
    assert [reached(features=alike, alpha=alpha) for alpha in (0.0, 0.5, 1.0)] == [0.9, 0.9, 1.2]
    assert [reached(features=alike, **{name: both[name]}) for name in both] == [0.9, 0.9]
    assert reached(features=alike, **both) == 1.2
    assert reached(features=alike, alpha=0.125, bound=0.03) == 1.2
