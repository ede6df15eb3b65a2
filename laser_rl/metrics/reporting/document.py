"""A report as data: sections of tables, charts, notices and commands. How it looks is left to those who write it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from laser_rl.metrics import display

Array = NDArray[np.float64]
NONE = "–"
Style = Literal["line", "steps", "dots", "faint", "thick"]
LIGHT = -1  # the colour of what belongs to no single member


@dataclass(frozen=True)
class Cell:
    """What a person reads, and the value with all its digits; of an interval, its ends."""

    text: str
    value: float | str | tuple[float, float] | None = None


@dataclass(frozen=True)
class Table:
    """A header and lines; line number `best` stands out. `pairs` are names and values, of which only the values are numbers."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[Cell, ...], ...]
    note: str = ""
    best: int | None = None
    pairs: bool = False


@dataclass(frozen=True, eq=False)
class Series:
    """One curve [n], with a band around it if there is one; NaN where it is interrupted."""

    name: str
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None
    colour: int = 0
    style: Style = "line"


@dataclass(frozen=True, eq=False)
class Lines:
    """Curves over steps. `marks` are steps at which something happened: the run was resumed."""

    title: str
    y_label: str
    series: tuple[Series, ...]
    note: str = ""
    x_label: str = "steps"
    marks: tuple[float, ...] = ()
    limits: tuple[float | None, float | None] = (None, None)
    log: bool = False
    ticks: tuple[str, ...] = ()  # names of x = 0, 1, …, where x is no number
    share: bool = False  # y is a share: written in per cent
    legend: str = ""  # what the names of the series are: "member"


@dataclass(frozen=True, eq=False)
class HeatMap:
    """A matrix from 0 to `top`, NaN where there is no number."""

    title: str
    down: str
    across: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Array
    note: str = ""
    share: bool = True
    top: float | None = None


@dataclass(frozen=True, eq=False)
class Stack:
    """Shares [k, n] that add up to 1."""

    title: str
    y_label: str
    names: tuple[str, ...]
    x: Array
    shares: Array
    note: str = ""
    marks: tuple[float, ...] = ()
    legend: str = "member"


@dataclass(frozen=True, eq=False)
class Lineage:
    """Who carried whose first parameters: pieces (member, from, to, founder), and exploits (step, donor, member)."""

    title: str
    members: int
    end: float
    pieces: tuple[tuple[int, float, float, int], ...]
    copies: tuple[tuple[float, int, int], ...]
    note: str = ""


@dataclass(frozen=True)
class Notice:
    """A sentence that stands out."""

    text: str
    level: Literal["warning", "fine", "note"] = "warning"


@dataclass(frozen=True)
class Commands:
    """What to type."""

    text: str


@dataclass(frozen=True)
class Movie:
    """A film of an episode. Whether it goes into the page or is only named there is left to who writes the page."""

    title: str
    path: Path
    media: str
    size: int
    note: str = ""
    embed: bool = True


Chart = Lines | HeatMap | Stack | Lineage
Block = Table | Chart | Notice | Commands | Movie


@dataclass(frozen=True, eq=False)
class Section:
    """A heading and what is under it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, eq=False)
class Part:
    """Everything about one directory, or about several of them together."""

    title: str
    lead: str
    sections: tuple[Section, ...]


@dataclass(frozen=True, eq=False)
class Document:
    """The whole report."""

    title: str
    lead: str
    parts: tuple[Part, ...]


def number(value: object, form: Callable[[float], str] = display.short) -> Cell:
    """The cell of a number; of nothing where there is none.

    >>> number(1234.5), number(None), number(float("nan"))
    (Cell(text='1,234', value=1234.5), Cell(text='–', value=None), Cell(text='nan', value='nan'))
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell(NONE)
    return Cell(form(value), value) if math.isfinite(value) else Cell(str(float(value)), str(float(value)))


def words(text: object) -> Cell:
    """The cell of a text.

    >>> words("a"), words("")
    (Cell(text='a', value='a'), Cell(text='–', value=None))
    """
    return Cell(str(text), str(text)) if str(text) else Cell(NONE)


def setting(value: object) -> Cell:
    """The cell of a setting, with all its digits.

    >>> setting(0.0003).text, setting([64, 64]).text, setting(None).text
    ('0.0003', '[64, 64]', 'None')
    """
    return Cell(display.setting(value), value if isinstance(value, int | float | str) else str(value))


def pairs(title: str, cells: Mapping[str, Cell], note: str = "") -> Table | None:
    """A table of names and values; none if there are none.

    >>> pairs("", {"seed": number(7)}).columns, pairs("", {}) is None
    (('name', 'value'), True)
    """
    lines = tuple((words(name), cell) for name, cell in cells.items())
    return Table(title, ("name", "value"), lines, note, pairs=True) if lines else None


def section(title: str, blocks: Sequence[Block | None]) -> Section | None:
    """A section of the blocks that there are; none if there are none.

    >>> section("Replay", [None]) is None
    True
    """
    found = tuple(block for block in blocks if block is not None)
    return Section(title, found) if found else None


def part(title: str, lead: str, sections: Sequence[Section | None]) -> Part:
    """A part of the sections that there are."""
    return Part(title, lead, tuple(one for one in sections if one is not None))


def summary(chart: Chart) -> str:
    """A chart in a sentence, for those who do not see it.

    >>> one = Series("member 0", np.array([0.0, 2000.0]), np.array([1.0, 3.5]))
    >>> summary(Lines("Returns", "return", (one,)))
    'return over steps, 0 to 2,000. Last values: member 0 3.5.'
    """
    if isinstance(chart, Lines):
        return _summary_of_lines(chart)
    if isinstance(chart, HeatMap):
        known = chart.values[np.isfinite(chart.values)]
        form = display.share if chart.share else display.short
        between = f"from {form(float(known.min()))} to {form(float(known.max()))}" if len(known) else "without numbers"
        return f"{chart.down} down, {chart.across} across; {len(chart.rows)} by {len(chart.columns)} cells, {between}."
    if isinstance(chart, Stack):
        last = ", ".join(f"{n} {display.share(float(s[-1]))}" for n, s in zip(chart.names, chart.shares, strict=True))
        return f"{chart.y_label} over steps, up to {chart.x[-1]:,.0f}. At the end: {last}."
    carried = {member: founder for member, _, _, founder in chart.pieces}
    last = ", ".join(f"{member} those of {founder}" for member, founder in carried.items())
    return f"{len(chart.copies)} exploits up to step {chart.end:,.0f}. Whose first parameters are carried at the end: {last}."


def _summary_of_lines(chart: Lines) -> str:
    form = display.share if chart.share else display.short
    ends = []
    for one in chart.series:
        known = one.y[np.isfinite(one.y)]
        if len(known):
            ends.append(f"{one.name} {form(float(known[-1]))}")
    if chart.ticks:
        return f"{chart.y_label} by {chart.x_label}, {chart.ticks[0]} to {chart.ticks[-1]}. Last values: {', '.join(ends)}."
    every = np.concatenate([one.x for one in chart.series])
    return f"{chart.y_label} over {chart.x_label}, {every.min():,.0f} to {every.max():,.0f}. Last values: {', '.join(ends)}."
