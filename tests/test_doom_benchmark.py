"""The benchmark's numbers of ViZDoom are those of the suite, and its experiments can be started."""

import csv
import importlib.util
import time
from argparse import Namespace
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image, ImageSequence

from benchmarks import doom, recurrent, recurrent_report
from laser_rl.envs.scores import SUITES

RESULTS = Path(__file__).parents[1] / "docs" / "results"
installed = pytest.mark.skipif(importlib.util.find_spec("vizdoom") is None, reason="needs the extra doom")
SMALL = {
    "environment.options": {"width": 16, "height": 16}, "environment.slots": 2, "environment.workers": 1, "network.torso": "tiles",
    "network.memory_size": 8, "network.channels": 2, "network.hidden": (8,), "network.precision": "fp32",
    "loss.batch_unrolls": 8, "loss.unroll_steps": 4, "run.log_every_updates": 1, "run.evaluate_episodes": 1,
}  # fmt: skip


def test_the_scores_of_the_suite_are_those_that_were_measured():
    with (RESULTS / "doom" / "references.csv").open() as file:
        measured = {row["task"]: (float(row["random"]), float(row["best"])) for row in csv.DictReader(file)}
    assert measured == {task.id: (task.random, task.best) for task in SUITES["doom"]}
    assert all(task.random < task.best for task in SUITES["doom"])


def moves_in(path):
    """How many pictures of an animation differ from the one before, and its size."""
    with Image.open(path) as film:
        pictures = [picture.convert("RGB").tobytes() for picture in ImageSequence.Iterator(film)]
        return sum(one != before for before, one in pairwise(pictures)), film.size


def test_the_film_of_the_page_moves_and_is_small():
    path = RESULTS.parent / "images" / "doom.gif"
    moves, size = moves_in(path)
    assert moves > 40
    assert size == (160, 120)
    assert path.stat().st_size <= 300_000


@installed
@pytest.mark.slow
def test_an_agent_is_filmed(tmp_path, capsys):
    doom.film(Namespace(out=tmp_path / "film.gif", seed=0, steps=200))
    assert "EvalResult" in capsys.readouterr().out
    moves, size = moves_in(tmp_path / "film.gif")
    assert (moves > 10, size) == (True, (160, 120))


@installed
@pytest.mark.slow
@pytest.mark.parametrize("variant", recurrent.EXPERIMENTS["doom"].variants)
def test_every_arm_of_table_1_runs_and_has_a_row_in_the_table(variant, monkeypatch, tmp_path):
    whole = recurrent.EXPERIMENTS["doom"]
    settings = {**whole.settings, **SMALL, "replay.capacity_steps": 20_000, "replay.budget_gb": 0.1}
    tasks, arms = "doom/basic,doom/my_way_home", {variant: whole.variants[variant]}
    small = recurrent.Experiment(tasks, whole.recipe, 400, 100, settings, arms)
    monkeypatch.setattr(recurrent, "EXPERIMENTS", {"doom": small})
    monkeypatch.setattr(recurrent_report, "EXPERIMENTS", {"doom": small})
    monkeypatch.setattr(recurrent_report, "RESULTS", tmp_path)
    (tmp_path / "README.md").touch()
    (agents := tmp_path / "agents").mkdir()
    _, seed, rows = recurrent.one_run("doom", variant, 1, "cpu", time.time() + 600, agents)
    members = {row.get("member") for row in rows}
    assert seed == 1
    assert len(list(agents.iterdir())) == (0 if "shared" in variant else 1)
    assert members == ({0, 1, 2} if "shared" in variant else {None})
    assert max(row["step"] for row in rows) >= 300
    recurrent.write(tmp_path / "doom.csv", [{"variant": variant, "seed": 1, **row} for row in rows])
    recurrent_report.main()
    table = recurrent.read(tmp_path / "tables.csv")
    assert {row["variant"] for row in table} == {variant}
    assert "capped mean at the end" in {row["measure or task"] for row in table}
