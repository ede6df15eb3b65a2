"""`laser experiment` as a user types it."""

import json
import sys

import pytest

from laser_rl import cli
from laser_rl.research.experiment import EXPERIMENTS
from laser_rl.research.pages import read_table

TASKS = {"priorities": "tmaze"}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """One folder for all, so that equal conditions are run once."""
    return tmp_path_factory.mktemp("experiments")


QUICKEST = ("sharing", "capacity", "pbt")
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in EXPERIMENTS if name not in QUICKEST]


@pytest.mark.parametrize("name", [*QUICKEST, *OTHERS])
def test_every_experiment_runs_to_its_verdicts(name, out, capsys):
    arguments = [name, "--smoke", "--tasks", TASKS.get(name, "catch"), "--jobs", "1", "--out", str(out)]
    assert cli.main(["experiment", "run", *arguments]) == 0
    experiment, folder = EXPERIMENTS[name], out / name
    said = capsys.readouterr().out
    assert experiment.question in said
    assert "undecided" in said
    lines = read_table(folder / "curves.csv")
    conditions = list(dict.fromkeys(line["condition"] for line in lines))
    assert len(lines) == len(conditions) * 2 * 4  # seeds, buckets
    assert all(line["mean"] for line in lines[3::4])  # every run has a number at its end
    trained = [int(line["update"]) for line in lines[3::4]]
    assert min(trained) > 0
    page = (folder / "README.md").read_text()
    assert "nothing was learned" in page
    for claim in experiment.claims:
        assert f"| {claim.text} |" in page
        assert {claim.better, claim.worse} <= set(conditions)
    assert (folder / "curves.png").stat().st_size > 1000
    assert json.loads((folder / "experiment.json").read_text())["seeds"] == [0, 1]


def test_a_pixel_task_and_a_report_again(tmp_path, capsys):
    arguments = ["naive", "--smoke", "--tasks", "breakout", "--seeds", "1", "--jobs", "1", "--out", str(tmp_path)]
    assert cli.main(["experiment", *arguments]) == 0  # without "run"
    first = (tmp_path / "naive" / "README.md").read_bytes()
    (tmp_path / "naive" / "README.md").unlink()
    assert cli.main(["experiment", "report", str(tmp_path / "naive")]) == 0
    assert (tmp_path / "naive" / "README.md").read_bytes() == first
    capsys.readouterr()
    assert cli.main(["experiment", *arguments]) == 0
    assert "runs to do" not in capsys.readouterr().out


@pytest.mark.parametrize("suite", ["small", "atari", "dmlab"])
def test_the_list_has_them_all(suite, capsys):
    assert cli.main(["experiment", "list", "--suite", suite]) == 0
    said = capsys.readouterr().out
    for experiment in EXPERIMENTS.values():
        assert f"{experiment.name}  ({experiment.figure};" in said
        assert all(f"- {claim.text}" in said for claim in experiment.claims)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "sharin"], "there is no experiment 'sharin'"),
        (["run", "sharing", "--suite", "large"], "there is no suite 'large'"),
        (["run", "sharing", "--tasks", "pong"], "suite small has no task 'pong'"),
        (["run", "sharing", "--seeds", "0"], "at least one seed"),
        (["run"], "run which experiment?"),
        (["report"], "report on what?"),
        (["walk"], "laser experiment walk"),
    ],
)
def test_mistakes_are_told(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["experiment", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_its_extra_it_says_so_before_anything_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert cli.main(["experiment", "run", "sharing", "--smoke", "--out", str(tmp_path / "out")]) == 2
    assert "laser experiment needs the extra 'experiments': pip install" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert cli.main(["experiment", "list"]) == 0
