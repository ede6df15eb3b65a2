"""Prioritised replay (appendix A.2): sampling probabilities, importance weights and the critic's priority."""

import math

import numpy as np
from numpy.typing import NDArray

f64 = np.float64
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def probabilities(priority: Floats, exponent: float, uniform_share: float) -> Floats:
    """P_i = (1 - epsilon) p_i^alpha / sum_j p_j^alpha + epsilon / N."""
    powers = [float(p) ** exponent for p in priority]
    total = math.fsum(powers)
    if total == 0.0:
        raise ValueError("no priority is positive: p^alpha / sum is 0 / 0")
    return np.array([(1.0 - uniform_share) * x / total + uniform_share / len(powers) for x in powers], f64)


def weights(probabilities_of_samples: Floats, size: int, exponent: float) -> Floats:
    """(1 / (N P))^beta, not divided by the largest."""
    return np.array([(1.0 / (size * float(p))) ** exponent for p in probabilities_of_samples], f64)


def critic_priority(value_loss: Floats, learnable: Bools) -> Floats:
    """Mean value loss over the learnable rows of each sequence, 0 if there is none."""
    steps, batch = np.shape(value_loss)
    result = np.zeros(batch, f64)
    for b in range(batch):
        losses = [float(value_loss[t, b]) for t in range(steps) if learnable[t, b]]
        if losses:
            result[b] = math.fsum(losses) / len(losses)
    return result
