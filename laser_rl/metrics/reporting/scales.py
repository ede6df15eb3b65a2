"""From numbers to places in a picture: ticks at round numbers, their texts, and paths."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laser_rl.metrics import display
from laser_rl.metrics.reporting.document import Array

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_FLAT = 1e-9
_DECADES = 2  # from here on ticks at powers of ten alone are enough


@dataclass(frozen=True)
class Scale:
    """A range of numbers on a range of pixels.

    >>> Scale(0.0, 10.0, 100.0, 200.0).at(np.array([0.0, 5.0])).tolist()
    [100.0, 150.0]
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def at(self, values: Array) -> Array:
        """The places of values."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        with np.errstate(divide="ignore", invalid="ignore"):
            places = np.log10(values) if self.log else values
        return self.start + (places - low) / (high - low) * (self.stop - self.start)

    def place(self, value: float) -> float:
        """The place of one."""
        return float(self.at(np.array([value]))[0])


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most so many round numbers that lie in a range.

    >>> ticks(0.0, 1.0), ticks(0.0, 20_000.0, 4), ticks(3.0, 3.0)
    ([0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 10000.0, 20000.0], [3.0])
    """
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (factor * power * scale for scale in (1.0, 10.0) for factor in _ROUND):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= most:
            return [float(f"{number * step:.12g}") for number in range(first, last + 1)]
    return [low]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten in a range, with 2 and 5 between them where those are few.

    >>> log_ticks(1e-4, 1e-3), log_ticks(1e-5, 1e-1)
    ([0.0001, 0.0002, 0.0005, 0.001], [1e-05, 0.0001, 0.001, 0.01, 0.1])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    between = (1.0,) if math.log10(high / low) > _DECADES else (1.0, 2.0, 5.0)
    every = [float(f"{m * 10.0**e:.6g}") for e in range(first, last + 1) for m in between]
    return [value for value in every if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def short_count(number: float) -> str:
    """A number of steps, short.

    >>> short_count(200_000.0), short_count(1.5e6), short_count(50.0), short_count(0.0)
    ('200k', '1.5M', '50', '0')
    """
    for size, unit in _UNITS:
        if abs(number) >= size:
            return f"{number / size:.4g}{unit}"
    return f"{number:.4g}"


def y_text(value: float, *, share: bool) -> str:
    """The text of a tick.

    >>> y_text(0.25, share=True), y_text(12_500.0, share=False), y_text(0.0005, share=False)
    ('25 %', '12.5k', '0.0005')
    """
    return f"{100 * value:.4g} %" if share else short_count(value) if abs(value) >= 1e4 else f"{value:.4g}"  # noqa: PLR2004


def bounds(values: Sequence[Array], limits: tuple[float | None, float | None], *, log: bool) -> tuple[float, float]:
    """The range of all values, or the limits where they are given; never empty, and with some room where no limit is.

    >>> bounds([np.array([1.0, 3.0])], (0.0, None), log=False), bounds([np.array([2.0])], (None, None), log=False)
    ((0.0, 3.15), (1.0, 3.0))
    """
    every = np.concatenate([one[np.isfinite(one)] for one in values]) if values else np.empty(0)
    every = every[every > 0] if log else every
    least, most = (float(every.min()), float(every.max())) if len(every) else (1.0, 1.0) if log else (0.0, 1.0)
    low, high = least if limits[0] is None else limits[0], most if limits[1] is None else limits[1]
    if log:
        return (low / 1.2, high * 1.2)
    if high - low <= _FLAT * max(abs(low), abs(high)):  # the same number, up to rounding
        room = abs(high) / 2 or 1.0
        return low if limits[0] is not None else high - room, high + room
    room = 0.05 * (high - low)
    return low - room if limits[0] is None else low, high + room if limits[1] is None else high


def path(x: Array, y: Array) -> str:
    """A line through points, interrupted where they are not finite.

    >>> path(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 1.0, np.nan, 3.0]))
    'M0 0L1 1M3 3'
    """
    parts, drawn = [], False
    for left, top in zip(x.tolist(), y.tolist(), strict=True):
        if not (math.isfinite(left) and math.isfinite(top)):
            drawn = False
            continue
        parts.append(f"{'L' if drawn else 'M'}{place(left)} {place(top)}")
        drawn = True
    return "".join(parts)


def stairs(x: Array, y: Array) -> tuple[Array, Array]:
    """The corners of values that hold until the next one.

    >>> stairs(np.array([0.0, 2.0]), np.array([5.0, 6.0]))[1].tolist()
    [5.0, 5.0, 6.0]
    """
    return np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]


def place(pixels: float) -> str:
    """A coordinate, to a tenth of a pixel.

    >>> place(12.04), place(3.25)
    ('12', '3.2')
    """
    return f"{pixels:.1f}".removesuffix(".0")


def shown(value: float, *, share: bool) -> str:
    """The number in a cell of a heat map.

    >>> shown(0.256, share=True), shown(0.256, share=False), shown(float("nan"), share=True)
    ('26', '0.256', '–')
    """
    if not math.isfinite(value):
        return "–"
    return f"{100 * value:.0f}" if share else display.short(value)
