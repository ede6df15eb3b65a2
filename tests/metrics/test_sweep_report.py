"""The report and the standing of a sweep: the right member is best, everything is escaped, and half-written files do not matter."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from laser_rl.errors import ConfigError
from laser_rl.metrics import MetricsLog, display, read
from laser_rl.metrics.log import FILE
from laser_rl.metrics.sweep_report import MemberStanding, best, standing, sweep_report
from laser_rl.metrics.sweep_standing import SWEEP, standing_of
from tests.metrics.reading import EVIL, read_page
from tests.metrics.test_sweep_curves import row
from tests.metrics.test_sweep_rows import a_sweep, settings_of, trust


@pytest.mark.parametrize(("members", "pbt", "pictures"), [(3, False, 13), (9, True, 16)])
def test_report_is_whole_and_says_what_is_best(tmp_path, members, pbt, pictures):
    folder = tmp_path / "a sweep & <b>"
    page = read_page(sweep_report(a_sweep(folder, members, pbt=pbt)))
    assert len(page.pictures) == len(page.figures) == pictures
    for part in (
        f"laser sweep '{folder}/sweep.json' --out '{folder}-again'",
        f"laser evaluate '{folder}' --member best",
        f"laser resume '{folder}'",
        f"laser status '{folder}'",
    ):
        assert part in page.commands[0], part
    assert ["loss.discount", "0.99"] in page.table("Configuration", "")
    assert ["member", str(members - 1)] in page.table("Best member", "")
    assert ("Population based training" in page.headings) == pbt
    table = page.table("Members", "Members")
    assert [line[0] for line in table[1:]] == [str(k) for k in range(members)]
    assert sorted(file.name for file in folder.iterdir()) == ["metrics.jsonl", "report.html", "sweep.json"]


def test_the_tables_have_each_number_under_its_heading(tmp_path):
    page = read_page(sweep_report(a_sweep(tmp_path, 3)))
    header, *lines = page.table("Members", "Members")
    for member, line in enumerate(lines):
        cells = dict(zip(header, line, strict=True))
        assert cells["learning_rate"] == f"{settings_of(3)[member]['learning_rate']:g}"
        assert (cells["steps"], cells["updates"]) == ("60,000", "600")
        assert cells["skipped"] == str(member)
        assert cells["rollbacks"] == str(member // 2)
    header, *lines = page.table("Members", "Final scores")
    for member, line in enumerate(lines):
        cells = dict(zip(header, line, strict=True))
        assert cells["evaluation return"] == f"{100 + member}"
        assert cells["interval"] == f"{90 + member} to {110 + member}"
        assert cells["training return"] == display.short(standing(tmp_path)[member].return_mean)
    assert page.source.count('class="best"') == 2
    assert page.source.count('<tr class="best"><td class="num">2</td>') == 2


def test_everything_from_outside_is_escaped(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write("train", 10, 1, {"member": 0, "return_mean": 1.0, EVIL: EVIL})
        log.write("event", 10, 1, {"event": EVIL, "member": 0})
        log.write("event", 10, 1, {"event": "exploit", "member": 0, "donor": 1, f"after_{EVIL}": 1.0})
    settings = [{EVIL: EVIL}, {"learning_rate": EVIL}]
    (tmp_path / SWEEP).write_text(json.dumps({"settings": settings, "recipe": EVIL, "base": {EVIL: EVIL}}))
    read_page(sweep_report(tmp_path))
    assert "<script" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("content", [None, "{", "[]", '{"settings": 3}', '{"settings": [1, null]}', "[" * 100_000])
def test_report_does_without_settings(tmp_path, content):
    with MetricsLog(tmp_path) as log:
        for member in range(3):
            log.write("train", 10, 1, {"member": member, "entropy": 0.5})
    (tmp_path / SWEEP).unlink(missing_ok=True) if content is None else (tmp_path / SWEEP).write_text(content)
    read_page(sweep_report(tmp_path))
    assert [one.member for one in standing(tmp_path)] == [0, 1, 2]


def test_what_is_no_sweep_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="directory of a sweep"):
        sweep_report(tmp_path)
    with pytest.raises(ConfigError, match="directory of a sweep"):
        standing(tmp_path)
    with MetricsLog(tmp_path) as log:
        log.write("train", 10, 1, {"kl": 0.5})
    with pytest.raises(ConfigError, match="directory of a sweep"):
        sweep_report(tmp_path)


def test_standing_before_the_first_row(tmp_path):
    (tmp_path / SWEEP).write_text(json.dumps({"settings": settings_of(3)}))
    found = standing(tmp_path)
    assert [one.label for one in found][1] == "learning_rate 0.0006, entropy_cost 0.005"
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
        assert one.record().keys() >= {"learning_rate", "evaluation_low", "silent_seconds"}


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


def test_standing_and_report_while_half_a_row_is_written(tmp_path):
    a_sweep(tmp_path, 2)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"kind": "train", "step": 99000, "update": 990, "member": 1, "retu')
    assert standing(tmp_path)[1].steps == 60_000
    read_page(sweep_report(tmp_path))


def test_a_member_that_went_back_has_the_steps_it_went_back_to(tmp_path):
    a_sweep(tmp_path, 3)
    with MetricsLog(tmp_path) as log:
        log.resumed(30_000, 300, member=1)
    found = standing(tmp_path)
    assert [one.steps for one in found] == [60_000, 30_000, 60_000]
    assert found[1].evaluation is None


def test_standing_imports_neither_torch_nor_matplotlib():
    code = "import laser_rl.metrics.sweep_standing, sys; sys.exit(any(n in sys.modules for n in ('torch', 'matplotlib', 'scipy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
