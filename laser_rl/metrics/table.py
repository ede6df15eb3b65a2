"""Numbers over time in a bounded memory: when a table is full, neighbours become one, and it goes on at half the resolution."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
BUCKETS = 2000
_SLICE = 1024


class Line(NamedTuple):
    """One number over time [n]; `low` and `high` are the extremes of the rows behind each mean."""

    x: Array
    mean: Array
    low: Array
    high: Array


class Table:
    """The rows of one kind of one member: a bucket is some consecutive rows, with mean, lowest and highest of each number.

    >>> table = Table(buckets=2)
    >>> table.append(np.arange(4.0), np.arange(4.0), np.arange(4.0), {"kl": np.array([1.0, 3.0, 5.0, np.nan])})
    >>> line = table.line("kl")
    >>> line.x.tolist(), line.mean.tolist(), line.high.tolist(), table.rows_a_bucket
    ([1.0, 3.0], [2.0, 5.0], [3.0, 5.0], 2)
    """

    def __init__(self, buckets: int = BUCKETS) -> None:
        self._most = buckets
        self._used = 0
        self._names: dict[str, int] = {}
        self.rows_a_bucket = 1
        room = buckets + _SLICE
        self._clock = np.zeros((4, room))  # step, update and time of the last row of a bucket; how many rows it has
        self._numbers = np.zeros((4, 0, room))  # mean, how many of its rows have the number, lowest, highest

    @property
    def names(self) -> tuple[str, ...]:
        """Of the numbers that any row had."""
        return tuple(self._names)

    def __len__(self) -> int:
        return self._used

    def append(self, steps: Array, updates: Array, times: Array, values: Mapping[str, Array]) -> None:
        """Take rows [n]; NaN where a row has no such number."""
        self._know(values)
        for start in range(0, len(steps), _SLICE):
            part = slice(start, start + _SLICE)
            count = len(steps[part])
            clock = np.stack([steps[part], updates[part], times[part], np.ones(count)])
            numbers = np.full((4, len(self._names), count), np.nan)
            for name, every in values.items():
                found = every[part]
                numbers[:, self._names[name]] = found, np.isfinite(found), found, found
            numbers[1] = np.nan_to_num(numbers[1])
            self._add(clock, numbers)

    def void(self, step: float, update: float) -> None:
        """Forget what is after a step or an update, since the run went back to there; of merged rows, those beside void ones as well."""
        holds = (self._clock[0, : self._used] <= step) & (self._clock[1, : self._used] <= update)
        kept = int(holds.sum())
        self._clock[:, :kept] = self._clock[:, : self._used][:, holds]
        self._numbers[:, :, :kept] = self._numbers[:, :, : self._used][:, :, holds]
        self._used = kept

    def line(self, name: str, axis: str = "step") -> Line:
        """The buckets that have the number, over steps or over seconds since 1970."""
        x = self._clock[2 if axis == "time" else 0, : self._used]
        if name not in self._names:
            nothing = np.empty(0)
            return Line(nothing, nothing, nothing, nothing)
        mean, count, low, high = self._numbers[:, self._names[name], : self._used]
        has = (count > 0) & np.isfinite(x)
        return Line(x[has], mean[has], low[has], high[has])

    def _know(self, names: Mapping[str, object]) -> None:
        new = [name for name in names if name not in self._names]
        if new:
            blank = np.full((4, len(new), self._clock.shape[1]), np.nan)
            blank[1] = 0
            self._numbers = np.concatenate([self._numbers, blank], axis=1)
            self._names |= {name: len(self._names) + n for n, name in enumerate(new)}

    def _add(self, clock: Array, numbers: Array) -> None:
        open_ = self._used > 0 and self._clock[3, self._used - 1] < self.rows_a_bucket
        begin = self._used - int(open_)
        if open_:
            clock = np.concatenate([self._clock[:, begin : self._used], clock], axis=1)
            numbers = np.concatenate([self._numbers[:, :, begin : self._used], numbers], axis=2)
        self._put(begin, *merged(clock, numbers, self.rows_a_bucket))
        while self._used > self._most:
            self.rows_a_bucket *= 2
            whole = self._clock[:, : self._used], self._numbers[:, :, : self._used]
            self._put(0, *merged(*whole, self.rows_a_bucket))

    def _put(self, begin: int, clock: Array, numbers: Array) -> None:
        self._used = begin + clock.shape[1]
        self._clock[:, begin : self._used] = clock
        self._numbers[:, :, begin : self._used] = numbers


def merged(clock: Array, numbers: Array, rows: int) -> tuple[Array, Array]:
    """Neighbouring buckets as one, so many rows each; the last may have fewer."""
    group = (np.cumsum(clock[3]) - 1) // rows
    starts = np.flatnonzero(np.diff(group, prepend=-1.0))
    if len(starts) == clock.shape[1]:
        return clock, numbers
    ends = np.append(starts[1:], clock.shape[1]) - 1
    mean, count, low, high = numbers
    total = np.add.reduceat(np.where(count > 0, mean, 0.0) * count, starts, axis=1)
    counts = np.add.reduceat(count, starts, axis=1)
    means = np.divide(total, counts, out=np.full_like(total, np.nan), where=counts > 0)
    lows, highs = np.fmin.reduceat(low, starts, axis=1), np.fmax.reduceat(high, starts, axis=1)
    clocks = np.concatenate([clock[:3, ends], np.add.reduceat(clock[3:], starts, axis=1)])
    return clocks, np.stack([means, counts, lows, highs])


def aligned(lines: Sequence[Line], points: int) -> tuple[Array, list[Line]]:
    """Lines on one axis of at most `points` places, NaN where a line has nothing; a place is the last one of its bin.

    >>> one, two = (Line(x, x, x, x) for x in (np.array([0.0, 1.0]), np.array([1.0, 4.0])))
    >>> at, found = aligned([one, two], 10)
    >>> at.tolist(), found[0].mean.tolist()
    ([0.0, 1.0, 4.0], [0.0, 1.0, nan])
    >>> at, found = aligned([one, two], 2)
    >>> at.tolist(), found[0].mean.tolist(), found[1].high.tolist()
    ([2.0, 4.0], [0.5, nan], [1.0, 4.0])
    """
    every = np.unique(np.concatenate([line.x for line in lines])) if lines else np.empty(0)
    if len(every) <= points:
        return every, [_binned(line, np.searchsorted(every, line.x), len(every)) for line in lines]
    low, high = every[0], every[-1]
    at = low + (high - low) / points * np.arange(1, points + 1)
    places = [np.minimum(((line.x - low) / (high - low) * points).astype(np.int64), points - 1) for line in lines]
    return at, [_binned(line, place, points) for line, place in zip(lines, places, strict=True)]


def _binned(line: Line, place: NDArray[np.int64], bins: int) -> Line:
    count = np.bincount(place, minlength=bins)
    mean = np.divide(np.bincount(place, line.mean, minlength=bins), count, out=np.full(bins, np.nan), where=count > 0)
    low, high = np.full(bins, np.nan), np.full(bins, np.nan)
    np.fmin.at(low, place, line.low)
    np.fmax.at(high, place, line.high)
    return Line(np.empty(0), mean, low, high)
