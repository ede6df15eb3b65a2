"""Side by side: which runs are one condition, and what is the same and what not."""

import json

import numpy as np
import pytest

from laser_rl.metrics import MetricsLog
from laser_rl.metrics.report import write_report
from laser_rl.metrics.reporting.comparison import conditions_of, differing, returns_chart
from laser_rl.metrics.reporting.scores import interval
from laser_rl.metrics.reporting.subject import subject_of
from tests.metrics.reading import read_page
from tests.metrics.test_report import a_run
from tests.metrics.test_sweep_rows import a_sweep


@pytest.fixture
def runs(tmp_path):
    """Two conditions of three and two seeds."""
    fast = [a_run(tmp_path / f"fast{seed}", 1.0 + seed, seed=seed, rate=0.1) for seed in range(3)]
    slow = [a_run(tmp_path / f"slow{seed}", 0.1 + seed, seed=seed, rate=0.01) for seed in range(2)]
    return [*fast, *slow]


def test_runs_that_differ_in_the_seed_are_one_condition(runs, tmp_path):
    page = read_page(write_report(runs, tmp_path / "out.html")[0])
    header, *lines = page.table("Scores", "By condition")
    cells = [dict(zip(header, line, strict=True)) for line in lines]
    assert [(cell["condition"], cell["seeds"]) for cell in cells] == [
        ("learning_rate 0.1", "0, 1, 2"),
        ("learning_rate 0.01", "0, 1"),
    ]
    scores = 4321.5 * np.array([1.0, 2.0, 3.0])
    assert [cells[0][name] for name in ("mean score", "lowest", "highest")] == ["8,643", "4,322", "12,964"]
    assert cells[0]["interval over seeds"] == " to ".join(f"{end:,.0f}" for end in interval(scores))
    differ = page.table("Settings that differ", "Settings that differ")
    assert differ[0][1:] == ["fast0", "fast1", "fast2", "slow0", "slow1"]
    assert [line[0] for line in differ[1:]] == ["optimiser.learning_rate", "run.seed"]
    assert [line for line in page.headings if page.headings[line] == 2] == [
        "Side by side",
        *differ[0][1:],
        "The same in all",
    ]
    assert page.table("Common settings", "") == [["recipe", "cartpole"], ["environment.id", "CartPole-v1"]]
    assert "Configuration" not in page.headings


def test_the_band_is_from_the_lowest_to_the_highest_run(runs):
    chart = returns_chart(conditions_of([subject_of(run) for run in runs]))
    fast, slow = chart.series
    np.testing.assert_allclose(fast.low, fast.x / 10, rtol=1e-9)  # a run's return is its slope times the update
    np.testing.assert_allclose(fast.high, 3 * fast.x / 10, rtol=1e-9)
    np.testing.assert_allclose(fast.y, 2 * fast.x / 10, rtol=1e-9)
    np.testing.assert_allclose(slow.y, 0.6 * slow.x / 10, rtol=1e-9)
    assert slow.colour != fast.colour


def test_environments_have_a_chart_each(tmp_path):
    a_run(tmp_path / "a")
    a_sweep(tmp_path / "b", 3)
    page = read_page(write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out.html")[0])
    returns = [title for title in page.figures if title.endswith((", CartPole-v1", ", unknown environment"))]
    assert len(returns) == 2
    assert page.table("Scores", "By directory")[2][3] == "sweep of 3"


def test_a_setting_that_an_older_version_did_not_know_differs(tmp_path):
    first, second = a_run(tmp_path / "a"), a_run(tmp_path / "b")
    config = json.loads((second / "config.json").read_text())
    (second / "config.json").write_text(json.dumps({**config, "replay": {"new": None}}))
    subjects = [subject_of(first), subject_of(second)]
    assert differing(subjects) == ["replay.new"]
    page = read_page(write_report([first, second], tmp_path / "out.html")[0])
    assert page.table("Settings that differ", "Settings that differ")[1] == ["replay.new", "–", "None"]


def test_directories_without_settings_are_never_one_condition(tmp_path):
    for name in ("x/a", "y/a"):
        with MetricsLog(tmp_path / name) as log:
            log.write("train", 10, 1, {"return_mean": 1.0})
    subjects = [subject_of(tmp_path / name) for name in ("x/a", "y/a")]
    assert len(conditions_of(subjects)) == 2
    page = read_page(write_report([tmp_path / "x/a", tmp_path / "y/a"], tmp_path / "out.html")[0])
    assert {"x/a", "y/a"} <= page.headings.keys()


def test_the_same_directory_twice_is_one(tmp_path):
    a_run(tmp_path / "a")
    page = read_page(write_report([tmp_path / "a", tmp_path / "a"], tmp_path / "out.html")[0])
    assert "Side by side" not in page.headings
