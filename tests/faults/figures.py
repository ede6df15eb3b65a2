"""A plugin of pytest: tests marked `fault(row)` hand in what they measured, for `make faults`.

    @pytest.mark.fault(7)
    def test_fifty_random_kills(figure):
        ...
        figure(f"50 kills, {whole} of 50 loadable")

Without the variable LASER_FAULT_FIGURES nothing is written, and the tests are the same.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator

import pytest

from tests.faults.rows import ROWS

VARIABLE = "LASER_FAULT_FIGURES"
FIGURES = pytest.StashKey[list[str]]()
Figure = Callable[[str], None]


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Call it with a sentence of numbers that were measured in this test."""
    said = request.node.stash.setdefault(FIGURES, [])
    return said.append


def rows_of(item: pytest.Item) -> list[int]:
    """Which rows a test belongs to."""
    rows = [row for mark in item.iter_markers("fault") for row in mark.args]
    unknown = [row for row in rows if row not in ROWS]
    if unknown or (not rows and item.get_closest_marker("fault")):
        raise pytest.UsageError(f"{item.nodeid}: expected fault(row) with a row of tests/faults/rows.py, got {unknown}")
    return rows


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Keep how each marked test ended, in a file of its own: workers of xdist do not meet."""
    report = yield
    folder = os.environ.get(VARIABLE) and item.config.rootpath / os.environ[VARIABLE]  # a test may be elsewhere
    rows = rows_of(item)
    if folder and rows and (report.when == "call" or report.outcome != "passed"):
        name = hashlib.sha256(item.nodeid.encode()).hexdigest()[:16]
        kept = {
            "rows": rows,
            "test": item.nodeid,
            "outcome": report.outcome,
            "seconds": round(report.duration, 2),
            "figures": item.stash.get(FIGURES, []),
        }
        (folder / f"{name}.json").write_text(json.dumps(kept))
    return report
