"""One suite for all that carries the core: in a thread, in processes, and on Ray, where "near" is the code of Ray's ports without Ray."""

import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from laser_rl.cluster import channels as ports
from laser_rl.cluster.calls import Answer, AnswerLost, awaited
from laser_rl.cluster.channels import RUNNERS, RemoteLearner, RunnerInbox
from laser_rl.cluster.runner import RunnerOutbox
from laser_rl.cluster.shard import ShardClient, ShardPlan
from laser_rl.cluster.sharded import SHARD_BITS, ShardedReplay
from laser_rl.replay.encoded_unrolls import seal
from laser_rl.replay.memory_layout import allocate, pack, unpack
from laser_rl.replay.store import Replay
from laser_rl.training.member_group import ThreadMailbox
from laser_rl.training.stop import Stop
from laser_rl.training.threads import ThreadInbox
from laser_rl.types import Delivery, Episode
from tests.cluster.raylets import NearActor, NearRay, NearShard, needs_ray, send, start_inbox, three_raylets
from tests.replay.inputs import STACKED, VECTOR, assert_same, numbered

ON_RAY = pytest.param("ray", marks=[pytest.mark.slow, needs_ray])
ROOM = 3
CARRIERS = pytest.mark.parametrize("carrier", ["thread", "near", ON_RAY])


def wait_until(holds, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


@pytest.fixture
def learner(carrier, monkeypatch):
    """The actor of a learner, as far as runners call it; none between threads."""
    if carrier == "thread":
        yield None
    elif carrier == "near":
        monkeypatch.setattr(ports, "ray", lambda: NearRay)
        yield NearActor(RunnerInbox(ROOM, STACKED))
    else:
        raylets = three_raylets()
        made = start_inbox(ROOM, STACKED)
        yield made
        raylets.ray.kill(made)


def called(learner, method, *arguments):
    """What the learner itself does in its process."""
    remote = getattr(learner, method).options(concurrency_group=RUNNERS).remote
    return awaited(Answer(remote(*arguments)), "the test", f"the learner to {method}")


# --- inbox


class Outbox:
    """A runner's, whose `put` waits until the learner has the delivery."""

    def __init__(self, learner, name):
        self._outbox = RunnerOutbox(None, RemoteLearner(learner), name, STACKED, "raw", at_once=1)
        self._held = None

    def put(self, delivery, timeout_s):
        if self._held != delivery.steps:  # otherwise it is on its way already
            assert self._outbox.put(delivery, timeout_s)
        there = self._outbox.flush(timeout_s)
        self._held = None if there else delivery.steps
        return there


class Inbox:
    """A learner's, whose unrolls are as they were before they were sent."""

    def __init__(self, learner):
        self._learner = learner

    def take(self, timeout_s):
        taken = called(self._learner, "take", timeout_s)
        return None if taken is None else Delivery(unpack(STACKED, taken[0]), taken[1].episodes, taken[1].steps)


@pytest.fixture
def inbox(carrier, learner):
    """A function that gives another sender, and the taker."""
    if carrier == "thread":
        only = ThreadInbox(ROOM)
        return lambda name: only, only
    return lambda name: Outbox(learner, name), Inbox(learner)


def delivery(number):
    return Delivery(numbered(STACKED, [number, number + 1000]), [Episode(number, 7, 0.5)], number)


@CARRIERS
def test_deliveries_come_whole_and_in_order(inbox):
    sender, taker = inbox[0]("a"), inbox[1]
    for number in range(ROOM):
        assert sender.put(delivery(number), 5.0)
    for number in range(ROOM):
        taken = taker.take(5.0)
        assert (taken.steps, taken.episodes) == (number, delivery(number).episodes)
        assert_same(taken.unrolls, delivery(number).unrolls)
        assert sender.put(delivery(ROOM + number), 5.0)
    assert [taker.take(5.0).steps for _ in range(ROOM)] == list(range(ROOM, 2 * ROOM))


@CARRIERS
def test_a_full_inbox_takes_nothing_and_loses_nothing(inbox):
    sender, taker = inbox[0]("a"), inbox[1]
    for number in range(ROOM):
        assert sender.put(delivery(number), 5.0)
    begin = time.monotonic()
    assert not sender.put(delivery(ROOM), 0.1)
    assert time.monotonic() - begin >= 0.09
    assert taker.take(5.0).steps == 0
    assert sender.put(delivery(ROOM), 5.0)
    assert [taker.take(5.0).steps for _ in range(ROOM)] == [1, 2, 3]


@CARRIERS
def test_an_empty_inbox_gives_nothing_in_time_and_goes_on(inbox):
    sender, taker = inbox[0]("a"), inbox[1]
    begin = time.monotonic()
    assert taker.take(0.1) is None
    assert 0.09 <= time.monotonic() - begin < 5
    assert taker.take(0.0) is None
    assert sender.put(delivery(8), 5.0)
    assert taker.take(5.0).steps == 8
    assert taker.take(0.05) is None


@CARRIERS
def test_who_waits_for_room_gets_it_and_several_senders_each_keep_their_order(inbox):
    senders, taker, count = [inbox[0](name) for name in "abc"], inbox[1], 12

    def send(who, sender):
        for number in range(count):
            while not sender.put(Delivery(numbered(STACKED, [number]), [], 100 * who + number), 0.2):
                pass

    threads = [threading.Thread(target=send, args=one, daemon=True) for one in enumerate(senders)]
    for thread in threads:
        thread.start()
    steps = [wait_until(lambda: taker.take(0.5)).steps for _ in range(3 * count)]
    for thread in threads:
        thread.join(20)
    assert taker.take(0.05) is None
    for who in range(3):
        assert [step % 100 for step in steps if step // 100 == who] == list(range(count))


@pytest.mark.parametrize("carrier", ["near", ON_RAY])
def test_a_delivery_whose_answer_was_lost_is_in_once(inbox, monkeypatch):
    sender, taker, result = inbox[0]("a"), inbox[1], Answer.result

    def lost(answer, timeout):
        assert result(answer, timeout)  # it was carried out
        raise AnswerLost("on the way back")

    with monkeypatch.context() as patched:
        patched.setattr(Answer, "result", lost)
        assert not sender.put(delivery(5), 5.0)
    assert sender.put(delivery(5), 5.0)
    assert sender.put(delivery(6), 5.0)
    assert [taker.take(5.0).steps for _ in range(2)] == [5, 6]
    assert taker.take(0.05) is None


# --- mailbox


@pytest.fixture
def mailbox(carrier, learner, in_step):
    """The learner's, and a function that gives another actor's."""
    if carrier == "thread":
        only = ThreadMailbox(torch.full((1000,), -1.0), -1)
        return only, lambda: only
    return SimpleNamespace(publish=partial(called, learner, "publish")), partial(
        RemoteLearner, learner, in_step=in_step
    )


IN_STEP = [("thread", True), ("near", True), pytest.param("ray", True, marks=[pytest.mark.slow, needs_ray])]
OVERLAPPING = [("near", False), pytest.param("ray", False, marks=[pytest.mark.slow, needs_ray])]
MAILBOXES = pytest.mark.parametrize(("carrier", "in_step"), IN_STEP + OVERLAPPING)


def collected(mailbox, into, newer_than):
    """Those that are published by now; without lock-step they may take a moment."""
    return wait_until(lambda: max(0, mailbox.collect(into, newer_than) - newer_than)) + newer_than


@MAILBOXES
def test_only_the_newest_parameters_count(mailbox):
    learner, actor, into = mailbox[0], mailbox[1](), torch.zeros(1000)
    assert actor.collect(into, -1) == -1
    for version in range(5):
        learner.publish(torch.full((1000,), float(version)), version)
    wait_until(lambda: actor.collect(into, -1) == 4 or (into == 4).all())
    assert (into == 4).all()
    into.zero_()
    assert actor.collect(into, 4) == 4
    assert not into.any()  # nothing newer: left as it is
    learner.publish(torch.full((1000,), 9.0), 9)
    assert collected(actor, into, 4) == 9
    assert (into == 9).all()


@pytest.mark.parametrize(("carrier", "in_step"), IN_STEP)
def test_in_lock_step_what_is_published_is_there_at_once(mailbox):
    learner, actor, into = mailbox[0], mailbox[1](), torch.zeros(1000)
    for version in range(20):
        learner.publish(torch.full((1000,), float(version)), version)
        assert actor.collect(into, version - 1) == version
        assert (into == version).all()


@MAILBOXES
def test_what_is_published_is_a_copy(mailbox):
    learner, actor, into, parameters = mailbox[0], mailbox[1](), torch.zeros(1000), torch.full((1000,), 3.0)
    learner.publish(parameters, 3)
    parameters.fill_(4.0)
    assert collected(actor, into, 0) == 3
    assert (into == 3).all()
    into.fill_(5.0)  # and so is what is collected
    other = torch.zeros(1000)
    assert collected(mailbox[1](), other, 0) == 3
    assert (other == 3).all()


@MAILBOXES
def test_no_reader_ever_sees_half_of_two_versions(mailbox):
    learner, ended, torn, seen = mailbox[0], threading.Event(), [], set()

    def read():
        actor, into, version = mailbox[1](), torch.zeros(1000), 0
        while not ended.is_set():
            version = actor.collect(into, version)
            if len(set(into.tolist())) > 1 or (version and int(into[0]) != version):
                torn.append((version, into.clone()))
            seen.add(version)

    threads = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for version in range(1, 120):
        learner.publish(torch.full((1000,), float(version)), version)
    wait_until(lambda: 119 in seen)
    ended.set()
    for thread in threads:
        thread.join(20)
    assert not torn
    assert len(seen) > 1


# --- stop


@CARRIERS
def test_runners_hear_the_reason_to_stop(carrier, learner):
    if carrier == "thread":
        stop = Stop()
        runners, request = [stop, stop], stop.request
    else:
        runners, request = [RemoteLearner(learner) for _ in range(2)], partial(called, learner, "stop")
    assert [runner.reason for runner in runners] == [None, None]
    request("the first")
    assert [wait_until(lambda one=one: one.reason) for one in runners] == ["the first"] * 2


# --- store


class ThreeWriters:
    """One sharded replay: three runners insert into its shards in turn."""

    def __init__(self, shards):
        self._shards, self._turn, self._sent = shards, 0, [0, 0, 0]
        self._view = ShardedReplay(VECTOR, lambda: shards, ahead=0)
        self.sample_into, self.capacity = self._view.sample_into, self._view.capacity

    def __len__(self):
        return len(self._view)

    def insert(self, unrolls):
        self._turn += 1
        at = self._turn % 3
        encoded, begin = seal(pack(VECTOR, unrolls), "raw"), self._sent[at]
        send(self._shards[at], encoded, number=begin)
        self._sent[at] += encoded.unrolls
        return (self._shards[at].number << SHARD_BITS) + np.arange(begin, begin + encoded.unrolls)


@pytest.fixture
def store(kind):
    capacity = 30 * VECTOR.steps
    if kind == "private":
        return Replay(VECTOR, capacity)
    if kind == "process":
        made = Replay(VECTOR, capacity, shared=True)
        attached = Replay.attach(VECTOR, made.handle())
        attached.maker = made  # its file stays open as long as it exists
        return attached
    plans = [ShardPlan(VECTOR, capacity // 3, number) for number in range(3)]
    if kind == "sharded":
        shards = [NearShard(plan) for plan in plans]
    else:
        shards = [ShardClient.start(plan, node) for plan, node in zip(plans, three_raylets().nodes(), strict=True)]
    return ThreeWriters(shards)


KINDS = pytest.mark.parametrize("kind", ["private", "process", "sharded", ON_RAY])


@KINDS
def test_a_store_gives_names_and_fills_the_columns_that_it_is_asked_for(store):
    ids = np.concatenate([store.insert(numbered(VECTOR, range(at, at + 3))) for at in range(0, 9, 3)])
    assert len(set(ids.tolist())) == len(store) == 9
    batch = allocate(VECTOR, 20)
    batch.version[:] = -1
    drawn = store.sample_into(12, np.random.default_rng(0), batch, 3)
    assert (batch.version[:3] == -1).all()
    assert (batch.version[15:] == -1).all()
    assert dict(zip(ids.tolist(), range(9), strict=True))[int(drawn[4])] == int(batch.version[7])
    assert batch.id[3:15].tolist() == drawn.tolist()


@KINDS
def test_draws_are_uniform_over_everything_held(store):
    for at in range(0, 24, 2):
        store.insert(numbered(VECTOR, range(at, at + 2)))
    batch, random, counts = allocate(VECTOR, 240), np.random.default_rng(1), np.zeros(24, np.int64)
    for _ in range(10):
        store.sample_into(240, random, batch, 0)
        counts += np.bincount(batch.version.numpy(), minlength=24)
    assert stats.chisquare(counts).pvalue > 0.001


@KINDS
def test_the_oldest_leave(store):
    for at in range(0, 300, 2):
        store.insert(numbered(VECTOR, range(at, at + 2)))
    batch = allocate(VECTOR, 200)
    store.sample_into(200, np.random.default_rng(1), batch, 0)
    assert len(store) == store.capacity == 30
    assert batch.version.min() >= 270
    assert batch.version.max() == 299


@KINDS
def test_what_is_malformed_is_refused_and_nothing_is_added(store):
    unrolls = numbered(VECTOR, range(2))
    unrolls.reward[0, 0] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        store.insert(unrolls)
    assert len(store) == 0
