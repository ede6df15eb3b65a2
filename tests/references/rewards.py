"""Reward transformations: clipping (Atari) and IMPALA's squashing (DMLab), elementwise."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

f64 = np.float64
Floats = NDArray[np.float64]


def clipped(r: ArrayLike, bound: float) -> Floats:
    """min(max(r, -bound), bound)."""
    raw = np.asarray(r, f64)
    result = np.zeros(raw.shape, f64)
    for index in np.ndindex(raw.shape):
        result[index] = min(max(float(raw[index]), -bound), bound)
    return result


def dmlab_squashed(r: ArrayLike) -> Floats:
    """r' = 5 tanh(r / 5), times 0.3 where negative."""
    raw = np.asarray(r, f64)
    result = np.zeros(raw.shape, f64)
    for index in np.ndindex(raw.shape):
        squashed = 5.0 * math.tanh(float(raw[index]) / 5.0)
        result[index] = 0.3 * squashed if squashed < 0.0 else squashed
    return result
