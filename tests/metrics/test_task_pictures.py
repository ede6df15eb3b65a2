"""What people see of a mixture: every task in the report, one score in the terminal."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console as Terminal

from laser_rl.metrics import MetricsLog, display
from laser_rl.metrics.console import Console
from laser_rl.metrics.curves import MEDIAN, plot_returns, returns
from laser_rl.metrics.report import report
from laser_rl.metrics.task_pictures import task_names, tasks_picture, tasks_table
from tests.metrics.test_curves import ALLOWED, EVIL, Reader

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
    reader = Reader()
    reader.feed(report(a_mixture(tmp_path)).read_text())
    assert not reader.open
    assert set(reader.tags) <= ALLOWED | {"div", "th", "figcaption"}
    cells = [text for text in reader.text if text.strip()]
    for number, name in enumerate(TASKS):
        at = cells.index(name)
        known = [["-0.6", "1"], ["0", "1"], ["–", "–"]][number]
        trained = [display.short(1.9 + number), display.short(1.9 - number)]
        assert cells[at + 1 : at + 7] == [*known, *trained, display.short(4.0 + number), display.short(4.0 - number)]
    text = (tmp_path / "report.html").read_text()
    assert f'alt="{MEDIAN}"' in text
    assert 'alt="Scores by task"' in text
    assert "Mean return" not in text
    assert cells[cells.index("score", cells.index("steps")) + 1] == "1.9"
    assert f"{MEDIAN.lower()}" in cells


def test_a_single_task_has_no_such_section(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write("train", 10, 1, {"return_mean": 3.0})
    text = report(tmp_path).read_text()
    assert "Tasks" not in text
    assert 'alt="Mean return of the last 100 episodes"' in text
    assert tasks_picture([{"kind": "train", "step": 1, "return_mean": 3.0}]) is None
    assert tasks_table([]) == ""


@pytest.mark.parametrize("count", [1, 4, 5, 30])
def test_any_number_of_tasks_is_drawn(count):
    values = {f"score_of_laser/TMaze-{n + 2}": 0.5 for n in range(count)}
    rows = [{"kind": "train", "step": step, "return_mean": 0.5, **values} for step in (1, 2)]
    assert len(task_names(rows)) == count
    assert tasks_picture(rows)[:4] == b"\x89PNG"


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
