"""A policy over legal actions only: the logits of the others do not exist."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

f64 = np.float64
Floats = NDArray[np.float64]


def legal_actions(mask: Sequence[bool], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Every joint action that is legal in each of its choices."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    ranges = [[a for a in range(size) if mask[start + a]] for start, size in zip(starts, sizes, strict=True)]
    return list(itertools.product(*ranges))


def probabilities(logits: Floats, mask: Sequence[bool], sizes: Sequence[int]) -> Floats:
    """pi(a) of every legal joint action: prod over choices of exp(x_a) / sum over the choice's legal b of exp(x_b)."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    found = []
    for joint in legal_actions(mask, sizes):
        product = 1.0
        for start, size, a in zip(starts, sizes, joint, strict=True):
            legal = [float(logits[start + b]) for b in range(size) if mask[start + b]]
            largest = max(legal)
            total = math.fsum(math.exp(x - largest) for x in legal)
            product *= math.exp(float(logits[start + a]) - largest) / total
        found.append(product)
    return np.array(found, f64)


def entropy(pi: Floats) -> float:
    """-sum_a pi_a log pi_a, with 0 log 0 = 0."""
    return math.fsum(-float(p) * math.log(float(p)) for p in pi if p > 0)
