"""What people see of a mixture: every task in the report, one score in the terminal."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console as Terminal

from laser_rl.metrics import MetricsLog, display
from laser_rl.metrics.console import Console
from laser_rl.metrics.curves import MEDIAN, plot_returns, returns
from laser_rl.metrics.report import report
from tests.metrics.reading import EVIL, read_page

TASKS = ("laser/Catch", "laser/TMaze-5", EVIL)


def numbers(level):
    values = {"return_mean": level, "score_mean_capped": level / 2, "tasks_above_random": 2, "tasks_seen": 3}
    for number, name in enumerate(TASKS):
        values |= {f"return_of_{name}": level + number, f"score_of_{name}": level - number}
    return values


def a_mixture(run_dir):
    with MetricsLog(run_dir) as log:
        for update in range(1, 20):
            log.write("train", 10 * update, update, {**numbers(update / 10), "entropy": 0.5})
        played = numbers(4.0)
        log.write("evaluation", 190, 19, {"mean": played.pop("return_mean"), **played})
    return run_dir


def test_report_has_every_task_and_says_what_its_curve_is(tmp_path):
    page = read_page(report(a_mixture(tmp_path)))
    lines = {line[0]: line[1:] for line in page.table("Tasks", "By task")[1:]}
    for number, name in enumerate(TASKS):
        known = [["-0.6", "1"], ["0", "1"], ["–", "–"]][number]
        trained = [display.short(1.9 + number), display.short(1.9 - number)]
        assert lines[name] == [*known, *trained, display.short(4.0 + number), display.short(4.0 - number)]
    assert [title for title in page.figures if title in TASKS] == list(TASKS)
    assert MEDIAN in page.figures
    assert "Mean return" not in page.source
    assert ["score", "1.9"] in page.table("At the last row", "")
    assert [MEDIAN.lower(), "4"] in page.table("At the last row", "Last evaluation")


def test_a_single_task_has_no_such_section(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write("train", 10, 1, {"return_mean": 3.0})
    page = read_page(report(tmp_path))
    assert "Tasks" not in page.headings
    assert "Mean return of the last 100 episodes" in page.figures


@pytest.mark.parametrize("count", [1, 4, 5, 30])
def test_any_number_of_tasks_is_drawn(tmp_path, count):
    values = {f"score_of_laser/TMaze-{n + 2}": 0.5 for n in range(count)}
    with MetricsLog(tmp_path) as log:
        for step in (1, 2):
            log.write("train", step, step, {"return_mean": 0.5, "tasks_seen": count, **values})
    page = read_page(report(tmp_path))
    assert sum(title.startswith("laser/TMaze") for title in page.figures) == count
    assert len(page.table("Tasks", "By task")) == count + 1


def test_the_terminal_shows_a_score_and_not_thirty_tasks():
    output = StringIO()
    with Console("x", 100, terminal=Terminal(file=output, width=200)) as console:
        console.write("train", 10, 1, numbers(0.25))
        console.write("evaluation", 10, 1, {"mean": 0.75, "tasks_seen": 3, "score_of_laser/Catch": 0.5})
    text = output.getvalue()
    assert "score 0.25 | above random 2 of 3" in text
    assert "evaluation at step 10: score 0.75, tasks_seen 3\n" in text
    assert "return" not in text
    assert "Catch" not in text
    assert "return" not in display.texts(numbers(0.25))
    assert display.texts({"return_mean": 0.25}) == {"return": "0.25"}


def test_curves_from_episodes_are_medians_over_tasks(tmp_path):
    rows = [
        {"kind": "episode", "step": 1, "update": 0, "return": 1.0, "task": "laser/TMaze-3"},
        {"kind": "episode", "step": 2, "update": 0, "return": -0.6, "task": "laser/Catch"},
        {"kind": "episode", "step": 3, "update": 0, "return": 0.2, "task": "laser/TMaze-5"},
        {"kind": "episode", "step": 4, "update": 0, "return": 0.0, "task": "laser/TMaze-3"},
    ]
    np.testing.assert_allclose(returns(rows)[1], [1.0, 0.5, 0.2, 0.2])
    assert plot_returns([rows], tmp_path / "one.png").stat().st_size > 1000
