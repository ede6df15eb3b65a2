"""Reads a report back: what a browser would show, and whether anything in it could run or ask somebody."""

import csv
import html
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

EVIL = "<script>alert(1)</script>"
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "header", "main", "nav", "article", "section", "h1", "h2", "h3", "p", "strong", "a",
    "ul", "li", "div", "span", "i", "table", "caption", "thead", "tbody", "tr", "th", "td", "pre", "figure", "figcaption",
    "svg", "path", "line", "rect", "circle", "text",
}  # fmt: skip
VOID = {"meta"}


@dataclass
class Page:
    """`tables` by section and caption, header first."""

    source: str
    headings: dict[str, int] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    notices: list[tuple[str, str]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    tables: list[tuple[tuple[str, str, str], list[list[str]]]] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)

    def table(self, section, caption, part=None):
        [found] = [t for (p, s, c), t in self.tables if (s, c) == (section, caption) and part in {None, p}]
        return found


class _Reader(HTMLParser):
    """Every tag that is opened is closed, in order, and is one of those allowed."""

    def __init__(self, page):
        super().__init__()
        self.page, self.open, self.part, self.section, self.text = page, [], "", "", []

    def handle_starttag(self, tag, attributes):
        assert tag in ALLOWED, tag
        self.open += [] if tag in VOID else [(tag, dict(attributes))]
        self.page.attributes += [(tag, name, value or "") for name, value in attributes]
        if tag in {"h1", "h2", "h3", "caption", "th", "td", "p", "pre", "figcaption", "title"}:
            self.text = []
        if tag == "table":
            self.caption, self.rows = "", []
        if tag == "tr":
            self.rows.append([])
        if tag == "svg" and not any(one == "svg" for one, _ in self.open[:-1]):
            self.page.pictures.append(dict(attributes)["aria-label"])

    def handle_startendtag(self, tag, attributes):
        assert tag in ALLOWED, tag
        self.page.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_data(self, data):
        self.text.append(data)

    def handle_endtag(self, tag):
        opened, attributes = self.open.pop()
        assert opened == tag
        text = "".join(self.text)
        if tag in {"h1", "h2", "h3"}:
            self.page.headings[text] = int(tag[1])
            self.page.levels.append(int(tag[1]))
            if any(one == "article" for one, _ in self.open) and tag == "h2":
                self.part = text
            else:
                self.section = text
        elif tag in {"td", "th"}:
            self.rows[-1].append(text)
        elif tag == "caption":
            self.caption = text
        elif tag == "table":
            self.page.tables.append(((self.part, self.section, self.caption), self.rows))
        elif tag == "figcaption":
            self.page.figures.append(text)
        elif tag == "pre":
            self.page.commands.append(text)
        elif tag == "p" and "notice" in attributes.get("class", ""):
            self.page.notices.append((attributes["class"].split()[1], text))


def read_page(path):
    """Parse the file; fails on what is not well formed."""
    page = Page(path.read_text())
    reader = _Reader(page)
    reader.feed(page.source)
    reader.close()
    assert not reader.open
    return page


def read_markdown(path):
    """(section, caption) and cells of every table."""
    found, section, caption, rows = [], "", "", None
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)  # commands have comments
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = [_plain(cell) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            rows = [*(rows or []), cells]
            continue
        if rows:
            found.append(((section, caption), [rows[0], *rows[2:]]))
            rows, caption = None, ""
        if re.match("#+ ", line):
            section, caption = _plain(line.lstrip("# ")), ""
        elif re.fullmatch(r"\*\*.*\*\*", line):
            caption = _plain(line[2:-2])
    return found


def _plain(text):
    return html.unescape(re.sub(r"\\(.)", r"\1", text.strip()))


def read_csv(path):
    """Lines as dictionaries."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
