"""PixelControl: change of the pixels per cell, a dueling head, and n-step Q-learning for every cell."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

f64 = np.float64
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.integer]


def cumulants(observation: NDArray[Any], cell: int) -> Floats:
    """Mean of |o_{t+1} - o_t| over the pixels and channels of each cell: [T+1, B, C, H, W] to [T, B, H/cell, W/cell].

    uint8 observations are divided by 255 first.
    """
    rows, batch, channels, height, width = observation.shape
    if height % cell or width % cell:
        raise ValueError(f"cells of {cell} pixels do not tile an image of {height} x {width}")
    unit = 255.0 if observation.dtype == np.uint8 else 1.0
    frames = observation.astype(f64) / unit
    result = np.zeros((rows - 1, batch, height // cell, width // cell), f64)
    for t in range(rows - 1):
        for b in range(batch):
            for y in range(height):
                for x in range(width):
                    for c in range(channels):
                        change = abs(float(frames[t + 1, b, c, y, x]) - float(frames[t, b, c, y, x]))
                        result[t, b, y // cell, x // cell] += change / (channels * cell * cell)
    return result


def dueling(value: Floats, advantage: Floats) -> Floats:
    """Q(a) = V + A(a) - mean_b A(b) for every cell; value is [H, W], advantage is [A, H, W]."""
    actions, height, width = np.shape(advantage)
    q = np.zeros((actions, height, width), f64)
    for y in range(height):
        for x in range(width):
            mean = sum(float(advantage[a, y, x]) for a in range(actions)) / actions
            for a in range(actions):
                q[a, y, x] = float(value[y, x]) + float(advantage[a, y, x]) - mean
    return q


def _largest(q: Floats, y: int, x: int) -> float:
    """max_a q[a, y, x]."""
    return max(float(q[a, y, x]) for a in range(len(q)))


def q_targets(q: Floats, cumulant: Floats, discount: Floats, learnable: Bools) -> Floats:
    """sum_{i=t}^{s-1} gamma^{i-t} cumulant_i + gamma^{s-t} max_a q_s, per cell.

    s is the first row after t that is not learnable, or T. The step of row t itself is always taken.
    """
    steps, batch, height, width = np.shape(cumulant)
    target = np.zeros((steps, batch, height, width), f64)
    for t in range(steps):
        for b in range(batch):
            stop = t + 1
            while stop < steps and learnable[stop, b]:
                stop += 1
            for y in range(height):
                for x in range(width):
                    total, gamma = 0.0, 1.0
                    for i in range(t, stop):
                        total += gamma * float(cumulant[i, b, y, x])
                        gamma *= float(discount[i, b])
                    target[t, b, y, x] = total + gamma * _largest(q[stop, b], y, x)
    return target


def q_loss(q: Floats, action: Ints, cumulant: Floats, discount: Floats, learnable: Bools) -> Floats:
    """Sum over cells of 1/2 (target_t - q_t(a_t))^2 where learnable, else 0."""
    steps, batch, height, width = np.shape(cumulant)
    target = q_targets(q, cumulant, discount, learnable)
    loss = np.zeros((steps, batch), f64)
    for t in range(steps):
        for b in range(batch):
            if not learnable[t, b]:
                continue
            for y in range(height):
                for x in range(width):
                    error = float(target[t, b, y, x]) - float(q[t, b, int(action[t, b]), y, x])
                    loss[t, b] += 0.5 * error**2
    return loss
