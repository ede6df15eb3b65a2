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
    words = "python libraries cores memory disk files worker torch GPU"
    parts = [*words.split(), "open files", "extra atari", "extra cluster"]
    assert set(parts) <= set(lines)
    assert {line.verdict for line in lines.values()} <= {"good", "warning", "bad", "optional"}
    assert all(line.todo for line in lines.values() if line.verdict != "good")
    assert lines["worker"].verdict in {"good", "warning"}
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in lines["python"].found


def test_the_exit_status_says_whether_something_is_bad(monkeypatch, capsys):
    for verdict, status in (("good", 0), ("warning", 0), ("optional", 0), ("bad", 1)):
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

    monkeypatch.setattr(doctor, "worker", lambda: doctor.Probe("worker", "good", ""))
    monkeypatch.setattr(doctor, "ASK_TORCH", "import os; os.abort()")
    assert "status -6" in torch_line().found
    monkeypatch.setattr(doctor, "ASK_TORCH", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "TORCH_LIMIT_S", 0.3)
    start = time.monotonic()
    line = torch_line()
    assert (line.verdict, "did not answer" in line.found) == ("bad", True)
    assert time.monotonic() - start < 20


GPU = {"version": "2.6", "cuda": "12.4", "devices": ["H200, 140 GB"], "matmul": "works", "kernels": "works, triton 3"}


@pytest.mark.parametrize(
    ("seen", "driver", "expected"),
    [
        (GPU, ["H200"], {"torch": "good", "GPU": "good", "GPU matmul": "good", "GPU kernels": "good"}),
        ({**GPU, "matmul": "gives wrong numbers"}, ["H200"], {"GPU matmul": "bad", "GPU kernels": "good"}),
        ({**GPU, "kernels": "triton is not installed"}, ["H200"], {"GPU matmul": "good", "GPU kernels": "warning"}),
        ({**GPU, "devices": [], "cuda": None}, ["H200"], {"GPU": "warning"}),
        ({**GPU, "devices": []}, [], {"GPU": "good"}),
        ({"error": "ImportError: libtorch"}, [], {"torch": "bad"}),
    ],
)
def test_gpus(seen, driver, expected):
    found = {line.part: line for line in doctor.gpu(seen, driver)}
    assert {part: found[part].verdict for part in expected} == expected
    assert all(line.todo for line in found.values() if line.verdict != "good")


def test_a_library_that_is_missing_is_bad_and_an_extra_optional():
    asked = [
        "numpy>=1",
        "rich",
        "ray>=2; extra == 'cluster'",
        "ruff; extra == 'dev'",
        "a; extra == 'b'",
        "c; extra == 'b'",
    ]
    found = {line.part: line for line in doctor.libraries(asked, {"numpy": "2.0", "a": "1"}.get)}
    assert set(found) == {"libraries", "extra cluster", "extra b"}
    assert (found["libraries"].verdict, found["libraries"].found) == ("bad", "not installed: rich")
    assert found["extra cluster"].todo == "pip install 'laser-rl[cluster]'"
    assert found["extra b"].found == "not installed: c"


@pytest.mark.parametrize(("text", "quota"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None)])
def test_the_quota_of_a_control_group(text, quota, tmp_path):
    (tmp_path / "cpu.max").write_text(text)
    assert doctor.core_quota(tmp_path / "cpu.max") == quota
    assert doctor.core_quota(tmp_path / "nothing") is None


def test_cores_memory_and_open_files():
    assert doctor.cores(4, 4, None).verdict == "good"
    assert "taskset -c 0-1" in doctor.cores(4, 4, 2.0).todo
    assert doctor.cores(1, 8, None).verdict == "warning"
    assert [doctor.open_files(most).verdict for most in (100, 512, 4096)] == ["bad", "warning", "good"]
    verdicts = [doctor.memory(10**11, free).verdict for free in (5 * 10**8, 2 * 10**9, 10**10)]
    assert verdicts == ["bad", "warning", "good"]


def test_a_directory_that_is_not_there_yet_is_tried_where_it_would_be(tmp_path):
    space, files = doctor.disk_space(tmp_path / "not" / "yet")
    assert str(tmp_path) in space.found
    assert files.verdict == "good"
    assert list(tmp_path.iterdir()) == []  # nothing stays


def test_a_disk_without_locks_is_bad(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    line = doctor.promises(tmp_path)
    assert (line.verdict, "locks do not" in line.found) == ("bad", True)


def test_a_disk_that_cannot_be_written_is_bad(monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "fsync", refuse)
    line = doctor.promises(tmp_path)
    assert line.verdict == "bad"
    assert "Read-only" in line.found


def test_without_a_worker_the_machine_is_bad(monkeypatch):
    from laser_rl.envs import worker  # noqa: PLC0415

    monkeypatch.setattr(worker, "ENTRY", "raise SystemExit(3)")
    monkeypatch.setattr(doctor, "WORKER_LIMIT_S", 5.0)
    line = doctor.worker()
    assert line.verdict == "bad"
    assert "placement thread" in line.todo
