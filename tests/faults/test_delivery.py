"""Writers are killed at any moment: what was acknowledged is in the replay once, in order, and a successor adds to it."""

import os
import signal
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from laser_rl.replay.shared import HOLDER, UNSETTLED
from laser_rl.replay.store import Replay
from laser_rl.training.build_group import build_group
from laser_rl.training.directory import RunDirectory
from laser_rl.training.settings import SweepConfig
from laser_rl.training.supervisor import ProcessSupervisor
from laser_rl.training.trainer import Trainer
from laser_rl.types import UnrollLayout, empty_unrolls
from tests.replay import test_shared
from tests.replay.test_shared import Child, codecs, everything, nursery, serve, state_of, wait_until
from tests.training.small import small

__all__ = ["nursery", "serve"]  # a fixture, and what its process runs
LAYOUT = UnrollLayout(2, 0, (4,), "float32", (), "int64", 2)
WRITERS, AT_ONCE = 4, 12


def block(member, first, count):
    """Unrolls that say which writer sent them, and as which."""
    unrolls = empty_unrolls(LAYOUT, count)
    unrolls.member[:] = member
    unrolls.version[:] = unrolls.episode[:] = np.arange(first, first + count)
    unrolls.observation[:] = unrolls.version[:, None, None]
    return unrolls


def send(store, stopped, member, start, count, file):
    """Blocks of different sizes from `start` on, as far as is allowed. How far it has come is written down after each: maybe too late."""
    random, at = np.random.default_rng([member, start]), start
    with Path(file).open("r+b", buffering=0) as known:
        while at < count and not stopped():
            allowed = struct.unpack("q", os.pread(known.fileno(), 8, 8 * WRITERS))[0]
            size = min(allowed - at, int(random.integers(1, AT_ONCE + 1)))
            if size > 0:
                ids = store.insert(block(member, at, size))
                assert ids.tolist() == list(range(ids[0], ids[0] + size))
                at += size
                os.pwrite(known.fileno(), struct.pack("q", at), 8 * member)
            else:
                time.sleep(0.0005)
    return at


send.layout = LAYOUT
test_shared.ROLES["send"] = send


class Post:
    """Writers, and what each is known to have delivered."""

    def __init__(self, nursery, store, count, file):
        self.nursery, self.store, self.count, self.file = nursery, store, count, file
        file.write_bytes(bytes(8 * WRITERS + 8))
        self.unacknowledged = self.in_the_middle = 0
        self.children = [self._start(member, 0) for member in range(WRITERS)]

    def _start(self, member, start):
        return Child(self.nursery, self.store, "send", member, start, self.count, str(self.file))

    def allow(self, each):
        self._note(WRITERS, each)

    def _note(self, place, number):
        with self.file.open("r+b", buffering=0) as known:
            os.pwrite(known.fileno(), struct.pack("q", number), 8 * place)

    def acknowledged(self, member):
        return struct.unpack_from("q", self.file.read_bytes(), 8 * member)[0]

    def stop(self, member):
        pid, words = self.children[member].pid, self.store._room.words
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: state_of(pid) == "T")
        return bool(words[HOLDER] == pid and words[UNSETTLED])

    def kill(self, member, allowed, random):
        """Within an insert if that can be had; its successor begins after all that came in, acknowledged or not."""
        inside, child = self.stop(member), self.children[member]
        self.allow(allowed)
        while not inside and self.acknowledged(member) < allowed:
            os.kill(child.pid, signal.SIGCONT)
            time.sleep(random.exponential(0.0003))
            inside = self.stop(member)
        self.in_the_middle += inside
        child.kill()
        held = self.store.fields(everything(self.store), ["member", "version"])
        own = held["version"][held["member"] == member].tolist()
        assert own == list(range(len(own)))
        assert len(own) >= self.acknowledged(member)  # none of those that were acknowledged is missing
        self.unacknowledged += len(own) - self.acknowledged(member)
        self._note(member, len(own))  # else all could wait for ever for one that has nothing left to send
        self.children[member] = self._start(member, len(own))


def deliver(nursery, codec, count, kills, file):
    store = Replay(LAYOUT, 2 * WRITERS * count * LAYOUT.steps, codec=codec, budget_bytes=10**8, shared=True)
    post, random = Post(nursery, store, count, file), np.random.default_rng(2)
    for killed in range(kills):
        # Evenly over the whole delivery: nobody is at its end before the last kill, and nobody far behind.
        before, allowed = (count * number // (kills + 1) for number in (killed, killed + 1))
        wait_until(lambda at=before: min(map(post.acknowledged, range(WRITERS))) >= at)
        post.kill(int(random.integers(WRITERS)), allowed, random)
    post.allow(count)
    assert [child.report() for child in post.children] == [count] * WRITERS
    return store, post


def check(store, count):
    """Everything once, by what the unrolls say themselves."""
    held = store.export(everything(store))
    assert len(held.member) == store.next_id == WRITERS * count
    for member in range(WRITERS):
        assert held.version[held.member == member].tolist() == list(range(count))
    assert (held.observation == held.version[:, None, None]).all()


@pytest.mark.fault(22)
@codecs
def test_what_came_before_a_kill_is_in_once(nursery, codec, tmp_path):
    store, _ = deliver(nursery, codec, 500, 8, tmp_path / "acknowledged")
    check(store, 500)


@pytest.mark.slow
@pytest.mark.fault(22)
@codecs
def test_fifty_kills_and_twenty_thousand_unrolls(nursery, codec, tmp_path, figure):
    store, post = deliver(nursery, codec, 5000, 50, tmp_path / "acknowledged")
    check(store, 5000)
    assert post.in_the_middle > 0
    figure(
        f"{codec}: 50 kills ({post.in_the_middle} within an insert), {store.next_id:,} unrolls, {post.unacknowledged} in without "
        "an acknowledgement, 0 twice, 0 gaps among those acknowledged"
    )


def never_learning(**more):
    base = small("laser/Catch", capacity_steps=60_000, warmup_steps=50_000, checkpoint_every_steps=0, **more)
    return SweepConfig(base=base, grid={"learning_rate": [5e-4, 1e-3, 2e-3, 4e-3]}, processes=2)


def twice(store):
    """How many unrolls are in the store again, byte for byte."""
    held = store.export(everything(store))
    seen = {b"".join(field[i].tobytes() for field in held) for i in range(len(held.member))}
    return len(held.member) - len(seen)


@pytest.mark.fault(22)
@pytest.mark.parametrize("stack", ["on", "off"])
def test_who_goes_on_for_a_dead_process_plays_other_episodes(stack):
    """Parameters are the same before the first update is published: with the same seeds all would be the same again."""
    config = never_learning().model_copy(update={"stack": stack})
    store, begun = None, 0
    for _ in range(3):
        crew = build_group(config, stores=None if store is None else [store] * 4, begun=begun)
        training = Trainer(config, crew)
        crew.begin()
        for _ in range(40):
            training.turn()
        crew.close()
        store, begun = crew.members[0].replay, begun + sum(one.steps for one in training.trainings)
    assert store.next_id > 200
    assert twice(store) == 0


@pytest.mark.slow
@pytest.mark.fault(22)
def test_processes_killed_soon_put_nothing_into_the_replay_twice(tmp_path, figure):
    config, killed = never_learning(steps=1_200), []
    directory = RunDirectory(tmp_path, config)
    supervisor = ProcessSupervisor(config, directory, 2)
    look = supervisor._look

    def watched():
        victim = supervisor.processes[len(killed) % 2]
        if len(killed) < 5 and supervisor.board.steps.min() > 200 * len(killed) + 100:
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)
        return look()

    supervisor._look = watched
    try:
        supervisor.run()
    finally:
        directory.close()
    store = supervisor.members[0].replay
    assert twice(store) == 0
    figure(f"{len(killed)} kills of a sweep's processes, {store.next_id:,} unrolls, 0 twice")
