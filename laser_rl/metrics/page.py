"""Pieces of a report: one HTML file without scripts or links, in which everything is escaped."""

import base64
import json
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

REPORT = "report.html"
_JSON_LIMIT_BYTES = 4 << 20
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
figure { display: inline-block; vertical-align: top; width: 31rem; max-width: 100%; margin: 0 0 1rem 0; } img { max-width: 100%; }
.wide { width: 100%; } figcaption { font-size: 13px; color: #555; padding-right: 1rem; }
table { border-collapse: collapse; } td, th { border-bottom: 1px solid #ddd; padding: .15rem 1rem .15rem 0; text-align: left; }
td:last-child { text-align: right; font-variant-numeric: tabular-nums; } pre { background: #f4f4f4; padding: .8rem; overflow-x: auto; }
div { overflow-x: auto; } .grid { font-size: 13px; font-variant-numeric: tabular-nums; } .grid td, .grid th { text-align: right; }
.grid .best td { background: #eef5ee; font-weight: 600; }
"""


def write_page(path: Path, title: str, parts: Sequence[str]) -> Path:
    """Put the parts (each one HTML already) under a heading, and the whole in place at once."""
    name = escape(title)
    head = f'<meta charset="utf-8"><title>{name}</title><style>{_STYLE}</style>'
    body = "\n".join([f"<h1>{name}</h1>", *parts])
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n', encoding="utf-8"
    )
    temporary.replace(path)  # a browser that reloads never sees half of it
    return path


def section(title: str, content: str) -> str:
    """A heading and what is under it; nothing if nothing is.

    >>> section("A & B", ""), section("A & B", "text").splitlines()
    ('', ['<h2>A &amp; B</h2>', 'text'])
    """
    return f"<h2>{escape(title)}</h2>\n{content}" if content else ""


def pairs(cells: Mapping[str, str]) -> str:
    """A table of names and values.

    >>> pairs({"<": "1"}).splitlines()[1]
    '<tr><td>&lt;</td><td>1</td></tr>'
    """
    lines = [f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in cells.items()]
    return "<table>\n" + "\n".join(lines) + "\n</table>" if lines else ""


def grid(header: Sequence[str], lines: Sequence[Sequence[str]], best: int | None = None) -> str:
    """A table with a header; line number `best` stands out.

    >>> grid(["a"], [["<"]], best=0).splitlines()[2]
    '<tr class="best"><td>&lt;</td></tr>'
    """
    if not lines:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    rows = []
    for number, line in enumerate(lines):
        opening = '<tr class="best">' if number == best else "<tr>"
        rows.append(opening + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>")
    return '<div><table class="grid">\n' + "\n".join([f"<tr>{head}</tr>", *rows]) + "\n</table></div>"


def figure(label: str, png: bytes | None, caption: str = "", *, wide: bool = False) -> str:
    """A picture inside the page, two beside each other unless `wide`; nothing if there is none.

    >>> figure("curve", b"")
    '<figure><img alt="curve" src="data:image/png;base64,"></figure>'
    """
    if png is None:
        return ""
    data = base64.b64encode(png).decode()
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    opening = '<figure class="wide">' if wide else "<figure>"
    return f'{opening}<img alt="{escape(label)}" src="data:image/png;base64,{data}">{below}</figure>'


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file, empty if there is none: a report is worth having without its configuration."""
    try:
        if path.stat().st_size > _JSON_LIMIT_BYTES:
            return {}
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings by full name.

    >>> flat({"seed": 7, "loss": {"discount": 0.99}})
    {'seed': '7', 'loss.discount': '0.99'}
    """
    found: dict[str, str] = {}
    for name, item in value.items():
        if isinstance(item, dict) and item:
            found |= flat(item, f"{prefix}{name}.")
        else:
            found[prefix + name] = text(item)
    return found


def text(value: object) -> str:
    """A value as people write it.

    >>> text(12345.678), text(None), text([1, 2])
    ('12,345.7', 'None', '[1, 2]')
    """
    if isinstance(value, str | bool) or value is None:
        return str(value)
    return f"{value:,.6g}" if isinstance(value, float) else json.dumps(value)
