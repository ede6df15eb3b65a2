"""Tables that a page has between marks are those that the command beside the mark makes from the kept files."""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"<!-- (.+): made by `(python -m benchmarks\..+)` -->")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "results").rglob("*.md"))]
COMMANDS = sorted({command for page in PAGES for _, command in MARK.findall(page.read_text())})


def texts(folder):
    """Pages and tables: of pictures, bytes depend on matplotlib's version."""
    paths = [folder / "README.md", *(folder / "docs" / "results").rglob("*.md"), *folder.rglob("docs/results/**/*.csv")]
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def differing(path, before, after):
    """Pairs of lines. In a table the last digit may be the next one: means of equal numbers differ in the last bit between processors."""
    lines = itertools.zip_longest(before.splitlines(), after.splitlines(), fillvalue="")
    return [pair for pair in lines if pair[0] != pair[1] and not (path.endswith(".csv") and near(*pair))]


def near(one, other):
    cells = [re.split(r"(-?\d+\.\d+)", line) for line in (one, other)]
    if len(cells[0]) != len(cells[1]) or cells[0][::2] != cells[1][::2]:
        return False
    pairs = zip(cells[0][1::2], cells[1][1::2], strict=True)
    return all(abs(float(a) - float(b)) < 1.01 * 10.0 ** -len(a.partition(".")[2]) for a, b in pairs)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_makes_what_is_kept(command, tmp_path):
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "docs" / "results")
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "README.md", tmp_path)
    before = texts(tmp_path)
    for page in [path for path in before if path.endswith(".md")]:
        made = re.sub(
            rf"(made by `{re.escape(command)}` -->\n).*?(<!-- .+ end -->)", r"\1\2", before[page], flags=re.DOTALL
        )
        (tmp_path / page).write_text(made)
    assert texts(tmp_path) != before
    words = [sys.executable, *shlex.split(command)[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(words, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=120)
    after = texts(tmp_path)
    assert after.keys() == before.keys()
    assert {path: lines for path in before if (lines := differing(path, before[path], after[path]))} == {}


def test_every_mark_has_a_command_that_is_run_and_an_end():
    for page in PAGES:
        text = page.read_text()
        begun = re.findall(r"<!-- (.+): made by", text)
        assert begun == [name for name, _ in MARK.findall(text)], page
        assert begun == re.findall(r"<!-- (.+) end -->", text), page
    assert len(COMMANDS) >= 5


def test_no_table_with_numbers_stands_outside_of_marks():
    # Pages that are made as a whole have tests of their own: test_atari_queue.py, research/test_kept.py.
    results = ROOT / "docs" / "results"
    whole = {
        results / "atari" / "README.md",
        results / "atari" / "calibration.md",
        *results.glob("experiments/**/*.md"),
    }
    for page in set(PAGES) - whole:
        outside = re.sub(r"<!-- .+ made by .*?<!-- .+ end -->", "", page.read_text(), flags=re.DOTALL)
        rows = [line for line in outside.splitlines() if line.startswith("|")]
        assert [row for row in rows if re.search(r"\d", re.sub(r"\(.*?\)", "", row))] == [], page
