"""A process of a sweep is stopped (SIGSTOP), not killed: it keeps what it holds, and hears nothing."""

import contextlib
import logging
import os
import signal
import threading
import time

import pytest

from laser_rl import checkpoint
from laser_rl.metrics.standing import Exploit
from laser_rl.replay import shared
from laser_rl.replay.shared import HOLDER
from laser_rl.training import supervisor as processes
from tests.faults.families import Family, within
from tests.faults.test_run_faults import newest, wait_until
from tests.faults.test_sweep_faults import in_processes

pytestmark = pytest.mark.fault(30)
PROMISED_S = 10.0  # SIGTERM ends all processes in this time
REPLACED_S = 60.0  # a process that blocks the others is gone by then; the limit itself is half of it


def stop_with_the_lock(supervisor, timeout_s=60.0):
    """Stop a process in a moment in which it holds the replay's lock; returns the one of `supervisor.processes`."""
    words, deadline = supervisor.members[0].replay._room.words, time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for process in supervisor.processes:
            if words[HOLDER] == process.pid:
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(0.01)  # it stops at the next instruction, not at once
                if words[HOLDER] == process.pid:
                    return process
                os.kill(process.pid, signal.SIGCONT)
    raise AssertionError("no process was ever seen with the lock")


class At:
    """Stops a process between two looks of a supervisor, when all members have done so many steps; `stopped` are the pids."""

    def __init__(self, supervisor, actions):
        self._supervisor, self._actions, self._look = supervisor, dict(actions), supervisor._look
        self.stopped = []
        supervisor._look = self

    def __call__(self):
        due = [steps for steps in self._actions if self._supervisor.board.steps.min() > steps]
        if due:
            self.stopped.append(self._actions.pop(due[0])().pid)
        return self._look()


def run(supervisor, directory):
    try:
        return supervisor.run()
    finally:
        directory.close()


@pytest.mark.slow
def test_a_process_stopped_with_the_replays_lock_is_named_and_replaced(tmp_path, monkeypatch, caplog, figure):
    monkeypatch.setattr(shared, "LOCK_S", 4.0)
    monkeypatch.setattr(processes, "REPLACE_S", 2.0, raising=False)
    monkeypatch.setattr(processes, "SAY_AFTER_S", 0.5, raising=False)
    _, directory, supervisor = in_processes(tmp_path, steps=1_000, settings={"evaluate_episodes": 2})
    at = At(supervisor, {300: lambda: stop_with_the_lock(supervisor)})
    with caplog.at_level(logging.WARNING):
        end = run(supervisor, directory)
    assert all(member.steps >= 1_000 for member in end.members)
    (pid,) = at.stopped
    (named, *_) = [line for line in caplog.messages if f"(pid {pid}) is stopped and holds the lock" in line]
    assert "the process of members [" in named
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert sum(process.restarts for process in supervisor.processes) == 1
    figure("stopped with the replay's lock: named, replaced, and all members did all their steps")


def test_sigterm_ends_all_although_a_process_is_stopped_with_the_lock_and_an_order_waits_for_it(tmp_path, figure):
    _, directory, supervisor = in_processes(tmp_path, steps=1_000_000)
    asked, blocked, rescuing = [], [], []

    def rescue(process):
        """Without this a supervisor that blocks would block for ever."""
        blocked.append(process.pid)
        kill(process.pid)

    def stop_one():
        process = stop_with_the_lock(supervisor)
        rescuing.append(threading.Timer(6 * PROMISED_S, rescue, [process]))
        rescuing[0].start()
        asked.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)
        rate = {"learning_rate": 1e-3}
        for number in range(1_000):
            supervisor._tell(Exploit(number, 0, process.numbers[0], 1, 0.0, 1.0, rate, rate))
        return process

    At(supervisor, {300: stop_one})
    end = run(supervisor, directory)
    took_s = time.monotonic() - asked[0]
    rescuing[0].cancel()
    assert blocked == []
    assert took_s < within(PROMISED_S)
    assert end.interrupted == "SIGTERM"
    assert checkpoint.latest(tmp_path).step >= 300
    assert all(process.ended() is not None for process in supervisor.processes)
    figure(f"stopped with the replay's lock and 1,000 orders pending: SIGTERM ended all after {took_s:.1f} s")


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_stop_of_ten_seconds_is_waited_for_and_a_longer_one_replaced(tmp_path, caplog, figure):
    _, directory, supervisor = in_processes(tmp_path, steps=4_000)

    def stop_for_ten():
        process = stop_with_the_lock(supervisor)
        threading.Timer(10.0, lambda: os.kill(process.pid, signal.SIGCONT)).start()
        return process

    at = At(supervisor, {300: stop_for_ten, 2_000: lambda: stop_with_the_lock(supervisor)})
    with caplog.at_level(logging.WARNING):
        end = run(supervisor, directory)
    _, replaced = at.stopped
    named = [record for record in caplog.records if "others wait for it" in record.getMessage()]
    assert [f"(pid {pid})" in record.getMessage() for pid, record in zip(at.stopped, named, strict=True)] == [True] * 2
    (killed,) = [record for record in caplog.records if "it is killed" in record.getMessage()]
    assert f"(pid {replaced})" in killed.getMessage()
    assert all(member.steps >= 4_000 for member in end.members)
    took_s = killed.created - named[1].created
    assert took_s < within(REPLACED_S)
    figure(f"stopped for 10 s: waited for; stopped for good: replaced {took_s:.0f} s after it was named")


@pytest.mark.slow
def test_sigterm_ends_a_sweep_with_a_stopped_process(tmp_path, figure):
    words = (
        "sweep --recipe cartpole --env laser/Catch --grid learning_rate=5e-4,1e-3,4e-3 --pbt --steps 1M --environment.slots 3 "
        "--replay.capacity-steps 2000 --run.checkpoint-every-steps 300 --run.evaluate-episodes 2 --plain --processes 3"
    )
    family = Family(*words.split(), "--out", str(tmp_path / "run"))
    try:
        wait_until(lambda: newest(tmp_path / "run") > 0, family.process)
        os.kill(family.share_processes()[0], signal.SIGSTOP)
        time.sleep(2.0)  # the others wait for it by now
        status, _, said, took_s = family.end(signal.SIGTERM)
        left = family.pids()
    finally:
        family.kill()
    assert status == 143, said
    assert took_s < within(PROMISED_S)
    assert left == []
    figure(f"laser sweep --processes 3, one stopped: SIGTERM ended all after {took_s:.1f} s")
