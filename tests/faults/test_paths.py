"""Paths that cannot be used: one line, a proper status, no traceback, and nothing half written is left."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from laser_rl import cli, disk
from laser_rl.errors import ConfigError
from tests.checkpoint.test_lock import has_namespaces
from tests.training.small import finish, small

TRAIN = ["train", "--env", "CartPole-v1", "--steps", "60", "--environment.slots", "2", "--plain"]
SWEEP = ["sweep", *TRAIN[1:], "--grid", "learning_rate=1e-3,2e-3"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("paths") / "run"
    finish(small(steps=60), path)
    return path


def temporaries(*folders):
    return [path for folder in folders for path in folder.rglob("*") if path.name.endswith(".tmp")]


def refused(arguments, capfd, status=2):
    """The one line that is said."""
    capfd.readouterr()
    assert cli.main(arguments) == status
    said = [line for line in capfd.readouterr().err.splitlines() if line and "loading torch" not in line]
    assert len(said) == 1, said
    assert said[0].startswith("laser: ")
    return said[0]


@pytest.mark.fault(37)
@pytest.mark.parametrize("command", [TRAIN, SWEEP], ids=["train", "sweep"])
def test_an_out_that_is_no_directory(command, tmp_path, capfd):
    file = tmp_path / "a file"
    file.write_text("mine")
    assert "is a file, expected a directory" in refused([*command, "--out", str(file)], capfd)
    assert "Not a directory" in refused([*command, "--out", str(file / "run")], capfd)
    assert "is a file, expected a directory" in refused([*command, "--out", os.devnull], capfd)
    assert "File name too long" in refused([*command, "--out", str(tmp_path / ("n" * 300))], capfd)
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]
    assert Path(os.devnull).is_char_device()


@pytest.mark.fault(37)
@pytest.mark.parametrize("command", ["train", "status", "report", "verify", "resume", "evaluate", "config"])
def test_a_path_that_is_not_utf_8(command, tmp_path, capfd):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/r\xffn")
    flag = ["--out"] if command == "train" else ["show", "--run-dir"] if command == "config" else []
    assert r"/r\xffn' is not UTF-8" in refused([command, *flag, name], capfd)
    assert not list(tmp_path.iterdir())


@pytest.mark.fault(37)
def test_a_report_that_cannot_be_written(run_dir, tmp_path, capfd):
    long = refused(["report", str(run_dir), "--out", str(tmp_path / f"{'n' * 300}.html")], capfd)
    assert "File name too long" in long
    assert len(long) < 500
    (tmp_path / "file").touch()
    assert "ile" in refused(["report", str(run_dir), "--out", str(tmp_path / "file" / "a.html")], capfd)
    os.mkfifo(tmp_path / "pipe.html")
    assert "is not a regular file" in refused(["report", str(run_dir), "--out", str(tmp_path / "pipe.html")], capfd)
    assert not temporaries(tmp_path, run_dir)
    name = f"{'n' * 250}.html"  # may be a name, and leaves no room for what a temporary one adds
    assert cli.main(["report", str(run_dir), "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.fault(37)
def test_no_space_for_the_report(run_dir, tmp_path, capfd, monkeypatch):
    real = os.write

    def full(handle, data):
        if len(data) < 1000:
            return real(handle, data)
        real(handle, data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        said = refused(["report", str(run_dir), "--out", str(tmp_path / "a.html")], capfd, status=5)
    assert f"No space left on device: {tmp_path / 'a.html'} could not be written" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.fault(37)
def test_no_device_is_ever_replaced_by_a_file(tmp_path):
    """/dev/null, as root, would be a file from then on; a pipe stands for it here."""
    os.mkfifo(tmp_path / "device")
    with pytest.raises(ConfigError, match="is not a regular file, expected one or none"):
        disk.write_bytes(tmp_path / "device", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["device"]
    assert (tmp_path / "device").is_fifo()


@pytest.mark.fault(37)
@pytest.mark.slow
def test_a_read_only_folder(run_dir, tmp_path, figure):
    """Mounted so: root may write everywhere else."""
    if not has_namespaces(tmp_path):
        pytest.skip("namespaces cannot be made here")
    before = sorted(run_dir.rglob("*"))
    folder = run_dir.parent
    commands = {
        "report": [str(run_dir)],
        "train": [*TRAIN[1:], "--out", str(folder / "new")],
        "resume": [str(run_dir), "--steps", "200"],
    }
    mount = f'mount --bind "{folder}" "{folder}" && mount -o remount,bind,ro "{folder}" && exec "$@"'
    for name, arguments in commands.items():
        command = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-m", "laser_rl", name, *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        said = [line for line in ended.stderr.splitlines() if "INFO" not in line and "replay of" not in line]
        assert ended.returncode == 2, (name, ended.stderr)
        assert "Traceback" not in ended.stderr
        assert len(said) == 1, (name, said)
        assert str(folder) in said[0]
    for name in ("status", "verify"):  # who only reads does not mind
        command = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-m", "laser_rl", name, str(run_dir)]
        assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    assert sorted(run_dir.rglob("*")) == before
    assert not temporaries(folder)
    figure(f"read-only: {len(commands)} commands, one line and status 2 each, nothing left")
