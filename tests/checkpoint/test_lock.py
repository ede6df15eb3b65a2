"""One run in one directory, and a dead one never keeps it."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time

import pytest

from laser_rl.checkpoint import RunLock, owner
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
def test_an_orphan_of_a_killed_owner_does_not_keep_it(tmp_path):
    """The owner forks a worker and is killed; the worker lives on, and by the kernel's rules would hold the lock with it."""
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
    with pytest.raises(ConfigError, match=str(child)):  # the worker has not unlocked it either
        RunLock(tmp_path)
    end(child)
    orphan = int(note.read_text())
    try:
        os.kill(orphan, 0)
        with RunLock(tmp_path):
            assert owner(tmp_path).pid == os.getpid()
            with pytest.raises(ConfigError, match=str(os.getpid())):
                RunLock(tmp_path)
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_a_forked_child_does_not_release_what_is_its_parents(tmp_path):
    with RunLock(tmp_path) as held:
        assert outcome(forked(held.release)) == 0
        with pytest.raises(ConfigError, match=str(os.getpid())):
            RunLock(tmp_path)


HOLD = """
import sys, time
from pathlib import Path
from laser_rl.checkpoint import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""
TRY = """
import sys
from pathlib import Path
from laser_rl.checkpoint import RunLock, owner
from laser_rl.errors import ConfigError
try:
    RunLock(Path(sys.argv[1]))
except ConfigError as error:
    found = owner(Path(sys.argv[1]))
    print("refused", found.pid, error)
else:
    print("taken")
"""


def in_namespace(run_dir, code, place):
    """Another container on the same host: its own process numbers, and the directory mounted at another place."""
    script = f'mount --bind "{run_dir}" "{place}" && exec "{sys.executable}" -c "$CODE" "{place}"'
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]
    return subprocess.Popen(command, env={**os.environ, "CODE": code}, stdout=subprocess.PIPE, text=True)


def has_namespaces(tmp_path):
    """Whether we may make them; ordinary users may not."""
    if shutil.which("unshare") is None:
        return False
    probe = f'mount --bind "{tmp_path}" "{tmp_path}"'
    made = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", probe], capture_output=True, check=False
    )
    return made.returncode == 0


@pytest.mark.fault(29)
def test_two_containers_and_two_mounts_have_it_once(tmp_path, figure):
    """Neither sees the other's process number, which may even be its own, and both have the same host name."""
    if not has_namespaces(tmp_path):
        pytest.skip("namespaces cannot be made here")
    run_dir, places = tmp_path / "run", [tmp_path / "mount 1", tmp_path / "mount 2"]
    for folder in (run_dir, *places):
        folder.mkdir()
    holder = in_namespace(run_dir, HOLD, places[0])
    try:
        assert holder.stdout.readline() == "held\n"
        with in_namespace(run_dir, TRY, places[1]) as second:
            said = second.stdout.read()
        assert said.startswith("refused")
        assert f"in use by process {said.split()[1]} on {platform.node()}" in said
        with pytest.raises(ConfigError, match="in use by process"):
            RunLock(run_dir)
        assert owner(run_dir).pid == int(said.split()[1])
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    wait_for(lambda: owner(run_dir) is None)
    with RunLock(run_dir), in_namespace(run_dir, TRY, places[1]) as second:
        assert second.stdout.read().startswith("refused")
    figure(
        "two PID namespaces and three paths to one directory: one holder, 3 of 3 others refused; free when it is killed"
    )


@pytest.mark.fault(29)
def test_a_number_that_is_not_visible_is_no_reason_to_take_over(tmp_path):
    """As in a container without unshare: the file names a process of this host that does not exist here."""
    with RunLock(tmp_path):
        fields = json.loads((tmp_path / "run.lock").read_text())
        (tmp_path / "run.lock").write_text(json.dumps(fields | {"pid": 2**22 + 1}))
        with pytest.raises(ConfigError, match=f"process {2**22 + 1} on"):
            RunLock(tmp_path)
        assert owner(tmp_path).pid == 2**22 + 1


def test_whoever_asks_for_the_owner_hinders_nobody(tmp_path):
    """Asking takes the lock for an instant; a start at that moment tries again."""
    with RunLock(tmp_path):
        pass

    def ask():
        while True:
            owner(tmp_path)

    asker = forked(ask)
    try:
        for _ in range(50):
            RunLock(tmp_path).release()
    finally:
        end(asker)


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
