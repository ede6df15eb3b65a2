"""Batches arrive in order, never while they are read, and whoever waits says for whom."""

import threading
import time
from contextlib import closing
from itertools import count

import pytest

from laser_rl.replay.memory_layout import allocate
from laser_rl.replay.prefetcher import Exhausted, Prefetcher
from tests.replay.inputs import VECTOR


def batches(number=2):
    return [allocate(VECTOR, 2) for _ in range(number)]


def counting():
    """Writes 0, 1, 2... into every reward."""
    numbers = count()
    return lambda batch: batch.reward.fill_(next(numbers))


@pytest.mark.parametrize("number", [2, 3, 5])
def test_batches_come_in_order_and_are_left_alone_while_they_are_read(number):
    with closing(Prefetcher(counting(), batches(number))) as ahead:
        for expected in range(50):
            batch = ahead.next(timeout_s=10.0)
            assert (batch.reward == expected).all()
            if expected % 10 == 0:
                time.sleep(0.02)  # all others are full by now
                assert (batch.reward == expected).all()
            ahead.give_back(batch)


def test_no_more_is_filled_than_there_are_batches():
    filled, seen = threading.Semaphore(0), []
    with closing(Prefetcher(lambda batch: (seen.append(batch), filled.release()), batches(3))) as ahead:
        for _ in range(3):
            assert filled.acquire(timeout=10.0)
        assert not filled.acquire(timeout=0.3)
        ahead.give_back(ahead.next(10.0))
        assert filled.acquire(timeout=10.0)
        assert len(seen) == 4
        assert len({id(batch) for batch in seen}) == 3


def test_what_fails_in_the_thread_is_raised_by_next():
    def fill(batch):
        fill.calls += 1
        if fill.calls == 2:
            raise ZeroDivisionError("in the thread")

    fill.calls = 0
    with closing(Prefetcher(fill, batches())) as ahead:
        ahead.give_back(ahead.next(10.0))
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="in the thread"):
                ahead.next(10.0)


def test_what_is_full_still_comes_when_nothing_more_will_and_then_none():
    turns = iter([True, False, True])

    def ready(seconds):
        try:
            return next(turns)
        except StopIteration:
            raise Exhausted from None

    with closing(Prefetcher(counting(), batches(3), ready=ready)) as ahead:
        rewards = [float(ahead.next(10.0).reward[0, 0]) for _ in range(2)]
        assert rewards == [0.0, 1.0]
        assert ahead.next(10.0) is None
        assert ahead.next(10.0) is None


@pytest.mark.fault(13)
def test_a_starved_learner_says_for_whom_it_waits():
    with (
        closing(
            Prefetcher(counting(), batches(), ready=lambda seconds: time.sleep(min(seconds, 0.01)) is not None)
        ) as ahead,
        pytest.raises(TimeoutError, match="the learner has waited 0 s for unrolls from the actors"),
    ):
        ahead.next(0.05)


def test_it_goes_on_when_there_is_something_again():
    there = threading.Event()
    with closing(Prefetcher(counting(), batches(), ready=there.wait)) as ahead:
        with pytest.raises(TimeoutError, match="the learner has waited"):
            ahead.next(0.05)
        there.set()
        assert (ahead.next(10.0).reward == 0).all()


def test_closing_ends_the_thread_wherever_it_waits():
    before = threading.active_count()
    for ready in (threading.Event().wait, lambda seconds: True):  # waits for the actors, for the learner
        ahead = Prefetcher(counting(), batches(), ready=ready)
        ahead.close()
        ahead.close()
        assert threading.active_count() == before
    with pytest.raises(TimeoutError, match="fill"):
        Prefetcher(lambda batch: time.sleep(0.5), batches()).close(timeout_s=0.05)
