"""The disk is full while a sweep trains, in one process and in several: it goes on, and so do its checkpoints."""

import resource
import time

import pytest

from laser_rl import checkpoint
from laser_rl.errors import UserError
from laser_rl.metrics.log import read
from laser_rl.metrics.tensorboard import TensorBoardLog
from laser_rl.training import trainer as space
from laser_rl.training.directory import RunDirectory
from laser_rl.training.settings import SweepConfig
from laser_rl.training.supervisor import ProcessSupervisor
from tests.faults.disk import Disk, assert_in_order
from tests.faults.test_disk_full import AGAIN, SAID, Full
from tests.row_hash import rows_hash
from tests.training.small import small
from tests.training.test_sweeps import in_directory, small_sweep


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr(space, "FIRST_S", 0.02)
    disk = Disk()
    yield disk
    disk.free()


@pytest.mark.fault(10)
def test_a_full_disk_ends_no_sweep_and_loses_nothing(tmp_path, disk, caplog, figure):
    config = small_sweep(steps=500, checkpoint_every_steps=100)
    path = tmp_path / "sweep"
    end = in_directory(config, path, callbacks=[full := Full(disk, path, 150, 350)])
    assert all(member.steps >= 500 for member in end.members)
    assert not disk.full
    assert sum(SAID in message for message in caplog.messages) == 1
    assert sum(AGAIN in message for message in caplog.messages) == 1
    assert checkpoint.latest(path).step >= 500
    assert_in_order(path)
    in_directory(config, tmp_path / "whole")
    assert rows_hash(path) == rows_hash(tmp_path / "whole")
    figure(f"sweep of 3 members: full for {full.seconds:.1f} s of training, {len(read(path)):,} rows, none lost")


@pytest.mark.fault(10)
@pytest.mark.slow
def test_without_space_for_the_last_checkpoint_a_sweep_fails_and_goes_on_later(tmp_path, disk):
    config = small_sweep(steps=300, checkpoint_every_steps=100)
    with pytest.raises(UserError, match=r"no space for the checkpoint.*laser resume"):
        in_directory(config, tmp_path, callbacks=[Full(disk, tmp_path, 150, 10**9)])
    disk.free()
    assert_in_order(tmp_path)
    end = in_directory(config, tmp_path)
    assert all(member.steps >= 300 for member in end.members)


@pytest.mark.slow
@pytest.mark.fault(10)
def test_a_full_disk_ends_no_sweep_over_processes(tmp_path, disk, caplog, figure):
    """All of its processes are refused by the kernel: the parent's checkpoints, everybody's rows."""
    base = small("laser/Catch", steps=6_000, checkpoint_every_steps=500, capacity_steps=6_000, log_every_updates=20)
    config = SweepConfig(base=base, grid={"learning_rate": [5e-4, 1e-3, 2e-3, 4e-3]}, processes=2)
    directory = RunDirectory(tmp_path, config)
    supervisor = ProcessSupervisor(config, directory, 2)
    look, moments = supervisor._look, []

    def everybody(limits):
        for process in supervisor.processes:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)

    def watched():
        steps = int(supervisor.board.steps.min())
        if not moments and checkpoint.newest_step(tmp_path):
            moments.append((time.monotonic(), checkpoint.newest_step(tmp_path)))
            everybody((1_000, disk.usual[1]))
            disk.fill(1_000)
        elif len(moments) == 1 and steps >= 4_000:
            assert checkpoint.latest(tmp_path).step == moments[0][1]
            assert_in_order(tmp_path)
            moments.append((time.monotonic(), steps))
            disk.free()
            everybody(disk.usual)
        return look()

    supervisor._look = watched
    try:
        end = supervisor.run()
    finally:
        directory.close()
    assert len(moments) == 2
    assert all(member.steps >= 6_000 for member in end.members)
    assert [process.restarts for process in supervisor.processes] == [0, 0]
    assert sum(SAID in message for message in caplog.messages) == 1
    assert sum(AGAIN in message for message in caplog.messages) == 1
    assert_in_order(tmp_path)
    assert checkpoint.latest(tmp_path).step >= 6_000
    finished = [row for row in read(tmp_path, ("event",)) if row["event"] == "finished" and "member" in row]
    assert sorted(row["member"] for row in finished) == [0, 1, 2, 3]
    assert not [row for row in read(tmp_path, ("event",)) if row["event"] == "rows_lost"]
    figure(f"sweep over 2 processes: full for {moments[1][0] - moments[0][0]:.1f} s, no process restarted, no row lost")


def test_rows_for_tensorboard_are_left_out_while_there_is_no_space(tmp_path, disk, caplog):
    board = TensorBoardLog(tmp_path)
    board.write("train", 1, 1, {"x": 1.0})
    board.flush()
    [file] = tmp_path.iterdir()
    with disk.filled(file.stat().st_size + 10):
        for step in range(2, 2_000):
            board.write("train", step, step, {"x": 1.0})
        board.flush()
    board.write("train", 2_000, 2_000, {"x": 1.0})
    board.close()
    assert sum("no space for TensorBoard" in message for message in caplog.messages) == 1
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # noqa: PLC0415

    steps = [event.step for event in EventFileLoader(str(file)).Load()][1:]
    assert steps[0] == 1
    assert steps[-1] == 2_000  # nothing in between is torn, or the reader would stop there
    assert steps == sorted(steps)
