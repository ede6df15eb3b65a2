"""Who keeps the shards, without Ray: the first replacement comes at once, further ones later and later, and it is said."""

from concurrent.futures import Future

import pytest

from laser_rl.cluster import shard_supervisor as module
from laser_rl.cluster.client import ShardLost
from laser_rl.cluster.shard import ShardPlan, ShardReport
from laser_rl.cluster.shard_supervisor import ShardSupervisor
from tests.replay.inputs import VECTOR


class Started:
    """A shard on a node; `die` answers all questions to it."""

    def __init__(self, plan, node):
        self.plan, self.node, self.number, self.where, self.asked = plan, node, plan.number, f"node {node}", []

    def report(self):
        self.asked.append(Future())
        return self.asked[-1]

    def say(self, span):
        self.asked[-1].set_result(ShardReport(self.number, span, {}, 0, {}))

    def die(self):
        self.asked[-1].set_exception(ShardLost("out of memory"))


@pytest.fixture
def kept(monkeypatch):
    """A keeper of two nodes, a clock, and the rosters that were posted."""
    now, posted, alive = [100.0], [], ["a", "b"]
    monkeypatch.setattr(module, "start_shard", Started)
    monkeypatch.setattr(module, "post_roster", lambda desk, shards: posted.append([one.number for one in shards]))
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return ShardSupervisor(ShardPlan(VECTOR, 1000, number=0), None, nodes=lambda: alive), now, posted, alive


def on(keeper, node):
    return next((shard for shard in keeper.shards if shard.node == node), None)


def test_replacements_come_at_once_and_then_later_and_later(kept):
    keeper, now, posted, _ = kept
    keeper.look()
    pauses = []
    for _ in range(9):
        on(keeper, "a").die()
        (lost,) = keeper.look()
        died = now[0]
        if on(keeper, "a") is None:
            assert posted[-1] == [1]  # nobody is told of one that is not there
            assert "in a row died soon" in lost.by
        while on(keeper, "a") is None:
            now[0] += 0.5
            keeper.look()
        pauses.append(now[0] - died)
        keeper.look()  # asks it
    assert pauses == [0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert keeper.lost[0].by == "shard 2"
    keeper._places["a"].deaths = 5000  # in a row, some days later
    on(keeper, "a").die()
    keeper.look()
    now[0] += module.MOST_PAUSE_S
    keeper.look()
    assert on(keeper, "a") is not None
    assert on(keeper, "b").number == 1
    now[0] += module.STEADY_S + 1
    keeper.look()
    on(keeper, "a").die()
    keeper.look()
    assert on(keeper, "a") is not None  # it had lived for long: at once again


def test_what_a_lost_shard_held_is_told_and_a_node_that_is_gone_gets_none(kept):
    keeper, now, posted, alive = kept
    keeper.look()
    on(keeper, "b").say((5, 25))
    keeper.look()
    alive.remove("b")
    (lost,) = keeper.look()
    assert (lost.number, lost.unrolls, lost.by) == (1, 20, "nobody: its node is gone")
    assert posted[-1] == [0]
    alive.append("b")
    now[0] += 1
    assert keeper.look() == []
    assert posted[-1] == [0, 2]
