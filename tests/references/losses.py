"""The losses of Algorithm 1 per step, with eq. 2's advantage and the right sign, and their reduction."""

import numpy as np
from numpy.typing import NDArray

f64 = np.float64
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def policy_gradient_loss(log_prob: Floats, rho: Floats, advantage: Floats, learnable: Bools) -> Floats:
    """L_P = -rho_t log pi(a_t | s_t) A_t (eq. 2) where learnable, else 0."""
    steps, batch = np.shape(learnable)
    loss = np.zeros((steps, batch), f64)
    for t in range(steps):
        for b in range(batch):
            if learnable[t, b]:
                loss[t, b] = -float(rho[t, b]) * float(log_prob[t, b]) * float(advantage[t, b])
    return loss


def value_loss(value: Floats, target: Floats, learnable: Bools) -> Floats:
    """L_V = 1/2 (target_t - V(s_t))^2 where learnable, else 0; only the first T rows of value are read."""
    steps, batch = np.shape(learnable)
    loss = np.zeros((steps, batch), f64)
    for t in range(steps):
        for b in range(batch):
            if learnable[t, b]:
                loss[t, b] = 0.5 * (float(target[t, b]) - float(value[t, b])) ** 2
    return loss


def entropy_loss(entropy: Floats, learnable: Bools, online: Bools) -> Floats:
    """-H(pi(. | s_t)) where learnable and the sequence is online, else 0 (section 5.1); online is [B]."""
    steps, batch = np.shape(learnable)
    loss = np.zeros((steps, batch), f64)
    for t in range(steps):
        for b in range(batch):
            if learnable[t, b] and online[b]:
                loss[t, b] = -float(entropy[t, b])
    return loss


def reduced(loss: Floats, learnable: Bools, how: str) -> float:
    """The "sum" over all rows, or the "mean": that sum over the number of learnable rows, 0 if there is none.

    A loss is 0 where it does not apply, so the sum runs over all of it.
    """
    steps, batch = np.shape(learnable)
    total, count = 0.0, 0
    for t in range(steps):
        for b in range(batch):
            total += float(loss[t, b])
            count += int(learnable[t, b])
    if how == "sum":
        return total
    if how == "mean":
        return total / count if count else 0.0
    raise ValueError(f'a reduction is "sum" or "mean"; got {how!r}')
