"""Reads a report back: the answers that are in it, and whether anything in it could run that is not ours, or ask somebody."""

import base64
import contextlib
import hashlib
import io
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from laser_rl.cli import main

EVIL = "</script><script>alert(1)</script><!-- <script>"
VOID = {"meta", "link", "br"}


class Refused(Exception):
    """What `laser report` said instead of writing one."""


def report(*run_dirs: Path, out: Path | None = None) -> Path:
    """Write a report by the command; returns its path, which the command prints."""
    words, said, wrong = ["report", *map(str, run_dirs)], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
        status = main(words if out is None else [*words, "--out", str(out)])
    if status:
        raise Refused(wrong.getvalue())
    return Path(said.getvalue().strip())


@dataclass
class Report:
    """A report that was written."""

    source: str
    answers: dict[str, Any] = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)
    policy: str = ""

    def run(self, number: int = 0) -> dict[str, Any]:
        """How a directory stands."""
        return self.answers[f"/api/runs/{number}"]

    def details(self, number: int = 0) -> dict[str, Any]:
        return self.answers[f"/api/runs/{number}/details"]

    def panel(self, name: str, number: int = 0, axis: str = "step", learner: object = "all") -> dict[str, Any]:
        return self.answers[f"/api/runs/{number}/panels/{name}?x={axis}&learner={learner}"]

    def line(self, name: str, which: int = 0) -> list[tuple[float, float]]:
        """A line of a chart as points."""
        data = self.panel(name)
        return [(x, y) for x, y in zip(data["x"], data["lines"][which]["y"], strict=True) if y is not None]

    def table(self, name: str, number: int = 0) -> list[dict[str, Any]]:
        """The lines of a table as dictionaries."""
        data = self.panel(name, number)
        return [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]

    def notices(self, level: str, number: int = 0) -> list[str]:
        return [text for its, text in self.run(number)["notices"] if its == level]


class _Reader(HTMLParser):
    """Every tag that is opened is closed, in order; nothing is loaded, no attribute runs anything."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report, self.open, self.text = report, [], []
        self.attributes: dict[str, str] = {}

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        for name, value in given.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in {"style", "src", "srcset", "action", "ping"}, (tag, name)
            assert name != "href" or value.startswith(("#", "data:,")), value
        self.open += [] if tag in VOID else [tag]
        self.attributes, self.text = given, []
        if given.get("http-equiv") == "Content-Security-Policy":
            self.report.policy = given["content"]

    def handle_data(self, data):
        self.text.append(data)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "script":
            whole = "".join(self.text)
            if self.attributes.get("type") == "application/json":
                self.report.answers = json.loads(whole)
            else:
                self.report.scripts.append(whole)


def read_report(path: Path) -> Report:
    """Parse the file; fails on what is not well formed, on scripts that its own policy forbids, and on what would ask somebody."""
    report = Report(path.read_text())
    reader = _Reader(report)
    reader.feed(report.source)
    reader.close()
    assert not reader.open
    assert len(report.scripts) == 2
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in report.scripts]
    assert re.findall(r"script-src ([^;]+)", report.policy) == [" ".join(f"'sha256-{one}'" for one in digests)]
    assert report.policy.startswith("default-src 'none'; ")
    assert "unsafe" not in report.policy
    assert "connect-src" not in report.policy
    return report
