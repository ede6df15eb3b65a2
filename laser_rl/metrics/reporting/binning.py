"""Fewer points than rows: a chart of 100,000 rows shows the mean of each bin of steps, and from where to where its values went."""

import numpy as np

from laser_rl.metrics.curves import Curve
from laser_rl.metrics.reporting.document import LIGHT, Array, Series, Style

BINS = 240


def bins_of(steps: Array, most: int = BINS) -> Array:
    """Which of equally wide bins of steps each point is in.

    >>> bins_of(np.array([0.0, 1.0, 9.0, 10.0]), 2).tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    low, high = float(steps.min()), float(steps.max())
    width = (high - low) / most or 1.0
    return np.minimum(np.floor((steps - low) / width), most - 1)


def binned(pair: Curve, most: int = BINS) -> tuple[Array, Array, Array, Array]:
    """Steps, means, lowest and highest values of the bins that hold something; the points themselves if they are few.

    The step of a bin is the last one in it: nothing is shown before it happened.

    >>> steps, mean, low, high = binned((np.array([1.0, 2.0, 9.0, 10.0]), np.array([1.0, 3.0, 5.0, 5.0])), 2)
    >>> steps.tolist(), mean.tolist(), low.tolist(), high.tolist()
    ([2.0, 10.0], [2.0, 5.0], [1.0, 5.0], [3.0, 5.0])
    """
    steps, values = pair
    if len(steps) <= most:
        return steps, values, values, values
    order = np.argsort(steps, kind="stable")  # rows of workers may arrive a little out of order
    steps, values = steps[order], values[order]
    starts = np.flatnonzero(np.diff(bins_of(steps, most), prepend=-1.0))
    counts = np.diff(np.append(starts, len(steps)))
    mean = np.add.reduceat(values, starts) / counts
    return steps[starts + counts - 1], mean, np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)


def series(name: str, pair: Curve, colour: int = 0, *, band: bool = True, style: Style = "line") -> Series | None:
    """A curve, binned if it is long, with the range of each bin around it; None if it is empty.

    >>> series("kl", (np.arange(3.0), np.ones(3))).low is None, series("kl", (np.empty(0), np.empty(0))) is None
    (True, True)
    """
    if not len(pair[0]):
        return None
    steps, mean, low, high = binned(pair)
    if not band or len(pair[0]) <= BINS:
        return Series(name, steps, mean, colour=colour, style=style)
    return Series(name, steps, mean, low, high, colour, style)


def percentile_band(pair: Curve, name: str, low: float = 10.0, high: float = 90.0, bins: int = 60) -> Series | None:
    """Medians of single values in bins of steps, with a band between two percentiles; None of fewer than two bins.

    >>> one = percentile_band((np.arange(100.0), np.tile([0.0, 10.0], 50)), "episodes", bins=2)
    >>> one.y.tolist(), one.low.tolist(), one.high.tolist()
    ([5.0, 5.0], [0.0, 0.0], [10.0, 10.0])
    """
    steps, values = pair
    if len(steps) < 2 or steps.min() == steps.max():  # noqa: PLR2004
        return None
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    groups = np.split(np.arange(len(steps)), np.flatnonzero(np.diff(bins_of(steps, bins))) + 1)
    numbers = np.array([np.percentile(values[one], [50.0, low, high]) for one in groups])
    ends = np.array([steps[one[-1]] for one in groups])
    return Series(name, ends, numbers[:, 0], numbers[:, 1], numbers[:, 2], LIGHT, "faint")
