"""The pages on sharing and on recurrent agents: their figures are those of the tables that are made from the kept runs."""

import csv
import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[1] / "docs" / "results"
TASKS = {
    "MinAtar Asterix": "asterix",
    "MinAtar Breakout": "breakout",
    "Convention": "convention",
    "CartPole": "cartpole",
}
VARIANTS = ("separate", "naive", "trust 0.03", "trust 0.1")


def rows_of(name):
    with (RESULTS / name / "tables.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def table_after(text, head):
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip(" *") for cell in line.strip().strip("|").split("|")] for line in lines]


def test_sharing_shows_the_kept_means_and_intervals():
    found = {
        (row["task"], row["variant"]): [float(row[name]) for name in ("mean", "low", "high")]
        for row in rows_of("sharing")
        if (row["members"], row["measure"]) == ("all", "whole run")
    }
    shown = table_after((RESULTS / "sharing" / "README.md").read_text(), "| task | a replay each |")
    assert len(shown) == 8
    for task, *cells in shown:
        name = TASKS.get(task, task.lower().replace(" ", "-"))
        for variant, cell in zip(VARIANTS, cells, strict=True):
            told = re.findall(r"-?[\d.]+", cell.replace("−", "-"))
            kept = found.get((name, variant), [])
            assert len(told) == len(kept), (task, variant)
            for text, number in zip(told, kept, strict=True):
                assert float(text) == pytest.approx(number, abs=0.51 * 10 ** -len(text.partition(".")[2])), (
                    task,
                    variant,
                )


@pytest.mark.parametrize(
    ("head", "experiment"),
    [
        ("| variant | score at half | score at the end (range) | tasks", "suite"),
        ("| state of replayed", "tmaze"),
        ("| variant | score at half | score at the end (range) | area", "priorities"),
    ],
)
def test_recurrent_shows_the_kept_scores(head, experiment):
    found = {
        (row["variant"], row["measure or task"]): row for row in rows_of("recurrent") if row["experiment"] == experiment
    }
    shown = table_after((RESULTS / "recurrent" / "README.md").read_text(), head)
    assert len(shown) >= 4
    for variant, half, end, *_ in shown:
        assert float(half) == pytest.approx(float(found[variant, "score at half"]["mean"]), abs=0.006)
        told = [float(number) for number in re.findall(r"[\d.]+", end)]
        kept = [float(found[variant, "score at the end"][name]) for name in ("mean", "low", "high")]
        assert told == pytest.approx(kept, abs=0.006)
