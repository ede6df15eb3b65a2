"""Runners, learners and checkpoints of a cluster without Ray: what is handed over arrives once, and what is saved comes back."""

import concurrent.futures
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from laser_rl.cluster import calls, channels, placement
from laser_rl.cluster.calls import ActorGone, Answer, AnswerLost
from laser_rl.cluster.channels import LearnerLinks, RemoteLearner, RunnerInbox, SupervisorLink
from laser_rl.cluster.launch import require_possible
from laser_rl.cluster.learner_actor import RemoteActor, RemoteBatchSource
from laser_rl.cluster.placement import KILLED, MOST_A_CORE, SupervisedActor, shares_of
from laser_rl.cluster.replays import ReplayFiles, ShardFiller
from laser_rl.cluster.runner import ActorStart, ReplayWriter, RunnerOutbox
from laser_rl.cluster.shard import ShardPlan
from laser_rl.config import override
from laser_rl.errors import ConfigError
from laser_rl.replay.encoded_unrolls import seal
from laser_rl.replay.memory_layout import pack
from laser_rl.replay.prefetcher import Exhausted
from laser_rl.replay.store import Replay
from laser_rl.training.process_handle import MOST_RESTARTS, ProcessDied
from laser_rl.training.saving import Segments
from laser_rl.training.settings import ClusterSettings, SweepConfig
from laser_rl.training.stop import Stop
from laser_rl.types import Delivery, Episode
from tests.cluster.raylets import NearActor, NearShard, send
from tests.cluster.test_cluster_faults import examine
from tests.replay.inputs import VECTOR, numbered, take
from tests.training.small import finish, small


def near(number, unrolls=1000):
    return NearShard(ShardPlan(VECTOR, unrolls * VECTOR.steps, number, codec="raw", budget_bytes=10**7))


class Post:
    """A runner's outbox, its shard, and a learner with little room."""

    def __init__(self, room=2, at_once=4, **more):
        self.shard, self.inbox = near(0), RunnerInbox(room, VECTOR)
        writer, learner = ReplayWriter(lambda: [self.shard], "runner"), RemoteLearner(NearActor(self.inbox))
        self.sender = RunnerOutbox(writer, learner, "runner", VECTOR, "raw", at_once=at_once, **more)
        self.taken, self.unrolls = [], 0

    def deliver(self, first, count, steps=7):
        unrolls = numbered(VECTOR, range(first, first + count))
        return Delivery(unrolls, [Episode(0, 3, float(first))], steps)

    def take(self, timeout_s=0.2):
        while (taken := self.inbox.take(timeout_s)) is not None:
            self.unrolls += len(taken[0].records)
            self.taken.append(taken[1])


def test_a_runner_takes_what_its_learner_has_become_though_no_update_lies_between():
    inbox, mine = RunnerInbox(2, VECTOR), torch.zeros(3)
    learner = RemoteLearner(NearActor(inbox), in_step=True)
    found, acting = [], -1
    for version, value in ((0, 1.0), (0, 2.0), (1, 3.0)):  # the second is a copy of a peer, or a trial that begins
        inbox.publish(torch.full((3,), value), version)
        acting = learner.collect(mine, acting)
        found.append((acting, mine.tolist()))
    assert found == [(0, [1.0] * 3), (0, [2.0] * 3), (1, [3.0] * 3)]
    mine.zero_()
    assert learner.collect(mine, 1) == 1
    assert mine.tolist() == [0.0] * 3  # nothing is taken twice


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
    assert post.shard.held().version.tolist() == list(range(sent))
    assert (post.shard.held().slot == numbered(VECTOR, range(sent)).slot + 5).all()
    assert sum(taken.steps for taken in post.taken) == 30 * 7
    assert sum(taken.faults.get("restarts", 0) for taken in post.taken) == 2
    assert sum(taken.encoded.unrolls for taken in post.taken) == post.unrolls == sent
    assert [one.slot for taken in post.taken for one in taken.episodes] == [5] * 30
    assert len(post.taken) < 30  # many at a time


def test_streams_lead_to_the_shards_in_turn():
    """Six runners of three members, on whichever nodes: two to each shard, and no member has more of the replay than another."""
    shards = [near(number) for number in range(3)]
    one = seal(pack(VECTOR, numbered(VECTOR, [0])), "raw")
    assert all(ReplayWriter(lambda: shards, f"stream {place}", place).send(one, 5.0) for place in range(6))
    assert [len(shard.held().version) for shard in shards] == [2, 2, 2]
    assert not ReplayWriter(list, "without a shard").send(one, 0.01)


def test_runners_share_the_slots_of_a_member():
    sweep = SweepConfig(base=override(small("laser/Catch"), {"slots": 8}), grid={"learning_rate": (1e-3,)})
    starts = [ActorStart(sweep, VECTOR, runners=3, slack=0, in_step=False, runner=runner) for runner in range(3)]
    assert [start.slots for start in starts] == [range(3), range(3, 6), range(6, 8)]


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
    assert post.shard.held().version.tolist() == list(range(2 * (accepted + 1)))
    assert sum(taken.steps for taken in post.taken) == 7 * (accepted + 1)


def linked(own, steps):
    """The supervisor's side, with one learner."""
    links = LearnerLinks(steps)
    links.connect(0, NearActor(own))
    return links


def gathered(links, enough):
    """All that is collected until there is enough."""
    rows, states, steps = [], {}, []

    def collect():
        nonlocal steps
        more, steps, new = links.collect()
        rows.extend(more)
        states.update(new)
        return enough(rows, steps, states)

    wait_until(collect)
    return rows, steps, states


def test_a_learner_tells_all_in_order_and_hears_orders_steps_shards_and_the_end():
    stop = Stop()
    own = SupervisorLink(stop, members=2, steps=0)
    links = linked(own, [0, 9])
    for step in range(100):
        own.write("train", step, step, {"member": 0})
        own.move(step)
    own.publish(b"state")
    links.orders[0] = {"exploit": 1}
    links.shards[0] = (3, ["A", "B"])
    wait_until(lambda: own.order is not None and own.slowest == 9 and own.shards == (3, ["A", "B"]))
    links.reason = "SIGTERM"
    wait_until(lambda: stop.reason == "SIGTERM" and stop.urgent)
    own.write("event", 100, 100, {"member": 0})
    own.close()  # waits until the supervisor has it
    rows, *others = links.collect()
    assert [step for _, step, *_ in rows] == list(range(101))
    assert others == [[99, 9], {0: b"state"}]
    links.close()


def test_news_count_once_although_answers_are_lost(monkeypatch):
    own, dice, result = SupervisorLink(Stop(), members=1, steps=0), np.random.default_rng(3), Answer.result

    def lossy(answer, timeout):
        found = result(answer, timeout)  # it was carried out
        if dice.random() < 0.5:
            raise AnswerLost("on the way back")
        return found

    monkeypatch.setattr(Answer, "result", lossy)
    monkeypatch.setattr(channels, "HURRY_S", 0.0)
    links = linked(own, [0])
    for step in range(300):
        own.write("train", step, step, {})
        own.hurry()
        time.sleep(0.001)
    own.close()
    rows, _, _ = links.collect()
    assert [step for _, step, *_ in rows] == list(range(300))
    links.close()


def test_news_of_a_learner_that_was_replaced_are_not_heard():
    old, new = (SupervisorLink(Stop(), members=1, steps=0) for _ in range(2))
    links = linked(old, [0])
    old.move(5)
    gathered(links, lambda rows, steps, states: steps == [5])
    links.connect(0, NearActor(new))
    old.write("train", 50, 50, {})
    old.move(50)
    new.write("train", 6, 6, {})
    rows, *_ = gathered(links, lambda rows, steps, states: rows)
    time.sleep(0.3)
    assert ([step for _, step, *_ in rows], links.collect()[1]) == ([6], [5])
    links.close()


def test_a_learner_hurries_where_the_member_moves_fast_or_waits(monkeypatch):
    monkeypatch.setattr(channels, "NEWS_S", 3600.0)
    own = SupervisorLink(Stop(), members=2, steps=0, often=100)
    links = linked(own, [0, 9])

    def heard():
        return links.collect()[1][0]

    own.move(99)
    time.sleep(0.3)
    assert heard() == 0
    own.move(100)
    wait_until(lambda: heard() == 100)
    own.move(150)
    time.sleep(0.3)
    assert heard() == 100
    own.hurry()
    wait_until(lambda: heard() == 150)
    own.hurry()
    links.close()


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
    others = SimpleNamespace(slowest=0, move=lambda steps: None, hurry=lambda: hurried.append(training.steps))
    intake = RemoteBatchSource(training, post.inbox, RemoteActor(0), others, slack=10)
    for turn in range(5):
        assert post.sender.put(post.deliver(4 * turn, 4), 1.0)
        assert post.sender.flush(5.0)
    for _ in range(8):
        assert not intake.ready(0.1)
    assert (training.steps, mixer.queued) == (14, 8)  # one beyond the slack, and no more
    assert set(hurried) == {14}  # it asks for news of the others only while it waits for them
    others.slowest = 7
    for _ in range(8):
        intake.ready(0.05)
    assert training.steps == 21
    training.done = True
    with pytest.raises(Exhausted):
        intake.ready(0.1)


def filled(number, first, count, unrolls=1000):
    shard = near(number, unrolls)
    more(shard, first, count)
    return shard


def more(shard, first, count):
    send(shard, seal(pack(VECTOR, numbered(VECTOR, range(first, first + count))), "raw"), number=first)


def test_what_is_saved_of_shards_is_read_by_one_machine_and_goes_back_to_other_shards(tmp_path):
    """Two shards of which one drops its oldest, two checkpoints; then into a `Replay`, and into three shards."""
    shards = [filled(0, 0, 30), filled(3, 100, 30, unrolls=20)]
    files = ReplayFiles(tmp_path, VECTOR, 0, lambda: shards)
    assert files.write() == {"first_id": 0, "next_id": 50}
    before = len(files.entries)
    for shard, first in zip(shards, (30, 130), strict=True):
        more(shard, first, 8)
    ids = files.write()
    assert (ids["next_id"], ids["next_id"] - ids["first_id"]) == (66, 58)  # as many as the shards hold
    assert len(files.entries) == before + 2
    store = Replay(VECTOR, 1000 * VECTOR.steps, codec="raw")
    assert Segments(tmp_path, VECTOR).fill(store, tuple(files.entries), ids) is None
    found = store.export(np.arange(store.first_id, store.next_id)).version.tolist()
    assert found == [*range(8, 30), *range(110, 130), *range(30, 38), *range(130, 138)]
    others = [near(number) for number in (5, 6, 7)]
    again, spread = ReplayFiles(tmp_path, VECTOR, 0, lambda: others), ShardFiller(VECTOR, "raw", others)
    again.fill(spread, tuple(files.entries), ids)
    assert sorted(np.concatenate([shard.held().version for shard in others]).tolist()) == sorted(found)
    assert max(len(shard.held().version) for shard in others) <= 20
    assert again.write() == ids  # nothing is new
    assert again.entries == files.entries


def test_a_checkpoint_that_failed_leaves_no_trace(tmp_path):
    shard = filled(0, 0, 10)
    files = ReplayFiles(tmp_path, VECTOR, 0, lambda: [shard])
    files.revert()  # the files of another store could not be written, before it was the turn of these
    first = files.write()
    entries = list(files.entries)
    more(shard, 10, 5)
    assert files.write()["next_id"] == 15
    files.revert()
    assert files.entries == entries
    assert files.write() == {"first_id": first["first_id"], "next_id": 15}
    assert sum(entry.count for entry in files.entries) == 15  # those of the attempt that failed are written again
    files.revert()
    (tmp_path / "replay" / entries[0].name).unlink()
    files.write()
    files.revert()  # without the file of before all of it is written anew, under other numbers
    anew = files.write()
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
        future.set_exception(ActorGone(f"life {self.life} is over"))
        return SimpleNamespace(remote=lambda: SimpleNamespace(future=lambda: future))


def test_an_actor_that_dies_again_and_again_is_started_later_and_later_and_then_no_more(monkeypatch):
    monkeypatch.setattr(calls, "PAUSE_S", 0.05)
    monkeypatch.setattr(placement, "kill", lambda actor: None)
    hosted, moments = SupervisedActor("runner 0 of member 0", Mortal), []
    for life in range(MOST_RESTARTS + 1):
        wait_until(lambda: hosted.ended() is not None)
        moments.append(time.monotonic())
        assert (hosted.life, hosted.ended().status) == (life, KILLED)
        if life < MOST_RESTARTS:
            hosted.restart(hosted.ended(), steps=7)
    with pytest.raises(
        ProcessDied, match="6 times without a step of its member in between: life 5 is over; 'laser resume'"
    ):
        hosted.restart(hosted.ended(), steps=7)
    pauses = np.diff(moments)
    assert all(pauses[1:] >= 0.05 * 2.0 ** np.arange(1, MOST_RESTARTS))
    hosted.restart(hosted.ended(), steps=8)  # with a step in between it is started at once
    assert hosted.deaths.in_a_row == 1


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
