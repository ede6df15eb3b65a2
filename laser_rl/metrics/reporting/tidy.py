"""A report as CSV, one number a line: every cell of every table, and every point of every chart.

>>> import io
>>> from laser_rl.metrics.reporting.document import Document, Table, number, part, section, words
>>> table = Table("Scores", ("agent", "mean"), ((words("a"), number(1234.5)),))
>>> text = tidy(Document("A run", "", (part("runs/a", "", [section("At the end", [table])]),)))
>>> text.splitlines()[2]
'runs/a,At the end,Scores,1,mean,1234.5,"1,234"'
"""

import csv
import io
import math
from collections.abc import Iterator

import numpy as np

from laser_rl.metrics.reporting.document import (
    Array,
    Block,
    Cell,
    Document,
    HeatMap,
    Lineage,
    Lines,
    Notice,
    Stack,
    Table,
)
from laser_rl.metrics.reporting.scales import shown

COLUMNS = ("directory", "section", "table", "line", "column", "value", "shown")
Line = tuple[str, str, str, str]  # line, column, value, shown


def tidy(document: Document) -> str:
    """The whole file. `line` is the number of a table's line or the step of a chart's point, `shown` the text as in the page."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for part in document.parts:
        for section in part.sections:
            for block in section.blocks:
                title = "" if isinstance(block, Notice) else getattr(block, "title", "")
                writer.writerows((part.title, section.title, title, *line) for line in _lines(block))
    return buffer.getvalue()


def _lines(block: Block) -> Iterator[Line]:
    if isinstance(block, Table):
        yield from _cells(block)
    elif isinstance(block, Lines):
        for one in block.series:
            bands = {"": one.y, " (low)": one.low, " (high)": one.high}
            for ending, values in bands.items():
                yield from () if values is None else _points(one.x, values, one.name + ending)
    elif isinstance(block, Stack):
        for name, shares in zip(block.names, block.shares, strict=True):
            yield from _points(block.x, shares, name)
    elif isinstance(block, HeatMap | Lineage):
        yield from _pictured(block)
    elif isinstance(block, Notice) and block.level == "warning":
        yield "1", "warning", block.text, block.text


def _cells(table: Table) -> Iterator[Line]:
    for number, line in enumerate(table.lines, start=1):
        for name, cell in zip(table.columns, line, strict=True):
            for ending, value in _values(cell):
                yield str(number), name + ending, value, cell.text


def _pictured(chart: HeatMap | Lineage) -> Iterator[Line]:
    if isinstance(chart, Lineage):
        for step, donor, member in chart.copies:
            yield f"{step:.12g}", f"member {member} from", str(donor), str(donor)
        return
    for (i, j), value in np.ndenumerate(chart.values):
        yield chart.rows[i], chart.columns[j], _full(float(value)), shown(float(value), share=chart.share)


def _values(cell: Cell) -> list[tuple[str, str]]:
    """The value of a cell with all its digits; of an interval, both ends."""
    if isinstance(cell.value, tuple):
        return [(" (low)", repr(cell.value[0])), (" (high)", repr(cell.value[1]))]
    return [("", "" if cell.value is None else str(cell.value))]


def _points(x: Array, y: Array, name: str) -> Iterator[Line]:
    for step, value in zip(x.tolist(), y.tolist(), strict=True):
        if math.isfinite(value):
            yield f"{step:.12g}", name, _full(value), ""


def _full(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else ""
