"""The table is made of what tests handed in, and a row that failed or has no test is not held."""

import csv
import json

import pytest

from tests.faults import report
from tests.faults.rows import ROWS

pytest_plugins = ["pytester"]


def kept(folder, name, **values):
    values = {"rows": [7], "test": name, "outcome": "passed", "seconds": 1.0, "figures": [], **values}
    (folder / f"{name}.json").write_text(json.dumps(values))


def test_all_rows_are_there():
    assert list(ROWS) == list(range(1, 39))


def test_a_row_is_held_if_all_its_tests_passed(tmp_path):
    kept(tmp_path, "a", figures=["50 kills"])
    kept(tmp_path, "b", rows=[7, 8], figures=["50 kills", "3 | 4"])
    kept(tmp_path, "c", rows=[8], outcome="failed")
    found = report.found_in(tmp_path)
    assert (found[7].word, found[8].word, found[9].word) == ("held", "failed", "not shown")
    assert found[7].figures == ["50 kills", "3 | 4"]
    text = report.lines_of(found, "Today")
    assert "| 50 kills | held: 2 |" in text
    assert "| 50 kills | failed: 1 |" in text
    assert text.count("| – | not shown: 0 |") == len(ROWS) - 2
    report.write_figures(tmp_path / "figures.csv", found)
    with (tmp_path / "figures.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["measured"] for row in rows if row["row"] == "7"] == ["50 kills", "3 | 4"]


def test_the_figure_that_a_row_names_stands_for_it():
    [word] = {ROWS[6].shown}
    assert report.shown(6, ["other", f"serial: {word}, 3 | 4"]) == f"serial: {word}, 3 | 4"
    assert report.shown(6, ["other"]) == "other"
    assert report.shown(6, []) == "–"


def test_the_page_has_all_rows_with_figures_that_are_kept():
    page = report.PAGE.read_text()
    with report.FIGURES.open(newline="") as file:
        kept = {int(row): set() for row in ROWS}
        for line in csv.DictReader(file):
            kept[int(line["row"])].add(line["measured"].replace("|", "/") or "–")
    for row, (fault, promise, _) in ROWS.items():
        [line] = [line for line in page.splitlines() if line.startswith(f"| {row} | {fault} | {promise} | ")]
        assert line.split(" | ")[3] in kept[row], line


def test_a_page_changes_between_its_marks_only(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(f"before {report.BEGIN} old {report.END} after")
    assert report.put_into(path, f"{report.BEGIN} new {report.END}")
    assert path.read_text() == f"before {report.BEGIN} new {report.END} after"
    path.write_text("no marks")
    assert not report.put_into(path, "new")


@pytest.mark.parametrize(
    ("body", "outcome"), [("figure('7 of 7')", "passed"), ("figure('7 of 7'); assert 0", "failed")]
)
def test_a_marked_test_hands_in_its_figures(pytester, monkeypatch, body, outcome):
    monkeypatch.setenv("LASER_FAULT_FIGURES", str(pytester.path))
    monkeypatch.syspath_prepend(str(report.ROOT))
    pytester.makepyfile(f"import pytest\n@pytest.mark.fault(7, 11)\ndef test_it(figure):\n    {body}\n")
    pytester.makeini("[pytest]\nmarkers = fault(row): x\n")
    pytester.runpytest_inprocess("-p", "tests.faults.figures", "-p", "no:cacheprovider", "-p", "no:xdist")
    values = [json.loads(path.read_text()) for path in pytester.path.glob("*.json")]
    assert [(one["rows"], one["outcome"], one["figures"]) for one in values] == [([7, 11], outcome, ["7 of 7"])]
