"""The disk is full while an agent trains: it is said once, nothing is damaged, and all goes on when there is space."""

import os
import signal
import subprocess
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from laser_rl import checkpoint
from laser_rl.errors import UserError
from laser_rl.metrics.log import MetricsLog, read
from laser_rl.training import trainer as space
from laser_rl.training.build_group import build_group
from laser_rl.training.saving import NoSpace, Writer
from laser_rl.training.settings import SweepConfig
from tests.checkpoint.inputs import forked, outcome
from tests.faults.disk import Disk, assert_in_order, mounted, unmount
from tests.faults.test_run_faults import LASER, newest, wait_until
from tests.row_hash import rows_hash
from tests.training.small import finish, small

SAID, AGAIN = "no space for the checkpoint", "there is space again"


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr(space, "FIRST_S", 0.02)  # between two tries
    disk = Disk()
    yield disk
    disk.free()


def config_of(runtime, **more):
    return small(
        steps=800,
        checkpoint_every_steps=100,
        runtime=runtime,
        capacity_steps=1000,
        **{"run.log_every_s": 0.02, **more},
    )


class Full:
    """A callback: the disk is full from one step of the run to another."""

    def __init__(self, disk, path, begin, end, most_bytes=700):
        self.disk, self.path, self.begin, self.end, self.most_bytes = disk, path, begin, end, most_bytes
        self.before, self.seconds = None, 0.0

    def __call__(self, progress):
        if progress.step >= self.begin and self.before is None:
            self.before, self.seconds = checkpoint.latest(self.path), time.monotonic()
            self.disk.fill(self.most_bytes)
        elif progress.step >= self.end and self.disk.full:
            assert checkpoint.latest(self.path).step == self.before.step
            assert_in_order(self.path)
            self.disk.free()
            self.seconds = time.monotonic() - self.seconds


def parameters(path):
    return checkpoint.latest(path).tensors["member-00"]


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    ("runtime", "most_bytes"), [("serial", 7_500), ("local", 700)]
)  # with, without room for a segment
def test_a_full_disk_ends_no_run_and_loses_nothing(tmp_path, disk, caplog, figure, runtime, most_bytes):
    path = tmp_path / "run"
    full = Full(disk, path, 250, 550, most_bytes)
    result, training = finish(config_of(runtime), path, callbacks=[full])
    assert result.steps >= 800
    assert not disk.full
    for words in (SAID, AGAIN, "no space for rows of metrics"):
        assert sum(words in message for message in caplog.messages) == 1, words
    assert checkpoint.latest(path).step == result.steps
    assert_in_order(path)
    rows = read(path, ("train",))
    assert [row["update"] for row in rows] == sorted({row["update"] for row in rows})
    assert rows[-1]["update"] == result.updates
    episodes = sum(row["kind"] == "episode" for row in read(path))
    assert episodes == training.window.episodes
    if runtime == "serial":  # not a bit is different from a run with space
        whole = tmp_path / "whole"
        finish(config_of(runtime), whole)
        assert rows_hash(path) == rows_hash(whole)
        for name, tensor in parameters(whole).items():
            assert torch.equal(tensor, parameters(path)[name])
    figure(
        f"{runtime}: full for {full.seconds:.1f} s of training, {len(rows):,} rows and {episodes:,} episodes, none lost"
    )


@pytest.mark.fault(10)
@pytest.mark.slow
def test_without_space_for_the_last_checkpoint_the_run_fails_and_goes_on_later(tmp_path, disk, figure):
    path, whole = tmp_path / "run", tmp_path / "whole"
    full = Full(disk, path, 500, 10**9)
    with pytest.raises(
        UserError, match=rf"Free some space, then go on from there with: laser resume {path}$"
    ) as caught:
        finish(config_of("serial"), path, callbacks=[full])
    disk.free()
    assert caught.value.exit_status == 5
    assert f"that of step {full.before.step:,} is whole" in str(caught.value)
    assert "MB free" in str(caught.value)
    assert_in_order(path)
    assert checkpoint.latest(path).step == full.before.step
    finish(config_of("serial"), path)
    finish(config_of("serial"), whole)
    for name, tensor in parameters(whole).items():
        assert torch.equal(tensor, parameters(path)[name])
    figure("full to the end: exit status 5, the previous checkpoint whole, resumed bit for bit")


def test_an_error_that_is_no_lack_of_space_is_not_hidden(tmp_path):
    path = tmp_path / "run"

    def spoil(progress):
        if progress.step > 300 and (path / "replay").is_dir():
            (path / "replay").rename(path / "elsewhere")
            (path / "replay").write_text("a file")

    with pytest.raises(OSError, match=r"exists|Not a directory"):
        finish(config_of("serial"), path, callbacks=[spoil])


@pytest.mark.fault(10)
@pytest.mark.parametrize("room", [0, 1, 30])  # bytes that still fit, so that a row is cut off
def test_rows_wait_for_space_in_order_and_what_is_dropped_is_counted(tmp_path, disk, monkeypatch, caplog, figure, room):
    monkeypatch.setattr("laser_rl.metrics.log.TRY_S", 0.0)
    monkeypatch.setattr("laser_rl.metrics.log.MOST_KEPT", 20)
    log = MetricsLog(tmp_path)
    for number in range(5):
        log.write("train", number, number, {"x": 1.5})
    with disk.filled(log.path.stat().st_size + room):
        log.resumed(5, 5)
        for number in range(5, 100):
            log.write("train", number, number, {"x": 1.5})
            log.flush()
        assert [row["step"] for row in read(tmp_path)] == list(range(5))
    for number in (100, 101):  # the disk is said to have space again once, not with every row
        log.write("train", number, number, {"x": 1.5})
    log.close()
    rows = read(tmp_path)
    kept = [row["step"] for row in rows if row["kind"] == "train"]
    assert kept == [*range(5), *range(82, 102)]
    assert [(row["event"], row.get("rows")) for row in rows if row["kind"] == "event"] == [
        ("resumed", None),
        ("rows_lost", 77),
    ]
    assert sum("no space" in message for message in caplog.messages) == 1
    assert [message for message in caplog.messages if "written again" in message] == [
        f"{log.path} is written again; 77 rows are lost"
    ]
    figure("metrics: 97 rows without space and room for 20, those written in order, 77 counted as lost")


def test_half_a_row_of_one_process_spoils_none_of_another(tmp_path, disk):
    log = MetricsLog(tmp_path)
    log.write("train", 1, 1, {})

    def cut_off():
        with disk.filled(log.path.stat().st_size + 20):
            MetricsLog(tmp_path).write("train", 2, 2, {"x": 1.0})

    assert outcome(forked(cut_off)) == 0
    assert not log.path.read_bytes().endswith(b"\n")
    log.write("train", 3, 3, {})
    log.close()
    assert [row["step"] for row in read(tmp_path)] == [1, 3]


def started(*words, errors):
    with errors.open("ab") as file:
        return subprocess.Popen(
            [*LASER, *map(str, words)], stdout=subprocess.DEVNULL, stderr=file, start_new_session=True
        )


def status_of(process, timeout_s=120):
    try:
        return process.wait(timeout_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def fill_up(path):
    """Until not a byte more fits."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while file.write(os.urandom(size)) == size:
                    pass
            except OSError:
                pass


@pytest.fixture
def small_disk(tmp_path):
    path = tmp_path / "disk"
    if not mounted(path):
        pytest.skip("needs the right to mount a file system")
    yield path
    unmount(path)


SETTINGS = (
    "--steps 10M --environment.slots 3 --replay.capacity-steps 2000 --run.checkpoint-every-steps 300 "
    "--run.evaluate-episodes 2 --plain"
)


@pytest.mark.slow
@pytest.mark.fault(10)
@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_file_system_without_space(small_disk, tmp_path, figure, runtime):
    """The command, and a file system on which not a byte is left."""
    run_dir, filler, errors = small_disk / "run", small_disk / "filler", tmp_path / "errors"
    process = started("train", "--out", run_dir, *SETTINGS.split(), "--run.runtime", runtime, errors=errors)
    try:
        wait_until(lambda: newest(run_dir) >= 600, process)
        fill_up(filler)
        wait_until(lambda: SAID in errors.read_text(), process)
        before = newest(run_dir)
        time.sleep(1.0)
        assert newest(run_dir) == before  # and it is whole, or `newest` would say an older one
        filler.unlink()
        freed = time.monotonic()
        wait_until(lambda: AGAIN in errors.read_text(), process)
        seconds = time.monotonic() - freed
        assert newest(run_dir) > before
        fill_up(filler)
        process.send_signal(signal.SIGTERM)
        assert status_of(process) == 5
    finally:
        status_of(process, 1) if process.poll() is None else None
    said = errors.read_text()
    assert f"laser resume {run_dir}" in said
    assert "Traceback" not in said
    # While it went on, and at the end; once more where a checkpoint was due between the second time that it was full and the signal.
    assert said.count(SAID) in {2, 3}
    full = started("resume", run_dir, "--plain", errors=errors)
    assert status_of(full) == 5  # not a byte is left for its lock
    assert "Traceback" not in errors.read_text()
    filler.unlink()
    at = newest(run_dir)
    assert status_of(started("resume", run_dir, "--plain", "--steps", at + 300, errors=errors)) == 0
    assert status_of(started("verify", run_dir, errors=errors)) == 0
    figure(
        f"{runtime}, no byte left: the command goes on, saves {seconds:.1f} s after there is space; full at the end: status 5"
    )


def test_the_pause_between_tries_grows_to_five_minutes(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(space, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(space, "FIRST_S", 2.0)
    failed = []

    def write():
        failed.append(now[0])
        raise NoSpace(space.Path(), 1, OSError(28, "No space left on device"))

    def save(trainer):
        writer = Writer(write, lambda: None)
        writer.run()
        return writer

    group = build_group(SweepConfig(base=small()))
    trainer = space.Trainer(SweepConfig(base=small()), group, save=save)
    trainer.save(last=False)
    while now[0] < 3600:
        now[0] += 0.5
        if trainer._save_is_due():
            trainer.save(last=False)
    group.close()
    pauses = np.diff(failed)
    assert pauses[:4].tolist() == [2, 4, 8, 16]
    assert pauses[-1] == 300
    with pytest.raises(NoSpace):
        trainer.save()
