"""Places that processes take in turn."""

import multiprocessing
import os
import signal
import time

import pytest
import torch

from laser_rl.runtime import turns as module
from laser_rl.runtime.turns import Turns

CPU = torch.device("cpu")
FORK = multiprocessing.get_context("fork")


def hold(turns, taken, release):
    with turns.one(CPU):
        taken.set()
        release.wait(60)


def started(turns):
    taken, release = FORK.Event(), FORK.Event()
    process = FORK.Process(target=hold, args=(turns, taken, release), daemon=True)
    process.start()
    assert taken.wait(60)
    return process, release


def test_so_many_at_a_time_and_the_next_waits(monkeypatch):
    turns = Turns(most=2)
    one, other = started(turns), started(turns)
    monkeypatch.setattr(module, "GIVE_UP_S", 0.1)
    with pytest.raises(TimeoutError, match="for updates of other processes"), turns.one(CPU):
        pass
    assert turns.taken is None
    one[1].set()
    one[0].join(60)
    with turns.one(CPU):
        assert turns.taken is not None
    other[1].set()
    other[0].join(60)


def test_a_place_comes_back_after_an_error_and_from_a_process_that_was_killed():
    turns = Turns(most=1)
    with pytest.raises(ZeroDivisionError), turns.one(CPU):
        _ = 1 / 0
    process, _ = started(turns)
    os.kill(process.pid, signal.SIGKILL)
    begin = time.monotonic()
    with turns.one(CPU):
        assert time.monotonic() - begin < 30
    process.join(60)


def test_turns_reach_another_process_by_their_handle():
    turns = Turns(most=1)
    same = Turns(1, turns.handle)
    process, release = started(same)
    with pytest.raises(BlockingIOError):
        module.fcntl.lockf(turns.handle, module.fcntl.LOCK_EX | module.fcntl.LOCK_NB, 1, 0)
    release.set()
    process.join(60)
