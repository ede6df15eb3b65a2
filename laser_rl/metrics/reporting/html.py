"""A report as one HTML file: no scripts, no links to elsewhere, everything escaped; a browser is told to refuse all the same."""

import base64
import os
import re
from html import escape
from pathlib import Path
from urllib.parse import quote

from laser_rl.metrics.page import open_below
from laser_rl.metrics.reporting.charts import classes, svg
from laser_rl.metrics.reporting.document import (
    Block,
    Chart,
    Commands,
    Document,
    HeatMap,
    Lineage,
    Lines,
    Movie,
    Notice,
    Part,
    Section,
    Stack,
    Table,
)
from laser_rl.metrics.reporting.style import STYLE

LARGEST_BYTES = 4_000_000  # of a film that goes into the page
# Even if something were not escaped: a browser runs no script and asks nobody for anything. Films are in the page itself.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; media-src data:; img-src data:; base-uri 'none'; form-action 'none'"
)
_NUMBER = re.compile(r"[-+]?[\d,.]+(e[-+]?\d+)?( %| [KMGT]?i?B)?|–|nan|-?inf")


def html(document: Document, beside: Path | None = None) -> str:
    """The whole file; `beside` is the folder that it goes to, from where links to larger files lead.

    >>> html(Document("a < b", "", ())).count("a &lt; b")
    2
    """
    several = len(document.parts) > 1
    place = Path.cwd() if beside is None else beside.resolve()
    parts = [_part(one, number, place, several=several) for number, one in enumerate(document.parts)]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">',
            f"<title>{escape(document.title)}</title><style>{STYLE}</style></head>",
            f"<body><header><h1>{escape(document.title)}</h1>",
            f'<p class="lead">{escape(document.lead)}</p></header>',
            _contents(document) if several else "",
            "<main>",
            *parts,
            "</main></body></html>\n",
        ]
    )


def _contents(document: Document) -> str:
    items = [f'<li><a href="#part-{n}">{escape(one.title)}</a></li>' for n, one in enumerate(document.parts)]
    return '<nav aria-label="Contents"><ul>' + "".join(items) + "</ul></nav>"


def _part(part: Part, number: int, beside: Path, *, several: bool) -> str:
    """One directory. If it is the only one, the page's title is its title."""
    sections = [_section(one, "h3" if several else "h2", beside) for one in part.sections]
    if not several:
        return "\n".join(sections)
    lead = f'<p class="lead">{escape(part.lead)}</p>' if part.lead else ""
    return "\n".join([f'<article id="part-{number}"><h2>{escape(part.title)}</h2>{lead}', *sections, "</article>"])


def _section(section: Section, heading: str, beside: Path) -> str:
    """Charts beside each other where there is room, everything else in order."""
    parts: list[str] = [f"<section><{heading}>{escape(section.title)}</{heading}>"]
    charts: list[str] = []
    for block in section.blocks:
        if isinstance(block, Chart):
            charts.append(_chart(block))
            continue
        parts += [_beside(charts), _movie(block, beside) if isinstance(block, Movie) else _block(block)]
        charts = []
    return "\n".join([*parts, _beside(charts), "</section>"])


def _beside(charts: list[str]) -> str:
    return '<div class="charts">\n' + "\n".join(charts) + "\n</div>" if charts else ""


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Notice):
        word = "<strong>Warning:</strong> " if block.level == "warning" else ""
        return f'<p class="notice {block.level}">{word}{escape(block.text)}</p>'
    assert isinstance(block, Commands)  # noqa: S101 - charts were taken out before
    return f'<pre tabindex="0">{escape(block.text)}</pre>'


def _movie(movie: Movie, beside: Path) -> str:
    """In the page if it is small, else a link to the file."""
    note = f'<p class="small">{escape(movie.note)}</p>' if movie.note else ""
    title, data = escape(movie.title), _bytes(movie)
    if data is None:
        link = quote(Path(os.path.relpath(movie.path.resolve(), beside)).as_posix())
        return f'<p><a href="{link if link.startswith(".") else f"./{link}"}">{title}</a></p>{note}'
    source = f"data:{movie.media};base64,{base64.b64encode(data).decode()}"
    if movie.media.startswith("video/"):
        shown = f'<video controls loop playsinline preload="metadata" aria-label="{title}" src="{source}"></video>'
    else:
        shown = f'<img alt="{title}" src="{source}">'
    return f'<figure class="movie"><figcaption>{title}</figcaption>{shown}{note}</figure>'


def _bytes(movie: Movie) -> bytes | None:
    if not movie.embed or movie.size > LARGEST_BYTES:
        return None
    path = movie.path.absolute()
    try:
        with open_below(path.parents[1], *path.parts[-2:]) as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError:  # it was removed meanwhile
        return None
    return data if len(data) <= LARGEST_BYTES else None


def _table(table: Table) -> str:
    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    note = f'<p class="small">{escape(table.note)}</p>' if table.note else ""
    if table.pairs:
        lines = [
            f'<tr><th scope="row">{escape(name.text)}</th><td>{escape(value.text)}</td></tr>'
            for name, value in table.lines
        ]
        return (
            f'<div class="scroll pairs"><table>{caption}<tbody>\n'
            + "\n".join(lines)
            + f"\n</tbody></table></div>{note}"
        )
    numbers = [
        all(_NUMBER.match(line[n].text) for line in table.lines) and bool(table.lines)
        for n in range(len(table.columns))
    ]
    mark = [' class="num"' if one else "" for one in numbers]
    head = "".join(f'<th scope="col"{mark[n]}>{escape(name)}</th>' for n, name in enumerate(table.columns))
    rows = []
    for number, line in enumerate(table.lines):
        opening = '<tr class="best">' if number == table.best else "<tr>"
        rows.append(
            opening + "".join(f"<td{mark[n]}>{escape(cell.text)}</td>" for n, cell in enumerate(line)) + "</tr>"
        )
    label = escape(table.title or "table")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>{caption}<thead><tr>{head}</tr></thead><tbody>\n'
        + "\n".join(rows)
        + f"\n</tbody></table></div>{note}"
    )


def _chart(chart: Chart) -> str:
    note = f'<p class="small">{escape(chart.note)}</p>' if chart.note else ""
    return f"<figure><figcaption>{escape(chart.title)}</figcaption>{svg(chart)}{_legend(chart)}{note}</figure>"


def _legend(chart: Chart) -> str:
    """Names of the colours, below the picture, where there is room for any number of them."""
    if isinstance(chart, HeatMap | Lineage):
        return ""
    if isinstance(chart, Stack):
        keys = [(name, number, "area") for number, name in enumerate(chart.names)]
    else:
        keys = [(one.name, one.colour, one.style) for one in chart.series]
    if len(keys) < 2 and not (isinstance(chart, Lines) and chart.legend):  # noqa: PLR2004
        return ""
    title = f"<span>{escape(chart.legend)}</span>" if chart.legend else ""
    items = [f'<li><i class="key {style} {classes(colour)}"></i>{escape(name)}</li>' for name, colour, style in keys]
    return f'<div class="legend">{title}<ul>' + "".join(items) + "</ul></div>"
