"""How members stand: the right one is best, the newest numbers count, and half-written files do not matter."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from laser_rl.errors import ConfigError
from laser_rl.metrics import MetricsLog, display, read
from laser_rl.metrics.log import FILE
from laser_rl.metrics.standing import SWEEP, MemberStanding, best, newest_means, standing, standing_of
from tests.metrics.test_sweep_rows import a_sweep, settings_of, trust


def row(step, member, **values):
    return {"kind": "train", "step": step, "update": step, "member": member, **values}


@pytest.mark.parametrize("content", [None, "{", "[]", '{"settings": 3}', '{"settings": [1, null]}', "[" * 100_000])
def test_standing_does_without_settings(tmp_path, content):
    with MetricsLog(tmp_path) as log:
        for member in range(3):
            log.write("train", 10, 1, {"member": member, "entropy": 0.5})
    (tmp_path / SWEEP).unlink(missing_ok=True) if content is None else (tmp_path / SWEEP).write_text(content)
    assert [one.member for one in standing(tmp_path)] == [0, 1, 2]


def test_what_is_no_sweep_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="directory of a sweep"):
        standing(tmp_path)


def test_a_cell_is_the_mean_of_the_last_ten_rows_that_have_it():
    early = [row(n, 0, acceptance_from_1=0.0) for n in range(5)]
    late = [row(10 + n, 0, acceptance_from_1=0.4) for n in range(8)]
    rows = [*early, *late, row(30, 0), row(40, 0, acceptance_from_1=float("nan")), row(50, 1, acceptance_from_1=0.1)]
    assert newest_means(rows, ["acceptance_from_1"], 2)[:, 0].tolist() == pytest.approx([0.4, 0.1])
    assert np.isnan(newest_means([row(1, 0)], ["acceptance_from_1"], 1)[0, 0])


def test_nobody_else_is_no_number():
    [only] = standing_of([row(10, 0, acceptance_from_0=0.9)], {})
    assert (only.acceptance_own, only.acceptance_others) == (0.9, None)


def test_without_reported_returns_they_are_those_of_its_own_newest_episodes():
    rows = [{"kind": "episode", "step": n, "update": 0, "member": n % 2, "return": float(n)} for n in range(500)]
    assert [one.return_mean for one in standing_of(rows, {})] == [
        np.mean(range(300, 500, 2)),
        np.mean(range(301, 500, 2)),
    ]
    tasks = [("laser/TMaze-3", 1.0), ("laser/Catch", -0.6), ("laser/TMaze-5", 0.2), ("laser/TMaze-3", 0.0)]
    rows = [
        {"kind": "episode", "step": n, "update": 0, "member": 0, "return": value, "task": task}
        for n, (task, value) in enumerate(tasks)
    ]
    assert standing_of(rows, {})[0].return_mean == pytest.approx(0.2)  # the median of 0.5, 0 and 0.2


def test_standing_before_the_first_row(tmp_path):
    (tmp_path / SWEEP).write_text(json.dumps({"settings": settings_of(3)}))
    found = standing(tmp_path)
    assert display.label(found[1].settings) == "learning_rate 0.0006, entropy_cost 0.005"
    assert {(one.steps, one.return_mean, one.silent_seconds) for one in found} == {(0, None, None)}
    assert best(found) is None


def test_standing_says_what_the_rows_say(tmp_path):
    found = standing(a_sweep(tmp_path, 3))
    for member, one in enumerate(found):
        assert (one.member, one.steps, one.updates, one.exploits) == (member, 60_000, 600, 0)
        assert (one.evaluation, one.evaluation_interval) == (100 + member, (90 + member, 110 + member))
        assert one.acceptance_own == pytest.approx(trust(member, member), abs=0.02)
        others = [trust(member, j) for j in range(3) if j != member]
        assert one.acceptance_others == pytest.approx(sum(others) / 2, abs=0.05)
        assert one.settings == settings_of(3)[member]


def test_the_newest_numbers_count():
    rows = [row(10, 0, return_mean=1.0, time=100.0), row(20, 0, return_mean=2.0, time=107.0),
            {"kind": "evaluation", "step": 10, "update": 10, "member": 0, "mean": 5.0, "time": 101.0},
            {"kind": "evaluation", "step": 20, "update": 20, "member": 0, "mean": 4.0, "time": 108.0},
            row(30, 1, time=120.0)]  # fmt: skip
    first, second = standing_of(rows, {}, now=130.0)
    assert (first.return_mean, first.evaluation, first.evaluation_interval) == (2.0, 4.0, None)
    assert (first.silent_seconds, second.silent_seconds) == (22.0, 10.0)


def test_settings_are_those_after_the_last_exploit(tmp_path):
    rows = read(a_sweep(tmp_path, 3, pbt=True))
    start = [{"optimiser.learning_rate": 1.0, "entropy_cost": 1.0, "trust": "off"} for _ in range(3)]
    found = standing_of(rows, {"settings": start})
    for one in found:
        last = [r for r in rows if r.get("event") == "exploit" and r["member"] == one.member]
        assert one.exploits == len(last) > 1
        assert one.settings == {
            "optimiser.learning_rate": last[-1]["after_learning_rate"],
            "entropy_cost": last[-1]["after_entropy_cost"],
            "trust": "off",
        }


def test_an_evaluation_counts_more_than_returns_and_a_missing_one_does_not_win():
    members = [
        MemberStanding(0, {}, return_mean=9.0),
        MemberStanding(1, {}, return_mean=1.0, evaluation=-5.0),
        MemberStanding(2, {}, return_mean=2.0, evaluation=-7.0),
    ]
    assert best(members).member == 1
    assert best([replace(one, evaluation=None) for one in members]).member == 0
    assert best([replace(one, evaluation=0.0) for one in members]).member == 0  # the first of equals


def test_standing_while_half_a_row_is_written(tmp_path):
    a_sweep(tmp_path, 2)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"kind": "train", "step": 99000, "update": 990, "member": 1, "retu')
    assert standing(tmp_path)[1].steps == 60_000


def test_a_member_that_went_back_has_the_steps_it_went_back_to(tmp_path):
    a_sweep(tmp_path, 3)
    with MetricsLog(tmp_path) as log:
        log.resumed(30_000, 300, member=1)
    found = standing(tmp_path)
    assert [one.steps for one in found] == [60_000, 30_000, 60_000]
    assert found[1].evaluation is None


def test_standing_imports_neither_torch_nor_matplotlib():
    code = "import laser_rl.metrics.standing, sys; sys.exit(any(n in sys.modules for n in ('torch', 'matplotlib', 'scipy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
