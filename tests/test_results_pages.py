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


def test_what_is_said_of_sharing_is_in_the_table_of_differences():
    with (RESULTS / "sharing" / "differences.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    kept = {f"{row['difference']} [{row['low']}, {row['high']}]".replace("-", "−") for row in rows}
    text = (RESULTS / "sharing" / "README.md").read_text()
    said = re.findall(r"−?\d\.\d{3} \[−?\d\.\d{3}, −?\d\.\d{3}\]", text)
    assert len(said) == 5
    assert set(said) <= kept
    decided = {(row["variant"], row["less"], row["verdict"]): set() for row in rows}
    for row in rows:
        decided[row["variant"], row["less"], row["verdict"]].add(row["task"])
    assert decided["trust 0.1", "separate", "better"] == {"sparsegrid-8", "over tasks"}
    assert decided["naive", "separate", "better"] == {"deepsea-12", "keydoor-8", "sparsegrid-8", "catch"}
    assert decided["trust 0.1", "naive", "worse"] == {"deepsea-12", "catch", "breakout"}
    [over] = [
        row for row in rows if (row["task"], row["variant"], row["less"]) == ("over tasks", "trust 0.1", "separate")
    ]
    share = [f"{100 * float(row):.0f}" for row in (over["difference"], over["low"], over["high"])]
    readme = (RESULTS.parents[1] / "README.md").read_text()
    assert "{} % [{}, {}] of the return, p = {}".format(*share, over["p_holm"]) in readme
