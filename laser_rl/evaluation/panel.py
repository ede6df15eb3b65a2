"""What is drawn beside the picture of an episode: value, entropy and trusted share over its steps."""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Frame = NDArray[np.uint8]  # [height, width, 3]
WIDTH, LEAST_HEIGHT = 264, 288
_LONGEST_SIDE = 480
_GROUND, _INK, _SOFT, _RULE = "#11161d", "#e6ebf2", "#9ba8b8", "#2b3543"
_COLOURS = ("#7fb0ff", "#ffae57", "#4fd08b")
_NAMES = ("value", "entropy", "trusted")
_EDGE, _HEAD, _TITLE = 14, 44, 17
_FIRST_SPAN = 64  # steps that a chart has room for at first; doubled when they are full


class SidePanel:
    """Three charts that grow with the episode; `title` names the agent."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._curves: dict[str, list[float]] = {name: [] for name in _NAMES}

    def add(self, *, value: float, entropy: float, trusted: float | None) -> None:
        """Add the numbers of one more step; NaN and None leave a gap."""
        for name, number in zip(_NAMES, (value, entropy, trusted), strict=True):
            self._curves[name].append(math.nan if number is None else number)

    def mean(self, name: str) -> float | None:
        """Over all steps with a number; None if there is none."""
        known = [number for number in self._curves[name] if math.isfinite(number)]
        return sum(known) / len(known) if known else None

    def beside(self, picture: Frame, *, total: float) -> Frame:
        """The picture, large enough to be seen and small enough to be sent, and the charts to its right."""
        seen = fitted(picture)
        height, width, _ = seen.shape
        canvas = Image.new("RGB", (width + WIDTH, max(height, LEAST_HEIGHT)), _GROUND)
        canvas.paste(Image.fromarray(seen), (0, (canvas.height - height) // 2))
        draw = ImageDraw.Draw(canvas)
        left, right = width + _EDGE, canvas.width - _EDGE
        step = max(0, len(self._curves["value"]) - 1)
        draw.text((left, 8), self._title, _SOFT, _font(12))
        draw.text((left, 23), f"t {step:,}", _INK, _font(14))
        draw.text((right, 23), f"return {total:,.5g}", _INK, _font(14), anchor="ra")
        each = (canvas.height - _HEAD - 8) // len(_NAMES)
        for number, name in enumerate(_NAMES):
            top = _HEAD + number * each
            _chart(draw, name, self._curves[name], _COLOURS[number], (left, top, right, top + each - 9))
        return np.asarray(canvas)


def fitted(picture: Frame) -> Frame:
    """A small picture with each pixel repeated, a large one averaged down."""
    height, width, _ = picture.shape
    longest = _LONGEST_SIDE
    times = min(-(-LEAST_HEIGHT // height), max(1, longest // max(height, width)))
    if times > 1:
        return picture.repeat(times, axis=0).repeat(times, axis=1)
    if max(height, width) <= longest:
        return picture
    size = (max(1, width * longest // max(height, width)), max(1, height * longest // max(height, width)))
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))


def _chart(
    draw: ImageDraw.ImageDraw, name: str, numbers: Sequence[float], colour: str, box: tuple[int, int, int, int]
) -> None:
    left, top, right, bottom = box
    known = np.array(numbers, float)
    finite = known[np.isfinite(known)]
    draw.text((left, top), name, colour, _font(12))
    draw.text((right, top), _said(name, known), _INK, _font(12), anchor="ra")
    top += _TITLE
    draw.rectangle((left, top, right, bottom), outline=_RULE)
    if not len(finite):
        return
    low, high = _range(name, finite)
    if name != "trusted":
        draw.text((left + 58, top - _TITLE + 1), f"{low:.3g} to {high:.3g}", _SOFT, _font(11))
    columns = _columns(known, right - left - 1)
    y = (bottom - 2 - (columns - low) / (high - low) * (bottom - top - 4)).tolist()
    for x, (before, up) in enumerate(zip([math.nan, *y], y, strict=False), start=left):
        if name == "trusted" and math.isfinite(up):
            draw.line([(x + 1, bottom - 1), (x + 1, up)], fill=colour)
        elif math.isfinite(before) and math.isfinite(up):
            draw.line([(x, before), (x + 1, up)], fill=colour, width=2)


def _columns(numbers: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """The mean of the steps that fall into each column of pixels; NaN where none does, between two steps the line between them."""
    span = _FIRST_SPAN
    while span < len(numbers):
        span *= 2
    per_column = span / width
    if per_column < 1:
        at = np.arange(int((len(numbers) - 1) / per_column) + 1) * per_column
        return np.asarray(np.interp(at, np.arange(len(numbers)), numbers), np.float64)
    places = (np.arange(len(numbers)) / per_column).astype(int)
    finite = np.isfinite(numbers)
    counts = np.bincount(places, finite)
    sums = np.bincount(places, np.where(finite, numbers, 0.0))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _said(name: str, numbers: NDArray[np.float64]) -> str:
    """The number of this step; of what is trusted also the share so far."""
    now = numbers[-1] if len(numbers) else math.nan
    finite = numbers[np.isfinite(numbers)]
    if name != "trusted":
        return f"{now:.3g}" if math.isfinite(now) else "–"
    if not len(finite):
        return "no other policy yet"
    return f"{_per_cent(now)} · so far {_per_cent(float(finite.mean()))}"


def _per_cent(share: float) -> str:
    return f"{100 * share:.0f} %" if math.isfinite(share) else "–"


def _range(name: str, finite: NDArray[np.float64]) -> tuple[float, float]:
    if name == "trusted":
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    low = min(0.0, low) if name == "entropy" else low
    room = max(high - low, 1e-3 * max(1.0, abs(high)))
    return low, low + room


@functools.cache
def _font(size: int) -> Any:
    """The letters that come with matplotlib: the same everywhere."""
    import matplotlib as mpl  # noqa: PLC0415 - slow, and only films need it

    return ImageFont.truetype(str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)
