"""Action distributions from raw parameters: categorical, product of categoricals, diagonal (squashed) Gaussian.

Every function takes single vectors, not batches. Logits and raw scales may be as large as 1e4 in magnitude.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad

f64 = np.float64
Floats = NDArray[np.float64]


# --- categorical ---------------------------------------------------------------------------------------------------


def log_softmax(logits: Floats) -> Floats:
    """log p_a = (x_a - max x) - log sum_b exp(x_b - max x)."""
    x = [float(value) for value in logits]
    largest = max(x)
    log_sum = math.log(math.fsum(math.exp(value - largest) for value in x))
    return np.array([value - largest - log_sum for value in x], f64)


def softmax(logits: Floats) -> Floats:
    """p_a = exp(x_a - max x) / sum_b exp(x_b - max x)."""
    x = [float(value) for value in logits]
    largest = max(x)
    total = math.fsum(math.exp(value - largest) for value in x)
    return np.array([math.exp(value - largest) / total for value in x], f64)


def _entropy(log_probs: Floats) -> float:
    """-sum_a p_a log p_a, from finite log-probabilities."""
    return math.fsum(-math.exp(log_p) * float(log_p) for log_p in log_probs)


def _kl(p_log_probs: Floats, q_log_probs: Floats) -> float:
    """KL(p || q) = sum_a p_a (log p_a - log q_a), from finite log-probabilities."""
    pairs = zip(p_log_probs, q_log_probs, strict=True)
    return math.fsum(math.exp(log_p) * (float(log_p) - float(log_q)) for log_p, log_q in pairs)


def categorical_log_prob(logits: Floats, action: int) -> float:
    """log p(action)."""
    return float(log_softmax(logits)[action])


def categorical_entropy(logits: Floats) -> float:
    """H(p) = -sum_a p_a log p_a."""
    return _entropy(log_softmax(logits))


def categorical_kl(p_logits: Floats, q_logits: Floats) -> float:
    """KL(p || q) = sum_a p_a (log p_a - log q_a)."""
    return _kl(log_softmax(p_logits), log_softmax(q_logits))


# --- product of categoricals, by enumerating the joint -------------------------------------------------------------


def joint_log_probs(logits: Floats, sizes: Sequence[int]) -> Floats:
    """log prod_f p_f(a_f) of every joint action, in row-major order (the last factor moves fastest)."""
    if len(logits) != sum(sizes):
        raise ValueError(f"factors of sizes {tuple(sizes)} need {sum(sizes)} logits, got {len(logits)}")
    factors, start = [], 0
    for size in sizes:
        factors.append(log_softmax(logits[start : start + size]))
        start += size
    return np.array([math.fsum(chosen) for chosen in itertools.product(*factors)], f64)


def multi_log_prob(logits: Floats, action: Sequence[int], sizes: Sequence[int]) -> float:
    """The joint log-probability of one action vector, looked up in the enumeration."""
    wanted = tuple(int(a) for a in action)
    joint_actions = itertools.product(*(range(size) for size in sizes))
    for joint_action, log_prob in zip(joint_actions, joint_log_probs(logits, sizes), strict=True):
        if joint_action == wanted:
            return float(log_prob)
    raise ValueError(f"action {wanted} is not among the joint actions of factors of sizes {tuple(sizes)}")


def multi_entropy(logits: Floats, sizes: Sequence[int]) -> float:
    """H(p) summed over every joint action."""
    return _entropy(joint_log_probs(logits, sizes))


def multi_kl(p_logits: Floats, q_logits: Floats, sizes: Sequence[int]) -> float:
    """KL(p || q) summed over every joint action."""
    return _kl(joint_log_probs(p_logits, sizes), joint_log_probs(q_logits, sizes))


# --- diagonal Gaussian in a latent u, squashed into [low, high] where both are finite ------------------------------


def gaussian_scale(raw: Floats, min_scale: float) -> Floats:
    """scale = min_scale + softplus(raw), with softplus(x) = max(x, 0) + log(1 + exp(-|x|))."""
    return np.array([min_scale + max(float(x), 0.0) + math.log1p(math.exp(-abs(float(x)))) for x in raw], f64)


def _mean_and_scale(parameters: Floats, min_scale: float) -> tuple[list[float], list[float]]:
    """parameters = concat(mean[n], raw[n])."""
    n = len(parameters) // 2
    if len(parameters) != 2 * n:
        raise ValueError(f"parameters are a mean and a raw scale per dimension, an even count; got {len(parameters)}")
    return [float(m) for m in parameters[:n]], [float(s) for s in gaussian_scale(parameters[n:], min_scale)]


def _bounded(low: float, high: float) -> bool:
    """True for two finite bounds, False for none; a half-line is not defined here."""
    if math.isfinite(low) and math.isfinite(high):
        return True
    if low == -math.inf and high == math.inf:
        return False
    raise ValueError(f"bounds are both finite or both infinite; got low {low} and high {high}")


def _log_slope(u: float, low: float, high: float) -> float:
    """log da/du: log((high - low) / 2) + log(1 - tanh(u)^2), with 1 - tanh(u)^2 = 4 e^{-2|u|} / (1 + e^{-2|u|})^2."""
    if not _bounded(low, high):
        return 0.0
    log_one_minus_tanh_squared = 2.0 * (math.log(2.0) - abs(u) - math.log1p(math.exp(-2.0 * abs(u))))
    return math.log((high - low) / 2.0) + log_one_minus_tanh_squared


def to_environment(latent: Floats, low: Floats, high: Floats) -> Floats:
    """a = low + (high - low) (tanh(u) + 1) / 2 where bounded, a = u where not."""
    action = []
    for u, lo, hi in zip(latent, low, high, strict=True):
        if _bounded(float(lo), float(hi)):
            action.append(float(lo) + (float(hi) - float(lo)) * (math.tanh(float(u)) + 1.0) / 2.0)
        else:
            action.append(float(u))
    return np.array(action, f64)


def gaussian_log_prob(parameters: Floats, latent: Floats, low: Floats, high: Floats, min_scale: float) -> float:
    """Log density of the environment action a(u): sum over dimensions of log N(u; mean, scale^2) - log da/du."""
    means, scales = _mean_and_scale(parameters, min_scale)
    total = 0.0
    for u, mean, scale, lo, hi in zip(latent, means, scales, low, high, strict=True):
        z = (float(u) - mean) / scale
        log_normal = -0.5 * z * z - math.log(scale) - 0.5 * math.log(2.0 * math.pi)
        total += log_normal - _log_slope(float(u), float(lo), float(hi))
    return total


def gaussian_kl(p: Floats, q: Floats, min_scale: float) -> float:
    """KL(p || q), summed over dimensions: log(s_q / s_p) + (s_p^2 + (m_p - m_q)^2) / (2 s_q^2) - 1/2.

    The squashing is a bijection, so the bounds do not matter.
    """
    total = 0.0
    for m_p, s_p, m_q, s_q in zip(*_mean_and_scale(p, min_scale), *_mean_and_scale(q, min_scale), strict=True):
        total += math.log(s_q) - math.log(s_p) + (s_p**2 + (m_p - m_q) ** 2) / (2.0 * s_q**2) - 0.5
    return total


def _entropy_of_dimension(mean: float, scale: float, low: float, high: float) -> float:
    """-int p(a) log p(a) da = int N(u) (log da/du - log N(u)) du, with u = mean + scale z and |z| <= 12.

    The slope bends within a few units of u = 0, which may be a sliver of the range of z: cut the integral there too.
    """

    def integrand(z: float) -> float:
        log_density_of_z = -0.5 * z * z - 0.5 * math.log(2.0 * math.pi)
        log_slope = _log_slope(mean + scale * z, low, high)
        return math.exp(log_density_of_z) * (log_slope - (log_density_of_z - math.log(scale)))

    bends = [(u - mean) / scale for u in (-20.0, -5.0, -1.0, 0.0, 1.0, 5.0, 20.0)]
    cuts = sorted({-12.0, -6.0, -3.0, 0.0, 3.0, 6.0, 12.0} | {z for z in bends if -12.0 < z < 12.0})
    pieces = []
    for left, right in itertools.pairwise(cuts):
        pieces.append(quad(integrand, left, right, epsabs=1e-12, epsrel=1e-12)[0])
    return math.fsum(pieces)


def gaussian_entropy(parameters: Floats, low: Floats, high: Floats, min_scale: float) -> float:
    """Differential entropy of the environment action, by quadrature; independent dimensions add up."""
    means, scales = _mean_and_scale(parameters, min_scale)
    total = 0.0
    for mean, scale, lo, hi in zip(means, scales, low, high, strict=True):
        total += _entropy_of_dimension(mean, scale, float(lo), float(hi))
    return total
