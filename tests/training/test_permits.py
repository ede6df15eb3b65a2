"""Places that processes take in turn."""

import multiprocessing
import os
import signal
import time

import pytest
import torch

from laser_rl.training import member_process as module
from laser_rl.training import stall as waiting
from laser_rl.training.member_process import GpuSemaphore

CPU = torch.device("cpu")
FORK = multiprocessing.get_context("fork")


def hold(permits, taken, release):
    with permits.one(CPU):
        taken.set()
        release.wait(60)


def started(permits):
    taken, release = FORK.Event(), FORK.Event()
    process = FORK.Process(target=hold, args=(permits, taken, release), daemon=True)
    process.start()
    assert taken.wait(60)
    return process, release


def test_so_many_at_a_time_and_the_next_waits(monkeypatch):
    permits = GpuSemaphore(most=2)
    one, other = started(permits), started(permits)
    monkeypatch.setattr(waiting, "GIVE_UP_S", 0.1)
    with pytest.raises(TimeoutError, match="for updates of other processes"), permits.one(CPU):
        pass
    one[1].set()
    one[0].join(60)
    with permits.one(CPU):
        pass
    other[1].set()
    other[0].join(60)


def test_a_place_comes_back_after_an_error_and_from_a_process_that_was_killed():
    permits = GpuSemaphore(most=1)
    with pytest.raises(ZeroDivisionError), permits.one(CPU):
        _ = 1 / 0
    process, _ = started(permits)
    os.kill(process.pid, signal.SIGKILL)
    begin = time.monotonic()
    with permits.one(CPU):
        assert time.monotonic() - begin < 30
    process.join(60)


def test_permits_reach_another_process_by_their_handle():
    permits = GpuSemaphore(most=1)
    same = GpuSemaphore(1, permits.handle)
    process, release = started(same)
    with pytest.raises(BlockingIOError):
        module.fcntl.lockf(permits.handle, module.fcntl.LOCK_EX | module.fcntl.LOCK_NB, 1, 0)
    release.set()
    process.join(60)
