"""The trust region over behaviours: which stored steps a policy may learn from.

A relevance function β(π, μ, s) says how far the behaviour is from where V-trace can be trusted; a step is trusted if β < b. Relevance
depends on the state alone, never on the action that was taken: rejecting by action would bias the expectation. Sampled forms therefore draw
their own actions. Everything here decides and is not learned from: no gradient flows.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laser_rl.ops.distributions import Family

ENUMERABLE = 1024
"""Up to so many joint actions a sum over all of them is exact and cheap; beyond, actions are drawn."""


def kl_to_implied(
    family: Family,
    policy: Float[Tensor, "*rows P"],
    behaviour: Float[Tensor, "*rows P"],
    *,
    clip_rho: float = 1.0,
    draws: int = 32,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*rows"]:
    """KL(π ‖ implied policy), the default relevance function: exact where the actions can be enumerated, else from `draws` actions.

    V-trace estimates the value of the implied policy (Prop. 1): min(ρ̄·μ, π) / Z with Z = Σ_a min(ρ̄·μ, π). So the divergence is
    log Z + Σ_a π·max(0, log π − log(ρ̄·μ)). From actions drawn from π: with w = min(1, ρ̄·μ/π) it is log E[w] − E[log w], which is never
    negative and biased low by O(1/draws), since a logarithm is concave.

    >>> from laser_rl.ops.distributions import Categorical
    >>> kl_to_implied(Categorical(2), torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 9.0]])).item() > 0.1
    True
    """
    with torch.no_grad():
        if family.joint_size is not None and family.joint_size <= ENUMERABLE:
            log_pi, log_mu = family.joint_log_probs(policy), family.joint_log_probs(behaviour)
            common = torch.minimum(log_pi, log_mu + math.log(clip_rho))
            excess = (log_pi.exp() * (log_pi - common)).sum(-1)
            return (common.logsumexp(-1) + excess).clamp(min=0.0)  # rounding alone can make it negative
        policy, behaviour = policy.expand(draws, *policy.shape), behaviour.expand(draws, *behaviour.shape)
        action = family.sample(policy, generator)
        log_pi, log_mu = family.log_prob(policy, action), family.log_prob(behaviour, action)
        log_weight = (math.log(clip_rho) + log_mu - log_pi).clamp(max=0.0)
        log_mass = log_weight.logsumexp(0) - math.log(draws)
        return (log_mass - log_weight.mean(0)).clamp(min=0.0)


def kl_to_behaviour(
    family: Family, policy: Float[Tensor, "*rows P"], behaviour: Float[Tensor, "*rows P"]
) -> Float[Tensor, "*rows"]:
    """KL(π ‖ μ), Algorithm 1's relevance function; closed form for every family. Its bounds are not those of `kl_to_implied`.

    >>> from laser_rl.ops.distributions import Categorical
    >>> kl_to_behaviour(Categorical(2), torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]))
    tensor(0.)
    """
    with torch.no_grad():
        return family.kl(policy, behaviour).clamp(min=0.0)  # rounding alone can make it negative


def within(relevance: Float[Tensor, "*rows"], bound: float | Float[Tensor, "*#rows"]) -> Bool[Tensor, "*rows"]:
    """The trust indicator λ = 1[β < b]. A relevance of NaN is not trusted.

    >>> within(torch.tensor([0.01, 0.03, float("nan")]), 0.03)
    tensor([ True, False, False])
    """
    return relevance < bound


def adapt_bound(
    bound: Float[Tensor, ""],
    accepted: Float[Tensor, ""],
    *,
    target: float,
    rate: float = 0.01,
    lowest: float = 1e-5,
    highest: float = 10.0,
) -> Float[Tensor, ""]:
    """Move the threshold so that the share of trusted steps approaches `target`: log b += rate·(target − accepted).

    An integral controller in log b: it needs no model of how relevance is distributed, and a rate r moves b by at most a factor e^r a
    call. Where no row was counted (`accepted` is NaN) the bound stays.

    >>> adapt_bound(torch.tensor(0.1), torch.tensor(0.2), target=0.7, rate=1.0)
    tensor(0.1649)
    """
    with torch.no_grad():
        moved = (bound.log() + rate * (target - accepted)).exp().clamp(lowest, highest)
        return torch.where(accepted.isnan(), bound, moved)
