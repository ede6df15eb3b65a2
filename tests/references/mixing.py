"""Proposition 3 from estimates: needed odds with a finite resolution, quantile, fitted line, weights."""

import math

import numpy as np
from numpy.typing import NDArray

f64 = np.float64
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def needed_odds(q: Floats, omega: Floats, resolution: float, visits: float) -> float:
    """One state: max over b not in A* of (Q^w(b) - Q^w(a*)) g / (g^2 + e^2) d^mu/d^pi, at least 0; a* is the best action that w favours."""
    best = max(float(x) for x in q)
    star = max((float(x) * float(w) for x, w in zip(q, omega, strict=True) if float(x) == best))
    needed = 0.0
    for x, w in zip(q, omega, strict=True):
        gap = best - float(x)
        if gap > 0.0:
            needed = max(needed, (float(x) * float(w) - star) * gap / (gap**2 + resolution**2))
    return needed * visits


def served(odds: Floats, counted: Bools, level: float) -> float:
    """The smallest of the counted odds that at least a share `level` of them do not exceed."""
    kept = sorted(float(x) for x, c in zip(odds, counted, strict=True) if c)
    for x in kept:
        if sum(y <= x for y in kept) >= level * len(kept) - 1e-3:
            return x
    return math.nan


def line(x: Floats, y: Floats, weight: Floats, correlated: float) -> tuple[float, float, float]:
    """Slope, its standard error and the residuals' variance of a weighted fit with a constant; centred first, then summed."""
    total = math.fsum(map(float, weight))
    mean_x = math.fsum(float(w) * float(a) for w, a in zip(weight, x, strict=True)) / total
    mean_y = math.fsum(float(w) * float(b) for w, b in zip(weight, y, strict=True)) / total
    rows = [(float(w), float(a) - mean_x, float(b) - mean_y) for w, a, b in zip(weight, x, y, strict=True)]
    spread = math.fsum(w * a * a for w, a, _ in rows)
    slope = math.fsum(w * a * b for w, a, b in rows) / spread
    noise = math.fsum(w * (b - slope * a) ** 2 for w, a, b in rows) / total
    return slope, math.sqrt(noise * correlated / spread), noise


def weights(share: float, online: float, replayed: float, heaviest: float) -> tuple[float, float]:
    """Of an online and of a replayed row, so that the online ones are `share` of the whole."""
    if online == 0 or replayed == 0:
        return 1.0, 1.0
    rows = online + replayed
    return min(heaviest, share * rows / online), min(heaviest, (1 - share) * rows / replayed)
