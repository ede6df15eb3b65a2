"""One run in one directory, and a dead one never keeps it."""

import json
import os
import platform
import signal
import time

import pytest

from laser_rl.checkpoint import RunLock, lock, owner
from laser_rl.errors import ConfigError, UserError
from tests.checkpoint.inputs import forked, outcome

LIMIT = 20


def wait_for(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"not so after {LIMIT} s"
        time.sleep(0.005)


def hold(run_dir):
    """A child that holds the lock and sleeps; it is alive when this returns."""

    def action():
        lock = RunLock(run_dir)  # noqa: F841
        time.sleep(LIMIT)

    child = forked(action)
    wait_for(lambda: owner(run_dir) is not None)
    return child


def end(child):
    os.kill(child, signal.SIGKILL)
    assert outcome(child) == -signal.SIGKILL


@pytest.mark.fault(23)
def test_a_second_run_is_refused_with_the_owners_number(tmp_path):
    child = hold(tmp_path)
    try:
        with pytest.raises(UserError, match=rf"in use by process {child} .*choose another directory"):
            RunLock(tmp_path)
        assert owner(tmp_path).pid == child  # the refused one has not written its own name
    finally:
        end(child)


def test_the_same_process_cannot_have_it_twice_but_again(tmp_path):
    with RunLock(tmp_path) as first:
        with pytest.raises(ConfigError, match=str(os.getpid())):
            RunLock(tmp_path)
        first.release()
        with RunLock(tmp_path):
            first.release()  # a second release must not free what is another's by now
            with pytest.raises(ConfigError):
                RunLock(tmp_path)


@pytest.mark.fault(23)
def test_a_killed_owner_loses_the_lock(tmp_path):
    end(hold(tmp_path))
    assert owner(tmp_path) is None
    with RunLock(tmp_path):
        assert owner(tmp_path).pid == os.getpid()


@pytest.mark.fault(23)
@pytest.mark.parametrize("reused", [False, True])
def test_an_orphan_that_inherited_the_lock_does_not_keep_it(tmp_path, reused):
    """The owner forks a worker and is killed; the worker lives on and, by the kernel's rules, holds the lock."""
    note = tmp_path / "orphan"

    def own():
        held = RunLock(tmp_path)
        worker = forked(lambda: time.sleep(LIMIT))
        note.with_suffix(".tmp").write_text(str(worker))
        note.with_suffix(".tmp").rename(note)
        time.sleep(LIMIT)
        held.release()

    child = forked(own)
    wait_for(note.exists)
    end(child)
    orphan = int(note.read_text())
    try:
        assert lock._acquire(tmp_path / "run.lock") is None  # so the test tests something
        if reused:  # the dead owner's number belongs to a living process now, one that started at another time
            fields = json.loads((tmp_path / "run.lock").read_text())
            (tmp_path / "run.lock").write_text(json.dumps(fields | {"pid": os.getpid()}))
        with RunLock(tmp_path):
            assert owner(tmp_path).pid == os.getpid()
            with pytest.raises(ConfigError, match=str(os.getpid())):
                RunLock(tmp_path)
    finally:
        os.kill(orphan, signal.SIGKILL)


@pytest.mark.fault(23)
def test_only_one_of_many_gets_it(tmp_path, figure):
    def attempt():
        RunLock(tmp_path)
        time.sleep(LIMIT)

    children = [forked(attempt) for _ in range(8)]
    living, refused = list(children), []
    try:
        deadline = time.monotonic() + LIMIT
        while len(living) > 1:
            assert time.monotonic() < deadline
            for child in list(living):
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    living.remove(child)
                    refused.append(status)
            time.sleep(0.005)
        wait_for(lambda: owner(tmp_path) is not None)
        assert owner(tmp_path).pid == living[0]
        assert len(refused) == 7
        figure("8 at once: 1 has it, 7 refused")
    finally:
        for child in living:
            end(child)


def test_a_living_owner_on_another_host_is_believed(tmp_path):
    with RunLock(tmp_path):
        fields = json.loads((tmp_path / "run.lock").read_text())
        (tmp_path / "run.lock").write_text(json.dumps(fields | {"pid": 2**22 + 1, "host": "elsewhere"}))
        with pytest.raises(ConfigError, match="on elsewhere"):
            RunLock(tmp_path)


@pytest.mark.parametrize("rubbish", ["", "{", "[]", '{"pid": "x", "started": "", "host": ""}', "\x00" * 10_000])
def test_rubbish_in_an_unlocked_file_does_not_matter(tmp_path, rubbish):
    (tmp_path / "run.lock").write_text(rubbish)
    assert owner(tmp_path) is None
    with RunLock(tmp_path):
        assert owner(tmp_path).host == platform.node()
