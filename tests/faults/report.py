"""`make faults`: the table of all faults with what was measured, printed and written into the documents.

    python -m tests.faults.report FOLDER

Ends with status 1 if a row has no test that passed, or one that failed.
"""

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
PAGE, README = ROOT / "docs" / "reliability.md", ROOT / "README.md"
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


def page(found: dict[int, Found], made: str) -> str:
    """The document."""
    lines = [
        "# Reliability: faults and figures",
        "",
        "Every row is provoked by tests, with SIGKILL and full disks instead of raised exceptions. `make faults` runs them and writes",
        f"this page. {made}. What each single test holds is in [faults](faults.md).",
        "",
        "| # | fault | promise | measured | tests | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for row, one in found.items():
        measured = "; ".join(one.figures) or "–"
        tests = f"{one.passed}, {one.skipped} skipped" if one.skipped else str(one.passed)
        lines.append(
            f"| {row} | {ROWS[row].fault} | {ROWS[row].promise} | {measured.replace('|', '/')} | {tests} | **{one.word}** |"
        )
    return "\n".join(lines) + "\n"


def short(found: dict[int, Found]) -> str:
    """The README's table: what is held, without the figures."""
    lines = [BEGIN, "", "| fault | what holds |", "|---|---|"]
    lines += [f"| {ROWS[row].fault} | {ROWS[row].promise} |" for row, one in found.items() if one.word == "held"]
    return "\n".join([*lines, "", END])


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
    PAGE.write_text(page(found, made))
    put_into(README, short(found))
    bad = [row for row, one in found.items() if one.word != "held"]
    for row in bad:
        print(f"row {row} {found[row].word}: {', '.join(found[row].failed) or 'no test'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
