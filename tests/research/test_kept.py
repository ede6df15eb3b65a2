"""The kept experiments: pages and tables are those that their curves give."""

import shutil
from pathlib import Path

import pytest

from laser_rl.research.experiment import EXPERIMENTS
from laser_rl.research.pages import report, write_index

KEPT = Path(__file__).parents[2] / "docs" / "results" / "experiments"
NEEDED = ("experiment.json", "curves.csv", "times.csv")
MADE = ("README.md", "scores.csv", "verdicts.csv")
NAMES = ["capacity", *(pytest.param(name, marks=pytest.mark.slow) for name in EXPERIMENTS if name != "capacity")]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_made_from_its_curves(name, tmp_path):
    for file in NEEDED:
        shutil.copy(KEPT / name / file, tmp_path)
    report(tmp_path)
    for file in MADE:
        assert (tmp_path / file).read_text() == (KEPT / name / file).read_text(), file


def test_the_index_is_made_from_the_verdicts(tmp_path):
    for name in EXPERIMENTS:
        (tmp_path / name).mkdir()
        for file in ("experiment.json", "verdicts.csv"):
            shutil.copy(KEPT / name / file, tmp_path / name)
    assert write_index(tmp_path).read_text() == (KEPT / "README.md").read_text()
