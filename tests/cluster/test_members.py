"""Runners, learners and checkpoints of a cluster without Ray: what is handed over arrives once, and what is saved comes back."""

import concurrent.futures
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from laser_rl.cluster.channels import RayInbox, RayRoster, post_roster
from laser_rl.cluster.client import ShardLost
from laser_rl.cluster.coordinator_client import CoordinatorClient
from laser_rl.cluster.in_process_shard import NearShard
from laser_rl.cluster.member_coordinator import MemberCoordinator
from laser_rl.cluster.remote_batches import FarEnvironments, RemoteBatchSource
from laser_rl.cluster.replay_files import ReplayFiles, Spreading
from laser_rl.cluster.replay_writer import ReplayWriter
from laser_rl.cluster.resources import MOST_A_CORE, shares_of
from laser_rl.cluster.run_coordinator import REPLACED, MetricsRow, News, RunCoordinator
from laser_rl.cluster.runner import Sender
from laser_rl.cluster.shard import Shard, ShardPlan
from laser_rl.cluster.supervised_actor import KILLED, SupervisedActor
from laser_rl.config import override
from laser_rl.errors import ConfigError
from laser_rl.ports import Delivery
from laser_rl.replay import Replay
from laser_rl.replay.encoded_unrolls import seal
from laser_rl.replay.prefetcher import Exhausted
from laser_rl.replay.records import pack
from laser_rl.training.cluster_settings import ClusterSettings, require_possible
from laser_rl.training.process_handle import MOST_RESTARTS, ProcessDied
from laser_rl.training.saving import Segments
from laser_rl.training.settings import SweepConfig
from laser_rl.training.stop import Stop
from laser_rl.types import Episode
from tests.cluster.raylets import NearDesk
from tests.cluster.test_cluster_faults import examine
from tests.replay.inputs import VECTOR, numbered, take
from tests.training.small import finish, small


def near(number, unrolls=1000):
    return NearShard(Shard(ShardPlan(VECTOR, unrolls * VECTOR.steps, number, codec="raw", budget_bytes=10**7)))


def held(shard):
    return shard.shard._store.export(np.arange(*shard.shard.span()))


class Post:
    """A sender, its shard, and a desk with little room; somebody may take from it."""

    def __init__(self, room=2, at_once=4, **more):
        self.shard, desk = near(0), NearDesk(MemberCoordinator(room))
        self.inbox = RayInbox(desk, VECTOR)
        courier = ReplayWriter(lambda: self.shard, "runner")
        self.sender = Sender(courier, RayInbox(desk, VECTOR, "runner"), VECTOR, "raw", at_once=at_once, **more)
        self.taken = []

    def deliver(self, first, count, steps=7):
        unrolls = numbered(VECTOR, range(first, first + count))
        return Delivery(unrolls, [Episode(0, 3, float(first))], steps)

    def take(self, timeout_s=0.2):
        while (taken := self.inbox.take_packed(timeout_s)) is not None:
            self.taken.append(taken)


def test_what_a_runner_makes_is_once_in_its_shard_and_once_with_its_learner():
    faults = {"restarts": 0}
    post, sent = Post(first_slot=5, faults=lambda: faults), 0
    taker = threading.Thread(target=lambda: post.take(2.0))
    taker.start()
    for turn in range(30):
        faults["restarts"] = turn // 10
        delivery = post.deliver(sent, turn % 3)
        while not post.sender.put(delivery, 0.05):
            pass
        sent += turn % 3
    assert post.sender.flush(5.0)
    taker.join()
    assert held(post.shard).version.tolist() == list(range(sent))
    assert (held(post.shard).slot == numbered(VECTOR, range(sent)).slot + 5).all()
    assert sum(taken.steps for taken in post.taken) == 30 * 7
    assert sum(taken.faults.get("restarts", 0) for taken in post.taken) == 2
    assert sum(len(taken.packed.records) for taken in post.taken) == sent
    assert [one.slot for taken in post.taken for one in taken.episodes] == [5] * 30
    assert len(post.taken) < 30  # many at a time


def test_streams_lead_to_the_shards_in_turn():
    """Six runners of three members, on whichever nodes: two to each shard, and no member has more of the replay than another."""
    desk = NearDesk(MemberCoordinator())
    post_roster(desk, ["A", "B", "C"])
    roster = RayRoster(desk)
    assert [roster.at(place) for place in range(6)] == ["A", "B", "C", "A", "B", "C"]
    post_roster(desk, [])
    wait_until(lambda: roster.at(0) is None)


def test_a_runner_whose_learner_takes_nothing_waits_and_loses_nothing():
    post, accepted = Post(room=1, at_once=2), 0
    while post.sender.put(post.deliver(2 * accepted, 2), 0.1):
        accepted += 1
        assert accepted < 10
    assert not post.sender.put(post.deliver(2 * accepted, 2), 0.1)  # and again: nothing was taken of it
    taker = threading.Thread(target=lambda: post.take(1.0))
    taker.start()
    assert post.sender.put(post.deliver(2 * accepted, 2), 5.0)
    assert post.sender.flush(5.0)
    taker.join()
    assert held(post.shard).version.tolist() == list(range(2 * (accepted + 1)))
    assert sum(taken.steps for taken in post.taken) == 7 * (accepted + 1)


def test_news_count_once_and_a_replaced_learner_is_told_to_stop():
    ledger = NearDesk(RunCoordinator([0, 4]))

    def enter(*arguments):
        return ledger.enter.remote(*arguments).future().result(5.0)

    line = MetricsRow("train", 3, 1, {"member": 0})
    for _ in range(2):  # the answer to the first was lost
        reply = enter(0, 0, News(0, 3, [line], b"state"))
    assert (reply.slowest, reply.reason) == (3, None)
    assert enter(0, 2, News(0, 2, [line])).reason is None
    assert enter(0, 0, News(9, 50, [line])).reason == REPLACED
    found = ledger.collect.remote(0.0).future().result(5.0)
    assert (len(found.lines), found.steps, found.states) == (2, [3, 4], {0: b"state"})
    assert ledger.collect.remote(0.0).future().result(5.0).lines == []


def test_a_link_says_all_in_order_and_hears_orders_steps_and_the_end():
    ledger, stop = NearDesk(RunCoordinator([0, 9])), Stop()
    link = CoordinatorClient(ledger, 0, 0, stop, members=2, steps=0)
    for step in range(100):
        link.write("train", step, step, {"member": 0})
        link.move(step)
    link.publish(b"state")
    ledger.order.remote(0, {"exploit": 1}).future().result(5.0)
    wait_until(lambda: link.order is not None and link.slowest == 9)
    ledger.stop.remote("SIGTERM").future().result(5.0)
    wait_until(lambda: stop.reason == "SIGTERM" and stop.urgent)
    link.write("event", 100, 100, {"member": 0})
    link.close()
    found = ledger.collect.remote(0.0).future().result(5.0)
    assert [line.step for line in found.lines] == list(range(101))
    assert (found.steps, found.states) == ([99, 9], {0: b"state"})


def test_a_link_hurries_where_the_member_moves_fast_or_waits(monkeypatch):
    monkeypatch.setattr("laser_rl.cluster.coordinator_client.BEAT_S", 3600.0)
    ledger = NearDesk(RunCoordinator([0, 9]))
    link = CoordinatorClient(ledger, 0, 0, Stop(), members=2, steps=0, often=100)

    def heard():
        return ledger.collect.remote(0.0).future().result(5.0).steps[0]

    link.move(99)
    time.sleep(0.3)
    assert heard() == 0
    link.move(100)
    wait_until(lambda: heard() == 100)
    link.move(150)
    time.sleep(0.3)
    assert heard() == 100
    link.hurry()
    wait_until(lambda: heard() == 150)
    link.close()


def test_a_member_that_is_ahead_takes_nothing_until_the_others_have_come():
    class Mixer:
        def __init__(self):
            self.queued = 0

        def ready(self):
            return False

        def queue(self, packed):
            self.queued += len(packed.records)

    post, mixer = Post(room=9), Mixer()
    training = SimpleNamespace(
        member=SimpleNamespace(mixer=mixer, number=0), stop=Stop(), done=False, steps=0, acted=None
    )
    training.acted = lambda steps, episodes: setattr(training, "steps", training.steps + steps)
    hurried: list[int] = []
    link = SimpleNamespace(slowest=0, move=lambda steps: None, hurry=lambda: hurried.append(training.steps))
    intake = RemoteBatchSource(training, post.inbox, FarEnvironments(None), link, slack=10)
    for turn in range(5):
        assert post.sender.put(post.deliver(4 * turn, 4), 1.0)
        assert post.sender.flush(5.0)
    for _ in range(8):
        assert not intake.ready(0.1)
    assert (training.steps, mixer.queued) == (14, 8)  # one beyond the slack, and no more
    assert set(hurried) == {14}  # it asks for news of the others only while it waits for them
    link.slowest = 7
    for _ in range(8):
        intake.ready(0.05)
    assert training.steps == 21
    training.done = True
    with pytest.raises(Exhausted):
        intake.ready(0.1)


def filled(number, first, count, unrolls=1000):
    shard = near(number, unrolls)
    courier = ReplayWriter(lambda: shard, "s")
    assert courier.send(seal(pack(VECTOR, numbered(VECTOR, range(first, first + count))), "raw"), 5.0)
    assert courier.flush(5.0)
    return shard, courier


def test_what_is_saved_of_shards_is_read_by_one_machine_and_goes_back_to_other_shards(tmp_path):
    """Two shards of which one drops its oldest, two checkpoints; then into a `Replay`, and into three shards."""
    both = [filled(0, 0, 30), filled(3, 100, 30, unrolls=20)]
    shards = [one[0] for one in both]
    mirror = ReplayFiles(tmp_path, VECTOR, 0, lambda: shards)
    assert mirror.write() == {"first_id": 0, "next_id": 50}
    before = len(mirror.entries)
    for (_, courier), first in zip(both, (30, 130), strict=True):
        assert courier.send(seal(pack(VECTOR, numbered(VECTOR, range(first, first + 8))), "raw"), 5.0)
        assert courier.flush(5.0)
    ids = mirror.write()
    assert (ids["next_id"], ids["next_id"] - ids["first_id"]) == (66, 58)  # as many as the shards hold
    assert len(mirror.entries) == before + 2
    store = Replay(VECTOR, 1000 * VECTOR.steps, codec="raw")
    files = Segments(tmp_path, VECTOR)
    assert files.fill(store, tuple(mirror.entries), ids) is None
    found = store.export(np.arange(store.first_id, store.next_id)).version.tolist()
    assert found == [*range(8, 30), *range(110, 130), *range(30, 38), *range(130, 138)]
    others = [near(number) for number in (5, 6, 7)]
    again, spread = ReplayFiles(tmp_path, VECTOR, 0, lambda: others), Spreading(VECTOR, "raw", others)
    again.fill(spread, tuple(mirror.entries), ids)
    again.reached(spread)
    assert sorted(np.concatenate([held(shard).version for shard in others]).tolist()) == sorted(found)
    assert max(len(held(shard).version) for shard in others) <= 20
    assert again.write() == ids  # nothing is new
    assert again.entries == mirror.entries


def test_a_checkpoint_that_failed_leaves_no_trace(tmp_path):
    shard, courier = filled(0, 0, 10)
    mirror = ReplayFiles(tmp_path, VECTOR, 0, lambda: [shard])
    first = mirror.write()
    entries = list(mirror.entries)
    assert courier.send(seal(pack(VECTOR, numbered(VECTOR, range(10, 15))), "raw"), 5.0)
    assert courier.flush(5.0)
    assert mirror.write()["next_id"] == 15
    mirror.revert()
    assert mirror.entries == entries
    assert mirror.write() == {"first_id": first["first_id"], "next_id": 15}
    assert sum(entry.count for entry in mirror.entries) == 15  # those of the attempt that failed are written again
    mirror.revert()
    (tmp_path / "replay" / entries[0].name).unlink()
    mirror.write()
    mirror.revert()  # without the file of before all of it is written anew, under other numbers
    anew = mirror.write()
    assert anew["next_id"] - anew["first_id"] == 15
    assert anew["first_id"] >= 15


@pytest.mark.parametrize(
    ("cpus", "members", "runners"), [([2.0], 9, 1), ([4.0, 4.0, 3.0], 3, 3), ([1.0], 1, 1), ([64.0], 4, 4)]
)
def test_all_actors_have_room_on_the_nodes(cpus, members, runners):
    share = shares_of(cpus, [0.0] * len(cpus), members=members, runners=runners, device="cpu").cpus
    assert sum(int(own / share + 1e-9) for own in cpus) >= members * (1 + runners)
    assert share <= 1.0


def test_too_many_actors_and_missing_cards_are_refused():
    with pytest.raises(
        ConfigError, match=r"are 300 actors, the cluster has 1 cores; use fewer members or --cluster-runners"
    ):
        shares_of([1.0], [0.0], members=100, runners=2, device="auto")
    with pytest.raises(ConfigError, match=r"no node of the cluster has a GPU; use --run\.device cpu$"):
        shares_of([8.0], [0.0], members=1, runners=2, device="cuda")
    assert MOST_A_CORE < 300


@pytest.mark.parametrize(
    ("sweep", "settings", "runners", "what_to_do"),
    [
        ({"processes": 2}, {}, 1, "leave out one of the two$"),
        ({"stack": "on"}, {}, 1, "leave out --stack$"),
        ({}, {"replay.sampling": "prioritised"}, 1, "use --replay.sampling uniform$"),
        ({}, {"memory": "lstm"}, 1, "leave out --cluster$"),
        ({}, {"slots": 3}, 4, "4 runners cannot share the 3 slots of a member; use --cluster-runners 1 or fewer"),
        ({}, {"run.runtime": "serial"}, 2, "in lock-step .* use --runtime local$"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused_before_anything_starts(sweep, settings, runners, what_to_do):
    base = override(small("laser/Catch", **{"run.runtime": "local"}), settings)
    config = SweepConfig(base=base, grid={"learning_rate": [1e-3]}, **sweep)
    with pytest.raises(ConfigError, match=what_to_do):
        require_possible(config, ClusterSettings(runners=runners))
    require_possible(SweepConfig(base=small("laser/Catch"), grid={"learning_rate": [1e-3]}), ClusterSettings())


class Mortal:
    """An actor that dies at once."""

    def __init__(self, life):
        self.life = life

    def __getattr__(self, name):
        future = concurrent.futures.Future()
        if name == "run":
            future.set_exception(ShardLost(f"life {self.life} is over"))
        else:
            future.set_result(100 + self.life)
        return SimpleNamespace(remote=lambda: SimpleNamespace(future=lambda: future))


def test_an_actor_that_dies_again_and_again_is_started_later_and_later_and_then_no_more(monkeypatch):
    monkeypatch.setattr("laser_rl.cluster.supervised_actor.PAUSE_S", 0.05)
    monkeypatch.setattr("laser_rl.cluster.supervised_actor.RayAnswer", lambda reference: reference.future())
    monkeypatch.setattr("laser_rl.cluster.supervised_actor.ray", lambda: SimpleNamespace(kill=lambda *_, **__: None))
    hosted, moments = SupervisedActor("runner 0 of member 0", Mortal), []
    for life in range(MOST_RESTARTS + 1):
        wait_until(lambda: hosted.ended() is not None)
        moments.append(time.monotonic())
        assert (hosted.pid, hosted.ended().status) == (100 + life, KILLED)
        if life < MOST_RESTARTS:
            hosted.restart(hosted.ended(), steps=7)
    with pytest.raises(
        ProcessDied, match="6 times without a step of its member in between: life 5 is over; 'laser resume'"
    ):
        hosted.restart(hosted.ended(), steps=7)
    pauses = np.diff(moments)
    assert all(pauses[1:] >= 0.05 * 2.0 ** np.arange(1, MOST_RESTARTS))
    hosted.restart(hosted.ended(), steps=8)  # with a step in between it is started at once
    assert hosted.restarts == 1


def test_what_looks_for_gaps_and_doubles_after_kills_finds_them():
    """What `test_cluster_faults` says of shards is worth something: here one unroll is taken out, and one is put in again."""
    _, training = finish(small("tests.envs.samples:Telltale", steps=600, slots=2, capacity_steps=6_000))
    store = training.member.replay
    whole = store.export(np.arange(store.first_id, store.next_id))
    names, anew = examine(whole)
    assert (len(names), anew) == (len(set(names)), 0)
    late = len(names) // 2
    with pytest.raises(AssertionError, match="a gap in the stream of slot"):
        examine(take(whole, [n for n in range(len(names)) if n != late]))
    again, _ = examine(take(whole, [late]))
    assert again[0] in names


def wait_until(holds, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
