"""PopArt: per-task first and second moments, and a last layer whose unnormalised outputs are preserved."""

import math

import numpy as np
from numpy.typing import NDArray

f64 = np.float64
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.integer]


def sigma(mean: Floats, mean_square: Floats, lowest: float = 1e-4, highest: float = 1e6) -> Floats:
    """sigma = sqrt(mean square - mean^2) per task, clamped to [lowest, highest]."""
    result = []
    for first, second in zip(mean, mean_square, strict=True):
        variance = max(0.0, float(second) - float(first) ** 2)  # rounding may leave it a little below zero
        result.append(min(max(math.sqrt(variance), lowest), highest))
    return np.array(result, f64)


def updated(
    mean: Floats, mean_square: Floats, target: Floats, task: Ints, learnable: Bools, step: float
) -> tuple[Floats, Floats]:
    """Moments moved towards the n learnable targets of each task, at the rate 1 - (1 - step)^n."""
    steps, batch = np.shape(target)
    new_mean, new_mean_square = np.array(mean, f64), np.array(mean_square, f64)
    for n_task in range(len(mean)):
        rows = [(t, b) for t in range(steps) for b in range(batch) if learnable[t, b] and int(task[b]) == n_task]
        targets = [float(target[t, b]) for t, b in rows]
        if not targets:
            continue
        first = math.fsum(targets) / len(targets)
        second = math.fsum(g * g for g in targets) / len(targets)
        kept = 1.0
        for _ in targets:
            kept *= 1.0 - step
        rate = 1.0 - kept
        new_mean[n_task] = float(mean[n_task]) + rate * (first - float(mean[n_task]))
        new_mean_square[n_task] = float(mean_square[n_task]) + rate * (second - float(mean_square[n_task]))
    return new_mean, new_mean_square


def normalised(x: Floats, task: Ints, mean: Floats, sigma: Floats) -> Floats:
    """(x - mean_i) / sigma_i for the task i of each sequence; x is [rows, B], task is [B]."""
    rows, batch = np.shape(x)
    result = np.zeros((rows, batch), f64)
    for t in range(rows):
        for b in range(batch):
            i = int(task[b])
            result[t, b] = (float(x[t, b]) - float(mean[i])) / float(sigma[i])
    return result


def unnormalised(x: Floats, task: Ints, mean: Floats, sigma: Floats) -> Floats:
    """sigma_i x + mean_i for the task i of each sequence; x is [rows, B], task is [B]."""
    rows, batch = np.shape(x)
    result = np.zeros((rows, batch), f64)
    for t in range(rows):
        for b in range(batch):
            i = int(task[b])
            result[t, b] = float(sigma[i]) * float(x[t, b]) + float(mean[i])
    return result


def rescaled(
    weight: Floats, bias: Floats, old_mean: Floats, old_sigma: Floats, new_mean: Floats, new_sigma: Floats
) -> tuple[Floats, Floats]:
    """w' = w sigma / sigma' and b' = (sigma b + mean - mean') / sigma', so that sigma (w.h + b) + mean stays."""
    tasks, width = np.shape(weight)
    new_weight, new_bias = np.zeros((tasks, width), f64), np.zeros(tasks, f64)
    for i in range(tasks):
        for j in range(width):
            new_weight[i, j] = float(weight[i, j]) * float(old_sigma[i]) / float(new_sigma[i])
        shifted = float(old_sigma[i]) * float(bias[i]) + float(old_mean[i]) - float(new_mean[i])
        new_bias[i] = shifted / float(new_sigma[i])
    return new_weight, new_bias
