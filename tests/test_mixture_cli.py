"""`laser evaluate`, `enjoy`, `report` and `status` on an agent that learned several tasks."""

import json

import numpy as np
import pytest
import torch

from laser_rl import cli
from laser_rl.cli.play import _task_lines
from laser_rl.evaluation.statistics import summarise_mixture
from laser_rl.training.evaluate import load_trained
from laser_rl.training.filming import film
from tests.evaluation.test_mixtures import SPEC, played
from tests.training.small import finish, small
from tests.view.reading import read_report

NAMES = ("laser/SparseGrid-5", "laser/DeepSea-5")  # 4 actions and 2


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "both"
    finish(small(",".join(NAMES), slots=4), path)
    return path


def test_evaluate_prints_a_table_by_task(run_dir, capsys):
    assert cli.main(["evaluate", str(run_dir), "--episodes", "5"]) == 0
    out = capsys.readouterr().out
    assert "after 60" in out
    assert "6 episodes, sampled actions\n" in out
    _, heading, *lines, together = out.splitlines()
    assert heading.split() == ["task", "episodes", "mean", "return", "random", "best", "normalised"]
    assert [line.split()[:2] for line in lines] == [[name, "3"] for name in NAMES]
    scores = []
    for line in lines:
        mean, random, best, score = (float(cell) for cell in line.split()[2:])
        assert score == pytest.approx((mean - random) / (best - random), abs=0.01)
        scores.append(score)
    median, capped = np.median(scores), np.mean(np.minimum(scores, 1))
    assert together.startswith("median of the normalised ")
    assert float(together.split()[4]) == pytest.approx(median, abs=0.01)
    assert float(together.split("capped at 1 ")[1].split(",")[0]) == pytest.approx(capped, abs=0.01)
    assert together.endswith(f"above random in {sum(score > 0 for score in scores)} of 2 tasks")


def test_what_tasks_come_to_together():
    lines = _task_lines(summarise_mixture(played([[1.0, 1.0], [-1.0, 0.5], [0.75, 0.85]]), SPEC))
    assert lines[2].split() == ["laser/TMaze-5", "2", "-0.25", "0", "1", "-0.25"]
    scores = [float(line.split()[-1]) for line in lines[1:-1]]
    together = lines[-1]
    assert together.startswith(f"median of the normalised {sorted(scores)[1]:.3f}")
    assert np.median(scores) != np.mean(scores)


def test_evaluate_as_json_has_everything(run_dir, capsys):
    assert cli.main(["evaluate", str(run_dir), "--episodes", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(task["name"], task["episodes"]) for task in found["tasks"]] == [(name, 2) for name in NAMES]
    assert found["score"] == pytest.approx(np.median([task["score"] for task in found["tasks"]]))
    assert found["tasks_ci95"][0] <= found["score"] <= found["tasks_ci95"][1]


def test_enjoy_films_the_task_that_is_asked_for(run_dir, tmp_path, capsys):
    assert (
        cli.main(["enjoy", str(run_dir), "--task", NAMES[1], "--video", str(tmp_path / "v.gif"), "--max-steps", "9"])
        == 0
    )
    assert (tmp_path / "v.gif").stat().st_size > 100
    assert cli.main(["enjoy", str(run_dir), "--max-steps", "9"]) == 0
    first = capsys.readouterr().out.splitlines()[-1]
    assert "videos/laser-SparseGrid-5-step-" in first
    assert cli.main(["enjoy", str(run_dir), "--task", "laser/Catch"]) == 2
    assert f"one of {', '.join(NAMES)}, got 'laser/Catch'" in capsys.readouterr().err


def test_a_task_of_its_own_name_may_be_named(tmp_path, capsys):
    finish(small("laser/Catch"), tmp_path)
    assert cli.main(["enjoy", str(tmp_path), "--task", "laser/Catch", "--video", str(tmp_path / "v.gif")]) == 0
    assert cli.main(["enjoy", str(tmp_path), "--task", "laser/TMaze-5"]) == 2


def test_an_action_that_a_task_does_not_know_acts_as_its_first(run_dir, tmp_path):
    trained, went = load_trained(run_dir), []
    for favourite in range(4):
        with torch.no_grad():
            trained.network.policy_head.weight.zero_()
            trained.network.policy_head.bias.copy_(torch.eye(4)[favourite] * 1e3)
        film(trained, tmp_path / "v.gif", task=NAMES[1])
        went.append((tmp_path / "v.gif").read_bytes())
    assert went[0] == went[2] == went[3] != went[1]


def test_report_has_every_task(run_dir, capsys):
    assert cli.main(["report", str(run_dir)]) == 0
    page = read_report(run_dir / "report.html")
    assert {line["task"] for line in page.table("task-table")} == set(NAMES)
    assert page.panel("returns")["label"].startswith("Median over tasks")
    assert cli.main(["status", str(run_dir), "--json"]) == 0
