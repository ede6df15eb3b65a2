"""Behaviour relevance: the implied policy (Proposition 1), KL divergences and the adaptation of the threshold b."""

import math

import numpy as np
from numpy.typing import NDArray

f64 = np.float64
Floats = NDArray[np.float64]


def implied_policy(pi: Floats, mu: Floats, clip_rho: float) -> Floats:
    """Eq. implied_policy: min[clip_rho mu(a), pi(a)] / sum_b min[clip_rho mu(b), pi(b)]."""
    overlap = [min(clip_rho * float(m), float(p)) for p, m in zip(pi, mu, strict=True)]
    total = math.fsum(overlap)
    if total == 0.0:
        raise ValueError("pi and mu share no action: the implied policy is 0 / 0")
    return np.array([o / total for o in overlap], f64)


def kl(p: Floats, q: Floats) -> float:
    """KL(p || q) = sum_a p_a log(p_a / q_a), with 0 log 0 = 0, and infinite where q_a = 0 < p_a."""
    terms = []
    for p_a, q_a in zip(p, q, strict=True):
        if float(p_a) == 0.0:
            continue
        if float(q_a) == 0.0:
            return math.inf
        terms.append(float(p_a) * (math.log(float(p_a)) - math.log(float(q_a))))
    return math.fsum(terms)


def kl_to_implied(pi: Floats, mu: Floats, clip_rho: float) -> float:
    """Section 4.3: beta_KL(pi, mu) = KL(pi || implied policy)."""
    return kl(pi, implied_policy(pi, mu, clip_rho))


def kl_to_implied_mc(log_pi_samples: Floats, log_mu_samples: Floats, clip_rho: float) -> float:
    """KL(pi || implied policy) from a ~ pi: w = min[1, clip_rho mu / pi], Z = mean w, log Z - mean log w."""
    log_w = []
    for log_pi, log_mu in zip(log_pi_samples, log_mu_samples, strict=True):
        log_w.append(min(0.0, math.log(clip_rho) + float(log_mu) - float(log_pi)))
    largest = max(log_w)  # taken out of the mean, so that Z does not underflow
    log_z = largest + math.log(math.fsum(math.exp(x - largest) for x in log_w) / len(log_w))
    return log_z - math.fsum(log_w) / len(log_w)


def kl_mc(log_pi_samples: Floats, log_mu_samples: Floats) -> float:
    """KL(pi || mu) from a ~ pi: mean(log pi - log mu)."""
    pairs = list(zip(log_pi_samples, log_mu_samples, strict=True))
    return math.fsum(float(log_pi) - float(log_mu) for log_pi, log_mu in pairs) / len(pairs)


def adapted_bound(
    bound: float, accepted_share: float, target: float, rate: float, lowest: float, highest: float
) -> float:
    """log b <- log b + rate (target - accepted share), then b is clamped; nothing was replayed where that is nan."""
    if math.isnan(accepted_share):
        return bound
    moved = math.exp(math.log(bound) + rate * (target - accepted_share))
    return min(max(moved, lowest), highest)
