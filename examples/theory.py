"""The paper's five propositions as things one can compute, on tabular Markov decision processes.

Policies are probability tables [S, A]. Nothing here samples: values come from linear equations, so the propositions
hold or fail by numbers. docs/theory.md is an example of each function.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laser_rl.ops.distributions import Categorical
from laser_rl.ops.trust_region import kl_to_implied

Estimator = Literal["vtrace", "importance"]
TINY = 1e-300  # where no gradient is left there is no direction


class MDP(NamedTuple):
    """A finite Markov decision process. An episode's end is a state that leads to itself and rewards nothing."""

    transition: Float[Tensor, "S A S2"]
    reward: Float[Tensor, "S A"]
    discount: float


class Operator(NamedTuple):
    """An expected return as an affine map of the bootstrap: new V = matrix · V + offset."""

    matrix: Float[Tensor, "S S2"]
    offset: Float[Tensor, "S"]


def random_mdp(states: int, actions: int, *, discount: float = 0.9, generator: torch.Generator | None = None) -> MDP:
    """A process drawn at random: transitions uniform on the simplex, rewards standard normal."""
    transition = random_policy(states * actions, states, generator=generator).reshape(states, actions, states)
    reward = torch.randn(states, actions, dtype=torch.float64, generator=generator)
    return MDP(transition, reward, discount)


def random_policy(
    states: int, actions: int, *, sharpness: float = 1.0, generator: torch.Generator | None = None
) -> Float[Tensor, "S A"]:
    """Probabilities ∝ Exp(1)^sharpness: uniform on the simplex at 1, nearer to deterministic above."""
    weight = torch.empty(states, actions, dtype=torch.float64).exponential_(generator=generator)
    return (sharpness * weight.log()).softmax(-1)


def policy_value(mdp: MDP, policy: Float[Tensor, "S A"]) -> Float[Tensor, "S"]:
    """V^π, from (I − γ·P^π)·V = r^π."""
    moves, reward = _under(mdp, policy)
    return _solve(_identity(moves) - mdp.discount * moves, reward)


def action_values(mdp: MDP, value: Float[Tensor, "S"]) -> Float[Tensor, "S A"]:
    """Q(s, a) = r(s, a) + γ·Σ P(s'|s, a)·V(s')."""
    return mdp.reward + mdp.discount * mdp.transition @ value


def state_distribution(mdp: MDP, policy: Float[Tensor, "S A"], start: Float[Tensor, "S"]) -> Float[Tensor, "S"]:
    """d^π: the discounted share of time that π spends in each state from `start`; sums to 1."""
    moves, _ = _under(mdp, policy)
    return (1 - mdp.discount) * _solve(_identity(moves) - mdp.discount * moves.mT, start)


def implied_policy(
    policy: Float[Tensor, "S A"], behaviour: Float[Tensor, "S A"], *, clip_rho: float = 1.0
) -> Float[Tensor, "S A"]:
    """Prop. 1: the policy whose value V-trace estimates, min(ρ̄·μ, π) / Σ_b min(ρ̄·μ, π)."""
    common = torch.minimum(policy, clip_rho * behaviour)
    return common / common.sum(-1, keepdim=True)


def distortion(
    policy: Float[Tensor, "S A"], behaviour: Float[Tensor, "S A"], *, clip_rho: float = 1.0
) -> Float[Tensor, "S A"]:
    """Prop. 2: ω(s, a) = min(1, ρ̄·μ/π), with which V-trace's policy gradient scales the action values."""
    return (clip_rho * behaviour / policy).clamp(max=1.0)


def regret(q: Float[Tensor, "S A"], distorted: Float[Tensor, "S A"]) -> Float[Tensor, "S"]:
    """R(s) = max_b Q(s, b) − Q(s, argmax Q^ω): what acting on the distorted values costs."""
    chosen = distorted.argmax(-1, keepdim=True)
    return q.amax(-1) - q.gather(-1, chosen).squeeze(-1)


def mixed_values(
    q: Float[Tensor, "S A"],
    distorted: Float[Tensor, "S A"],
    on_policy: Float[Tensor, "S"],
    off_policy: Float[Tensor, "S"],
    alpha: Float[Tensor, "S"],
) -> Float[Tensor, "S A"]:
    """Prop. 3: Q^α = Q·d^π·α + Q^ω·d^μ·(1 − α), the values that a share α of online data makes the gradient follow."""
    true_weight, distorted_weight = on_policy * alpha, off_policy * (1 - alpha)
    return q * true_weight.unsqueeze(-1) + distorted * distorted_weight.unsqueeze(-1)


def alpha_bound(
    q: Float[Tensor, "S A"],
    distorted: Float[Tensor, "S A"],
    on_policy: Float[Tensor, "S"],
    off_policy: Float[Tensor, "S"],
) -> Float[Tensor, "S"]:
    """Prop. 3: above which share α of online data the best action of Q^α is the best action of Q, state by state.

    From α/(1 − α) > max_{b ∉ A*} (Q^ω(b) − Q^ω(a*)) / (Q(a*) − Q(b)) · d^μ/d^π. Where the right side is negative any
    α will do (0). Among several best actions the one that the distortion favours serves as a*. Where all actions are
    best there is nothing to preserve (0).
    """
    best = q.amax(-1, keepdim=True)
    is_best = q == best
    best_distorted = distorted.masked_fill(~is_best, -math.inf).amax(-1, keepdim=True)
    needed = ((distorted - best_distorted) / (best - q)).masked_fill(is_best, 0.0).amax(-1)
    odds = needed.clamp(min=0.0) * off_policy / on_policy
    return odds / (1 + odds)


def expected_return(
    mdp: MDP,
    policy: Float[Tensor, "S A"],
    behaviour: Float[Tensor, "S A"],
    trusted: Bool[Tensor, "S"],
    *,
    estimator: Estimator = "vtrace",
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    steps: int | None = None,
) -> Operator:
    """E_μ of the trusted return (eqs. return_vtrace, return_is) as a map of the bootstrap V, over `steps` steps (None: without end).

    With D·V = Σ_a μ·ρ·(r + γ·P·V − V) and the trace operator C = γ·Σ_a μ·c·P: new V = V + Σ_k (λC)^k · λD·V.
    """
    if estimator == "importance":
        clip_rho = clip_c = math.inf  # then μ·ρ = μ·c = π, and eq. return_vtrace's product becomes eq. return_is's
    mask = trusted.to(mdp.reward.dtype).unsqueeze(-1)
    moves, reward = _under(mdp, torch.minimum(policy, clip_rho * behaviour))
    mass = torch.minimum(policy, clip_rho * behaviour).sum(-1)
    traces, _ = _under(mdp, torch.minimum(policy, clip_c * behaviour))
    trace = mdp.discount * mask * traces
    td_matrix = mask * (mdp.discount * moves - mass.diag())
    summed = _geometric_sum(trace, steps)
    return Operator(_identity(moves) + summed @ td_matrix, summed @ (mask.squeeze(-1) * reward))


def fixed_point(operator: Operator) -> Float[Tensor, "S"]:
    """The V that an operator leaves unchanged: V^π for importance sampling, the implied policy's value for V-trace (Prop. 1)."""
    return _solve(_identity(operator.matrix) - operator.matrix, operator.offset)


def contraction_rate(operator: Operator, trusted: Bool[Tensor, "S"]) -> Float[Tensor, ""]:
    """η: by how much at least the distance to the fixed point shrinks at trusted states, in the maximum norm."""
    return operator.matrix.abs().sum(-1)[trusted].amax()


def trusted_operator(
    mdp: MDP,
    policy: Float[Tensor, "S A"],
    behaviours: Sequence[Float[Tensor, "S A"]],
    weights: Float[Tensor, "Z"],
    trusted: Bool[Tensor, "Z S"],
    **options: Any,
) -> Operator:
    """V_trusted (eq. censored_expectation) as a map of V: at each state the average return over the behaviours trusted there.

    `options` are those of `expected_return`. A state where no behaviour is trusted is never updated: there V stays as it is. If every
    state has one, the `fixed_point` is what repeated application converges to.
    """
    pairs = zip(behaviours, trusted, strict=True)
    operators = [expected_return(mdp, policy, behaviour, mask, **options) for behaviour, mask in pairs]
    share = conditional_share(weights, trusted)
    matrix = (share.unsqueeze(-1) * torch.stack([operator.matrix for operator in operators])).sum(0)
    offset = (share * torch.stack([operator.offset for operator in operators])).sum(0)
    untouched = (~trusted.any(0)).to(matrix.dtype)
    return Operator(matrix + untouched.diag(), offset)


def conditional_share(weights: Float[Tensor, "Z"], trusted: Bool[Tensor, "Z S"]) -> Float[Tensor, "Z S"]:
    """p(z | μ_z trusted at s); 0 where none is."""
    mass = weights.unsqueeze(-1) * trusted
    total = mass.sum(0)
    return mass / torch.where(total > 0, total, torch.ones_like(total))


def ascent(
    policy: Float[Tensor, "S A"],
    q: Float[Tensor, "S A"],
    weight: Float[Tensor, "S A"],
    features: Float[Tensor, "S F"],
    *,
    baseline: bool = True,
) -> Float[Tensor, "F A"]:
    """Σ_sa W(s, a)·(Q(s, a) − v(s))·∂ log π(a|s)/∂θ for π = softmax of `features`·θ and a critic v in the same features.

    v is the critic's fixed point, the least squares under W; without a `baseline` it is 0.

    **In one state, and in every state of its own, ascent ends at the best action**, for every W with κ·π ≤ W ≤ π for some κ > 0. So it is
    for α·π + (1 − α)·min(π, ρ̄·μ) where μ takes every action. Proof, for Q₁ > Q₂ > … > Qₙ, Q fixed, in continuous time. As Σ W·(Q − v) is
    0, θ'_a = W_a·(Q_a − v): θ₁ never falls, θₙ never rises, Σ θ stays. (Σ Q·θ)' = Σ W·(Q − v)² > 0 has a least value on a compact set, so θ
    leaves each and does not stay within bounds. By induction from n down, every θ_j with j > 1 is bounded above. Let all b > j be. Then
    π₁ ≥ c·π_b for a c > 0, so W₁ ≥ κ·c·W_b. θ_j rises only while v < Q_j, and by Σ W·(Q − v) = 0 at most as fast as Σ_{b>j} W_b·(v − Q_b),
    which is at most C·W₁·(Q₁ − v) = C·θ₁', as Q₁ − v > Q₁ − Q_j. If θ₁ is bounded, θ_j therefore is. If it is not, π_b/π₁ goes to 0 for
    all b > j, then v > Q_j, and θ_j falls. So θ₁ goes to ∞ (else all were bounded), and π₁ to 1. Actions equally good count as one.
    """
    pushed, mass = weight * q, weight.sum(-1)
    if baseline:
        value = features @ torch.linalg.pinv(features.mT * mass @ features) @ (features.mT @ pushed.sum(-1))
        pushed = pushed - weight * value.unsqueeze(-1)
    return features.mT @ (pushed - policy * pushed.sum(-1, keepdim=True))


def converged_policy(
    mdp: MDP,
    behaviour: Float[Tensor, "S A"],
    start: Float[Tensor, "S"],
    *,
    alpha: float = 0.0,
    baseline: bool = True,
    bound: float = math.inf,
    features: Float[Tensor, "S F"] | None = None,
    corrected: bool = False,
    clip_rho: float = 1.0,
    iterations: int = 400,
    step: float = 0.1,
) -> Float[Tensor, "S A"]:
    """Where `ascent` from the uniform policy leads, with a share `alpha` of online data and the rest from one fixed behaviour.

    W = α·d^π·π + (1 − α)·λ·d^μ·min(π, ρ̄·μ), where λ is 1 inside the trust region; `corrected` replays states as often as π visits them.
    Q has the values that such data converges to. Without `features` each state is told apart. Parameters of each feature move at the same
    speed, `step` falling to 0: that changes how long the way takes, and makes 400 iterations enough for a few states.
    """
    features = _identity(mdp.transition[:, 0]) if features is None else features
    parameters = torch.zeros(features.shape[1], behaviour.shape[1], dtype=start.dtype)
    away, weights = state_distribution(mdp, behaviour, start), torch.tensor([alpha, 1 - alpha], dtype=start.dtype)
    for left in range(iterations, 0, -1):
        policy = (features @ parameters).softmax(-1)
        near = kl_to_implied(Categorical(policy.shape[1]), policy.log(), behaviour.log(), clip_rho=clip_rho) < bound
        trusted = torch.stack([torch.full_like(near, alpha > 0), near & (alpha < 1)])
        data = trusted_operator(mdp, policy, [policy, behaviour], weights, trusted, clip_rho=clip_rho)
        visits = state_distribution(mdp, policy, start)
        replayed = ((visits if corrected else away) * near).unsqueeze(-1) * torch.minimum(policy, clip_rho * behaviour)
        weight = alpha * visits.unsqueeze(-1) * policy + (1 - alpha) * replayed
        gradient = ascent(policy, action_values(mdp, fixed_point(data)), weight, features, baseline=baseline)
        parameters += left / iterations * step * gradient / gradient.abs().amax(-1, keepdim=True).clamp(min=TINY)
    return (features @ parameters).softmax(-1)


def _geometric_sum(matrix: Tensor, steps: int | None) -> Tensor:
    """Σ_{k < steps} matrix^k."""
    if steps is None:
        return _solve(_identity(matrix) - matrix, _identity(matrix))
    total = _identity(matrix)
    for _ in range(steps - 1):
        total = _identity(matrix) + matrix @ total
    return total


def _under(mdp: MDP, table: Tensor) -> tuple[Tensor, Tensor]:
    """State-to-state moves and expected reward when action a is weighted by table[s, a]."""
    return torch.einsum("sa,sat->st", table, mdp.transition), (table * mdp.reward).sum(-1)


def _solve(matrix: Tensor, right: Tensor) -> Tensor:
    solution: Tensor = torch.linalg.solve(matrix, right)
    return solution


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
