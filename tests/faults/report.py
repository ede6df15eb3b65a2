"""`make faults`: print the table of all faults, write it into docs/reliability.md, and every figure into docs/reliability.csv.

    python -m tests.faults.report FOLDER

Ends with status 1 if a row has no test that passed, or one that failed.
"""

import csv
import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from tests.faults.rows import ROWS

ROOT = Path(__file__).parents[2]
PAGE, FIGURES = ROOT / "docs" / "reliability.md", ROOT / "docs" / "reliability.csv"
BEGIN, END = "<!-- faults: made by `make faults` -->", "<!-- faults end -->"


class Found(NamedTuple):
    """What the tests of one row came to."""

    passed: int
    failed: list[str]
    skipped: int
    figures: list[str]

    @property
    def word(self) -> str:
        """In one word."""
        return "failed" if self.failed else "held" if self.passed else "not shown"


def found_in(folder: Path) -> dict[int, Found]:
    """By row."""
    every = [json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))]
    every.sort(key=lambda one: one["test"])
    rows = {}
    for row in ROWS:
        own = [one for one in every if row in one["rows"]]
        rows[row] = Found(
            passed=sum(one["outcome"] == "passed" for one in own),
            failed=[one["test"] for one in own if one["outcome"] == "failed"],
            skipped=sum(one["outcome"] == "skipped" for one in own),
            figures=list(dict.fromkeys(text for one in own for text in one["figures"])),
        )
    return rows


def lines_of(found: dict[int, Found], made: str) -> str:
    """The page's table, a line a fault with one of its figures, between its marks."""
    head = "| # | fault | promise | measured | tests |"
    lines = [BEGIN, "", f"{made}.", "", head, "|---|---|---|---|---|"]
    for row, one in found.items():
        tests = f"{one.passed}, {one.skipped} skipped" if one.skipped else str(one.passed)
        cells = (ROWS[row].fault, ROWS[row].promise, shown(row, one.figures).replace("|", "/"), f"{one.word}: {tests}")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", END])


def shown(row: int, figures: list[str]) -> str:
    """The figure that stands for a fault."""
    return next((text for text in figures if ROWS[row].shown in text), next(iter(figures), "–"))


def write_figures(path: Path, found: dict[int, Found]) -> None:
    """All figures of all faults."""
    with path.open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("row", "verdict", "passed", "skipped", "measured"))
        for row, one in found.items():
            lines.writerows((row, one.word, one.passed, one.skipped, text) for text in one.figures or [""])


def put_into(path: Path, text: str) -> bool:
    """Exchange what stands between the marks; False where there are none."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return False
    path.write_text(before + text + after)
    return True


def main(folder: Path) -> int:
    """Print, write, judge."""
    found = found_in(folder)
    table = Table("#", "fault", "measured", "tests", "verdict", title="faults")
    for row, one in found.items():
        table.add_row(str(row), ROWS[row].fault, "\n".join(one.figures) or "–", str(one.passed), one.word)
    Console(width=180).print(table)
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    made = f"Last run {datetime.now(UTC):%-d %B %Y}, {versions}, {len(os.sched_getaffinity(0))} cores"
    write_figures(FIGURES, found)
    if not put_into(PAGE, lines_of(found, made)):
        print(f"{PAGE.relative_to(ROOT)} has no marks for the table: expected {BEGIN} and {END}")
        return 1
    bad = [row for row, one in found.items() if one.word != "held"]
    for row in bad:
        print(f"row {row} {found[row].word}: {', '.join(found[row].failed) or 'no test'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
