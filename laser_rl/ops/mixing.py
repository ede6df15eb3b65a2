"""Adaptive online share α: Prop. 3's bound on it from estimated action values, and the loss weights that give this share.

Prop. 3 asks for Q(s, ·) at every state. An actor-critic has V, its policy, and one noisy advantage a row, so the missing action values
come from a model of one number, A(s, a) ≈ κ·x(s, a) with x = log π(a|s) + H(π(·|s)), fitted to those advantages. With κ and V exact, and
advantages of that form, everything here is Prop. 3; what is a heuristic otherwise is said in docs/adaptive-alpha.md. The rows of K members
are [K, N]. Nothing is learned from this: no gradient flows.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from laser_rl.ops import checks

MOMENTS = 6
"""Numbers that a line is fitted from: Σw and the weighted sums of x, y, x², x·y, y²."""
_TINY = 1e-12


class MixingLine(NamedTuple):
    """y ≈ slope·x + constant, by weighted least squares."""

    slope: Float[Tensor, "K"]
    error: Float[Tensor, "K"]  # standard error of the slope; infinite where x does not vary
    noise: Float[Tensor, "K"]  # variance of what is left of y
    resolution: Float[Tensor, "K"]  # standard error of a difference of two means; smaller gaps are noise


class Weights(NamedTuple):
    """Weights of a row's policy loss, by where the row came from."""

    online: Float[Tensor, "K"]
    replayed: Float[Tensor, "K"]


def centred(log_probs: Float[Tensor, "*rows A"]) -> Float[Tensor, "*rows A"]:
    """x(s, a) = log π(a|s) − E_π[log π]: the derivative of log π by a factor on its logits, up to that factor. Its mean under π is 0."""
    return log_probs - (log_probs.exp() * log_probs).sum(-1, keepdim=True)


def distortion(
    policy_log_probs: Float[Tensor, "*rows A"], behaviour_log_probs: Float[Tensor, "*rows A"], *, clip_rho: float = 1.0
) -> Float[Tensor, "*rows A"]:
    """ω = min(1, ρ̄·μ/π) (Prop. 2), from log-probabilities: nothing overflows before it is clipped.

    >>> distortion(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.9, 0.1]).log())
    tensor([1.0000, 0.2000])
    """
    return (math.log(clip_rho) + behaviour_log_probs - policy_log_probs).clamp(max=0.0).exp()


def needed_odds(
    q: Float[Tensor, "*rows A"],
    omega: Float[Tensor, "*rows A"],
    *,
    resolution: float | Float[Tensor, "*#rows"] = 0.0,
    visits: float | Float[Tensor, "*#rows"] = 1.0,
) -> Float[Tensor, "*rows"]:
    """Prop. 3: the odds α/(1 − α) from which on the best action of Q is also the best of Q^α; 0 where any odds are enough.

    max_{b ∉ A*} (Q^ω(b) − Q^ω(a*)) · g/(g² + e²) · d^μ/d^π, with the gap g = Q(a*) − Q(b) and Q^ω = ω·Q. Where e = 0 that is the paper's
    1/g. A gap far below what the estimate resolves (e) asks for nothing: taking b for a* costs no more than the gap.

    Args:
        q: action values. Not their advantages, unless the gradient has a baseline: the bound changes with a constant added to Q.
        omega: V-trace's distortion.
        resolution: e, a standard error of a gap.
        visits: d^μ(s)/d^π(s).

    >>> q, omega = torch.tensor([2.0, 5.0]), torch.tensor([1.0, 0.2])
    >>> needed_odds(q, omega), needed_odds(q, omega, resolution=3.0)
    (tensor(0.3333), tensor(0.1667))
    """
    if checks.active():
        checks.numbers(q=q, omega=omega)
    best = q.amax(-1, keepdim=True)
    is_best = q == best
    distorted, error = q * omega, torch.as_tensor(resolution, dtype=q.dtype, device=q.device).unsqueeze(-1)
    # Among several best actions any may win: the one that the distortion favours is the cheapest to keep.
    favoured = distorted.masked_fill(~is_best, -math.inf).amax(-1, keepdim=True)
    gap = (best - q).masked_fill(is_best, math.inf)
    need = (distorted - favoured) / (gap + error**2 / gap)
    return need.masked_fill(is_best, 0.0).amax(-1).clamp(min=0.0) * visits


def share_of(odds: Float[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """α from α/(1 − α); infinite odds are 1.

    >>> share_of(torch.tensor([0.0, 1.0, float("inf")]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    return 1 - 1 / (1 + odds)


def served(
    odds: Float[Tensor, "K N"], counted: Bool[Tensor, "K N"], level: float | Float[Tensor, ""]
) -> Float[Tensor, "K"]:
    """The `level` quantile of the odds: the smallest that is enough for this share of the counted rows; NaN if none is counted.

    >>> served(torch.tensor([[3.0, 1.0, 2.0, 9.0]]), torch.tensor([[True, True, True, False]]), 0.6)
    tensor([2.])
    """
    rows = counted.sum(-1, keepdim=True)
    ordered = odds.masked_fill(~counted, math.inf).sort(-1).values
    # Less a little: 0.9 · 10 must not be rounded up to 10.
    place = (level * rows - 1e-3).ceil().long() - 1
    found = ordered.gather(-1, place.clamp(min=0))
    return torch.where(rows > 0, found, math.nan).squeeze(-1)


def moments(
    feature: Float[Tensor, "K N"], advantage: Float[Tensor, "K N"], weight: Float[Tensor, "K N"]
) -> Float[Tensor, "K 6"]:
    """What `fit` reads; moments of several batches add up. Rows of weight 0 may hold anything."""
    x, y = (torch.where(weight > 0, rows, 0.0) for rows in (feature, advantage))
    return (weight * torch.stack([torch.ones_like(x), x, y, x * x, x * y, y * y])).sum(-1).mT


def fit(sums: Float[Tensor, "K 6"], *, correlated: int = 1) -> MixingLine:
    """The line through what `moments` summed up.

    The constant is the mean error of the critic; it belongs to no action and is dropped. `correlated` rows count as one
    observation: rows of an unroll share most of their return.

    >>> fit(moments(torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[5.0, 7.0, 9.0]]), torch.ones(1, 3))).slope
    tensor([2.0000])
    """
    count = sums[:, 0].clamp(min=_TINY)
    x, y, xx, xy, yy = (sums[:, 1:] / count[:, None]).unbind(1)
    spread, common = (xx - x * x).clamp(min=0.0), xy - x * y
    varies = spread > _TINY
    slope = torch.where(varies, common / spread.clamp(min=_TINY), 0.0)
    noise = (yy - y * y - slope * common).clamp(min=0.0)
    observed = noise * correlated / count  # squared standard error of a mean
    error = torch.where(varies, (observed / spread.clamp(min=_TINY)).sqrt(), math.inf)
    return MixingLine(slope, error, noise, (2 * observed).sqrt())


def confidence(line: MixingLine) -> Float[Tensor, "K"]:
    """The confidence in a slope κ, from 0 to 1: κ²/(κ² + error²), and 0 below 0, where the policy would prefer the worse actions."""
    signal = line.slope.clamp(min=0.0) ** 2
    return signal / (signal + line.error**2).clamp(min=_TINY**2)


def followed(
    share: Float[Tensor, "K"],
    needed: Float[Tensor, "K"],
    plain: Float[Tensor, "K"],
    trust: Float[Tensor, "K"],
    *,
    rate: float,
    least: float,
    most: float,
) -> Float[Tensor, "K"]:
    """The next α: `share` moved by `rate` towards plain + trust·(needed − plain), clamped to `least` and `most`. NaN moves nothing.

    >>> one = torch.ones(1)
    >>> followed(0.2 * one, 0.8 * one, 0.1 * one, 0.5 * one, rate=0.5, least=0.0, most=0.4)
    tensor([0.3000])
    """
    aim = (plain + trust * (needed - plain)).clamp(least, most)
    return torch.where(aim.isnan(), share, share + rate * (aim - share))


def share_weights(
    share: Float[Tensor, "K"], online: Float[Tensor, "K"], replayed: Float[Tensor, "K"], *, heaviest: float
) -> Weights:
    """Weights with which the online rows are `share` of all; their sum over the rows stays the number of rows.

    `online` and `replayed` count the rows of each kind that are learned from. No row counts for more than `heaviest`: where one kind is
    rare, its noise would be all that is learned. Where one kind is missing there is nothing to mix.

    >>> share_weights(torch.tensor([0.5]), torch.tensor([20.0]), torch.tensor([60.0]), heaviest=4.0)
    Weights(online=tensor([2.]), replayed=tensor([0.6667]))
    """
    rows, both = online + replayed, (online > 0) & (replayed > 0)
    wanted = share * rows / online.clamp(min=_TINY), (1 - share) * rows / replayed.clamp(min=_TINY)
    return Weights(*(torch.where(both, weight.clamp(max=heaviest), 1.0) for weight in wanted))


def weighted_share(weights: Weights, online: Float[Tensor, "K"], replayed: Float[Tensor, "K"]) -> Float[Tensor, "K"]:
    """The share of the online rows in the gradient; NaN if nothing is learned from."""
    own = weights.online * online
    return own / (own + weights.replayed * replayed)
