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
