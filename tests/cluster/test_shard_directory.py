"""When a shard is asked what it holds: five times a second; each time in lock-step."""

from concurrent.futures import Future

import pytest

from laser_rl.cluster import sharded as module
from laser_rl.cluster.shard import ShardReport
from laser_rl.cluster.sharded import ShardDirectory


class Counted:
    """A shard that answers every report at once."""

    number, where, capacity = 0, "here", 100

    def __init__(self):
        self.reports = 0

    def report(self):
        self.reports += 1
        answer = Future()
        answer.set_result(ShardReport((0, 5), {0: 5}, 10))
        return answer


@pytest.fixture
def now(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    return clock


def looked(now, heard, *, exact=False, every=0.01, seconds=10.0):
    """Reports a second, of a shard that is looked at often."""
    shard = Counted()
    directory = ShardDirectory(lambda: [shard], exact=exact)
    looks = round(seconds / every)
    for _ in range(looks):
        directory.spans()
        if heard:
            directory.heard(0, (0, 5))
        now[0] += every
    return shard.reports / seconds


def test_a_shard_is_asked_five_times_a_second(now):
    assert looked(now, heard=True) == pytest.approx(5.0, rel=0.1)


def test_in_lock_step_every_look_asks(now):
    assert looked(now, heard=True, exact=True) == pytest.approx(100, rel=0.01)


def test_answers_may_come_in_any_order(now):
    directory = ShardDirectory(lambda: [Counted()], exact=False)
    directory.spans()
    for span in ((2, 7), (3, 8), (0, 5)):
        directory.heard(0, span)
    assert directory.held() == {0: (3, 8)}
