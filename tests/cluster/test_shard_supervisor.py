"""Lost shards are replaced, without Ray: the first time at once, then later and later, and it is said."""

from concurrent.futures import Future

import pytest

from laser_rl.cluster import calls
from laser_rl.cluster import replays as module
from laser_rl.cluster.calls import ActorGone
from laser_rl.cluster.replays import ShardSupervisor
from laser_rl.cluster.shard import ShardPlan, ShardReport
from tests.replay.inputs import VECTOR


class Started:
    """A shard on a node; `die` answers all questions to it."""

    def __init__(self, plan, node):
        self.plan, self.node, self.number, self.where, self.asked = plan, node, plan.number, f"node {node}", []

    def report(self):
        self.asked.append(Future())
        return self.asked[-1]

    def say(self, span):
        self.asked[-1].set_result(ShardReport(span, {}, 0))

    def die(self):
        self.asked[-1].set_exception(ActorGone("out of memory"))


@pytest.fixture
def kept(monkeypatch):
    """A supervisor of two nodes, a clock, and the nodes alive."""
    now, alive = [100.0], ["a", "b"]
    monkeypatch.setattr(module.ShardClient, "start", Started)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    supervisor = ShardSupervisor(ShardPlan(VECTOR, 1000, number=0), lambda: alive)
    return supervisor, now, alive


def on(supervisor, node):
    return next((shard for shard in supervisor.shards if shard.node == node), None)


def test_replacements_come_at_once_and_then_later_and_later(kept):
    supervisor, now, _ = kept
    supervisor.look()
    pauses = []
    for _ in range(9):
        on(supervisor, "a").die()
        [lost] = supervisor.look()
        died = now[0]
        assert (lost.unrolls, lost.reports.gone) == (0, "out of memory")
        if on(supervisor, "a") is None:
            assert [shard.number for shard in supervisor.shards] == [1]  # no list has one that is not there
        while on(supervisor, "a") is None:
            now[0] += 0.5
            supervisor.look()
        pauses.append(now[0] - died)
        supervisor.look()  # asks it
    assert pauses == [0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert on(supervisor, "a").number == 10
    supervisor._deaths["a"].in_a_row = 5000  # in a row, some days later
    on(supervisor, "a").die()
    supervisor.look()
    now[0] += calls.MOST_PAUSE_S
    supervisor.look()
    assert on(supervisor, "a") is not None
    assert on(supervisor, "b").number == 1
    now[0] += module.STEADY_S + 1
    supervisor.look()
    on(supervisor, "a").die()
    supervisor.look()
    assert on(supervisor, "a") is not None  # it had lived for long: at once again


def test_what_a_lost_shard_held_is_told_and_a_node_that_is_gone_gets_none(kept):
    supervisor, now, alive = kept
    supervisor.look()
    on(supervisor, "b").say((5, 25))
    supervisor.look()
    alive.remove("b")
    [lost] = supervisor.look()
    assert (lost.shard.number, lost.unrolls, lost.reports.gone) == (1, 20, "")  # its node is gone
    assert [shard.number for shard in supervisor.shards] == [0]
    alive.append("b")
    now[0] += 1
    assert supervisor.look() == []
    assert [shard.number for shard in supervisor.shards] == [0, 2]


def test_a_lone_shard_stays_on_its_node_as_long_as_that_lives(kept):
    _, _, alive = kept
    alive[:] = ["a", "b", "c"]
    supervisor = ShardSupervisor(ShardPlan(VECTOR, 1000, number=0), lambda: alive, place=4)
    assert [shard.node for shard in supervisor.shards] == ["b"]
    alive.remove("a")
    assert supervisor.look() == []
    assert [shard.node for shard in supervisor.shards] == ["b"]
    alive.remove("b")
    [lost] = supervisor.look()
    assert (lost.shard.node, [shard.node for shard in supervisor.shards]) == ("b", ["c"])
    assert supervisor.lists == 1
