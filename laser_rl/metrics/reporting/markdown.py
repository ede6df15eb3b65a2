"""A report as Markdown: every table as it is in the page, heat maps as tables, other charts in a sentence."""

import re
from collections.abc import Iterable

from laser_rl.metrics.reporting.document import (
    Block,
    Cell,
    Commands,
    Document,
    HeatMap,
    Movie,
    Notice,
    Section,
    Table,
    summary,
)
from laser_rl.metrics.reporting.scales import shown

_SPECIAL = re.compile(r"([\\`*\[\]|~#])")


def markdown(document: Document) -> str:
    """The whole file.

    >>> print(markdown(Document("A run", "finished", ())).rstrip())
    # A run
    <BLANKLINE>
    finished
    """
    several = len(document.parts) > 1
    lines = [f"# {plain(document.title)}", "", plain(document.lead), ""]
    for part in document.parts:
        if several:
            lines += [f"## {plain(part.title)}", "", *([plain(part.lead), ""] if part.lead else [])]
        for one in part.sections:
            lines += _section(one, "###" if several else "##")
    return "\n".join(lines).rstrip() + "\n"


def plain(text: str) -> str:
    r"""Text in which nothing is markup.

    >>> print(plain("a|b <b> *x*"))
    a\|b &lt;b&gt; \*x\*
    """
    safe = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return " ".join(_SPECIAL.sub(r"\\\1", safe).split())


def _section(section: Section, heading: str) -> list[str]:
    lines = [f"{heading} {plain(section.title)}", ""]
    for block in section.blocks:
        lines += _block(block)
    return lines


def _block(block: Block) -> list[str]:
    if isinstance(block, Notice):
        return [f"> {'**Warning:** ' if block.level == 'warning' else ''}{plain(block.text)}", ""]
    if isinstance(block, Commands):
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", block.text)), default=0))
        return [f"{fence}bash", *block.text.splitlines(), fence, ""]
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, HeatMap):
        return _heat_map(block)
    if isinstance(block, Movie):
        return [f"**{plain(block.title)}** {plain(block.path.as_posix())}. {plain(block.note)}".rstrip(), ""]
    note = f" {plain(block.note)}" if block.note else ""
    return [f"**{plain(block.title)}** {plain(summary(block))}{note}", ""]


def _table(table: Table) -> list[str]:
    title = [f"**{plain(table.title)}**", ""] if table.title else []
    head = [_line(plain(name) for name in table.columns), _line("---" for _ in table.columns)]
    body = [_line(plain(cell.text) for cell in line) for line in table.lines]
    return [*title, *head, *body, "", *([plain(table.note), ""] if table.note else [])]


def _heat_map(chart: HeatMap) -> list[str]:
    corner = f"{chart.down} / {chart.across}{', %' if chart.share else ''}"
    lines = tuple(
        (Cell(name), *(Cell(shown(float(value), share=chart.share)) for value in values))
        for name, values in zip(chart.rows, chart.values, strict=True)
    )
    return _table(Table(chart.title, (corner, *chart.columns), lines, chart.note))


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
