"""The report says what the rows say: the same in HTML, Markdown and CSV, of any run, whole or not."""

import json
import re
import time

import numpy as np
import pytest

from laser_rl.errors import ConfigError
from laser_rl.metrics import MetricsLog, machine
from laser_rl.metrics.log import FILE
from laser_rl.metrics.report import report, write_report
from laser_rl.metrics.reporting.scores import interval
from laser_rl.metrics.reporting.subject import subject_of
from laser_rl.metrics.stream import Resumes
from tests.metrics.reading import EVIL, read_csv, read_markdown, read_page
from tests.metrics.test_sweep_rows import a_sweep

ALL = ("html", "markdown", "csv")


def a_run(run_dir, slope=1.0, *, seed=7, rate=0.001, updates=120, more=None, ended=True):
    run_dir.mkdir(parents=True, exist_ok=True)
    with MetricsLog(run_dir) as log:
        for update in range(1, updates + 1):
            log.write("episode", 10 * update, update, {"return": slope * update, "length": 5, "slot": 0})
            values = {
                "return_mean": slope * update,
                "episodes": update,
                "entropy": 0.5,
                "acceptance": 0.9,
                "lag_updates": 1,
            }
            log.write("train", 10 * update, update, {**values, "steps_per_second": 1e4, **(more or {})})
        interval_ = {"ci95_low": 4300.0, "ci95_high": 4350.0}
        log.write(
            "evaluation", 10 * updates, updates, {"mean": 4321.5 * slope, "iqm": 4320.0, "episodes": 20, **interval_}
        )
        if ended:
            log.write("event", 10 * updates, updates, {"event": "finished"})
    config = {
        "recipe": "cartpole",
        "environment": {"id": "CartPole-v1"},
        "optimiser": {"learning_rate": rate},
        "run": {"seed": seed},
    }
    (run_dir / "config.json").write_text(json.dumps(config))
    return run_dir


def warnings_of(page):
    return [text for level, text in page.notices if level == "warning"]


def test_one_run_with_its_numbers_settings_and_commands(tmp_path):
    folder = tmp_path / "a run & <b>"
    path = report(a_run(folder))
    page = read_page(path)
    assert path == folder / "report.html"
    [scores] = page.table("At the end", "Final scores")[1:]
    assert scores[0] == "a run & <b>"
    assert scores[1] == "120"  # as the last row of training said
    assert scores[3:6] == ["4,322", "4,300 to 4,350", "4,320"]
    assert ["optimiser.learning_rate", "0.001"] in page.table("Configuration", "")
    assert ["seed", "7"] in page.table("Reproduce", "Experiment")
    assert f"laser train --config '{folder}/config.json' --out '{folder}-again'" in page.commands[0]
    assert f"laser resume '{folder}'" in page.commands[0]
    assert not warnings_of(page)
    assert page.notices[0][0] == "fine"
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", FILE, "report.html"]


def test_the_interval_of_training_is_over_the_last_hundred_episodes(tmp_path):
    page = read_page(report(a_run(tmp_path)))
    low, high = map(float, page.table("At the end", "Final scores")[1][2].split(" to "))
    assert 21 < low < 70.5 < high < 120  # the mean of 21 to 120 is 70.5
    draws = np.random.default_rng(1).integers(21, 121, size=(4000, 100)).mean(1)
    np.testing.assert_allclose((low, high), np.quantile(draws, [0.025, 0.975]), atol=1.5)
    assert interval(np.full(9, 3.0)) == (3.0, 3.0)


@pytest.mark.parametrize("kind", ["run", "mixture", "sweep", "several"])
def test_html_markdown_and_csv_agree(tmp_path, kind):
    from tests.metrics.test_task_pictures import a_mixture  # noqa: PLC0415 - imports this package's other tests

    runs = {
        "run": lambda: [a_run(tmp_path / "a|b *c* <i>")],
        "mixture": lambda: [a_mixture(tmp_path)],
        "sweep": lambda: [a_sweep(tmp_path, 3, pbt=True)],
        "several": lambda: [a_run(tmp_path / "a"), a_run(tmp_path / "b", 2.0, rate=0.1), a_sweep(tmp_path / "c", 2)],
    }[kind]()
    page_path, markdown_path, csv_path = write_report(runs, tmp_path / "out.html", formats=ALL)
    page, lines = read_page(page_path), read_csv(csv_path)
    written = [(section, caption, rows) for (_, section, caption), rows in page.tables]
    # Names and values have no header in the page.
    plain = [
        (s, c, rows[1:] if rows[0] == ["name", "value"] else rows) for (s, c), rows in read_markdown(markdown_path)
    ]
    maps = {title for title in page.figures if not any(c == title for _, c, _ in written)}
    assert [table for table in plain if table[1] not in maps] == written
    assert len(written) > 4
    for (part, section, caption), rows in page.tables:
        own = [
            line
            for line in lines
            if (line["section"], line["table"]) == (section, caption) and part in {"", line["directory"]}
        ]
        shown = [line["shown"] for line in own if not line["column"].endswith(" (high)")]
        cells = [cell for row in (rows[1:] if _has_header(rows, own) else rows) for cell in row]
        assert shown == cells, (section, caption)


def _has_header(rows, lines):
    columns = [line["column"].removesuffix(" (low)") for line in lines if line["line"] == "1"]
    return rows[0] == [name for name in columns if not name.endswith(" (high)")]


def test_what_csv_has_in_full_is_what_is_shown(tmp_path):
    _, _, path = write_report([a_run(tmp_path)], formats=ALL)
    lines = read_csv(path)
    [mean] = [line for line in lines if line["table"] == "Final scores" and line["column"] == "evaluation return"]
    assert (float(mean["value"]), mean["shown"]) == (4321.5, "4,322")
    ends = {
        line["column"]: float(line["value"])
        for line in lines
        if line["table"] == "Final scores" and "interval" in line["column"]
    }
    assert (ends["interval (low)"], ends["interval (high)"]) == (4300.0, 4350.0)
    points = [line for line in lines if line["table"] == "Policy entropy"]
    assert [(line["line"], line["value"]) for line in points[:2]] == [("10", "0.5"), ("20", "0.5")]
    assert len(points) == 120


def test_everything_from_outside_is_escaped(tmp_path):
    a_run(tmp_path / EVIL.replace("/", "_"), more={EVIL: 1.0})
    run_dir = next(tmp_path.iterdir())
    with MetricsLog(run_dir) as log:
        log.write("evaluation", 1200, 120, {"mean": 1.0, "note": EVIL, EVIL: EVIL})
        log.write("event", 1200, 120, {"event": EVIL})
    (run_dir / "config.json").write_text(json.dumps({"environment": {"id": EVIL}, "replay": {EVIL: EVIL}}))
    (run_dir / machine.FILE).write_text(
        json.dumps({"sessions": [{"command": EVIL, "gpu": EVIL, "libraries": {EVIL: EVIL}}]})
    )
    paths = write_report([run_dir], formats=ALL)
    page = read_page(paths[0])  # refuses tags that are not ours
    assert [EVIL, "1,200", "–"] in page.table("What happened", "Events")
    assert "<script" not in page.source
    assert "<script" not in re.sub("(?s)```.*?```", "", paths[1].read_text())  # a fence shows everything as it is


def test_warnings_count_over_sessions_and_say_whose(tmp_path):
    counts = [0, 2, 2, 0, 1]  # a new session counts from nothing
    with MetricsLog(tmp_path) as log:
        for n, count in enumerate(counts, start=1):
            values = {"skipped_updates": count, "environment_restarts": 4, "kl": float("nan") if n < 3 else 0.1}
            log.write("train", n, n, {**values, "episodes": 200, "return_mean": 1.0})
        log.write("event", 9, 9, {"event": "finished"})
    found = warnings_of(read_page(report(tmp_path)))
    assert [text.removeprefix("Warning: ") for text in found] == [
        "3 updates were skipped, because their gradient was not finite.",
        "4 environment workers were replaced.",
        "Numbers of training that are not finite, left out of the charts: kl (2 rows).",
    ]
    sweep = warnings_of(read_page(report(a_sweep(tmp_path / "sweep", 3))))
    assert any("3 updates were skipped" in text and "member 1: 1, member 2: 2" in text for text in sweep)


def test_a_resumption_is_marked_and_its_void_rows_are_left_out(tmp_path):
    a_run(tmp_path, ended=False)
    with MetricsLog(tmp_path) as log:
        log.resumed(600, 60)
        log.write("train", 610, 61, {"return_mean": -5.0, "entropy": 0.25})
        log.write("event", 610, 61, {"event": "finished"})
    page = read_page(report(tmp_path))
    void = 60 * 2 + 1  # of episodes, of training, the evaluation
    assert ["resumed", "600", f"had reached step 1,200; {void} rows void"] in page.table("What happened", "Events")
    assert any(
        level == "note" and "Resumed at step 600" in text and f"{void} rows" in text for level, text in page.notices
    )
    assert "<title>resumed at step 600</title>" in page.source
    line = page.table("At the end", "Final scores")[1]
    assert (line[1], line[3]) == ("-5", "–")  # the evaluation was after the checkpoint
    assert page.source.count('class="mark"') == len(page.figures)


def test_resumptions_of_a_member_void_its_rows_only():
    rows = [{"kind": "train", "step": 10 * n, "update": n, "member": k} for n in (1, 2, 3) for k in (0, 1)]
    marks = [
        {"kind": "event", "event": "resumed", "step": step, "update": step // 10, "member": 1} for step in (20, 10)
    ]
    resumes = Resumes(marks)
    for row in [*rows, *marks]:
        resumes.holds(row)
    first, second = resumes.told()
    assert (first.step, first.reached, first.void, first.member) == (20, 30, 1, 1)
    assert (second.step, second.reached, second.void) == (10, 20, 1)


def test_a_run_that_goes_on_and_one_that_broke_off(tmp_path):
    a_run(tmp_path, ended=False)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"kind": "train", "step": 99000, "upd')  # half a row, being written
    assert any("unfinished" in text for text in warnings_of(read_page(report(tmp_path))))
    [path] = write_report([tmp_path], running=[tmp_path])
    page = read_page(path)
    assert not warnings_of(page)
    assert "still running" in page.source
    assert "At the last row" in page.headings
    assert "99,000" not in page.source


@pytest.mark.parametrize("name", ["config.json", "sweep.json"])
def test_before_the_first_row_and_before_the_first_episode(tmp_path, name):
    (tmp_path / name).write_text(json.dumps({"environment": {"id": "x"}, "settings": [{"learning_rate": 0.1}, {}]}))
    page = read_page(report(tmp_path))
    assert any("no rows yet" in text for text in warnings_of(page))
    assert "Configuration" in page.headings
    with MetricsLog(tmp_path) as log:
        log.write("train", 10, 1, {"entropy": 0.5, **({"member": 0} if name == "sweep.json" else {})})
    page = read_page(report(tmp_path))
    assert "Mean return of the last 100 episodes" not in page.figures
    assert any("Fewer than 100 episodes" in text for _, text in page.notices)


def test_a_run_of_an_older_version_has_less_and_is_shown(tmp_path):
    rows = [{"kind": "train", "step": n, "update": n, "return_mean": 1.0} for n in (1, 2)]  # no time, no counters
    (tmp_path / FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = read_page(report(tmp_path))
    assert "Configuration" not in page.headings
    assert page.table("At the last row", "Final scores")[1][1] == "1"
    assert not any("Fewer than" in text for _, text in page.notices)  # how many there were was not told
    assert any("not recorded" in text for _, text in page.notices)


@pytest.mark.parametrize("config", ["{", "[]", "[" * 100_000])
def test_report_does_without_a_configuration(tmp_path, config):
    a_run(tmp_path)
    (tmp_path / "config.json").write_text(config)
    assert "Configuration" not in read_page(report(tmp_path)).headings


def test_what_is_no_run_directory_is_refused_with_a_hint(tmp_path):
    with pytest.raises(ConfigError, match="is this a run directory"):
        report(tmp_path)
    a_run(tmp_path / "inside")
    with pytest.raises(ConfigError, match=r"its folders are: laser report .*/\*"):
        report(tmp_path)


def test_sessions_name_machine_versions_and_command(tmp_path, monkeypatch):
    a_run(tmp_path)
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/laser", "train", "--env", "a b"])
    machine.record(tmp_path)
    machine.record(tmp_path)
    page = read_page(report(tmp_path))
    lines = page.table("Reproduce", "Sessions")[1:]
    assert [line[1] for line in lines] == ["laser train --env 'a b'"] * 2
    here = machine.machine()
    found = dict(page.table("Reproduce", "Hardware and versions of the last session"))
    assert (found["python"], found["cores"]) == (here["python"], str(here["cores"]))
    assert found["numpy"] == np.__version__
    assert not list(tmp_path.glob(".*.tmp"))


def test_gpus_are_named_without_waking_them(tmp_path):
    for number in (0, 1):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text(f"Model: \t\t NVIDIA H{number}\nIRQ:   \t\t 7\n")
    assert machine.gpus(tmp_path) == ["NVIDIA H0", "NVIDIA H1"]


def test_huge_logs_are_binned(tmp_path):
    row = {"kind": "train", "time": 0.0, "episodes": 5, **{f"number_{n}": 0.5 for n in range(20)}}
    random = np.random.default_rng(0)
    with (tmp_path / FILE).open("w") as file:
        for n, value in enumerate(random.normal(size=30_000).tolist()):
            file.write(json.dumps({**row, "step": 10 * n, "update": n, "return_mean": value, "entropy": value}) + "\n")
    start = time.process_time()
    paths = write_report([tmp_path], formats=ALL)
    assert time.process_time() - start < 20  # about 1 s on a free core; here only against what grows with the square
    assert paths[0].stat().st_size < 3e6
    points = [line for line in read_csv(paths[2]) if line["table"] == "Policy entropy"]
    assert len(points) == 3 * 240
    lowest = min(float(line["value"]) for line in points if line["column"].endswith("(low)"))
    assert lowest == subject_of(tmp_path).curve("entropy")[1].min()  # extremes are not averaged away
