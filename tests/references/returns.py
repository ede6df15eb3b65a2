"""Trusted V-trace and importance sampled returns (paper, eqs. return_is, return_vtrace and 2), as printed.

Rows are [T, B]; value is [T + 1, B] and its last row is the bootstrap. lambda is ``learnable``; gamma^k is the product
of the k discounts in between, and the infinite sum ends with the unroll. A product that holds a zero lambda is exactly
zero, so whatever stands in the rejected row (an infinite ratio, say) cannot leak out of it.
"""

import math

import numpy as np
from numpy.typing import NDArray

f64 = np.float64
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def clipped(ratio: Floats, clip: float) -> Floats:
    """rho = min[pi / mu, clip_rho] and c = min[pi / mu, clip_c]."""
    return np.minimum(np.asarray(ratio, f64), clip)


def _td_error(reward: Floats, discount: Floats, value: Floats, t: int, b: int) -> float:
    """delta_t V = r_t + gamma V(s_{t+1}) - V(s_t)."""
    return float(reward[t, b]) + float(discount[t, b]) * float(value[t + 1, b]) - float(value[t, b])


def _product(factor: Floats, b: int, start: int, stop: int) -> float:
    """Product of factor[i, b] for start <= i < stop; 1 where that is empty."""
    return math.prod(float(factor[i, b]) for i in range(start, stop))


def _all_learnable(learnable: Bools, b: int, start: int, stop: int) -> bool:
    """The product of lambda over start <= i < stop, which is 0 or 1."""
    return all(bool(learnable[i, b]) for i in range(start, stop))


def vtrace_target(
    ratio: Floats,
    learnable: Bools,
    reward: Floats,
    discount: Floats,
    value: Floats,
    clip_rho: float,
    clip_c: float,
) -> Floats:
    """Eq. return_vtrace: V_t + sum_k gamma^k (prod_{i<k} lambda_{t+i} c_{t+i}) lambda_{t+k} rho_{t+k} delta_{t+k}."""
    steps, batch = np.shape(reward)
    rho, c = clipped(ratio, clip_rho), clipped(ratio, clip_c)
    target = np.zeros((steps, batch), f64)
    for t in range(steps):
        for b in range(batch):
            total = float(value[t, b])
            for k in range(steps - t):
                if not _all_learnable(learnable, b, t, t + k + 1):
                    continue  # a lambda of the product, or lambda_{t+k}, is zero
                gamma_k = _product(discount, b, t, t + k)
                trace = _product(c, b, t, t + k)
                total += gamma_k * trace * float(rho[t + k, b]) * _td_error(reward, discount, value, t + k, b)
            target[t, b] = total
    return target


def is_target(ratio: Floats, learnable: Bools, reward: Floats, discount: Floats, value: Floats) -> Floats:
    """Eq. return_is: V_t + sum_k gamma^k (prod_{i<=k} lambda_{t+i} pi_{t+i} / mu_{t+i}) delta_{t+k}."""
    steps, batch = np.shape(reward)
    target = np.zeros((steps, batch), f64)
    for t in range(steps):
        for b in range(batch):
            total = float(value[t, b])
            for k in range(steps - t):
                if not _all_learnable(learnable, b, t, t + k + 1):
                    continue  # a lambda of the product is zero
                gamma_k = _product(discount, b, t, t + k)
                trace = _product(ratio, b, t, t + k + 1)
                total += gamma_k * trace * _td_error(reward, discount, value, t + k, b)
            target[t, b] = total
    return target


def _advantage(target: Floats, reward: Floats, discount: Floats, value: Floats) -> Floats:
    """r_t + gamma_t target_{t+1} - V(s_t); the target after the last step is the bootstrap V(s_T) itself."""
    steps, batch = np.shape(reward)
    advantage = np.zeros((steps, batch), f64)
    for t in range(steps):
        for b in range(batch):
            following = float(target[t + 1, b]) if t + 1 < steps else float(value[steps, b])
            advantage[t, b] = float(reward[t, b]) + float(discount[t, b]) * following - float(value[t, b])
    return advantage


def vtrace_advantage(
    ratio: Floats,
    learnable: Bools,
    reward: Floats,
    discount: Floats,
    value: Floats,
    clip_rho: float,
    clip_c: float,
) -> Floats:
    """Eq. 2 (vtrace_pg) with the baseline V(s_t): r_t + gamma_t v_{t+1} - V(s_t), without rho and without mask."""
    target = vtrace_target(ratio, learnable, reward, discount, value, clip_rho, clip_c)
    return _advantage(target, reward, discount, value)


def is_advantage(ratio: Floats, learnable: Bools, reward: Floats, discount: Floats, value: Floats) -> Floats:
    """Eq. 2 with the importance sampled return (eq. return_is) of row t + 1 in the place of v_{t+1}."""
    target = is_target(ratio, learnable, reward, discount, value)
    return _advantage(target, reward, discount, value)


def n_step_return(reward: Floats, discount: Floats, value: Floats) -> Floats:
    """G_t = sum_k gamma^k r_{t+k} + gamma^{T-t} V(s_T), the on-policy return up to the end of the unroll."""
    steps, batch = np.shape(reward)
    returns = np.zeros((steps, batch), f64)
    for t in range(steps):
        for b in range(batch):
            total = _product(discount, b, t, steps) * float(value[steps, b])
            for k in range(steps - t):
                total += _product(discount, b, t, t + k) * float(reward[t + k, b])
            returns[t, b] = total
    return returns
