"""`laser report`: of one directory, of several, while they go on, and when asked for nonsense."""

import json

import pytest

from laser_rl import cli
from laser_rl.checkpoint import RunLock
from tests.metrics.test_sweep_rows import a_sweep
from tests.view.reading import read_report
from tests.view.test_report import a_run


def test_one_directory_has_its_report_inside(tmp_path, capsys):
    run_dir = a_run(tmp_path / "a")
    assert cli.main(["report", str(run_dir)]) == 0
    assert capsys.readouterr().out == f"{run_dir}/report.html\n"
    assert read_report(run_dir / "report.html").run()["name"] == "a"


def test_several_side_by_side(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a_run(tmp_path / "a")
    a_run(tmp_path / "b", 2.0)
    a_sweep(tmp_path / "c", 2)
    assert cli.main(["report", "a", "b", "c"]) == 0
    assert capsys.readouterr().out == "report.html\n"
    page = read_report(tmp_path / "report.html")
    assert [one["name"] for one in page.answers["/api/runs"]] == ["Side by side", "a", "b", "c"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["config.json", "metrics.jsonl"]
    assert cli.main(["report", "a", "b", "--out", "new/folder/x.html"]) == 0
    assert (tmp_path / "new/folder/x.html").exists()


def test_a_run_that_somebody_holds_goes_on(tmp_path):
    run_dir = a_run(tmp_path / "a", ended=False)
    with RunLock(run_dir):
        assert cli.main(["report", str(run_dir)]) == 0
    assert read_report(run_dir / "report.html").run()["state"] == "running"
    assert cli.main(["report", str(run_dir)]) == 0
    assert read_report(run_dir / "report.html").run()["state"] == "broken off"


def test_settings_of_an_older_version_are_no_reason_to_refuse(tmp_path):
    run_dir = a_run(tmp_path / "a")
    (run_dir / "config.json").write_text(json.dumps({"of": {"another": "time"}}))
    assert cli.main(["report", str(run_dir)]) == 0
    assert read_report(run_dir / "report.html").details()["settings"] == {"of.another": "time"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name one or more run directories"),
        (["nowhere"], "is this a run directory?"),
        (["."], "laser report ./*"),
        (["a", "--out", "x.md"], "expected something like report.html, got x.md"),
        (["a", "--out", "a"], "expected something like report.html"),
    ],
)
def test_nonsense_is_refused_with_what_to_do(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    a_run(tmp_path / "a")
    assert cli.main(["report", *arguments]) == 2
    assert message in capsys.readouterr().err
