"""Mean and variance of all observations at once, in plain loops, and the standardised observation."""

import math


def moments(rows: list[list[float]]) -> tuple[list[float], list[float]]:
    """The mean of each number, and its variance: the mean squared distance from that mean."""
    means, variances = [], []
    for column in zip(*rows, strict=True):
        mean = math.fsum(column) / len(column)
        means.append(mean)
        variances.append(math.fsum((x - mean) ** 2 for x in column) / len(column))
    return means, variances


def standardised(row: list[float], means: list[float], variances: list[float]) -> list[float]:
    """min(10, max(-10, (x - mean) / sqrt(variance + 1e-8)))"""
    whole = zip(row, means, variances, strict=True)
    return [min(10.0, max(-10.0, (x - mean) / math.sqrt(variance + 1e-8))) for x, mean, variance in whole]
