"""Rows of `local` say how deep its queues are, and nothing holds them afterwards."""

import threading
from contextlib import closing

from laser_rl.metrics.log import read
from laser_rl.replay.prefetcher import Exhausted, Prefetcher
from laser_rl.training.threads import ThreadInbox
from tests.training.small import finish, small


def test_rows_say_how_deep_the_queues_are(tmp_path):
    config = small(runtime="local", log_every_s=0.05)
    _, training = finish(config, tmp_path)
    rows = [row for row in read(tmp_path, ["train"]) if "queue_inbox" in row]
    assert rows
    assert all(row["queue_batches"] in {0, 1, 2} for row in rows)
    assert all(0 <= row["queue_inbox"] <= 16 for row in rows)
    assert list(training.extra) == ["busy"]  # nothing holds the batches


def test_an_inbox_counts_what_waits():
    inbox = ThreadInbox(3)
    assert inbox.depth() == 0
    for expected in (1, 2, 3):
        assert inbox.put(expected, 0.0)
        assert inbox.depth() == expected
    assert not inbox.put(4, 0.0)
    inbox.take(0.0)
    assert inbox.depth() == 2


def test_batches_ahead_are_counted_and_the_end_is_none_of_them():
    filled = threading.Semaphore(0)
    left = iter([True, True, True])

    def ready(seconds):
        if next(left, False):
            return True
        filled.release()
        raise Exhausted

    with closing(Prefetcher(lambda batch: None, ["a", "b", "c", "d"], ready=ready)) as ahead:
        assert filled.acquire(timeout=10.0)
        ahead._thread.join(10.0)
        for expected in (3, 2, 1):
            assert ahead.depth() == expected
            ahead.next(1.0)
        assert ahead.depth() == 0
        assert ahead.next(1.0) is None
        assert ahead.depth() == 0
