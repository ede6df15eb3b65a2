"""A thread writes large checkpoints while learning goes on: the same bytes as if the learner waited, whatever happens meanwhile."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from laser_rl import checkpoint
from laser_rl.checkpoint import REPLAY
from laser_rl.config import override
from laser_rl.replay.store import Replay
from laser_rl.training import directory as directories
from laser_rl.training import saving, stall
from laser_rl.training.directory import RunDirectory
from laser_rl.training.launch import prepare
from laser_rl.training.saving import NoSpace
from laser_rl.training.settings import SweepConfig
from tests.faults.disk import Disk, assert_in_order
from tests.replay.inputs import PICTURE, VECTOR, numbered
from tests.training.small import finish, small
from tests.training.test_recurrent import recurrent
from tests.training.test_sweeps import in_directory, small_sweep

EVERY = {"run.device": "cpu", "checkpoint_every_steps": 100, "run.keep_checkpoints": 50, "run.steps": 500}
KINDS = {
    "feed-forward": lambda: small(capacity_steps=100, **EVERY),
    "prioritised": lambda: small(sampling="prioritised", **EVERY),
    "lanes": lambda: recurrent(**EVERY),
    "pictures": lambda: small("laser/KeyDoor-6", **EVERY),
    "sweep": lambda: small_sweep(**EVERY),
    "separate replays": lambda: small_sweep(share="separate", stack="off", **EVERY),
}


@pytest.fixture
def aside(monkeypatch):
    """A thread writes every checkpoint, however small, in segments of a few unrolls."""
    monkeypatch.setattr(directories, "ASIDE_BYTES", 0)
    monkeypatch.setattr(saving, "SEGMENT_UNROLLS", 8)


def slowed(monkeypatch, seconds=0.02, before=lambda: None):
    """The writer of each checkpoint needs so long for a segment."""
    plain = saving.write_segment

    def slow(*arguments):
        before()
        time.sleep(seconds)
        return plain(*arguments)

    monkeypatch.setattr(saving, "write_segment", slow)


def files_of(run_dir):
    """Every byte of all checkpoints and of the replay; the manifests, which name them with their SHA-256, included."""
    paths = [path for name in (checkpoint.CHECKPOINTS, REPLAY) for path in (run_dir / name).rglob("*")]
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in paths if path.is_file()}


@pytest.mark.fault(7)
@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_writes_the_same_bytes_as_a_learner_that_waits(tmp_path, monkeypatch, kind):
    """Also where nothing of the replay is on disk yet: of the first kind it holds 20 unrolls, and 20 come between two checkpoints."""
    config = KINDS[kind]()
    run = in_directory if isinstance(config, SweepConfig) else finish
    monkeypatch.setattr(saving, "SEGMENT_UNROLLS", 8)
    run(config, tmp_path / "waits")
    monkeypatch.setattr(directories, "ASIDE_BYTES", 0)
    slowed(monkeypatch, 0.01)
    write = saving.Writer.run

    def late(writer):
        time.sleep(0.1)  # learning goes on, and what the checkpoint holds must not
        write(writer)

    monkeypatch.setattr(saving.Writer, "run", late)
    run(config, tmp_path / "aside")
    expected, found = files_of(tmp_path / "waits"), files_of(tmp_path / "aside")
    assert found.keys() == expected.keys()
    assert sum(name.endswith("manifest.json") for name in found) >= 5
    for name, data in expected.items():
        assert found[name] == data, name
    assert_in_order(tmp_path / "aside")


def stuck(monkeypatch):
    """The writer stops before its next segment until the event that is returned is set; there is one writer at a time."""
    go, most = threading.Event(), [0]

    def stop():
        most[0] = max(most[0], sum(thread.name == "checkpoint" for thread in threading.enumerate()))
        go.wait(20)

    slowed(monkeypatch, 0.0, stop)
    return go, most


def prepared(config, path):
    directory = RunDirectory(path, config)
    return directory, prepare(config, directory, sinks=[directory.log])


def turns(trainer, updates):
    end = trainer.updates + updates
    while trainer.updates < end:
        trainer.turn()
        trainer.between()


ROOMY = {"capacity_steps": 5000, "checkpoint_every_steps": 0, "run.steps": 100_000}


def test_learning_goes_on_while_the_writer_is_stuck_and_the_end_waits_for_it(tmp_path, monkeypatch, caplog, aside):
    monkeypatch.setattr(stall, "SAY_AFTER_S", 0.3)
    directory, trainer = prepared(small(**ROOMY), tmp_path)
    turns(trainer, 20)
    go, most = stuck(monkeypatch)
    at = trainer.steps
    trainer.save(last=False)
    turns(trainer, 20)
    assert directory._writer.is_alive()
    assert checkpoint.latest(tmp_path) is None
    threading.Timer(1.0, go.set).start()
    trainer.save()
    assert checkpoint.latest(tmp_path).step == trainer.steps > at
    assert (tmp_path / "checkpoints" / f"step-{at:012d}").is_dir()  # the one that it had waited for
    assert most == [1]
    assert any("the learner has waited" in one and "the checkpoint's writer" in one for one in caplog.messages)
    trainer.group.close()
    directory.close()
    assert_in_order(tmp_path)


def test_a_writer_that_does_not_get_on_is_named_in_the_end(tmp_path, monkeypatch, aside):
    monkeypatch.setattr(stall, "GIVE_UP_S", 1.0)
    directory, trainer = prepared(small(**ROOMY), tmp_path)
    turns(trainer, 20)
    go, most = stuck(monkeypatch)
    with pytest.raises(TimeoutError, match="the learner has waited 1 s for the checkpoint's writer and gives up"):
        trainer.save()
    go.set()
    trainer.group.close()
    directory.close()
    assert most == [1]


def test_a_replay_waits_before_it_replaces_what_is_not_copied_and_for_nothing_else(tmp_path, monkeypatch, aside):
    store = Replay(VECTOR, 20 * VECTOR.steps)
    store.insert(numbered(VECTOR, range(15)))
    files = saving.Segments(tmp_path, VECTOR)
    files.begin(store)
    store.keep = files.keep
    store.insert(numbered(VECTOR, range(15, 20)))  # the store is full, and still holds all that the checkpoint does
    late = threading.Thread(target=lambda: store.insert(numbered(VECTOR, range(20, 29))), daemon=True)
    late.start()
    late.join(0.2)
    assert late.is_alive()
    assert (store.first_id, store.next_id) == (0, 20)
    copied = []
    slowed(monkeypatch, 0.2, lambda: copied.append((files.copied, store.first_id)))
    assert files.write(store) == {"first_id": 0, "next_id": 15}
    assert copied == [(8, 0), (15, 0)]  # eight are copied, nine have to leave
    late.join(5)
    assert store.first_id == 9
    store.insert(numbered(VECTOR, range(29, 40)))  # more than it has held
    again = Replay(VECTOR, 20 * VECTOR.steps)
    saving.Segments(tmp_path, VECTOR).fill(again, tuple(files.entries), {"first_id": 0, "next_id": 15})
    assert again.export(np.arange(15)).version.tolist() == list(range(15))


@pytest.mark.parametrize(("layout", "budget"), [(VECTOR, None), (PICTURE, 9_000), (PICTURE, None), (PICTURE, 60_000)])
def test_what_an_insert_lets_go_is_known_before(layout, budget):
    dice = np.random.default_rng(5)
    store = Replay(layout, 23 * layout.steps, codec="raw" if budget is None else "zstd", budget_bytes=budget)
    foreseen = []
    store.keep = lambda first: foreseen.append(first())
    for turn in range(80):
        held = store.next_id
        store.insert(numbered(layout, range(50 * turn, 50 * turn + int(dice.integers(0, 6)))))
        assert min(foreseen[-1], held) == min(store.first_id, held)  # if all leave, it does not matter what else does
    assert store.first_id > 50


@pytest.mark.fault(10)
@pytest.mark.parametrize("runtime", ["serial", "local"])
def test_a_full_disk_is_told_by_the_learner_and_the_checkpoint_before_stays(
    tmp_path, monkeypatch, caplog, aside, runtime
):
    monkeypatch.setattr("laser_rl.training.trainer.FIRST_S", 0.02)
    disk, path, seen = Disk(), tmp_path / "run", {}

    def fill(progress):
        if progress.step >= 250 and not seen and checkpoint.latest(path) is not None:
            seen["before"], seen["full"] = checkpoint.latest(path).step, progress.step
            disk.fill()
        elif progress.step >= 550 and disk.full:
            seen["still"] = checkpoint.latest(path).step
            disk.free()

    often = {"run.log_every_s": 0.02}
    config = small(steps=800, checkpoint_every_steps=100, runtime=runtime, capacity_steps=1000, **often)
    try:
        result, _ = finish(config, path, callbacks=[fill])
    finally:
        disk.free()
    assert seen["before"] <= seen["still"] <= seen["full"]  # one that was under way may need no more than is left
    for words in ("no space for the checkpoint", "there is space again"):
        assert sum(words in message for message in caplog.messages) == 1, words
    assert checkpoint.latest(path).step == result.steps
    assert_in_order(path)


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    ("number", "raised"), [(errno.EIO, OSError), (errno.ENOSPC, NoSpace)], ids=["EIO", "no space at the end"]
)
def test_an_error_of_the_thread_is_raised_where_the_run_learns(tmp_path, monkeypatch, aside, number, raised):
    directory, trainer = prepared(small(**ROOMY), tmp_path)
    turns(trainer, 20)
    trainer.save()
    before = checkpoint.latest(tmp_path).step

    segments = []

    def fail():
        segments.append(1)
        if len(segments) > 1:  # the first one is written, and has to go
            raise OSError(number, os.strerror(number), "a segment")

    turns(trainer, 20)
    slowed(monkeypatch, 0.0, fail)
    if raised is NoSpace:
        with pytest.raises(NoSpace, match="no space for the checkpoint"):
            trainer.save()
    else:
        trainer.save(last=False)
        with pytest.raises(OSError, match="Input/output error"):
            turns(trainer, 1000)
    assert checkpoint.latest(tmp_path).step == before
    assert_in_order(tmp_path)
    trainer.group.close()
    directory.close()


def test_a_run_that_fails_still_gets_the_checkpoint_under_way(tmp_path, monkeypatch, aside):
    slowed(monkeypatch, 0.05)
    at = []

    def fail(progress):
        if progress.step > 320:
            at.append(checkpoint.newest_step(tmp_path))
            raise ZeroDivisionError

    config = small(capacity_steps=5000, checkpoint_every_steps=300, **{"run.log_every_updates": 1})
    with pytest.raises(ZeroDivisionError):
        finish(config, tmp_path, callbacks=[fail])
    assert at == [None]  # it was not there yet
    assert 300 <= checkpoint.latest(tmp_path).step < 320
    assert_in_order(tmp_path)


def test_who_ends_at_once_does_not_wait_for_all_of_it_and_leaves_the_checkpoint_before(tmp_path, monkeypatch, aside):
    directory, trainer = prepared(small(**ROOMY), tmp_path)
    turns(trainer, 20)
    trainer.save()
    before = checkpoint.latest(tmp_path).step
    turns(trainer, 300)  # more than 300 unrolls: 40 segments
    slowed(monkeypatch, 0.7)
    trainer.save(last=False)
    begin = time.monotonic()
    directory.close()  # as a second Ctrl-C does on its way out
    assert time.monotonic() - begin < 5
    assert not directory._writer.is_alive()  # before the lock is let go: another run may begin now
    assert checkpoint.latest(tmp_path).step == before
    assert_in_order(tmp_path)
    trainer.group.close()


def test_a_small_checkpoint_needs_no_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(saving.Writer, "start", lambda self: pytest.fail("a thread for a few kilobytes"))
    assert checkpoint.latest(tmp_path) is None
    finish(small(), tmp_path)
    assert checkpoint.latest(tmp_path) is not None


KILLED = """
import sys
from pathlib import Path
from laser_rl.training import directory, saving
from tests.checkpoint.inputs import kill_at
from tests.training.small import finish, small
directory.ASIDE_BYTES, saving.SEGMENT_UNROLLS, begin = 0, 8, directory.RunDirectory.save

def save(self, trainer):  # calls before the first checkpoint are another test's
    if sys.argv[3] != "-" and trainer.steps > 200:
        kill_at(int(sys.argv[3]))
        sys.argv[3] = "-"
    return begin(self, trainer)

directory.RunDirectory.save = save
finish(small(checkpoint_every_steps=100, **{"run.steps": 500, "run.keep_checkpoints": 50}), Path(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.fault(7)
def test_killed_while_the_thread_writes(tmp_path, figure):
    """Whatever loads is a checkpoint that the run without a kill has written, byte for byte; the next start removes the rest."""
    whole, dice, died = tmp_path / "whole", np.random.default_rng(3), 0
    command = [sys.executable, "-c", KILLED]
    subprocess.run([*command, whole, "", "-"], check=True, timeout=120)
    expected = files_of(whole)
    for turn in range(8):
        path = tmp_path / str(turn)
        status = subprocess.run([*command, path, "", str(dice.integers(0, 80))], check=False, timeout=120).returncode
        assert status in (0, -signal.SIGKILL)
        died += status != 0
        loaded = checkpoint.latest(path)
        assert loaded.step > 100
        for name, data in files_of(path).items():
            if name.startswith(f"checkpoints/step-{loaded.step:012d}"):
                assert data == expected[name]
        checkpoint.remove_leftovers(path)
        assert_in_order(path)
        finish(override(small(checkpoint_every_steps=100), {"run.steps": 500, "run.keep_checkpoints": 50}), path)
        assert checkpoint.latest(path).tensors.keys() == checkpoint.latest(whole).tensors.keys()
    assert died > 4
    figure(f"killed at {died} points while a thread wrote: {died} loadable, as a run without a kill wrote them")
