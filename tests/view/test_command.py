"""`laser dashboard` and `--dashboard`: what is refused, what is said, what is sent to a page."""

import contextlib
import http.client
import importlib.util
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from laser_rl import cli
from laser_rl.metrics.log import MetricsLog
from laser_rl.view.panels import PANELS
from tests.view.logs import level, write_run, write_sweep
from tests.view.reading import read_report, report
from tests.view.serving import serving, until


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "dashboard what? name one or more run directories"),
        (["nowhere"], "expected directories of runs, got nowhere"),
        ([".", "--port", "70000"], "port 70000 of 127.0.0.1 cannot be used"),
    ],
)
def test_mistakes_are_refused_without_a_traceback(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["dashboard", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_without_the_extra_it_is_said_before_anything_begins(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for arguments in (["dashboard", str(tmp_path)], ["train", "--dashboard", "--out", str(tmp_path / "run")]):
        assert cli.main(arguments) == 2
        assert "needs the extra 'dashboard'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def status_of(link):
    port, token = re.fullmatch(r"http://127.0.0.1:(\d+)(/\?token=\S+)", link).groups()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)) as connection:
        connection.request("GET", token)
        return connection.getresponse().status


TRAIN = [sys.executable, "-m", "laser_rl", "train", "--env", "laser/Catch", "--steps", "200", "--dashboard", "--plain"]


@pytest.mark.slow
def test_the_dashboard_stays_up_after_the_run_until_ctrl_c(tmp_path):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(TRAIN, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, start_new_session=True)
    os.close(theirs)
    said = ""
    while not (link := re.search(r"stays up until Ctrl-C: (\S+)\r", said)):
        said += os.read(ours, 4096).decode()
    assert "report:" in said
    assert status_of(link[1]) == 303
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    with pytest.raises(OSError, match="refused"):
        status_of(link[1])
    os.close(ours)


@pytest.mark.slow
def test_the_dashboard_ends_with_the_run_where_output_is_no_terminal(tmp_path):
    ours, theirs = pty.openpty()
    done = subprocess.run(TRAIN, stdin=theirs, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=True)
    assert "dashboard: http" in done.stdout
    assert "stays up" not in done.stdout
    os.close(ours)
    os.close(theirs)


def test_neither_training_nor_help_loads_the_server():
    code = (
        "import sys, laser_rl.cli.train; print([n for n in ('starlette', 'laser_rl.view.server') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.strip() == "[]"


def test_a_page_hears_of_new_rows_and_of_new_runs(tmp_path):
    write_sweep(tmp_path / "a", 3, 20)
    with serving([tmp_path]) as served:

        def told():
            return json.loads(served.ask("/api/runs/0")[2])

        assert (told()["name"], told()["environment"], len(told()["members"])) == ("a", "laser/Catch", 3)
        until(lambda: told()["rows"] == 80, "the rows to be read")
        before = told()["version"]
        write_sweep(tmp_path / "a", 3, 5, begin=20)
        until(lambda: told()["rows"] == 100, "the new rows to be read")
        assert told()["members"][0]["updates"] == 24
        assert told()["version"] > before
        chart = json.loads(served.ask("/api/runs/0/panels/returns")[2])
        assert chart["x"][-1] == 960.0
        assert [line["y"][-1] for line in chart["lines"]] == pytest.approx(
            [level(24, member) for member in range(3)], rel=1e-4
        )
        assert chart["best"] == 2


def test_one_reader_however_many_ask(tmp_path):
    run = write_run(tmp_path / "a", 2000)
    with serving([tmp_path]) as served:
        for _ in range(10):
            assert served.ask("/api/runs/0")[0] == 200
        until(lambda: served.runs.every()[0].history.rows == 2000, "the rows to be read")
        assert served.runs.every()[0].tail.offset == (run / "metrics.jsonl").stat().st_size


def test_panels_by_time_and_by_learner(tmp_path):
    write_sweep(tmp_path / "a", 3, 30)
    with serving([tmp_path]) as served:
        assert served.ask("/api/runs/0")[0] == 200
        until(lambda: served.runs.every()[0].history.rows >= 120, "the rows to be read")
        by_time = json.loads(served.ask("/api/runs/0/panels/steps?x=time")[2])
        assert (by_time["x"][0], by_time["x"][-1]) == (0.0, 29.0)
        one, everybody = (
            json.loads(served.ask(f"/api/runs/0/panels/trust?learner={which}")[2]) for which in ("1", "all")
        )
        assert [line["member"] for line in one["lines"]] == [line["member"] for line in everybody["lines"]] == [0, 1, 2]
        for strange in ("-1", "99", "x", "1;2", "%C2%B2", "9" * 500):
            assert json.loads(served.ask(f"/api/runs/0/panels/trust?learner={strange}")[2]) == everybody
        assert json.loads(served.ask("/api/runs/0/panels/replay")[2])["lines"][0]["y"][0] == pytest.approx(
            1 / 3, abs=1e-3
        )


def test_what_is_costly_is_made_seldom_and_the_last_is_shown_in_the_end(tmp_path, monkeypatch):
    made = []

    def costly(subject, asked):
        made.append(asked)
        ends = time.thread_time() + 0.01
        while time.thread_time() < ends:
            pass
        return {"lines": []}

    monkeypatch.setitem(PANELS, "steps", costly)
    write_run(tmp_path / "a", 3)
    with serving([tmp_path]) as served:
        run = served.runs.every()[0]
        for _ in range(30):
            run.version += 1
            assert served.ask("/api/runs/0/panels/steps")[0] == 200
        assert len(made) <= 3
        until(
            lambda: json.loads(served.ask("/api/runs/0/panels/steps")[2])["version"] == run.version,
            "the newest version",
        )


def test_a_run_that_ends_says_so(tmp_path):
    run = write_run(tmp_path / "a", 3)
    with serving([tmp_path]) as served:
        served.ask("/api/runs/0")
        until(
            lambda: json.loads(served.ask("/api/runs/0")[2])["state"] == "broken off",
            "the state of a run without a process",
        )
        with contextlib.closing(MetricsLog(run)) as log:
            log.write("event", 120, 3, {"event": "finished"})
        until(lambda: json.loads(served.ask("/api/runs/0")[2])["state"] == "finished", "the end to be seen")


def test_an_empty_directory_waits_for_its_run(tmp_path):
    with serving([tmp_path]) as served:
        assert json.loads(served.ask("/api/runs")[2]) == []
        assert served.ask("/api/runs/0")[0] == 404


def test_several_directories_side_by_side_are_what_the_report_says(tmp_path):
    runs = [write_run(tmp_path / "a", 30), write_sweep(tmp_path / "b", 2, 20)]
    frozen = read_report(report(*runs, out=tmp_path / "report.html"))
    with serving([tmp_path]) as served:

        def told(path):
            return json.loads(served.ask(path)[2])

        first = told("/api/runs")[0]
        assert (first["name"], first["state"]) == ("Side by side", "2 directories")
        address = f"/api/runs/{first['run']}"
        until(lambda: told(address)["known"] == 1 and told(address)["members"] == frozen.run()["members"], "the rows")
        assert told(address)["panels"] == frozen.run()["panels"]
        names = [one["id"] for one in frozen.run()["panels"]]
        assert len(told(f"{address}/panels/compared-0")["lines"]) == 2  # a report has fewer points of it
        for name in (name for name in names if name != "compared-0"):
            live = told(f"{address}/panels/{name}?x=time")
            assert {**live, "version": 0} == {**frozen.panel(name, axis="time"), "version": 0}, name
        for path in (f"{address}/panels/returns", f"{address}/details", f"{address}/videos/x", "/api/runs/2"):
            assert served.ask(path)[0] == 404, path
        before = told(address)["version"]
        write_run(tmp_path / "a", 5, begin=30)
        until(lambda: told(address)["version"] > before, "the new rows")


def test_one_directory_is_not_compared_and_many_are_bounded(tmp_path):
    write_run(tmp_path / "runs" / "0", 2)
    with serving([tmp_path / "runs"]) as served:
        assert len(json.loads(served.ask("/api/runs")[2])) == 1
        assert served.ask("/api/runs/500")[0] == 404
    for n in range(1, 23):
        write_run(tmp_path / "runs" / str(n), 2)
        os.utime(tmp_path / "runs" / str(n) / "metrics.jsonl", (n, n))  # the first one is the newest
    with serving([tmp_path / "runs"]) as served:
        assert json.loads(served.ask("/api/runs")[2])[0]["state"] == "newest 20 of 23 directories"
        until(lambda: all(run.changed for run in served.runs.every()), "all to be looked at")
        names = [one["name"] for one in json.loads(served.ask("/api/runs/500")[2])["members"]]
        assert sorted(names, key=int) == ["0", *map(str, range(4, 23))]
