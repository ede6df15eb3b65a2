"""`laser doctor`: each probe can say that something is wrong, and says what to do; a good machine is fine."""

import fcntl
import json
import os
import sys
import time
from pathlib import Path

import pytest

from laser_rl import cli
from laser_rl.tools import doctor


@pytest.fixture(scope="module")
def lines():
    return {line.part: line for line in doctor.looked_at(Path("runs"))}


def test_everything_is_looked_at(lines):
    parts = {"versions", "cores", "memory", "disk", "files", "open files", "torch", "GPU"}
    assert parts <= set(lines)
    assert {line.verdict for line in lines.values()} <= {"good", "warning", "bad"}
    assert all(line.todo for line in lines.values() if line.verdict != "good")
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in lines["versions"].found


def test_the_exit_status_says_whether_something_is_bad(monkeypatch, capsys):
    for verdict, status in (("good", 0), ("warning", 0), ("bad", 1)):
        line = doctor.Probe("disk", verdict, "this and that", "mend it")
        monkeypatch.setattr(doctor, "looked_at", lambda run_dir, line=line: iter([line]))
        assert cli.main(["doctor"]) == status
        assert "mend it" in capsys.readouterr().out
        assert cli.main(["doctor", "--json"]) == status
        found = json.loads(capsys.readouterr().out)
        assert found["fine"] == (verdict != "bad")
        assert found["lines"] == [{"part": "disk", "verdict": verdict, "found": "this and that", "todo": "mend it"}]


def test_a_torch_that_crashes_or_hangs_is_bad_and_does_not_take_us_along(monkeypatch):
    def torch_line():
        return next(line for line in list(doctor.looked_at(Path("runs"))) if line.part == "torch")

    monkeypatch.setattr(doctor, "ASK_TORCH", "import os; os.abort()")
    assert "status -6" in torch_line().found
    monkeypatch.setattr(doctor, "ASK_TORCH", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "TORCH_LIMIT_S", 0.3)
    start = time.monotonic()
    line = torch_line()
    assert (line.verdict, "did not answer" in line.found) == ("bad", True)
    assert time.monotonic() - start < 20


GPU = {"version": "2.6", "cuda": "12.4", "devices": ["H200, 140 GB"], "matmul": "works"}


@pytest.mark.parametrize(
    ("seen", "driver", "expected"),
    [
        (GPU, ["H200"], {"torch": "good", "GPU": "good", "GPU matmul": "good"}),
        ({**GPU, "matmul": "gives wrong numbers"}, ["H200"], {"GPU matmul": "bad"}),
        ({**GPU, "devices": [], "cuda": None}, ["H200"], {"GPU": "warning"}),
        ({**GPU, "devices": []}, [], {"GPU": "good"}),
        ({"error": "ImportError: libtorch"}, [], {"torch": "bad"}),
    ],
)
def test_gpus(seen, driver, expected):
    found = {line.part: line for line in doctor.gpu(seen, driver)}
    assert {part: found[part].verdict for part in expected} == expected
    assert all(line.todo for line in found.values() if line.verdict != "good")


@pytest.mark.parametrize(("text", "todo"), [("200000 100000\n", "taskset -c 0-1"), ("max 100000\n", ""), ("", "")])
def test_the_quota_of_a_control_group(text, todo, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "CORE_QUOTA", tmp_path / "cpu.max")
    assert doctor.cores(4).verdict == "good"  # there is no such file
    (tmp_path / "cpu.max").write_text(text)
    assert todo in doctor.cores(4).todo
    assert doctor.cores(4).verdict == ("warning" if todo else "good")
    assert doctor.cores(1).verdict == "warning"


def test_a_directory_that_is_not_there_yet_is_tried_where_it_would_be(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "ASK_TORCH", "")
    found = {line.part: line for line in doctor.looked_at(tmp_path / "not" / "yet")}
    assert str(tmp_path) in found["disk"].found
    assert found["files"].verdict == "good"
    assert list(tmp_path.iterdir()) == []  # nothing stays


def test_a_disk_without_locks_is_bad(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    line = doctor.files(tmp_path)
    assert (line.verdict, "locks do not" in line.found) == ("bad", True)


def test_a_disk_that_cannot_be_written_is_bad(monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "fsync", refuse)
    line = doctor.files(tmp_path)
    assert line.verdict == "bad"
    assert "Read-only" in line.found
